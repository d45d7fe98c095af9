"""Audits for what no lock can prevent."""

from __future__ import annotations

import pytest

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.driver.attempt.answers import GAP, Audit, audit_at_end
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.commands import DrainNotification, StopRequest
from airflow_streamstate.protocol.events import Noted, Stopped
from airflow_streamstate.protocol.records import StartPlan
from airflow_streamstate.snapshot.location import OUTRUN
from support.checkpoints import commit_batch, plan_batch
from support.simulated_driver import STREAM, SimulatedDriver, SimulatedStream, make_plan, waiting_script


def checkpoint_of(stream: SimulatedStream, deployment_id: str = "d-0001") -> Checkpoint:
    return Checkpoint(stream.checkpoints, layout.checkpoint_folder(STREAM, deployment_id, "counts"))


def told(stream: SimulatedStream, text: str, deployment_id: str) -> list[object]:
    return [note.facts["batches"] for note in stream.events_of(Noted, deployment_id) if note.text == text]


def lose_batch_2(stream: SimulatedStream) -> None:
    checkpoint = checkpoint_of(stream)
    stream.checkpoints.delete(checkpoint.commit_key(2))


@pytest.mark.parametrize("kind", [StopRequest, DrainNotification])
def test_a_batch_that_was_passed_over_long_ago_is_told_once(stream: SimulatedStream, kind: type) -> None:
    """Heartbeats list all commits, so a gap is found that fast batches hide from looks at the newest ones (Law 12)."""
    stream.clock.after(8.0, lambda: lose_batch_2(stream))
    stream.order_at(60.0, kind)
    assert stream.run(waiting_script(make_plan(500))) == 0
    assert told(stream, GAP, "d-0001") == ["2"]
    if kind is StopRequest:
        stream.order_at(5.0, StopRequest, attempt=2)
        assert stream.run(waiting_script(make_plan(500)), attempt=stream.next_attempt()) == 0
        assert told(stream, GAP, "d-0001") == ["2"]


def test_what_a_listing_misses_once_is_not_missing(stream: SimulatedStream) -> None:
    """A folder that changes during a listing may show a file and not the one before it."""
    audit = Audit(SimulatedDriver(stream).attempt_life.attempt)
    audit.follow("counts", [3, 5])
    audit.follow("counts", [3, 4, 5, 7])
    audit.follow("counts", [4, 5, 6, 7])
    assert told(stream, GAP, "d-0001") == []
    audit.follow("counts", [4, 5, 7, 8])
    audit.follow("counts", [4, 5, 7, 8, 9])
    assert told(stream, GAP, "d-0001") == ["6"]


def test_a_predecessor_that_lived_on_is_told_while_its_successor_runs_and_at_its_end(stream: SimulatedStream) -> None:
    """Its batches are in the sink twice: a note names them, once for each new one (1a.8)."""
    plan = make_plan(500)
    stream.order_at(4.1, StopRequest)
    assert stream.run(waiting_script(plan)) == 0
    (stopped,) = stream.events_of(Stopped)
    stream.deploy(2, StartPlan("restore", stopped.snapshot_id, "d-0001"))
    next_id = (stopped.queries["counts"].batch_id or 0) + 1

    def live_on(batch_id: int) -> None:
        plan_batch(checkpoint_of(stream), batch_id)
        commit_batch(checkpoint_of(stream), batch_id)

    stream.clock.after(5.0, lambda: live_on(next_id))
    stream.clock.after(59.0, lambda: live_on(next_id + 1))
    stream.order_at(60.0, StopRequest, "d-0002")
    assert stream.run(waiting_script(plan), "d-0002") == 0
    assert told(stream, OUTRUN, "d-0002") == [f"{next_id}", f"{next_id}, {next_id + 1}"]


def test_an_audit_never_stands_in_the_way() -> None:
    """An audit ignores a log that it cannot read (Law 7)."""
    stream = SimulatedStream()
    stream.deploy(2, StartPlan("restore", "d-0001-stopped-000001", "d-0001"))
    audit_at_end(SimulatedDriver(stream, "d-0002").attempt_life.attempt)
    assert stream.events_of(Noted, "d-0002") == []
