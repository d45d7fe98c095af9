"""Parts of objects; on every backend they are held in ``tests/contract/store``."""

from __future__ import annotations

from pathlib import Path

from airflow_streamstate.store.base import ReadsRanges
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore
from airflow_streamstate.store.transfer import read_range


def test_a_store_that_cannot_is_read_whole(tmp_path: Path) -> None:
    """The same bytes as from one that can."""
    stores = [MemoryStore(), LocalStore(tmp_path, fsync=False)]
    assert [isinstance(store, ReadsRanges) for store in stores] == [False, True]
    for store in stores:
        store.put("a", b"0123456789")
        assert read_range(store, "a", 3, 4) == b"3456"
        assert read_range(store, "b", 0, 1) is None
