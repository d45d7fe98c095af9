"""A shutdown that is called off, and queries that run on."""

from __future__ import annotations

import pytest

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.commands import DrainNotification
from airflow_streamstate.protocol.events import Failed, QueryStarted
from support.faulty_store import KILL_POINTS, Fault, FaultPlan, FaultyStore
from support.simulated_driver import (
    STREAM,
    QueryFailedError,
    SimulatedDriver,
    SimulatedStream,
    assert_nothing_lost,
    make_plan,
    waiting_script,
)
from support.simulated_query import Phase, SimulatedRun

pytestmark = pytest.mark.fast


def test_what_came_to_its_own_end_meanwhile_is_over_for_the_script(stream: SimulatedStream) -> None:
    """An available-now query that had read everything reads nothing twice; the slow one runs on."""
    done, slow = make_plan(8, trigger="available_now"), make_plan(200, batch_seconds=20.0)
    stream.order_at(0.3, DrainNotification, batches_within_seconds=8.0)
    stream.order_at(600.0, DrainNotification)
    seen: list[bool] = []

    def script(driver: SimulatedDriver) -> None:
        driver.start(done, "counts-0", delay_ms=None)
        driver.start(slow, "counts-1")
        driver.queries[0].await_termination()
        seen.append(driver.queries[1].is_active())
        driver.await_all()

    assert stream.run(script) == 0
    assert seen == [True]
    assert done.sources[0].reads == [(0, 8)]
    assert_nothing_lost(slow)


def test_a_query_that_the_script_stopped_meanwhile_stays_stopped(stream: SimulatedStream) -> None:
    """The script's ``stop()`` waits for the shutdown; once that is called off, the query ends."""
    quick, slow = make_plan(200), make_plan(200, batch_seconds=20.0)
    stream.order_at(3.0, DrainNotification, batches_within_seconds=10.0)
    stream.order_at(900.0, DrainNotification)

    def script(driver: SimulatedDriver) -> None:
        first = driver.start(quick, "counts-0")
        driver.start(slow, "counts-1")
        # One thread is everything here: what ``stop()`` leaves behind before it waits.
        driver.clock.after(5.0, lambda: setattr(first, "has_ended_itself", True))
        driver.await_all()

    assert stream.run(script) == 0
    assert [event.query_name for event in stream.events_of(QueryStarted)] == ["counts-0", "counts-1"]
    assert_nothing_lost(slow)


def test_a_query_that_was_started_meanwhile_runs_too(stream: SimulatedStream) -> None:
    """A ``start()`` under the closed latch reads nothing until it opens again (1a.11)."""
    slow, late = make_plan(200, batch_seconds=20.0), make_plan(40)
    stream.order_at(3.0, DrainNotification, batches_within_seconds=10.0)
    stream.order_at(900.0, DrainNotification)

    def script(driver: SimulatedDriver) -> None:
        driver.start(slow, "counts-0")
        driver.clock.sleep(5.0)
        driver.start(late, "counts-1")
        assert late.sources[0].reads == []
        driver.await_all()

    assert stream.run(script) == 0
    assert_nothing_lost(slow)
    assert_nothing_lost(late)


def test_a_query_that_cannot_be_started_again_fails_as_any_start_does(stream: SimulatedStream) -> None:
    """The script gets its failure; the others run on until the script ends."""
    quick, slow = make_plan(200), make_plan(200, batch_seconds=20.0)
    stream.order_at(3.0, DrainNotification, batches_within_seconds=10.0)
    stream.clock.after(5.0, lambda: setattr(quick, "refuses_to_start", ValueError("no such table")))

    def script(driver: SimulatedDriver) -> None:
        driver.start(quick, "counts-0")
        driver.start(slow, "counts-1")
        with pytest.raises(QueryFailedError, match="no such table"):
            driver.await_all()
        raise QueryFailedError("no such table")

    assert stream.run(script) == 1
    assert "no such table" in stream.events_of(Failed)[0].error
    quick.refuses_to_start = None
    stream.order_at(900, DrainNotification)
    script_again = waiting_script(quick, slow, names=("counts-0", "counts-1"))
    assert stream.run(script_again, attempt=stream.next_attempt()) == 0
    assert_nothing_lost(quick)
    assert_nothing_lost(slow)


@pytest.mark.full
@pytest.mark.parametrize("phase", ["look", "rename", "run", "state", "sink", "commit", "idle"])
@pytest.mark.parametrize("nth", range(1, 6))
def test_a_driver_killed_while_a_drain_is_called_off_goes_on_where_the_log_stands(
    stream: SimulatedStream, phase: Phase, nth: int
) -> None:
    """The next attempt finds an answered order and repairs the log: nothing lost, nothing twice (1a.7)."""
    plan = make_plan(80, batch_seconds=2.0)
    stream.order_at(3.0, DrainNotification, batches_within_seconds=0.4)
    count = 0

    def strike(run: SimulatedRun, at: Phase) -> None:
        nonlocal count
        if at == phase and stream.clock.monotonic_seconds() > 3.2:
            count += 1
            if count == nth:
                driver.kill()

    def script(driver: SimulatedDriver) -> None:
        startable = driver.startable_of(plan)
        startable.before_phase = strike
        driver.start_with(startable)
        driver.await_all()

    driver = SimulatedDriver(stream)
    if driver.run(script) is None:
        stream.order_at(600, DrainNotification)
        assert stream.run(waiting_script(plan), attempt=stream.next_attempt()) == 0
        checkpoint = Checkpoint(stream.checkpoints, layout.checkpoint_folder(STREAM, "d-0001", "counts"))
        assert checkpoint.commit_ids() == list(range(checkpoint.commit_ids()[-1] + 1))
        assert_nothing_lost(plan)


def called_off(number: int, fault: Fault, *, writes: bool) -> tuple[FaultPlan, int]:
    """Run a drain that is called off over a quick and a slow query, with one strike after the order; returns all calls,
    and the number of calls before the order."""
    stream, quick, slow = SimulatedStream(), make_plan(60), make_plan(60, batch_seconds=6.0)
    stream.deploy()
    faults, before = FaultPlan(), [0]
    store = FaultyStore(stream.checkpoints, faults)
    driver = SimulatedDriver(stream, checkpoints=store, control=StreamControl(store, STREAM, stream.clock))

    def order() -> None:
        stream.order(DrainNotification, batches_within_seconds=1.0)
        before[0] = len(faults.writes if writes else faults.calls)
        (faults.at_write if writes else faults.at)[before[0] + number] = fault

    stream.clock.after(7.0, order)
    stream.order_at(200.0, DrainNotification)
    script = waiting_script(quick, slow, names=("counts-0", "counts-1"))
    if driver.run(script) is None:
        assert stream.run(script, attempt=stream.next_attempt()) == 0
    assert stream.kinds()[-1] == "Drained"
    for plan in (quick, slow):
        assert_nothing_lost(plan)
    return faults, before[0]


@pytest.mark.full
@pytest.mark.parametrize("fault", [*KILL_POINTS, Fault.UNAVAILABLE])
def test_every_write_of_a_drain_that_is_called_off_may_be_the_last(fault: Fault) -> None:
    """The driver dies around it, its reply is lost, or it is not done: the queries run on, here or in the next attempt,
    and each row is counted once (Laws 2, 8, 12, 13; 1a.3, 1a.7)."""
    calm, before = called_off(10_000, fault, writes=True)
    struck = len(calm.writes) - before
    assert struck > 20
    for number in range(1, min(struck, 40)):
        called_off(number, fault, writes=True)


@pytest.mark.full
def test_every_read_of_a_drain_that_is_called_off_may_go_unanswered() -> None:
    """The next poll goes by the log (Law 7)."""
    calm, before = called_off(10_000, Fault.UNAVAILABLE, writes=False)
    for number in range(1, min(len(calm.calls) - before, 200), 5):
        called_off(number, Fault.UNAVAILABLE, writes=False)
