"""Removing everything below a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.store.base import Store
from airflow_streamstate.store.cleanup import delete_below
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore

KEYS = ("a/b/keep.json", "a/b/plans/q.json", "a/b/data/q/state/0/1.delta", "a/b/data/q/.1.crc", "a/b.json", "a/bc/x")


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    made: Store = MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "home")
    for key in KEYS:
        made.put(key, b"1")
    return made


def keys(store: Store) -> set[str]:
    return {info.key for info in store.list_objects("")}


def test_what_is_named_stays_and_all_else_below_goes(store: Store) -> None:
    """Neighbours whose names begin alike are not below it; twice is once."""
    for _ in range(2):
        delete_below(store, "a/b", but=("keep.json", "plans"))
        assert keys(store) == {"a/b/keep.json", "a/b/plans/q.json", "a/b.json", "a/bc/x"}


def test_a_disk_keeps_no_empty_folders(tmp_path: Path) -> None:
    """What is gone is gone from a listing by hand, too."""
    store = LocalStore(tmp_path / "home")
    for key in KEYS:
        store.put(key, b"1")
    delete_below(store, "a/b", but=("plans",))
    assert sorted(path.name for path in (tmp_path / "home" / "a" / "b").iterdir()) == ["plans"]
    delete_below(store, "a/b")
    assert not (tmp_path / "home" / "a" / "b").exists()
    assert keys(store) == {"a/b.json", "a/bc/x"}
