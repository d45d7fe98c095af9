"""A drain is tried before it is begun: on a fork, into no sink, while the queries run on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_streamstate.driver.agent.obeying import Foresight
from airflow_streamstate.driver.attempt.latch import order_of
from airflow_streamstate.driver.shutdown.drain_rehearsal import Foreseen, foresee
from airflow_streamstate.errors import UnavailableError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.commands import DrainNotification, SnapshotRequest, StopRequest
from airflow_streamstate.protocol.events import Accepted, Drained, DrainFailed, Rejected, SnapshotReady, Stopped
from support.simulated_driver import STREAM, SimulatedDriver, SimulatedStream, make_command, make_plan, waiting_script
from support.simulated_query import SimulatedPlan
from support.simulated_sources import SimulatedSink


def order_drain(stream: SimulatedStream, at_seconds: float, **terms: bool) -> None:
    """Have a drain ordered that is to be tried first."""

    def order() -> None:
        command = make_command(DrainNotification, stream.clock, "d-0001")
        assert isinstance(command, DrainNotification)
        stream.control.journal("d-0001").write_command(replace(command, rehearse=True, **terms), 1)

    stream.clock.after(at_seconds, order)


def trials(stream: SimulatedStream) -> list[str]:
    prefix = f"{layout.deployment_folder(STREAM, 'd-0001')}/trials/"
    return [info.key for info in stream.checkpoints.list_objects(prefix)]


def test_a_drain_that_flushes_all_is_done_and_its_trial_leaves_nothing() -> None:
    """Every row is out once: the trial has written into no sink, and is removed."""
    stream, plan = SimulatedStream(), make_plan(40)
    stream.deploy()
    order_drain(stream, 4.0)
    assert stream.run(waiting_script(plan)) == 0
    (drained,) = stream.events_of(Drained)
    assert drained.queries["counts"].state_rows_left == 0
    read = plan.sources[0].reads[-1][1]
    assert sum(plan.sink.counts().values()) == read
    assert trials(stream) == []
    assert any("tried on a fork" in line for line in stream.said)


def test_one_that_would_leave_state_is_rejected_and_the_stream_runs_on() -> None:
    """Before any barrier, with operator and rows; as if nothing had been asked (Law 16)."""
    stream, plan = SimulatedStream(), make_plan(40, delay_ms=None)
    stream.deploy()
    order_drain(stream, 4.0)
    stream.order_at(20.0, StopRequest)
    assert stream.run(waiting_script(plan)) == 0
    (rejected,) = stream.events_of(Rejected)
    assert "query counts: a flush would leave state" in rejected.reason
    assert "rows of stateStoreSave" in rejected.reason
    assert "--allow-state-loss" in rejected.reason
    assert stream.events_of(Drained) == []
    assert stream.events_of(Stopped)
    assert plan.sources[0].reads[-1][1] == 40
    assert trials(stream) == []
    assert stream.commands() == []


def test_state_that_may_be_dropped_is_no_reason() -> None:
    """By name; what is left is told when it is done."""
    stream, plan = SimulatedStream(), make_plan(40, delay_ms=None)
    stream.deploy()
    order_drain(stream, 10.0, discard_state=True)
    assert stream.run(waiting_script(plan)) == 0
    (drained,) = stream.events_of(Drained)
    assert (drained.queries["counts"].state_rows_left or 0) > 0


def test_a_flush_that_fails_is_found_before_anything_is_stopped() -> None:
    """With Spark's own words."""
    stream, plan = SimulatedStream(), make_plan(40)
    stream.deploy()
    order_drain(stream, 4.0)
    stream.order_at(20.0, StopRequest)
    driver = SimulatedDriver(stream)

    def fails(_uri: str, _within_seconds: float | None = None) -> None:
        raise ZeroDivisionError("division by zero")

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.startables[0].run_trial_batch = fails  # type: ignore[method-assign]
        driver.await_all()

    assert driver.run(script) == 0
    (rejected,) = stream.events_of(Rejected)
    assert "query counts: its flush fails: ZeroDivisionError: division by zero" in rejected.reason
    assert stream.events_of(Drained) == []
    assert trials(stream) == []


def test_a_stopped_stream_is_tried_at_its_barrier() -> None:
    """The attempt that was started for the flush alone finds it: it stays as it was, with its state."""
    stream, plan = SimulatedStream(), make_plan(40, delay_ms=None)
    stream.deploy()
    stream.order_at(6.0, StopRequest)
    assert stream.run(waiting_script(plan)) == 0
    order_drain(stream, 0.0)
    stream.clock.sleep(0.1)
    attempt = stream.next_attempt(attempt_mode="drain")
    stream.run(waiting_script(plan), attempt=attempt)
    (failed,) = stream.events_of(DrainFailed)
    assert failed.withdrawn
    assert "would leave state" in failed.error
    assert stream.events_of(Drained) == []
    assert len(stream.events_of(Stopped)) == 2


def test_other_orders_are_heard_while_it_is_tried() -> None:
    """The trial runs beside the agent: a snapshot is taken, and a stop that comes first is obeyed."""
    stream, plan = SimulatedStream(), make_plan(400)
    stream.deploy()
    order_drain(stream, 4.0)
    stream.order_at(6.0, SnapshotRequest)
    stream.order_at(8.0, StopRequest)
    driver = SimulatedDriver(stream)

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.supervisor.attempt.in_background = under_way_for_ever
        driver.await_all()

    assert driver.run(script) == 0
    assert stream.events_of(SnapshotReady)
    assert stream.events_of(Stopped)
    assert stream.events_of(Drained) == []


def test_a_trial_that_the_store_cuts_short_is_begun_anew() -> None:
    """Nobody takes an outage for an answer."""
    stream, plan = SimulatedStream(), make_plan(40)
    stream.deploy()
    stream.order_at(6.0, StopRequest)
    driver = SimulatedDriver(stream)
    assert driver.run(waiting_script(plan)) == 0
    attempt = driver.supervisor.attempt
    command = make_command(DrainNotification, stream.clock, "d-0001")
    assert isinstance(command, DrainNotification)
    order = order_of(replace(command, rehearse=True), 7)
    foresight = Foresight(attempt)
    tries = []

    def fails_once(work: object, *, gives_way: bool = True) -> None:
        tries.append(gives_way)
        if len(tries) == 1:
            attempt.checkpoints, there = _Away(), attempt.checkpoints
            work()  # type: ignore[operator]
            attempt.checkpoints = there
        else:
            work()  # type: ignore[operator]

    attempt.in_background = fails_once
    assert not foresight.is_trying(order.command_id)
    assert foresight.look(order) is None
    assert foresight.look(order) == Foreseen(frozenset({"counts"}))
    assert tries == [False, False]
    assert foresight.is_trying(order.command_id)
    assert foresight.tried(order) == {"counts"}


def under_way_for_ever(_work: Callable[[], None], *, gives_way: bool = True) -> None:
    assert not gives_way, "somebody waits for it"


class _Away:
    """A store that does not answer."""

    uri = "memory:"

    def __getattr__(self, name: str) -> object:
        raise UnavailableError("the store is away", call=name)


@pytest.mark.parametrize("rehearse", [True, False])
def test_it_is_tried_only_where_that_is_asked(rehearse: bool) -> None:
    """A notification from before there were trials asks for none."""
    stream, plan = SimulatedStream(), make_plan(40, delay_ms=None)
    stream.deploy()
    stream.order_at(6.0, StopRequest)
    driver = SimulatedDriver(stream)
    assert driver.run(waiting_script(plan)) == 0
    command = make_command(DrainNotification, stream.clock, "d-0001")
    assert isinstance(command, DrainNotification)
    order = order_of(replace(command, rehearse=rehearse), 7)
    found = foresee(driver.supervisor.attempt, order, driver.queries)
    assert found.tried == {"counts"}
    assert list(found.problems) == (["counts"] if rehearse else [])
    assert stream.events_of(Accepted)[-1].command["kind"] == "StopRequest"


def test_a_query_without_state_or_without_a_commit_has_nothing_to_try() -> None:
    """There is nothing that a flush could leave."""
    stream = SimulatedStream()
    plans: list[SimulatedPlan] = [make_plan(40, window_ms=None), make_plan(0)]
    stream.deploy()
    order_drain(stream, 6.0)
    assert stream.run(waiting_script(*plans, names=("rows", "nothing"))) == 0
    assert stream.events_of(Drained)


def test_two_drains_at_once_are_tried_one_after_the_other() -> None:
    """Both trials would lie in one folder; the one that is done first answers both."""
    stream, plan = SimulatedStream(), make_plan(80)
    stream.deploy()
    order_drain(stream, 4.0)
    order_drain(stream, 4.0)
    driver = SimulatedDriver(stream)
    later: list[Callable[[], None]] = []

    def keep(work: Callable[[], None], *, gives_way: bool = True) -> None:
        later.append(work)
        driver.clock.after(3.0, lambda: later.pop(0)())

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.supervisor.attempt.in_background = keep
        driver.await_all()

    assert driver.run(script) == 0
    (drained,) = stream.events_of(Drained)
    assert len(drained.also_answers) == 1
    assert sum("tried on a fork" in line for line in stream.said) == 1


def test_a_query_that_had_committed_nothing_when_it_was_tried_is_tried_at_its_barrier() -> None:
    """The drain is read before the script's first start, and the query has a batch by the time that it is flushed."""
    stream, plan = SimulatedStream(), make_plan(40, delay_ms=None)
    stream.deploy()
    order_drain(stream, 0.3)
    driver = SimulatedDriver(stream)

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.await_all()

    driver.run(script)
    failed = stream.events_of(DrainFailed)
    if not failed:  # nothing was committed by then either
        assert stream.events_of(Drained)[0].queries["counts"].batch_id is None
    else:
        assert "would leave state" in failed[0].error


def test_a_trial_that_takes_too_long_is_given_up() -> None:
    """Every wait has an end (Law 6): what is not committed by then has shown nothing."""
    stream, plan = SimulatedStream(), make_plan(40)
    stream.deploy()
    order_drain(stream, 4.0)
    stream.order_at(20.0, StopRequest)
    driver = SimulatedDriver(stream)

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.startables[0].run_trial_batch = lambda *_: None  # type: ignore[method-assign]
        driver.await_all()

    assert driver.run(script) == 0
    assert "could not be tried within 1800 s" in stream.events_of(Rejected)[0].reason


def test_a_flush_that_was_begun_is_not_tried_again() -> None:
    """It only goes forward, under whatever order: what it wrote cannot be called back (1a.7)."""
    stream, plan = SimulatedStream(), make_plan(40, sink=SimulatedSink("append"))
    stream.deploy()
    stream.order_at(10.0, DrainNotification)
    plan.fails_at.add(5)
    assert stream.run(waiting_script(plan)) == 1
    plan.fails_at.clear()
    order_drain(stream, 0.0)
    stream.clock.sleep(0.1)
    attempt = stream.next_attempt(attempt_mode="drain")
    assert stream.run(waiting_script(plan), attempt=attempt) == 0
    assert stream.kinds()[-1] == "Drained"
    assert not any("tried on a fork" in line for line in stream.said)
