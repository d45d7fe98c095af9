"""Deletes what lies below a folder, and what killed processes left there: temporary files, uploads in parts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

from airflow_streamstate.errors import InvalidRequestError, UnavailableError
from airflow_streamstate.store.base import TEMPORARY_PREFIX, HoldsMarkers, HoldsUploads, Store
from airflow_streamstate.store.folder_lock import LOCK_NAME
from airflow_streamstate.store.local import LocalStore, disk_errors
from airflow_streamstate.store.transfer import delete_many, keys_below

STALE_SECONDS = 86_400.0
STALE_UPLOAD_SECONDS = 7 * 86_400.0
"""Since it began, as no server tells whether parts still arrive: the upload of the largest file may take so long."""


def left_temporaries(store: Store, folder: str, before: datetime) -> Iterator[Path]:
    """The store's own temporary files below a folder that were last written before a moment; only a disk has any."""
    if not isinstance(store, LocalStore):
        return
    for place, _, names in os.walk(store.path_of(folder)):
        for name in names:
            if name.startswith(TEMPORARY_PREFIX) and name != LOCK_NAME:
                path = Path(place) / name
                with suppress(OSError):
                    if path.lstat().st_mtime < before.timestamp():
                        yield path


def remove_temporaries(paths: Iterable[Path]) -> int:
    """Remove these files; how many there were."""
    count = 0
    for path in paths:
        with suppress(OSError):
            path.unlink()
            count += 1
    return count


def end_uploads(store: Store, folder: str, before: datetime, *, is_dry: bool = False) -> int:
    """End the uploads below a folder that were begun before a moment, or (``is_dry``) count them; how many there were.

    0 where the store keeps none, does not answer, or refuses the listing: left uploads only cost space.
    """
    if isinstance(store, HoldsUploads):
        with suppress(UnavailableError, InvalidRequestError):
            return store.end_uploads(folder, before, is_dry=is_dry)
    return 0


def clear_left(store: Store, folder: str, now: datetime, *, is_dry: bool = False) -> int:
    """Remove what killed processes left below a folder, and end their uploads, or (``is_dry``) count both; how many.

    A temporary file that is a day old, or an upload that is a week old, has no writer any more.
    """
    stale = list(left_temporaries(store, folder, now - timedelta(seconds=STALE_SECONDS)))
    count = len(stale) if is_dry else remove_temporaries(stale)
    return count + end_uploads(store, folder, now - timedelta(seconds=STALE_UPLOAD_SECONDS), is_dry=is_dry)


def delete_below(store: Store, folder: str, *, but: Collection[str] = ()) -> None:
    """Delete what lies below a folder; calling it again continues.

    Args:
        folder: its key, without a slash at its end.
        but: names of objects and folders right below it that stay, each with all that is in it.

    Raises:
        UnavailableError, InvalidRequestError: something cannot be deleted.
    """
    start = len(folder) + 1
    keys = [key for key in keys_below(store, f"{folder}/") if key[start:].partition("/")[0] not in but]
    delete_many(store, keys)
    if isinstance(store, HoldsMarkers):
        store.delete_markers(folder, but)
    if not isinstance(store, LocalStore):
        return
    path = store.path_of(folder)
    with disk_errors("delete", folder, store.root):
        for child in sorted(path.iterdir()) if path.is_dir() else ():
            if child.name in but:
                continue
            if child.is_symlink():
                child.unlink(missing_ok=True)
            elif child.is_dir():
                shutil.rmtree(child, ignore_errors=True)
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
