"""What was kept of a stream."""

from __future__ import annotations

import pytest

from airflow_streamstate.errors import SnapshotNotFoundError, StreamNotFoundError
from airflow_streamstate.protocol import layout
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
