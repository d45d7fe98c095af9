"""What a process that was killed in the middle of a write left: temporary files on a disk, uploads in parts on S3."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol, runtime_checkable

from airflow_streamstate.errors import InvalidRequestError, UnavailableError
from airflow_streamstate.store.disk import LOCK_NAME
from airflow_streamstate.store.interface import Store
from airflow_streamstate.store.keys import TEMPORARY_PREFIX
from airflow_streamstate.store.local import LocalStore

STALE_SECONDS = 86_400.0
STALE_UPLOAD_SECONDS = 7 * 86_400.0
"""By when it was begun, for nobody tells whether parts of it still come: so long may the largest file take."""


def left_temporaries(store: Store, folder: str, before: datetime) -> Iterator[Path]:
    """The store's own temporary files below a folder that were last written before a moment; none but on a disk.

    Args:
        store: where.
        folder: its key.
        before: what is younger may still be written.
    """
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
    """Remove them; how many there were."""
    count = 0
    for path in paths:
        with suppress(OSError):
            path.unlink()
            count += 1
    return count


@runtime_checkable
class HoldsUploads(Protocol):
    """A store in which the parts of an upload that was never completed stay, unseen and paid for."""

    def end_uploads(self, folder: str, before: datetime, *, is_dry: bool = False) -> int:
        """As ``end_uploads``, which says what it may raise."""


def end_uploads(store: Store, folder: str, before: datetime, *, is_dry: bool = False) -> int:
    """End the uploads below a folder that were begun before a moment; how many there were.

    None where the store keeps none, does not answer, or does not let us look: they cost space and nothing else.

    Args:
        store: where.
        folder: its key.
        before: what was begun later may still go on.
        is_dry: only count them.
    """
    if isinstance(store, HoldsUploads):
        with suppress(UnavailableError, InvalidRequestError):
            return store.end_uploads(folder, before, is_dry=is_dry)
    return 0


def clear_left(store: Store, folder: str, now: datetime, *, is_dry: bool = False) -> int:
    """Remove what killed processes left below a folder, and end their uploads; how many there were of both.

    Args:
        store: where.
        folder: its key.
        now: what is a day old then, of uploads a week, is nobody's any more.
        is_dry: only count them.
    """
    stale = list(left_temporaries(store, folder, now - timedelta(seconds=STALE_SECONDS)))
    count = len(stale) if is_dry else remove_temporaries(stale)
    return count + end_uploads(store, folder, now - timedelta(seconds=STALE_UPLOAD_SECONDS), is_dry=is_dry)
