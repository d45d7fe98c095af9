"""A drain is rehearsed before it starts: on a fork, into no sink, while the queries run on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.driver.agent.command_loop import Foresight
from airflow_streamstate.driver.attempt.latch import Order, order_of
from airflow_streamstate.driver.shutdown.flush import TRIAL_SECONDS, Foreseen, foresee
from airflow_streamstate.errors import UnavailableError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.commands import DrainNotification, SnapshotRequest, StopRequest
from airflow_streamstate.protocol.events import Accepted, Drained, DrainFailed, Rejected, SnapshotReady, Stopped
from support.simulated_driver import STREAM, SimulatedDriver, SimulatedStream, make_command, make_plan, waiting_script
from support.simulated_query import SimulatedPlan, SimulatedStartable
from support.simulated_sources import SimulatedSink


def order_drain(stream: SimulatedStream, at_seconds: float, **terms: bool) -> None:
    """Order a drain with a rehearsal."""
    stream.order_at(at_seconds, DrainNotification, rehearse=True, **terms)


def drain_order(stream: SimulatedStream, *, rehearse: bool = True) -> Order:
    """The same, not written."""
    command = make_command(DrainNotification, stream.clock, "d-0001")
    return order_of(replace(command, rehearse=rehearse), 7)  # type: ignore[call-arg]


def stopped(stream: SimulatedStream, plan: SimulatedPlan) -> SimulatedDriver:
    """A driver that has obeyed a stop."""
    stream.order_at(6.0, StopRequest)
    driver = SimulatedDriver(stream)
    assert driver.run(waiting_script(plan)) == 0
    return driver


def fails(_uri: str, _within_seconds: float | None = None) -> None:
    raise ZeroDivisionError("division by zero")


def never_ends(_uri: str, _within_seconds: float | None = None) -> None:
    """No progress, and no commit."""


def trials(stream: SimulatedStream) -> list[str]:
    prefix = f"{layout.deployment_folder(STREAM, 'd-0001')}/trials/"
    return [info.key for info in stream.checkpoints.list_objects(prefix)]


def test_a_drain_that_flushes_all_is_done_and_its_trial_leaves_nothing(stream: SimulatedStream) -> None:
    """Every row is written once: the trial writes into no sink, and is removed."""
    plan = make_plan(40)
    order_drain(stream, 4.0)
    assert stream.run(waiting_script(plan)) == 0
    (drained,) = stream.events_of(Drained)
    assert drained.queries["counts"].state_rows_left == 0
    read = plan.sources[0].reads[-1][1]
    assert sum(plan.sink.counts().values()) == read
    assert trials(stream) == []
    assert any("tried on a fork" in line for line in stream.said)


def test_one_that_would_leave_state_is_rejected_and_the_stream_runs_on(stream: SimulatedStream) -> None:
    """Before any barrier, with operator and rows (Law 16)."""
    plan = make_plan(40, delay_ms=None)
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


def test_state_that_may_be_dropped_is_no_reason(stream: SimulatedStream) -> None:
    """The drain allows it; ``Drained`` reports the rows that are left."""
    plan = make_plan(40, delay_ms=None)
    order_drain(stream, 10.0, allow_state_loss=True)
    assert stream.run(waiting_script(plan)) == 0
    (drained,) = stream.events_of(Drained)
    assert (drained.queries["counts"].state_rows_left or 0) > 0


@pytest.mark.parametrize(
    ("trial", "reason"),
    [
        (fails, "query counts: its flush fails: ZeroDivisionError: division by zero"),
        (never_ends, "could not be tried within 1800 s"),
    ],
)
def test_a_flush_that_fails_is_found_before_anything_is_stopped(
    stream: SimulatedStream, trial: Callable[..., None], reason: str
) -> None:
    """With Spark's own words, or because the trial takes too long (Law 6)."""
    order_drain(stream, 4.0)
    stream.order_at(20.0, StopRequest)

    def script(driver: SimulatedDriver) -> None:
        driver.start(make_plan(40))
        driver.startables[0].run_trial_batch = trial  # type: ignore[method-assign,assignment]
        driver.await_all()

    assert stream.run(script) == 0
    assert reason in stream.events_of(Rejected)[0].reason
    assert stream.events_of(Drained) == []
    assert trials(stream) == []


def test_a_trial_has_its_own_id_and_ends_in_time(stream: SimulatedStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark ends a running query when another one starts with its id; and a drain may have a day (Laws 4 and 6)."""
    driver = stopped(stream, make_plan(40))
    seen: list[tuple[str | None, float | None]] = []

    def look(_: object, uri: str, within_seconds: float | None = None) -> None:
        seen.append((Checkpoint(stream.checkpoints, uri).query_id(), within_seconds))

    monkeypatch.setattr(SimulatedStartable, "run_trial_batch", look)
    order = drain_order(stream)
    assert order.command is not None
    by_at = stream.clock.now() + timedelta(days=1)
    order = replace(order, command=replace(order.command, batches_by_at=by_at))  # type: ignore[call-arg]
    (query,) = driver.queries
    foresee(driver.attempt_life.attempt, order, [query])
    ((query_id, within_seconds),) = seen
    assert query_id not in (None, query.checkpoint.query_id())
    assert within_seconds == TRIAL_SECONDS


def test_a_stopped_stream_is_tried_at_its_barrier(stream: SimulatedStream) -> None:
    """An attempt that only drains finds the problem: the stream stays stopped, with its state."""
    plan = make_plan(40, delay_ms=None)
    stopped(stream, plan)
    order_drain(stream, 0.0)
    stream.clock.sleep(0.1)
    stream.run(waiting_script(plan), attempt=stream.next_attempt(attempt_mode="drain"))
    (failed,) = stream.events_of(DrainFailed)
    assert failed.withdrawn
    assert "would leave state" in failed.error
    assert stream.events_of(Drained) == []
    assert len(stream.events_of(Stopped)) == 2


def test_other_orders_are_heard_while_it_is_tried(stream: SimulatedStream) -> None:
    """The trial runs alongside the agent: a snapshot is taken, and a stop that comes first is obeyed."""
    order_drain(stream, 4.0)
    stream.order_at(6.0, SnapshotRequest)
    stream.order_at(8.0, StopRequest)

    def script(driver: SimulatedDriver) -> None:
        driver.start(make_plan(400))
        driver.attempt_life.attempt.in_background = under_way_for_ever
        driver.await_all()

    assert stream.run(script) == 0
    assert stream.events_of(SnapshotReady)
    assert stream.events_of(Stopped)
    assert stream.events_of(Drained) == []


def test_a_trial_that_the_store_cuts_short_is_begun_anew(stream: SimulatedStream) -> None:
    """An outage is no answer."""
    attempt = stopped(stream, make_plan(40)).attempt_life.attempt
    order = drain_order(stream)
    foresight = Foresight(attempt)
    tries = []

    def fails_once(work: Callable[[], None], *, gives_way: bool = True) -> None:
        tries.append(gives_way)
        there = attempt.checkpoints
        if len(tries) == 1:
            attempt.checkpoints = _Away()
        work()
        attempt.checkpoints = there

    attempt.in_background = fails_once
    assert not foresight.is_trying(order.command_id)
    assert foresight.look(order) is None
    assert foresight.look(order) == Foreseen(frozenset({"counts"}))
    assert tries == [False, False]
    assert foresight.is_trying(order.command_id)
    assert foresight.tried(order) == {"counts"}


def under_way_for_ever(_work: Callable[[], None], *, gives_way: bool = True) -> None:
    assert not gives_way, "the drain waits for it"


class _Away:
    """A store that does not answer."""

    uri = "memory:"

    def __getattr__(self, name: str) -> object:
        raise UnavailableError("the store is away", call=name)


@pytest.mark.parametrize("rehearse", [True, False])
def test_it_is_tried_only_where_that_is_asked(stream: SimulatedStream, rehearse: bool) -> None:
    """A notification of an older version asks for no rehearsal."""
    driver = stopped(stream, make_plan(40, delay_ms=None))
    found = foresee(driver.attempt_life.attempt, drain_order(stream, rehearse=rehearse), driver.queries)
    assert found.tried == {"counts"}
    assert list(found.problems) == (["counts"] if rehearse else [])
    assert stream.events_of(Accepted)[-1].command["kind"] == "StopRequest"


def test_a_query_without_state_or_without_a_commit_has_nothing_to_try(stream: SimulatedStream) -> None:
    """A flush could leave nothing."""
    plans: list[SimulatedPlan] = [make_plan(40, window_ms=None), make_plan(0)]
    order_drain(stream, 6.0)
    assert stream.run(waiting_script(*plans, names=("rows", "nothing"))) == 0
    assert stream.events_of(Drained)


def test_two_drains_at_once_are_tried_one_after_the_other(stream: SimulatedStream) -> None:
    """Both trials would use one folder; one event answers both drains."""
    plan = make_plan(80)
    order_drain(stream, 4.0)
    order_drain(stream, 4.0)
    driver = SimulatedDriver(stream)
    later: list[Callable[[], None]] = []

    def keep(work: Callable[[], None], *, gives_way: bool = True) -> None:
        later.append(work)
        driver.clock.after(3.0, lambda: later.pop(0)())

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.attempt_life.attempt.in_background = keep
        driver.await_all()

    assert driver.run(script) == 0
    (drained,) = stream.events_of(Drained)
    assert len(drained.also_answers) == 1
    assert sum("tried on a fork" in line for line in stream.said) == 1


def test_a_query_that_had_committed_nothing_when_it_was_tried_is_tried_at_its_barrier(stream: SimulatedStream) -> None:
    """The agent reads the drain before the script's first start; the query has a batch when it is flushed."""
    order_drain(stream, 0.3)
    stream.run(waiting_script(make_plan(40, delay_ms=None)))
    failed = stream.events_of(DrainFailed)
    if not failed:  # nothing was committed by then either
        assert stream.events_of(Drained)[0].queries["counts"].batch_id is None
    else:
        assert "would leave state" in failed[0].error


def test_a_flush_that_was_begun_is_not_tried_again(stream: SimulatedStream) -> None:
    """It only goes forward, under any order (1a.7)."""
    plan = make_plan(40, sink=SimulatedSink("append"))
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
