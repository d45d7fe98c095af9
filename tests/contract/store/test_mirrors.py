"""A mirror, and a home restored from it, on every backend."""

from __future__ import annotations

from pathlib import Path

from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.mirrors import Restoring
from airflow_streamstate.snapshot.mirror_copies import mirror_snapshot
from airflow_streamstate.snapshot.verify import check_before_start, verify
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.memory import MemoryStore
from support.sim_stage import STREAM, Stage

PATIENCE_SECONDS = 60.0


def restored(stage: Stage, mirror: Store, target: Store, folder: Path) -> Home:
    home = Home.of(target, target, folder, stage.clock)
    Restoring(home, [mirror], "tests", timeout_seconds=PATIENCE_SECONDS).restore(STREAM)
    return home


def test_a_mirror_can_lie_anywhere(store: Store, tmp_path: Path) -> None:
    """What it took is what a restore gives back, byte by byte."""
    stage = Stage(tmp_path)
    stage.deploy()
    snapshot_id = str(stage.stopped().snapshot_id)
    mirror_snapshot(stage.control, stage.store, store, snapshot_id, timeout_seconds=PATIENCE_SECONDS)
    home = restored(stage, store, MemoryStore("new"), tmp_path / "new")
    assert verify(home.control(STREAM), home.checkpoints, snapshot_id) == []


def test_a_home_can_be_restored_anywhere(store: Store, tmp_path: Path) -> None:
    """A start from it asks this backend for its own checksums, not for those of the lost one."""
    stage, mirror = Stage(tmp_path), MemoryStore("mirror")
    stage.deploy()
    snapshot_id = str(stage.stopped().snapshot_id)
    mirror_snapshot(stage.control, stage.store, mirror, snapshot_id)
    home = restored(stage, mirror, store, tmp_path / "new")
    control = home.control(STREAM)
    assert verify(control, home.checkpoints, snapshot_id) == []
    assert check_before_start(control, home.checkpoints, control.need_manifest(snapshot_id)) is None
