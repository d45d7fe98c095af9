"""Damage that no controller can prevent is reported by the next deploy and by verify."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.controller.deploy.attempts import audit_notes
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import to_bytes
from support.sim_stage import STREAM, Stage
from support.snapshots import run_stateful

START = "d-0001-stopped-000001"


@pytest.fixture
def taken_over(dead: Stage) -> Stage:
    """d-0001 died after batch 3, and d-0002 continued from its end."""
    dead.deploy("print('v2')\n")
    return dead


def live_on(stage: Stage) -> None:
    """The driver of d-0001 lived: it went over the fence, and committed two batches more."""
    run_stateful(stage.checkpoint(), 5, first=4)


def test_a_driver_that_was_taken_for_dead_and_lived_is_told_by_verify(taken_over: Stage) -> None:
    """Batches that two deployments ran are named; the snapshot itself is complete. (1a.8)"""
    assert taken_over.controller.snapshots.verify(STREAM, START) == []
    live_on(taken_over)
    (problem,) = taken_over.controller.snapshots.verify(STREAM, START)
    assert (problem.kind, problem.query) == ("outrun", "counts")
    assert "batch 4, 5 of d-0001" in problem.detail
    assert taken_over.control.seal(START) is not None


def test_a_snapshot_without_a_successor_may_be_outrun(stopped: Stage) -> None:
    """A stopped deployment that was resumed continues after its snapshot, as it should."""
    stopped.controller.resume(STREAM)
    stopped.run_batches(5)
    assert stopped.controller.snapshots.verify(STREAM, START) == []


def test_what_went_on_behind_a_snapshot_that_was_gone_back_to_is_no_outrun(taken_over: Stage) -> None:
    """It ran as it should, and its output is undone; reported by neither verify nor the next deploy."""
    live_on(taken_over)
    spec = taken_over.spec("d-0002")
    gone_back = replace(spec, start=replace(spec.start, undoes="d-0001"))
    taken_over.store.put(layout.spec_key(STREAM, "d-0002"), to_bytes(gone_back))
    assert taken_over.controller.snapshots.verify(STREAM, START) == []
    assert audit_notes(taken_over.home, taken_over.control, taken_over.seen()) == ()


def test_the_next_deploy_says_what_an_audit_finds(taken_over: Stage) -> None:
    """Batches in the sink twice, and batches that a log passes over. (1a.8, Law 12)"""
    live_on(taken_over)
    taken_over.come_to_life("d-0002", queries=("counts",))
    taken_over.run_batches(9, deployment_id="d-0002")
    checkpoint = taken_over.checkpoint(deployment_id="d-0002")
    checkpoint.store.delete(checkpoint.commit_key(6))
    taken_over.end("d-0002", state="gone")
    gap, outrun = taken_over.deploy("print('v3')\n").notes
    assert "sink may hold these batches twice: batch 4, 5 of d-0001" in outrun
    assert gap == "query counts of d-0002 passed over batch 6: rows may be lost"


def test_a_log_that_cannot_be_read_does_not_stop_an_audit(taken_over: Stage) -> None:
    """An audit reports what it can read; a later step reports the damaged log. (Law 7)"""
    checkpoint = taken_over.checkpoint()
    checkpoint.store.put(checkpoint.offset_key(5), b"\xff")
    (note,) = audit_notes(taken_over.home, taken_over.control, taken_over.seen())
    assert "could not be audited" in note
