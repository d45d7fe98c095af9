"""Every query of a drain comes to its barrier, whatever it was doing (1a.5, 1a.7)."""

from __future__ import annotations

import pytest

from airflow_streamstate.protocol.commands import DrainNotification, StopRequest
from airflow_streamstate.protocol.events import Drained, DrainFailed, Failed, Noted, Rejected, Stopped
from airflow_streamstate.protocol.records import StartPlan
from support.faulty_store import Fault, FaultPlan, FaultyStore
from support.simulated_driver import (
    SimulatedDriver,
    SimulatedStream,
    assert_nothing_lost,
    make_plan,
    waiting_script,
)
from support.simulated_query import Phase, SimulatedPlan, SimulatedRun
from support.simulated_sources import expected_counts


def counts_of(plan: SimulatedPlan, rows: int) -> dict[int, int]:
    return expected_counts(plan.sources[0].rows[:rows], 1_000)


def stopped_before(stream: SimulatedStream, *plans: SimulatedPlan, names: tuple[str, ...] = ("counts",)) -> int:
    """Stop a first run of these queries; returns the number of the next attempt."""
    stream.order_at(2.1, StopRequest)
    assert stream.run(waiting_script(*plans, names=names)) == 0
    return stream.next_attempt()


def test_a_batch_that_spark_had_planned_runs_before_the_flush(stream: SimulatedStream) -> None:
    """The sink may hold it already: it runs first, over the same bounds (1a.6)."""
    plan = make_plan(500)

    def die_after_the_sink(run: SimulatedRun, phase: Phase) -> None:
        if phase == "commit" and run.committed[-1:] == [1]:
            driver.kill()

    driver = SimulatedDriver(stream)

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.startables[0].before_phase = die_after_the_sink
        driver.await_all()

    assert driver.run(script) is None
    attempt = stream.next_attempt(attempt_mode="drain")
    stream.order(DrainNotification)
    assert stream.run(waiting_script(plan), attempt=attempt) == 0
    assert plan.sources[0].reads[-2:] == [(20, 30), (20, 30)]
    assert plan.sink.counts() == counts_of(plan, 30)
    assert stream.events_of(Drained)[0].queries["counts"].batch_id == 3


def test_a_deployment_that_never_committed_a_batch_drains_with_no_position(stream: SimulatedStream) -> None:
    """Nothing was read or flushed, and the successor starts where its options specify."""
    plan = make_plan(40)
    stream.order(DrainNotification)
    assert stream.run(waiting_script(plan)) == 0
    drained = stream.events_of(Drained)[0]
    assert drained.queries["counts"].batch_id is None
    assert plan.sources[0].reads == []
    stream.deploy(2, StartPlan("seed", drained.snapshot_id, "d-0001"))
    stream.order_at(30.0, DrainNotification, "d-0002")
    assert stream.run(waiting_script(plan), "d-0002") == 0
    assert_nothing_lost(plan)


def test_the_queries_of_a_slow_script_are_waited_for(stream: SimulatedStream) -> None:
    """The drain waits for a query with state that is not started yet (1a.11)."""
    plans = (make_plan(500), make_plan(500))
    attempt = stopped_before(stream, *plans, names=("a", "b"))
    stream.order_at(1.0, DrainNotification)

    def script(driver: SimulatedDriver) -> None:
        driver.start(plans[0], "a")
        driver.clock.sleep(10.0)
        driver.start(plans[1], "b")
        driver.await_all()

    assert stream.run(script, attempt=attempt) == 0
    drained = stream.events_of(Drained)[0]
    manifest = stream.control.need_manifest(drained.snapshot_id)
    assert all(manifest.queries[name].drained for name in "ab")
    for plan in plans:
        assert plan.sink.counts() == counts_of(plan, plan.sources[0].reads[-1][1])


@pytest.mark.parametrize("at_seconds", [1.0, 60.0])
def test_a_drain_of_a_running_stream_that_would_leave_out_a_query_changes_nothing(
    stream: SimulatedStream, at_seconds: float
) -> None:
    """The stream runs on, whether that is known when the order comes, or when the script's grace has ended (Law 16)."""
    plans = (make_plan(500), make_plan(500))
    attempt = stopped_before(stream, *plans, names=("a", "b"))
    stream.order_at(at_seconds, DrainNotification)
    stream.order_at(120.0, StopRequest, attempt=attempt)
    assert stream.run(waiting_script(plans[1], names=("b",)), attempt=attempt) == 0
    assert stream.events_of(Drained) == []
    (said,) = [*stream.events_of(Rejected), *stream.events_of(DrainFailed)]
    assert "the script does not start query a, so the drain cannot flush it" in str(said)
    assert isinstance(said, Rejected) or said.then == "runs_on"
    assert stream.kinds()[-1] == "Stopped"
    assert stream.commands() == []
    rows = plans[1].sources[0].reads[-1][1]
    assert rows > plans[0].sources[0].reads[-1][1]


@pytest.mark.parametrize("names", [("a",), ()])
def test_an_attempt_for_a_drain_that_does_not_start_a_query_flushes_nothing(
    stream: SimulatedStream, names: tuple[str, ...]
) -> None:
    """As of a failed stream whose query with state is not started: it fails, and all state stays (Laws 11 and 16)."""
    plans = {"a": make_plan(500), "b": make_plan(500)}
    stopped_before(stream, *plans.values(), names=("a", "b"))
    before = [list(plan.sink.batches) for plan in plans.values()]
    stream.order(DrainNotification)
    attempt = stream.next_attempt(attempt_mode="drain")
    assert stream.run(waiting_script(*(plans[name] for name in names), names=names), attempt=attempt) == 0
    assert stream.events_of(Drained) == []
    (failed,) = stream.events_of(DrainFailed)
    assert (failed.cause, failed.withdrawn) == ("not_started", True)
    assert "does not start" in failed.error
    assert any("--leave-query" in choice for choice in failed.choices)
    (stopped,) = [event for event in stream.events_of(Stopped) if event.attempt == attempt]
    manifest = stream.control.need_manifest(stopped.snapshot_id)
    assert not any(query.drained for query in manifest.queries.values())
    assert [list(plan.sink.batches) for plan in plans.values()] == before
    assert stream.commands() == []


def test_a_query_that_a_drain_may_leave_is_carried_on_unflushed(stream: SimulatedStream) -> None:
    """It keeps its state, and a note names it (1a.12, Law 16)."""
    plans = (make_plan(500), make_plan(500))
    attempt = stopped_before(stream, *plans, names=("a", "b"))
    stream.order_at(60.0, DrainNotification, leave_queries=("b",))
    assert stream.run(waiting_script(plans[0], names=("a",)), attempt=attempt) == 0
    drained = stream.control.need_manifest(stream.events_of(Drained)[0].snapshot_id)
    assert drained.queries["a"].drained
    assert not drained.queries["b"].drained
    assert any(entry.path.startswith("state/") for entry in drained.queries["b"].files)
    assert any("carried on unflushed" in note.text for note in stream.events_of(Noted))


def test_a_script_that_fails_before_its_queries_are_started_is_not_drained(stream: SimulatedStream) -> None:
    """The drain holds for the next attempt (Law 16)."""
    plan = make_plan(500)
    attempt = stopped_before(stream, plan)
    stream.order(DrainNotification)

    def broken(driver: SimulatedDriver) -> None:
        driver.clock.sleep(1.0)
        raise ValueError("no input folder")

    assert stream.run(broken, attempt=attempt) == 1
    assert stream.kinds()[-1] == "Failed"
    assert "no input folder" in stream.events_of(Failed)[0].traceback
    assert stream.events_of(Drained) == []
    assert len(stream.commands()) == 1
    assert stream.run(waiting_script(plan), attempt=stream.next_attempt()) == 0
    assert stream.kinds()[-1] == "Drained"
    assert plan.sink.counts() == counts_of(plan, plan.sources[0].reads[-1][1])


def test_a_store_that_does_not_answer_a_start_under_a_drain_is_asked_again(stream: SimulatedStream) -> None:
    """One lost reply within start() neither fails the script nor leaves the query out of the drain (Law 7)."""
    plan = make_plan(500)
    attempt = stopped_before(stream, plan)
    stream.order(DrainNotification)
    faults = FaultPlan()
    store = FaultyStore(stream.checkpoints, faults)
    driver = SimulatedDriver(stream, attempt=attempt, checkpoints=store)

    def script(driver: SimulatedDriver) -> None:
        faults.at = {len(faults.calls) + 1: Fault.UNAVAILABLE, len(faults.calls) + 2: Fault.UNAVAILABLE}
        driver.start(plan)
        driver.await_all()

    assert driver.run(script) == 0
    drained = stream.control.need_manifest(stream.events_of(Drained)[0].snapshot_id)
    assert drained.queries["counts"].drained
