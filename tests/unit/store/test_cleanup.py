"""Temporary files that a killed process left."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from airflow_streamstate.errors import InvalidRequestError, StreamStateError, UnavailableError
from airflow_streamstate.store.base import TEMPORARY_PREFIX, Store
from airflow_streamstate.store.folder_lock import LOCK_NAME
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore
from airflow_streamstate.store.transfer import delete_below, end_uploads, left_temporaries, remove_temporaries
from support.fake_clock import FakeClock


def test_old_ones_go_and_nothing_else(tmp_path: Path) -> None:
    """What is younger may still be written, a lock may be held, and objects are objects."""
    store, now = LocalStore(tmp_path, fsync=False), FakeClock().now()
    store.put("orders/a/x", b"object")
    old, young, lock = (
        tmp_path / "orders/a" / name for name in (f"{TEMPORARY_PREFIX}1", f"{TEMPORARY_PREFIX}2", LOCK_NAME)
    )
    for path, age in ((old, 2), (young, 0), (lock, 2), (tmp_path / "orders/a/x", 2)):
        path.touch()
        at = (now - timedelta(days=age)).timestamp()
        os.utime(path, (at, at))
    before = now - timedelta(days=1)
    assert list(left_temporaries(store, "orders", before)) == [old]
    assert remove_temporaries(left_temporaries(store, "orders", before)) == 1
    assert sorted(path.name for path in (tmp_path / "orders/a").iterdir()) == sorted([young.name, LOCK_NAME, "x"])


def test_other_stores_leave_none() -> None:
    """They have no temporary names."""
    assert list(left_temporaries(MemoryStore(), "orders", FakeClock().now())) == []
    assert end_uploads(MemoryStore(), "orders", FakeClock().now()) == 0


@pytest.mark.parametrize("error", [UnavailableError("it is gone"), InvalidRequestError("it is denied"), None])
def test_a_store_that_shows_no_uploads_stops_nothing(error: StreamStateError | None) -> None:
    """They cost space and nothing else: a policy of before does, too."""

    class Server(MemoryStore):
        """It holds two."""

        def end_uploads(self, folder: str, before: datetime, *, is_dry: bool = False) -> int:
            if error is not None:
                raise error
            assert (folder, before, is_dry) == ("orders", FakeClock().now(), True)
            return 2

    assert end_uploads(Server(), "orders", FakeClock().now(), is_dry=True) == (0 if error else 2)


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
    """Neighbours whose names start alike are not below it; twice is once."""
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
