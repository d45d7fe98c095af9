"""Disks that have no room left."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.observer import LEAST_BYTES, full_disks
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore

ROOM = {
    "f_frsize": 4096, "f_blocks": 9000, "f_bavail": 1000, "f_bfree": 1000, "f_files": 10, "f_ffree": 5, "f_favail": 5,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "user_id", "is_full"),
    [
        ({}, 1000, False),
        ({"f_bavail": LEAST_BYTES // 4096}, 1000, False),
        ({"f_bavail": LEAST_BYTES // 4096 - 1}, 1000, True),
        ({"f_bavail": 0}, 0, False),
        ({"f_bfree": 0}, 0, True),
        ({"f_favail": 0}, 1000, True),
        ({"f_favail": 0, "f_files": 0}, 1000, False),
        (dict.fromkeys(ROOM, 0), 1000, False),
    ],
)
def test_a_disk_is_full_without_blocks_or_without_files(
    changed: dict[str, int], user_id: int, is_full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may use the reserved blocks; what a file system does not count (files; anything with FUSE) is not full."""

    def statvfs(_folder: Any) -> SimpleNamespace:
        return SimpleNamespace(**{**ROOM, **changed})

    monkeypatch.setattr(os, "statvfs", statvfs)
    monkeypatch.setattr(os, "geteuid", lambda: user_id)
    store = LocalStore(tmp_path)
    home = Home.of(store, store, tmp_path, SYSTEM_CLOCK)
    assert full_disks(home) == ([str(tmp_path)] if is_full else [])


def test_what_is_no_disk_or_not_there_is_not_full(tmp_path: Path) -> None:
    """A home before its first write, and one in memory."""
    nowhere = LocalStore(tmp_path / "none")
    assert full_disks(Home.of(nowhere, MemoryStore(), tmp_path / "none", SYSTEM_CLOCK)) == []
