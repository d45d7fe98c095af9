"""Flushes that one attempt started and another one finds (1a.5, Law 14)."""

from __future__ import annotations

import pytest

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.driver.shutdown.flush import begun_flushes, refuse_pending_flush
from airflow_streamstate.errors import ConflictError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.commands import CancelRequest, DrainNotification, StopRequest
from airflow_streamstate.protocol.events import Drained, DrainFailed, Rejected, Stopped
from airflow_streamstate.protocol.records import StartPlan
from airflow_streamstate.protocol.terms.order import OnDrainDeadline
from support.simulated_driver import (
    STREAM,
    SimulatedDriver,
    SimulatedStream,
    assert_nothing_lost,
    make_plan,
    waiting_script,
)
from support.simulated_query import Phase, SimulatedPlan, SimulatedRun
from support.simulated_sources import SimulatedSink


def killed_in_the_flush_of_b(stream: SimulatedStream, plans: tuple[SimulatedPlan, ...], phase: Phase) -> None:
    """Drain the queries a and b; the driver dies in this phase of b's flush."""
    stream.deploy()
    stream.order_at(10.0, DrainNotification)
    driver = SimulatedDriver(stream)

    def kill(run: SimulatedRun, now: Phase) -> None:
        if now == phase and run is not driver.startables[1].runs[0]:
            driver.kill()

    def script(driver: SimulatedDriver) -> None:
        driver.start(plans[0], "a")
        driver.start(plans[1], "b")
        driver.startables[1].before_phase = kill
        driver.await_all()

    assert driver.run(script) is None


@pytest.mark.parametrize("phase", ["run", "commit"])
def test_a_query_whose_flush_was_begun_is_never_carried_on_as_unflushed(phase: Phase) -> None:
    """The sink may hold that batch id with other bounds than a restored query would use (Law 14)."""
    stream, plans = SimulatedStream(), (make_plan(40), make_plan(40))
    killed_in_the_flush_of_b(stream, plans, phase)
    attempt = stream.next_attempt(attempt_mode="drain")
    stream.run(waiting_script(plans[0], names=("a",)), attempt=attempt)
    assert stream.events_of(Drained) == []
    failed = stream.events_of(DrainFailed)[0]
    assert not failed.withdrawn
    assert "started in an earlier attempt" in failed.error
    assert stream.kinds()[-1] == "Failed"
    attempt = stream.next_attempt(attempt_mode="drain")
    assert stream.run(waiting_script(*plans, names=("a", "b")), attempt=attempt) == 0
    assert stream.kinds()[-1] == "Drained"
    for plan in plans:
        assert_nothing_lost(plan)


def test_a_begun_flush_is_in_no_snapshot_of_an_end() -> None:
    """A started and uncommitted flush has no position for a successor (Law 14)."""
    stream, plans = SimulatedStream(), (make_plan(40), make_plan(40))
    killed_in_the_flush_of_b(stream, plans, "commit")
    attempt = SimulatedDriver(stream, attempt=stream.next_attempt()).attempt_life.attempt
    assert begun_flushes(attempt)["b"].drain_id == 5
    with pytest.raises(ConflictError, match="not committed"):
        refuse_pending_flush(attempt)


@pytest.mark.parametrize("delay_seconds", [0.01, 0.06, 0.11, 0.2, 0.3])
def test_a_query_that_the_script_stops_under_the_barrier_is_drained(
    stream: SimulatedStream, delay_seconds: float
) -> None:
    """The batch that was cut runs first, then the flush (1a.5, 1a.7)."""
    plan = make_plan(500, batch_seconds=3.0)
    stream.order_at(4.0, DrainNotification)

    def script(driver: SimulatedDriver) -> None:
        query = driver.start(plan)
        # What a stop() does that saw the latch open just before it closed.
        driver.clock.after(4.2 + delay_seconds, lambda: query.run.stop() if query.run is not None else None)
        driver.await_all()

    assert stream.run(script) == 0
    assert stream.kinds()[-1] == "Drained"
    checkpoint = Checkpoint(stream.checkpoints, layout.checkpoint_folder(STREAM, "d-0001", "counts"))
    assert checkpoint.position().planned is None


@pytest.mark.parametrize("is_upgraded", [False, True])
def test_what_the_flushed_query_left_is_counted_when_another_flush_failed(is_upgraded: bool) -> None:
    """The choices are true: a resume drains the rest; a new version seeds the one query and restores the other (1a.5,
    1a.9, Law 16)."""
    stream, plans = SimulatedStream(), (make_plan(40), make_plan(40))
    plans[1].fails_at.add(5)
    stream.deploy()
    stream.order_at(10.0, DrainNotification)
    script = waiting_script(*plans, names=("a", "b"))
    assert stream.run(script) == 0
    plans[1].fails_at.clear()
    choices = stream.events_of(DrainFailed)[0].choices
    assert "stay flushed" in choices[0]
    assert not any("as if no drain" in choice for choice in choices)
    snapshot_id = stream.events_of(Stopped)[0].snapshot_id
    queries = stream.control.need_manifest(snapshot_id).queries
    assert (queries["a"].drained, queries["a"].position.state_rows_left) == (True, 0)
    assert (queries["b"].drained, queries["b"].position.state_rows_left) == (False, 1)
    if is_upgraded:
        stream.deploy(2, StartPlan("restore", snapshot_id, "d-0001"))
        stream.order_at(30.0, StopRequest, "d-0002")
        assert stream.run(script, "d-0002") == 0
    else:
        assert stream.run(script, attempt=stream.next_attempt()) == 0
        assert stream.kinds()[-1] == "Drained"
        for plan in plans:
            assert_nothing_lost(plan)


def with_a_flush_that_failed() -> tuple[SimulatedStream, SimulatedPlan]:
    """A stream whose sink cannot be asked for its batches."""
    stream, plan = SimulatedStream(), make_plan(40, sink=SimulatedSink("append"))
    stream.deploy()
    stream.order_at(10.0, DrainNotification)
    plan.fails_at.add(5)
    assert stream.run(waiting_script(plan)) == 1
    assert not stream.events_of(DrainFailed)[0].withdrawn
    plan.fails_at.clear()
    return stream, plan


@pytest.mark.parametrize("is_early", [True, False], ids=["before-the-claim", "before-the-script"])
@pytest.mark.parametrize("mode", ["drain", "run"])
def test_a_later_drain_is_not_taken_back_over_a_flush_that_lies_begun(mode: str, is_early: bool) -> None:
    """The driver rejects the cancellation, because the flush batch runs to its end."""
    stream, plan = with_a_flush_that_failed()
    attempt = stream.next_attempt(attempt_mode=mode)
    second = stream.order(DrainNotification, attempt=attempt)
    if is_early:
        stream.order(CancelRequest)

    def script(driver: SimulatedDriver) -> None:
        if not is_early:
            stream.order(CancelRequest)
        driver.start(plan)
        driver.await_all()

    assert stream.run(script, attempt=attempt) == 0
    (rejected,) = stream.events_of(Rejected)
    assert "has started" in rejected.reason
    assert len(stream.events_of(DrainFailed)) == 1, "the first one's"
    (drained,) = stream.events_of(Drained)
    assert second.command_id in (drained.command_id, *drained.also_answers)
    assert stream.commands() == []
    assert_nothing_lost(plan)


@pytest.mark.parametrize("on_deadline", ["fail", "stop", "kill"])
def test_the_deadline_of_a_later_drain_calls_no_flush_off_that_lies_begun(on_deadline: OnDrainDeadline) -> None:
    """There is no state to run on with, or to keep: it only goes forward (Law 14)."""
    stream, plan = with_a_flush_that_failed()
    attempt = stream.next_attempt(attempt_mode="drain")
    stream.order(DrainNotification, attempt=attempt, batches_within_seconds=2.0, on_deadline=on_deadline)

    def script(driver: SimulatedDriver) -> None:
        stream.clock.sleep(5.0)
        driver.start(plan)
        driver.await_all()

    assert stream.run(script, attempt=attempt) == 0
    assert (len(stream.events_of(DrainFailed)), stream.kinds()[-1]) == (1, "Drained")
    assert_nothing_lost(plan)
