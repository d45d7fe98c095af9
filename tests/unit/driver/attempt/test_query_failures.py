"""Queries that fail while others run: reported once, and what an end of the deployment does with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.protocol.commands import Command, DrainNotification, SnapshotRequest, StopRequest
from airflow_streamstate.protocol.events import (
    Drained,
    Failed,
    Finished,
    Noted,
    QueryFailed,
    QueryStarted,
    Rejected,
    SnapshotReady,
    Stopped,
)
from airflow_streamstate.protocol.records import StartPlan
from airflow_streamstate.protocol.terms.version import OnQueryFailure
from airflow_streamstate.store.memory import MemoryStore
from support.faulty_store import Fault, FaultPlan, FaultyStore
from support.simulated_driver import (
    STREAM,
    QueryFailedError,
    Script,
    SimulatedDriver,
    SimulatedStream,
    assert_nothing_lost,
    make_plan,
    waiting_script,
)
from support.simulated_query import QueryDiedError, SimulatedPlan, SimulatedRun

pytestmark = pytest.mark.fast

NAMES = ("counts", "failing")
REPORT = """[STREAM_FAILED] Query [id = 1] terminated with exception: Traceback (most recent call last):
  File "job.py", line 7, in fails
    raise Unlucky("batch of bad luck")
Unlucky: batch of bad luck
 SQLSTATE: XXKST
=== Streaming Query ===
Logical Plan:
~Project"""


def plans(*, fails_at: int | None = 3, rows: int = 500) -> tuple[SimulatedPlan, SimulatedPlan]:
    """One query that goes well, and one whose batch fails over its rows."""
    failing = make_plan(200, failure_words=REPORT, fails_at=set() if fails_at is None else {fails_at})
    return make_plan(rows), failing


def start_both(driver: SimulatedDriver, both: tuple[SimulatedPlan, ...]) -> None:
    for name, plan in zip(NAMES, both, strict=True):
        driver.start(plan, name)


def waits_for_the_other(*both: SimulatedPlan) -> Script:
    """A script that starts two queries and waits for the first: the failure of the second ends nothing."""

    def script(driver: SimulatedDriver) -> None:
        start_both(driver, both)
        driver.queries[0].await_termination()

    return script


def waits_for_any(*both: SimulatedPlan) -> Script:
    """A script that waits as ``awaitAnyTermination`` does."""

    def script(driver: SimulatedDriver) -> None:
        start_both(driver, both)

        def is_over(query: LogicalQuery) -> bool:
            return query.ended and not query.is_held_back

        while not any(is_over(query) for query in driver.queries):
            driver.clock.sleep(0.1)
        for query in driver.queries:
            failure = query.failure_to_raise() if is_over(query) else None
            if failure is not None:
                raise QueryFailedError(failure)

    return script


def waits_for_nothing(*both: SimulatedPlan) -> Script:
    """A script that loops forever."""

    def script(driver: SimulatedDriver) -> None:
        start_both(driver, both)
        while True:
            driver.clock.sleep(1.0)

    return script


def dies_between_two_batches(driver: SimulatedDriver) -> None:
    """Have the second query fail at about 10 s, when its log plans nothing."""
    began = driver.clock.monotonic_seconds()

    def die(_run: object, phase: str) -> None:
        if phase == "construct" and 10.0 < driver.clock.monotonic_seconds() - began < 15.0:
            raise QueryDiedError("the source does not answer")

    driver.clock.after(0.0, lambda: setattr(driver.startables[1], "before_phase", die))


def deployed(on_query_failure: OnQueryFailure = "script") -> SimulatedStream:
    stream = SimulatedStream()
    stream.deploy(on_query_failure=on_query_failure)
    return stream


def mended(stream: SimulatedStream, both: tuple[SimulatedPlan, SimulatedPlan]) -> None:
    """The next attempt, whose batch goes well, drains: both queries lost nothing."""
    attempt = stream.next_attempt()
    stream.order_at(200.0, DrainNotification)
    good = (both[0], replace(both[1], fails_at=set()))
    assert stream.run(waiting_script(*good, names=NAMES), attempt=attempt) == 0
    assert stream.kinds()[-1] == "Drained"
    for plan in good:
        assert_nothing_lost(plan)


def test_a_query_that_fails_while_the_script_waits_for_another_is_told_once() -> None:
    """With its batch and the last line of its traceback. The other query runs on; a stop keeps the planned batch, which
    the next attempt runs first."""
    stream, both = deployed(), plans()
    stream.order_at(60.0, StopRequest)
    assert stream.run(waits_for_the_other(*both)) == 0
    [failed] = stream.events_of(QueryFailed)
    assert (failed.query_name, failed.batch_id, failed.planned_batch_id) == ("failing", 2, 3)
    assert failed.error == "Unlucky: batch of bad luck"
    assert "Streaming Query" in failed.traceback
    assert failed.then == "degrade"
    positions = stream.events_of(Stopped)[0].queries
    assert (positions["counts"].batch_id or 0) > 10
    assert (positions["failing"].batch_id, positions["failing"].planned_batch_id) == (2, 3)
    assert any(note.facts.get("queries") == ["failing"] for note in stream.events_of(Noted))
    mended(stream, both)


def test_a_live_snapshot_of_a_degraded_stream_holds_the_failed_query() -> None:
    """At its last commit; a consistent snapshot does not start it again."""
    stream, both = deployed(), plans()
    stream.order_at(20.0, SnapshotRequest)
    stream.order_at(25.0, SnapshotRequest, consistent=True)
    stream.order_at(60.0, StopRequest)
    assert stream.run(waits_for_the_other(*both)) == 0
    first, second = stream.events_of(SnapshotReady)
    for ready in (first, second):
        assert (ready.queries["failing"].batch_id, ready.queries["failing"].planned_batch_id) == (2, None)
    assert [event.query_name for event in stream.events_of(QueryStarted)].count("failing") == 1


def test_a_deployment_from_the_end_of_a_degraded_one_carries_the_failed_query_on() -> None:
    """An upgrade restores it with its planned batch, which the new version runs first."""
    stream, both = deployed(), plans()
    stream.order_at(60.0, StopRequest)
    assert stream.run(waits_for_the_other(*both)) == 0
    snapshot_id = stream.events_of(Stopped)[0].snapshot_id
    stream.deploy(2, StartPlan("restore", snapshot_id, "d-0001"))
    stream.order_at(200.0, DrainNotification, "d-0002")
    good = (both[0], replace(both[1], fails_at=set()))
    assert stream.run(waiting_script(*good, names=NAMES), "d-0002") == 0
    started = {event.query_name: event for event in stream.events_of(QueryStarted, "d-0002")}
    assert (started["failing"].how, started["failing"].planned_batch_id) == ("restored", 3)
    for plan in good:
        assert_nothing_lost(plan)


def test_a_drain_of_a_degraded_stream_is_refused_and_passes_no_batch_over() -> None:
    """The rejection names query, batch and cause; a stop and a fixed start drain after all (1a.5)."""
    stream, both = deployed(), plans()
    stream.order_at(20.0, DrainNotification)
    stream.order_at(60.0, StopRequest)
    assert stream.run(waits_for_the_other(*both)) == 0
    [rejected] = stream.events_of(Rejected)
    assert "query failing has failed in batch 3" in rejected.reason
    assert "Unlucky: batch of bad luck" in rejected.reason
    assert stream.events_of(Drained) == []
    mended(stream, both)


def test_a_drain_is_answered_where_the_log_of_a_failed_query_is_damaged() -> None:
    """The rejection names the log and the next step; the stop behind it fails because the log is damaged."""
    stream, both = deployed(), plans()

    def script(driver: SimulatedDriver) -> None:
        def damage() -> None:
            checkpoint = driver.queries[1].checkpoint
            entry = checkpoint.store.get(checkpoint.key("offsets/3"))
            assert entry is not None
            checkpoint.store.put(checkpoint.key("offsets/9"), entry.body)

        driver.clock.after(15.0, damage)
        waits_for_the_other(*both)(driver)

    stream.order_at(20.0, DrainNotification)
    stream.order_at(40.0, StopRequest)
    assert stream.run(script) == 1
    [rejected] = stream.events_of(Rejected)
    assert "the offset log plans batches beyond one not committed" in rejected.reason
    assert "Stop the stream" in rejected.reason
    assert stream.kinds()[-2:] == ["Accepted", "Failed"]
    assert "the final snapshot could not be taken" in stream.events_of(Failed)[0].error


def test_a_query_that_failed_between_two_batches_is_drained_with_the_others() -> None:
    """It has no planned batch to skip: its state is flushed like that of the others."""
    stream, both = deployed(), plans(fails_at=None)

    def script(driver: SimulatedDriver) -> None:
        dies_between_two_batches(driver)
        waits_for_the_other(*both)(driver)

    stream.order_at(40.0, DrainNotification)
    assert stream.run(script) == 0
    [failed] = stream.events_of(QueryFailed)
    assert failed.planned_batch_id is None
    assert set(stream.events_of(Drained)[0].queries) == set(NAMES)


def test_a_script_that_waits_for_any_query_ends_with_the_failure() -> None:
    """As in plain Spark: ``Failed`` follows ``QueryFailed``, and names the cause; the other query ends at a commit."""
    stream, both = deployed(), plans()
    assert stream.run(waits_for_any(*both)) == 1
    assert [kind for kind in stream.kinds() if "ailed" in kind] == ["QueryFailed", "Failed"]
    assert stream.events_of(Failed)[0].sentence == "Unlucky: batch of bad luck"
    mended(stream, both)


@pytest.mark.parametrize("script", [waits_for_the_other, waits_for_any, waits_for_nothing])
def test_with_fail_the_first_failure_ends_the_deployment(script: Callable[..., Script]) -> None:
    """Whatever the script waits for: the others end at a commit, ``Failed`` names the query, the status is 1."""
    stream, both = deployed("fail"), plans()
    assert stream.run(script(*both)) == 1
    [failed] = stream.events_of(Failed)
    assert failed.sentence == "Unlucky: batch of bad luck"
    assert stream.events_of(QueryFailed)[0].then == "fail"
    assert stream.events_of(Finished) == []
    if script is not waits_for_any:
        assert failed.query_name == "failing"
    mended(stream, both)


@pytest.mark.parametrize("script", [waits_for_the_other, waits_for_any])
def test_with_degrade_the_others_run_on_whatever_the_script_waits_for(script: Callable[..., Script]) -> None:
    """No wait raises the failure while another query runs, and none after a stop: the driver ends with 0."""
    stream, both = deployed("degrade"), plans()
    stream.order_at(60.0, StopRequest)
    assert stream.run(script(*both)) == 0
    assert len(stream.events_of(QueryFailed)) == 1
    assert stream.events_of(Failed) == []
    assert stream.events_of(Stopped)[0].queries["failing"].planned_batch_id == 3


@pytest.mark.parametrize("ending", ["stop", "drain", "snapshot"])
def test_with_degrade_no_wait_raises_in_the_middle_of_an_ending(ending: str) -> None:
    """Otherwise the script's end would cut a flush, or turn a snapshot into the end of the deployment."""
    stream, both = deployed("degrade"), plans(fails_at=None)
    raised: list[str] = []

    def script(driver: SimulatedDriver) -> None:
        def look() -> None:
            for query in driver.queries:
                latch = driver.attempt_life.attempt.latch
                if query.ended and not query.is_held_back and not latch.is_released and query.failure_to_raise():
                    raised.append(latch.state)

        dies_between_two_batches(driver)
        driver.clock.every(0.01, look)
        waits_for_the_other(*both)(driver)

    if ending == "snapshot":
        stream.order_at(20.0, SnapshotRequest, consistent=True)
    stream.order_at(30.0, DrainNotification if ending == "drain" else StopRequest)
    assert stream.run(script) == 0
    assert len(stream.events_of(QueryFailed)) == 1
    assert raised == []
    assert stream.kinds()[-1] == ("Drained" if ending == "drain" else "Stopped")


def fails_under_a_barrier(stream: SimulatedStream, order: Callable[[], object], *both: SimulatedPlan) -> Script:
    """A script that waits for its first query; what is ordered arrives within the batch of the second that fails."""

    def script(driver: SimulatedDriver) -> None:
        ordered: list[object] = []

        def strike(run: SimulatedRun, phase: str) -> None:
            if phase == "run" and run._batch is not None and run._batch.batch_id == 3 and not ordered:
                ordered.append(order())

        driver.clock.after(0.0, lambda: setattr(driver.startables[1], "before_phase", strike))
        waits_for_the_other(*both)(driver)

    return script


@pytest.mark.parametrize("setting", ["script", "degrade", "fail"])
@pytest.mark.parametrize("command", [StopRequest, DrainNotification, SnapshotRequest])
def test_a_batch_that_fails_on_its_way_to_a_barrier_is_told(command: type[Command], setting: OnQueryFailure) -> None:
    """A stop or drain has failed with it: both events name the query, the status is 1. A snapshot is rejected after
    ``QueryFailed``, and only ``fail`` ends the deployment. The next start runs the batch (1a.7, Law 12)."""
    stream, both = deployed(setting), plans()
    slow = replace(both[1], batch_seconds=6.0)
    terms = {"consistent": True} if command is SnapshotRequest else {}
    stream.order_at(90.0, StopRequest)
    status = stream.run(fails_under_a_barrier(stream, lambda: stream.order(command, **terms), both[0], slow))
    assert stream.events_of(QueryFailed)[0].error == "Unlucky: batch of bad luck"
    if command is DrainNotification:
        assert stream.kinds()[-4:] == ["Accepted", "DrainFailed", "QueryFailed", "Failed"]
        assert stream.commands() == []
    if command is SnapshotRequest:
        ends = ["Failed"] if setting == "fail" else ["Accepted", "Stopped"]
        assert stream.kinds()[-len(ends) - 2 :] == ["QueryFailed", "Rejected", *ends]
    is_failed = command is not SnapshotRequest or setting == "fail"
    assert status == is_failed
    assert [event.query_name for event in stream.events_of(Failed)] == ["failing"] * is_failed
    assert stream.events_of(Finished) == []
    mended(stream, (both[0], slow))


def test_queries_that_cannot_be_started_again_after_a_snapshot_are_each_told() -> None:
    """Each has its own event, although no run of theirs failed."""
    stream, both = deployed(), plans(fails_at=None)
    done = make_plan(300)

    def drop_tables() -> None:
        for plan in both:
            plan.refuses_to_start = ValueError("no such table")

    stream.clock.after(8.0, drop_tables)
    stream.order_at(10.0, SnapshotRequest, consistent=True)
    stream.order_at(60.0, StopRequest)

    def script(driver: SimulatedDriver) -> None:
        start_both(driver, both)
        driver.start(done, "done").await_termination()

    assert stream.run(script) == 0
    assert {(event.query_name, event.error) for event in stream.events_of(QueryFailed)} == {
        (name, "ValueError: no such table") for name in NAMES
    }


@pytest.mark.parametrize("setting", ["script", "degrade"])
def test_a_script_that_ends_well_hides_no_failure_that_it_was_not_given(setting: OnQueryFailure) -> None:
    """Its status 0 cannot speak for it: the deployment has failed with that query."""
    stream, both = deployed(setting), plans()
    done = make_plan(45, trigger="available_now")

    def script(driver: SimulatedDriver) -> None:
        failing = driver.start(both[1], "failing")
        while failing.is_active():
            driver.clock.sleep(0.1)
        driver.start(done, "counts").await_termination()

    assert stream.run(script) == 1
    [failed] = stream.events_of(Failed)
    assert (failed.query_name, failed.sentence) == ("failing", "Unlucky: batch of bad luck")
    mended(stream, (replace(done, trigger="processing_time"), both[1]))


def test_with_degrade_a_wait_for_the_failed_query_itself_waits_for_the_others() -> None:
    """A wait with a timeout returns False; when no query runs any more the failure is raised."""
    stream = deployed("degrade")
    both = (make_plan(45, trigger="available_now"), plans()[1])
    waited: list[tuple[bool, bool]] = []

    def script(driver: SimulatedDriver) -> None:
        start_both(driver, both)
        ours, failing = driver.queries
        while not failing.ended:
            driver.clock.sleep(0.1)
        if not ours.ended:
            waited.append((failing.await_termination(0.2), ours.ended))
        waited.append((failing.await_termination(), ours.ended))
        raise QueryFailedError(failing.failure_to_raise())

    assert stream.run(script) == 1
    assert waited[-1] == (True, True)
    assert waited[0][0] is (len(waited) == 1)
    assert stream.events_of(Failed)[0].sentence == "Unlucky: batch of bad luck"


def test_a_query_that_the_script_stopped_is_no_failure() -> None:
    """Not even where Spark reports the cut of its batch as an exception."""
    stream, both = deployed(), plans(fails_at=None)

    def script(driver: SimulatedDriver) -> None:
        start_both(driver, both)
        driver.clock.sleep(5.0)
        run = driver.queries[1].run
        driver.startables[1].before_stop = lambda _run: run._end("py4j: interrupted") if run is not None else None
        driver.queries[1].stop()
        driver.queries[0].await_termination()

    stream.order_at(60.0, StopRequest)
    assert stream.run(script) == 0
    assert stream.events_of(QueryFailed) == []


def test_a_script_that_starts_its_failed_query_again_is_told_of_each_failure() -> None:
    """Each run has its own event; a query that was started again no longer counts as failed."""
    stream, both = deployed(), plans()
    good = replace(both[1], fails_at=set())

    def script(driver: SimulatedDriver) -> None:
        driver.start(both[0], "counts")
        for _ in range(2):
            query = driver.start(both[1], "failing")
            query.await_termination()
            assert query.failure() is not None
        driver.start(good, "failing")
        driver.queries[0].await_termination()

    stream.order_at(90.0, StopRequest)
    assert stream.run(script) == 0
    assert [kind for kind in stream.kinds() if kind in ("QueryStarted", "QueryFailed")] == [
        "QueryStarted", "QueryStarted", "QueryFailed", "QueryStarted", "QueryFailed", "QueryStarted",
    ]  # fmt: skip
    assert stream.events_of(Stopped)[0].queries["failing"].planned_batch_id is None


def test_a_home_that_is_away_hears_of_the_failure_later() -> None:
    """With the batch that had failed; the other query runs on in the meantime (Law 7)."""
    stream, both = deployed(), plans()
    faults = FaultPlan()
    home = FaultyStore(stream.checkpoints if isinstance(stream.checkpoints, MemoryStore) else MemoryStore(), faults)
    stream.clock.after(1.0, lambda: faults.at.update(dict.fromkeys(range(1, 20_000), Fault.UNAVAILABLE)))
    stream.clock.after(40.0, faults.at.clear)
    stream.order_at(60.0, StopRequest)
    driver = SimulatedDriver(stream, control=StreamControl(home, STREAM, stream.clock))
    assert driver.run(waits_for_the_other(*both)) == 0
    [failed] = stream.events_of(QueryFailed)
    assert failed.planned_batch_id == 3
