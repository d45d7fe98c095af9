"""Drains that are cancelled."""

from __future__ import annotations

from airflow_streamstate.protocol.commands import CancelRequest, DrainNotification
from airflow_streamstate.protocol.events import DrainFailed, Ignored, QueryStarted, Rejected
from support.simulated_driver import SimulatedStream, assert_nothing_lost, make_plan, waiting_script


def test_a_drain_is_taken_back_while_it_waits_for_its_batch(stream: SimulatedStream) -> None:
    """Possible until its flush starts; one event answers both, and names the requester."""
    plan = make_plan(200, batch_seconds=5.0)
    stream.order_at(6.0, DrainNotification)
    stream.order_at(7.0, CancelRequest)
    stream.order_at(120, DrainNotification)
    assert stream.run(waiting_script(plan)) == 0
    (failed,) = stream.events_of(DrainFailed)
    assert (failed.cause, failed.then, len(failed.also_answers)) == ("cancelled", "runs_on", 1)
    assert failed.error == "tests has taken it back"
    assert len(stream.events_of(QueryStarted)) == 1
    assert_nothing_lost(plan)


def test_a_flush_that_has_begun_is_not_taken_back(stream: SimulatedStream) -> None:
    """The request is rejected at once, and the drain completes."""
    plan = make_plan(40)
    stream.clock.every(0.03, lambda: setattr(plan, "batch_seconds", 60.0 if "Draining" in stream.kinds() else 0.5))
    stream.order_at(3.0, DrainNotification)
    stream.order_at(10.0, CancelRequest)
    assert stream.run(waiting_script(plan)) == 0
    (rejected,) = stream.events_of(Rejected)
    assert "has started" in rejected.reason
    assert stream.kinds()[-2:] == ["Rejected", "Drained"]
    assert stream.commands() == []


def test_a_pending_drain_is_taken_back_before_the_script_begins(stream: SimulatedStream) -> None:
    """The next attempt finds both orders, and runs its queries (1a.11)."""
    plan = make_plan(40)
    stream.order(DrainNotification)
    stream.order(DrainNotification)
    stream.order(CancelRequest)
    stream.order_at(60, DrainNotification)
    assert stream.run(waiting_script(plan)) == 0
    assert stream.kinds()[:4] == ["Claimed", "DrainFailed", "DrainFailed", "Started"]
    assert stream.kinds()[-1] == "Drained"
    assert_nothing_lost(plan)


def test_a_request_with_nothing_to_take_back_is_ignored(stream: SimulatedStream) -> None:
    """It is answered, and cancels no later drain."""
    plan = make_plan(40)
    stream.order_at(1.0, CancelRequest)
    stream.order_at(60, DrainNotification)
    assert stream.run(waiting_script(plan)) == 0
    (ignored,) = stream.events_of(Ignored)
    assert ignored.reason == "no drain of this deployment is under way"
    assert stream.kinds()[-1] == "Drained"


def test_one_request_takes_back_all_that_were_ordered_before_it(stream: SimulatedStream) -> None:
    """The active drain and the pending one; only the last event answers the request (Law 1)."""
    plan = make_plan(200, batch_seconds=5.0)
    stream.order_at(6.0, DrainNotification)
    stream.order_at(6.5, DrainNotification)
    stream.order_at(7.0, CancelRequest)
    stream.order_at(200, DrainNotification)
    assert stream.run(waiting_script(plan)) == 0
    assert [len(event.also_answers) for event in stream.events_of(DrainFailed)] == [0, 1]
    assert len(stream.events_of(QueryStarted)) == 1
    assert_nothing_lost(plan)
