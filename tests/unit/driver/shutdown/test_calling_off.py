"""A drain that its deadlines call off."""

from __future__ import annotations

import pytest

from airflow_streamstate.protocol.commands import DrainNotification, SnapshotRequest
from airflow_streamstate.protocol.events import DrainFailed, QueryStarted, Stopped
from airflow_streamstate.protocol.terms.order import OnDrainDeadline
from support.simulated_driver import SimulatedStream, assert_nothing_lost, make_plan, waiting_script
from support.simulated_query import SimulatedPlan
from support.simulated_sources import SimulatedSink, SimulatedSource, expected_counts

pytestmark = pytest.mark.fast


def drained_late(stream: SimulatedStream, *plans: SimulatedPlan, at_seconds: float = 60.0, attempt: int = 1) -> None:
    """Run the script; a second drain, without limits, ends it."""
    stream.order_at(at_seconds, DrainNotification, attempt=attempt)
    names = tuple(f"counts-{number}" for number in range(len(plans))) if len(plans) > 1 else ("counts",)
    assert stream.run(waiting_script(*plans, names=names), attempt=attempt) == 0
    assert stream.kinds()[-1] == "Drained"


@pytest.mark.parametrize("at_seconds", [0.1, 0.4, 1.3, 2.1, 2.45, 2.95])
@pytest.mark.parametrize("within_seconds", [0.01, 0.5, 1.9])
def test_at_its_deadline_the_stream_runs_on_as_if_nothing_had_been_asked(
    stream: SimulatedStream, at_seconds: float, within_seconds: float
) -> None:
    """``fail``: the drain is withdrawn wherever it is, and every row is counted once (Laws 12, 13)."""
    plan = make_plan(200, batch_seconds=2.0)
    stream.order_at(at_seconds, DrainNotification, batches_within_seconds=within_seconds)
    drained_late(stream, plan, at_seconds=400)
    read = plan.sources[0].reads[-1][1]
    assert plan.sink.counts() == expected_counts(plan.sources[0].rows[:read], 1_000)
    is_in_time = not stream.events_of(DrainFailed)
    assert (read == 200) != is_in_time


def test_a_query_in_its_batch_notices_nothing_of_a_drain_that_is_called_off(stream: SimulatedStream) -> None:
    """The driver removes the barrier under it: one run, no restart (1a.3). Later orders are obeyed."""
    plan = make_plan(200, batch_seconds=5.0)
    stream.order_at(6.0, DrainNotification, batches_within_seconds=1.0)
    stream.order_at(30.0, SnapshotRequest)
    drained_late(stream, plan, at_seconds=120)
    (failed,) = stream.events_of(DrainFailed)
    assert (failed.cause, failed.then, failed.withdrawn) == ("deadline", "runs_on", True)
    assert failed.error.startswith("a batch in flight was not committed by ")
    assert len(stream.events_of(QueryStarted)) == 1
    kinds = stream.kinds()
    assert kinds.index("DrainFailed") < kinds.index("SnapshotReady") < kinds.index("Drained")
    assert_nothing_lost(plan)


def test_a_query_that_came_to_its_barrier_is_started_again_in_the_same_driver(stream: SimulatedStream) -> None:
    """It continues where it stood; the slow query is not cut (1a.4)."""
    quick, slow = make_plan(200), make_plan(200, batch_seconds=20.0)
    stream.order_at(3.0, DrainNotification, batches_within_seconds=4.0)
    drained_late(stream, quick, slow, at_seconds=600)
    assert [event.query_name for event in stream.events_of(QueryStarted)] == ["counts-0", "counts-1", "counts-0"]
    assert_nothing_lost(quick)
    assert_nothing_lost(slow)


@pytest.mark.parametrize(("on_deadline", "planned"), [("stop", False), ("kill", True)])
def test_at_its_deadline_it_becomes_a_stop_or_its_batch_is_cut(
    stream: SimulatedStream, on_deadline: OnDrainDeadline, planned: bool
) -> None:
    """``stop`` waits for the batch and keeps the state; ``kill`` cuts it, for the next start to run it again (1a.6)."""
    plan = make_plan(200, batch_seconds=5.0)
    stream.order_at(6.0, DrainNotification, batches_within_seconds=1.0, on_deadline=on_deadline)
    assert stream.run(waiting_script(plan)) == 0
    (failed,), (stopped,) = stream.events_of(DrainFailed), stream.events_of(Stopped)
    assert (failed.cause, failed.then) == ("deadline", on_deadline)
    position = stopped.queries["counts"]
    assert position.batch_id is not None
    assert position.planned_batch_id == (position.batch_id + 1 if planned else None)
    attempt = stream.next_attempt()
    drained_late(stream, plan, attempt=attempt, at_seconds=300)
    assert_nothing_lost(plan)


def slow_to_flush(sink_mode: str) -> SimulatedPlan:
    """A query with batches of 0.5 s."""
    source = SimulatedSource()
    source.add(*range(0, 20_000, 250))
    return SimulatedPlan([source], SimulatedSink(sink_mode))  # type: ignore[arg-type]


def hold_flush(stream: SimulatedStream, plan: SimulatedPlan) -> None:
    """Once the drain is announced, a batch takes a minute; after five minutes 0.5 s again."""

    def slow_down() -> None:
        if "Draining" in stream.kinds() and stream.clock.monotonic_seconds() < 300:
            plan.batch_seconds = 60.0
        else:
            plan.batch_seconds = 0.5

    stream.clock.every(0.03, slow_down)


@pytest.mark.full
@pytest.mark.parametrize(
    ("on_flush_deadline", "sink_mode", "kinds"),
    [
        ("fail", "idempotent", ["DrainFailed", "QueryStarted"]),
        ("stop", "idempotent", ["DrainFailed", "Stopped"]),
        ("kill", "idempotent", ["DrainFailed", "Failed"]),
        ("fail", "append", ["DrainFailed", "Failed"]),
    ],
)
def test_a_flush_that_is_late_is_cut_and_taken_back_where_the_sink_lacks_it(
    stream: SimulatedStream, on_flush_deadline: OnDrainDeadline, sink_mode: str, kinds: list[str]
) -> None:
    """Only a batch that is surely not in the sink is withdrawn; any other is completed by the next drain (Law 14)."""
    plan = slow_to_flush(sink_mode)
    hold_flush(stream, plan)
    terms = {"flush_within_seconds": 5.0, "on_flush_deadline": on_flush_deadline}
    stream.order_at(3.0, DrainNotification, **terms)
    stream.order_at(330.0, DrainNotification)
    status = stream.run(waiting_script(plan))
    (failed,) = stream.events_of(DrainFailed)
    assert failed.cause == "flush_deadline"
    after = [kind for kind in stream.kinds() if kind in ("DrainFailed", "QueryStarted", "Stopped", "Failed")][1:]
    assert after == kinds
    if kinds[-1] != "QueryStarted":
        assert status == (0 if kinds[-1] == "Stopped" else 1)
        stream.clock.sleep(330)
        assert stream.run(waiting_script(plan), attempt=stream.next_attempt()) == 0
    assert stream.kinds()[-1] == "Drained"
    read = plan.sources[0].reads[-1][1]
    if sink_mode == "idempotent":
        assert plan.sink.counts() == expected_counts(plan.sources[0].rows[:read], 1_000)
