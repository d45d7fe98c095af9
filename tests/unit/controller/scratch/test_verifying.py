"""Whether a snapshot is complete; the shell's tests of ``verify`` go further."""

from __future__ import annotations

import pytest

from airflow_streamstate.controller.scratch.readings import ReadingRequest
from airflow_streamstate.errors import InvalidRequestError, SnapshotNotFoundError
from support.sim_stage import STREAM, Stage
from support.snapshots import flip_byte


def test_what_is_altered_is_named_and_nothing_is_loaded(stage: Stage) -> None:
    """A stage has no driver that reads: one that were started would be an error."""
    stage.deploy()
    snapshot_id = str(stage.stopped().snapshot_id)
    request, verbs = ReadingRequest(stream_id=STREAM, snapshot_id=snapshot_id), stage.controller
    whole = {"snapshot_id": snapshot_id, "ok": True, "problems": [], "loaded": None}
    assert verbs.readings.verify(request) == whole
    flip_byte(stage.store, f"{STREAM}/snapshots/{snapshot_id}/data/counts/metadata", at=5)
    found = verbs.readings.verify(request, deep=True)
    assert (found["ok"], found["loaded"]) == (False, None)
    assert [one["path"] for one in found["problems"]] == ["metadata"]


def test_no_snapshot_is_no_whole_one(stage: Stage) -> None:
    """It is refused; so is a request without a snapshot. (Law 3)"""
    stage.deploy()
    for snapshot_id, error in ((None, InvalidRequestError), ("d-0001-live-000001", SnapshotNotFoundError)):
        request = ReadingRequest(stream_id=STREAM, snapshot_id=snapshot_id)
        with pytest.raises(error):
            stage.controller.readings.verify(request)
