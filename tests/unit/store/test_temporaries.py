"""Temporary files that a killed process left."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from airflow_streamstate.errors import InvalidRequestError, StreamStateError, UnavailableError
from airflow_streamstate.store.base import TEMPORARY_PREFIX
from airflow_streamstate.store.cleanup import end_uploads, left_temporaries, remove_temporaries
from airflow_streamstate.store.local import LOCK_NAME, LocalStore
from airflow_streamstate.store.memory import MemoryStore
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
def test_whoever_may_not_look_for_uploads_goes_on(error: StreamStateError | None) -> None:
    """They cost space and nothing else: a policy of before does, too."""

    class Server(MemoryStore):
        """It holds two."""

        def end_uploads(self, folder: str, before: datetime, *, is_dry: bool = False) -> int:
            if error is not None:
                raise error
            assert (folder, before, is_dry) == ("orders", FakeClock().now(), True)
            return 2

    assert end_uploads(Server(), "orders", FakeClock().now(), is_dry=True) == (0 if error else 2)
