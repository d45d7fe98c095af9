"""What nobody could prevent is told by the next deploy, and by verify."""

from __future__ import annotations

from dataclasses import replace

from airflow_streamstate.controller.deploy.audit import audit_notes
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import to_bytes
from support.sim_stage import STREAM, Stage
from support.snapshots import run_stateful

START = "d-0001-stopped-000001"


def after_a_takeover(stage: Stage) -> None:
    """d-0001 died after batch 3, and d-0002 went on from its end."""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.run_batches(3)
    stage.end(state="gone")
    stage.deploy("print('v2')\n")


def live_on(stage: Stage) -> None:
    """The driver of d-0001 lived: it went over the fence, and committed two batches more."""
    run_stateful(stage.checkpoint(), 5, first=4)


def test_a_driver_that_was_taken_for_dead_and_lived_is_told_by_verify(stage: Stage) -> None:
    """Batches that two deployments ran are named; the snapshot itself is whole. (1a.8)"""
    after_a_takeover(stage)
    assert stage.controller.snapshots.verify(STREAM, START) == []
    live_on(stage)
    (problem,) = stage.controller.snapshots.verify(STREAM, START)
    assert (problem.kind, problem.query) == ("outrun", "counts")
    assert "batch 4, 5 of d-0001" in problem.detail
    assert stage.control.seal(START) is not None


def test_a_snapshot_that_nobody_started_from_may_be_outrun(stage: Stage) -> None:
    """A stopped deployment that was resumed goes on after its snapshot, as it should."""
    stage.deploy()
    stage.stopped()
    stage.controller.resume(STREAM)
    stage.run_batches(5)
    assert stage.controller.snapshots.verify(STREAM, START) == []


def test_what_went_on_behind_a_snapshot_that_was_gone_back_to_is_no_outrun(stage: Stage) -> None:
    """It ran as it should, and its output is undone; told by neither verify nor the next deploy."""
    after_a_takeover(stage)
    live_on(stage)
    spec = stage.spec("d-0002")
    gone_back = replace(spec, start=replace(spec.start, undoes="d-0001"))
    stage.store.put(layout.spec_key(STREAM, "d-0002"), to_bytes(gone_back))
    assert stage.controller.snapshots.verify(STREAM, START) == []
    assert audit_notes(stage.home, stage.control, stage.seen()) == ()


def test_the_next_deploy_says_what_an_audit_finds(stage: Stage) -> None:
    """Batches in the sink twice, and batches that a log passes over. (1a.8, Law 12)"""
    after_a_takeover(stage)
    live_on(stage)
    stage.come_to_life("d-0002", queries=("counts",))
    stage.run_batches(9, deployment_id="d-0002")
    checkpoint = stage.checkpoint(deployment_id="d-0002")
    checkpoint.store.delete(checkpoint.commit_key(6))
    stage.end("d-0002", state="gone")
    gap, outrun = stage.deploy("print('v3')\n").notes
    assert "sink may hold these batches twice: batch 4, 5 of d-0001" in outrun
    assert gap == "query counts of d-0002 passed over batch 6: rows may be lost"


def test_a_log_that_cannot_be_read_does_not_stop_an_audit(stage: Stage) -> None:
    """An audit tells what it can; whoever needs the log says what is wrong with it. (Law 7)"""
    after_a_takeover(stage)
    checkpoint = stage.checkpoint()
    checkpoint.store.put(checkpoint.offset_key(5), b"\xff")
    (note,) = audit_notes(stage.home, stage.control, stage.seen())
    assert "could not be audited" in note
