"""Everything below a folder, removed: with every store, and with the folders that would stay behind empty.

Those of a disk, and those that Spark's connector marks on S3.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from typing import Protocol, runtime_checkable

from airflow_streamstate.store.disk import disk_errors
from airflow_streamstate.store.interface import Store
from airflow_streamstate.store.listing import keys_below
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.many import delete_many


@runtime_checkable
class HoldsMarkers(Protocol):
    """A store in which other programs mark folders by objects of their own, which no listing of objects has."""

    def delete_markers(self, folder: str, but: Collection[str] = ()) -> None:
        """Delete the markers of a folder and of all below it; arguments as of ``delete_below``."""


def delete_below(store: Store, folder: str, *, but: Collection[str] = ()) -> None:
    """Delete what lies below a folder; doing it again goes on where it was cut short.

    Args:
        store: where.
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
            if child.name not in but and child.is_dir():
                shutil.rmtree(child, ignore_errors=True)
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
