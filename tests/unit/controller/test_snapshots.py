"""What was kept of a stream."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_streamstate.control.registers import Retention
from airflow_streamstate.errors import SnapshotNotFoundError, StreamNotFoundError, UnavailableError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.policies import RetentionPolicy
from support.sim_stage import STREAM, Stage


def test_snapshots_are_listed_oldest_first_and_only_whole_ones(stage: Stage) -> None:
    """No manifest, no snapshot; one that cannot be read is none. (Law 3)"""
    stage.deploy()
    stage.stopped()
    stage.clock.advance(1)
    stage.keep("live", attempt=2)
    stage.store.put(layout.manifest_key(STREAM, "broken"), b"{")
    stage.store.put(f"{STREAM}/snapshots/half/data/counts/metadata", b"")
    listed = [manifest.snapshot_id for manifest in stage.controller.snapshots.all(STREAM)]
    assert listed == ["d-0001-stopped-000001", "d-0001-live-000002"]
    with pytest.raises(StreamNotFoundError):
        stage.controller.snapshots.all("unknown")


def test_verify_names_what_is_wrong(stage: Stage) -> None:
    """A file gone is a problem, a snapshot without a manifest is not found. (Law 3)"""
    stage.deploy()
    event = stage.stopped()
    assert stage.control.seal(event.snapshot_id) is None
    assert stage.controller.snapshots.verify(STREAM, event.snapshot_id) == []
    assert stage.control.seal(event.snapshot_id) is not None, "what was found whole is sealed"
    folder = layout.snapshot_data_folder(STREAM, event.snapshot_id, "counts")
    stage.store.delete(f"{folder}/metadata")
    assert [problem.kind for problem in stage.controller.snapshots.verify(STREAM, event.snapshot_id)] == ["missing"]
    with pytest.raises(SnapshotNotFoundError):
        stage.controller.snapshots.verify(STREAM, "d-0001-stopped-000009")


def test_a_successor_says_where_the_end_of_a_dead_one_is_kept(tmp_path: Path) -> None:
    """So there is a next step from a place that is lost; the dead one's own place is asked for nothing."""
    stage, lost = Stage(tmp_path), tmp_path / "lost"
    stage.deploy(snapshots=str(lost))
    stage.come_to_life(queries=("counts",))
    stage.run_batches(3)
    stage.end()
    shutil.rmtree(lost)
    with pytest.raises(UnavailableError, match="is not the place"):
        stage.keep()
    view = stage.deploy("print('v2')\n", snapshots=str(tmp_path / "new"))
    manifest = stage.control.need_manifest(str(view.start.snapshot_id))
    assert manifest.data_uri == str(tmp_path / "new")
    assert stage.controller.snapshots.verify(STREAM, manifest.snapshot_id) == []


def test_of_one_that_was_stopped_the_end_is_kept_anew_where_its_place_is_lost(tmp_path: Path) -> None:
    """Resumed on its own checkpoint and ended, it is taken over as any that died."""
    stage, lost = Stage(tmp_path), tmp_path / "lost"
    stage.deploy(snapshots=str(lost))
    stage.stopped()
    shutil.rmtree(lost)
    with pytest.raises(UnavailableError, match="is not the place"):
        stage.deploy("print('v2')\n", snapshots=str(tmp_path / "new"))
    stage.controller.resume(STREAM)
    stage.come_to_life("d-0001", 2, queries=("counts",))
    stage.end("d-0001", 2)
    view = stage.deploy("print('v3')\n", snapshots=str(tmp_path / "new"))
    assert view.start.snapshot_id == "d-0001-stopped-000002"
    assert stage.controller.snapshots.verify(STREAM, "d-0001-stopped-000002") == []


def test_the_checkpoint_that_a_kept_snapshot_names_stays_whole(tmp_path: Path) -> None:
    """However often it is pruned: it is the last way back from the version that runs."""
    stage = Stage(tmp_path)
    stage.deploy(snapshots="none")
    end = str(stage.stopped().snapshot_id)
    stage.deploy("print('v2')\n", snapshots="none")
    stage.come_to_life("d-0002", queries=("counts",))
    Retention(stage.control).mark_good("d-0002")
    for _ in range(2):
        stage.controller.retention.prune(STREAM, RetentionPolicy(keep=0))
    assert stage.control.need_manifest(end).refers_to_checkpoints
    assert stage.controller.snapshots.verify(STREAM, end) == []
