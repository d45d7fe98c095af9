"""The script's functions at the job's end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_streamstate.driver.attempt.callbacks import JobEnd
from airflow_streamstate.protocol.commands import DrainNotification, StopRequest
from airflow_streamstate.protocol.events import Drained, DrainFailed, FunctionCalled
from support.simulated_driver import SimulatedDriver, SimulatedStream, make_plan
from support.simulated_query import SimulatedPlan


def run(
    stream: SimulatedStream, plan: SimulatedPlan, *functions: Callable[[JobEnd], object], attempt: int = 1
) -> int | None:
    """Run a driver whose script registers these for both ends, and waits."""

    def script(driver: SimulatedDriver) -> None:
        for function in functions:
            driver.callbacks.add("drain", function, 60.0)
            driver.callbacks.add("stop", function, 60.0)
        driver.start(plan)
        driver.await_all()

    return stream.run(script, attempt=attempt)


def test_it_is_called_with_the_positions_before_the_drain_is_told(stream: SimulatedStream) -> None:
    """After the last commit and the snapshot, before the event (Law 1)."""
    plan, ends = make_plan(40), []
    stream.order_at(3.0, DrainNotification)

    def keep(end: JobEnd) -> None:
        assert stream.kinds()[-1] == "Draining"
        assert stream.control.need_manifest(end.snapshot_id).snapshot_kind == "drained"
        ends.append(end)

    assert run(stream, plan, keep) == 0
    (end,), (drained,) = ends, stream.events_of(Drained)
    assert (end.occasion, end.deployment_id, end.queries) == ("drain", "d-0001", drained.queries)
    (called,) = stream.events_of(FunctionCalled)
    assert (called.name.rpartition(".")[2], called.snapshot_id, called.error) == ("keep", drained.snapshot_id, "")
    assert stream.kinds()[-2:] == ["FunctionCalled", "Drained"]


def test_what_it_raises_keeps_the_deployment_out_of_drained_until_it_works(stream: SimulatedStream) -> None:
    """The flush stays committed; the next drain calls only the function that failed, and flushes nothing twice.
    (Law 14)"""
    plan, called = make_plan(40), []
    first: list[JobEnd] = []
    stream.order_at(3.0, DrainNotification)

    def fails_once(end: JobEnd) -> None:
        called.append(end.snapshot_id)
        if len(called) == 1:
            raise ValueError("the index is locked")

    assert run(stream, plan, first.append, fails_once) == 1
    assert stream.kinds()[-3:] == ["FunctionCalled", "DrainFailed", "Failed"]
    assert "ValueError: the index is locked" in stream.events_of(DrainFailed)[0].error
    batches = list(plan.sink.batches)
    attempt = stream.next_attempt(attempt_mode="drain")
    stream.order(DrainNotification, attempt=attempt)
    assert run(stream, plan, first.append, fails_once, attempt=attempt) == 0
    assert (len(first), len(called)) == (1, 2), "what succeeded is not called again"
    assert stream.kinds()[-1] == "Drained"
    assert plan.sink.batches == batches


def test_it_is_called_once_although_the_driver_died_behind_it(stream: SimulatedStream) -> None:
    """The event reports it; the attempt that finishes the drain does not call it again (Law 2)."""
    plan, called = make_plan(40), []
    stream.order_at(3.0, DrainNotification)

    def script(driver: SimulatedDriver) -> None:
        driver.callbacks.add("drain", called.append, 60.0)
        if driver.attempt_life.attempt.number == 1:
            driver.callbacks.add("drain", lambda _end: driver.kill(), 60.0)
        driver.start(plan)
        driver.await_all()

    assert stream.run(script) is None
    assert stream.run(script, attempt=stream.next_attempt()) == 0
    assert len(called) == 1
    assert stream.kinds()[-1] == "Drained"


def test_a_stop_is_complete_although_it_failed(stream: SimulatedStream) -> None:
    """The state is safe: its error is an event, and nothing more."""
    plan = make_plan(40)
    stream.order_at(3.0, StopRequest)

    def fails(end: JobEnd) -> None:
        raise KeyError(end.occasion)

    assert run(stream, plan, fails) == 0
    assert stream.kinds()[-2:] == ["FunctionCalled", "Stopped"]
    assert stream.events_of(FunctionCalled)[0].error == "KeyError: 'stop'"


@pytest.mark.parametrize(("flush_within_seconds", "limit"), [(None, "60 s"), (5.0, "4.")])
def test_one_that_does_not_come_back_fails_at_its_deadline(
    stream: SimulatedStream, flush_within_seconds: float | None, limit: str
) -> None:
    """Its own limit, or the time left for the flush (Law 6)."""
    plan = make_plan(40, batch_seconds=0.1)

    def in_background(work: Callable[[], None], *, gives_way: bool = True) -> None:
        del gives_way
        if "Draining" not in stream.kinds():
            work()

    stream.order_at(3.0, DrainNotification, flush_within_seconds=flush_within_seconds)

    def script(driver: SimulatedDriver) -> None:
        driver.callbacks.add("drain", print, 60.0)
        driver.attempt_life.attempt.in_background = in_background
        driver.start(plan)
        driver.await_all()

    assert stream.run(script) == 1
    (called,) = stream.events_of(FunctionCalled)
    assert called.error.startswith(f"it did not return within {limit}")
