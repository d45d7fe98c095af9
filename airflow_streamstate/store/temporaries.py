"""Temporary files that a process which was killed in the middle of a write left on a disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from airflow_streamstate.store.disk import LOCK_NAME
from airflow_streamstate.store.interface import Store
from airflow_streamstate.store.keys import TEMPORARY_PREFIX
from airflow_streamstate.store.local import LocalStore


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
