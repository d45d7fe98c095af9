"""Signs of life."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_streamstate.driver.agent.heartbeats import HeartbeatPace, HeartbeatWriter, RowRates
from airflow_streamstate.driver.attempt.ports import QueryProgress
from airflow_streamstate.errors import UnavailableError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.commands import DrainNotification, StopRequest
from airflow_streamstate.protocol.events import Drained
from airflow_streamstate.protocol.positions import FirstBatch, Heartbeat
from airflow_streamstate.protocol.records import StartPlan
from support.checkpoints import HookedStore
from support.clocked_store import ClockedStore
from support.fake_clock import START_AT
from support.simulated_driver import SimulatedDriver, SimulatedStream, make_plan, waiting_script
from support.simulated_query import SimulatedPlan


def beat_of(stream: SimulatedStream) -> Heartbeat:
    beat = stream.control.heartbeat("d-0001")
    assert beat is not None
    return beat


def stop(stream: SimulatedStream, plan: SimulatedPlan, attempt: int = 1, seconds: float = 3.0) -> int:
    """Run an attempt, and stop it after this time."""
    stream.order_at(seconds, StopRequest, attempt=attempt)
    assert stream.run(waiting_script(plan), attempt=attempt) == 0
    return attempt


@pytest.mark.parametrize("rows", [500, 0])
def test_the_first_commit_or_idle_trigger_is_told_at_once(stream: SimulatedStream, rows: int) -> None:
    """A wait for health does not need the next regular beat."""
    seen: list[Heartbeat] = []
    stream.clock.after(1.2, lambda: seen.append(beat_of(stream)))
    stop(stream, make_plan(rows))
    query = seen[0].queries["counts"]
    assert query.is_active
    assert (query.batch_id, query.idle_triggers > 0) == ((0, False) if rows else (None, True))


def test_a_beat_says_where_each_query_stands(stream: SimulatedStream) -> None:
    """Batch, time of its commit, rows of state, watermark and rates, as the last progress reported."""

    def script(driver: SimulatedDriver) -> None:
        driver.start(make_plan(15))
        driver.clock.sleep(25.0)

    assert stream.run(script) == 0
    query = beat_of(stream).queries["counts"]
    assert query.batch_id == 2
    assert query.state_rows == 1
    assert query.watermark_at is not None
    assert query.input_rows_per_second is not None
    assert 0 < query.input_rows_per_second < 1  # the batches of all its looks, not of the last one
    assert query.committed_at is not None
    assert query.committed_at < beat_of(stream).at


def test_the_first_batch_of_a_deployment_stays_told(stream: SimulatedStream) -> None:
    """With what its trigger took, over all attempts of the deployment: Spark forgets it, and removes its commit."""
    plan = make_plan(500)
    stop(stream, plan)
    first = beat_of(stream).first_batches["counts"]
    assert first.batch_id == 0
    assert first.triggered_at is not None
    assert first.triggered_at < first.seen_at
    assert first.durations_ms["addBatch"] > 0
    known = beat_of(stream).queries["counts"].batch_id or 0
    attempt = stop(stream, plan, stream.next_attempt())
    assert beat_of(stream).attempt == attempt
    assert beat_of(stream).first_batches == {"counts": first}
    stream.deploy(2, StartPlan("restore", "d-0001-stopped-000002", "d-0001"))
    stream.order_at(3.0, StopRequest, "d-0002")
    assert stream.run(waiting_script(plan), "d-0002") == 0
    beat = stream.control.heartbeat("d-0002")
    assert beat is not None
    assert beat.first_batches["counts"].batch_id > known + 1


@pytest.mark.parametrize("tells_times", [False, True])
def test_the_first_batch_of_another_attempt_is_not_told_as_seen_now(*, tells_times: bool) -> None:
    """The attempt before was of a release that kept none: the store's time of the commit counts, or nothing does."""
    stream, plan = SimulatedStream(), make_plan(5_000)
    if tells_times:
        stream.checkpoints = ClockedStore(stream.clock.now)
    stream.deploy()
    stop(stream, plan)
    first = beat_of(stream).first_batches["counts"]
    stream.control.put_heartbeat(replace(beat_of(stream), first_batches={}))
    stream.clock.advance(3_000.0)
    attempt = stop(stream, plan, stream.next_attempt())
    told = beat_of(stream).first_batches.get("counts")
    assert beat_of(stream).attempt == attempt
    assert told == (FirstBatch(0, first.committed_at, first.committed_at) if first.committed_at is not None else None)
    assert (first.committed_at is not None) == tells_times


def test_the_first_batch_is_told_by_the_attempt_that_committed_it(stream: SimulatedStream) -> None:
    """Also where an attempt before it started the query, and committed none."""
    plan = make_plan(0)
    stop(stream, plan)
    assert beat_of(stream).first_batches == {}
    stop(stream, make_plan(5_000), stream.next_attempt())
    assert beat_of(stream).first_batches["counts"].triggered_at is not None


def test_the_time_of_a_commit_stays_while_nothing_new_is_committed(stream: SimulatedStream) -> None:
    """committed_at is when the batch was first seen committed."""
    times = []

    def script(driver: SimulatedDriver) -> None:
        driver.start(make_plan(15))
        driver.clock.sleep(15.0)
        times.append(beat_of(stream).queries["counts"].committed_at)
        driver.clock.sleep(25.0)
        times.append(beat_of(stream).queries["counts"].committed_at)

    assert stream.run(script) == 0
    assert times[0] == times[1]


def test_news_is_told_once_per_run(stream: SimulatedStream) -> None:
    """After its first sign of life a query is reported in the regular beats alone."""

    def script(driver: SimulatedDriver) -> None:
        heart = HeartbeatWriter(driver.attempt_life.attempt)
        driver.start(make_plan(500))
        assert not heart.has_news()
        driver.clock.sleep(2.0)
        assert heart.has_news()
        assert not heart.has_news()

    assert stream.run(script) == 0


def test_a_batch_of_before_has_the_time_at_which_it_was_seen_then_or_none(stream: SimulatedStream) -> None:
    """A resume does not date an old batch as new; later commits are dated."""
    plan = make_plan(15)

    def runs(driver: SimulatedDriver) -> None:
        driver.clock.sleep(25.0)  # signs of life that know no query yet take the place of the last one
        driver.start(plan)
        driver.clock.sleep(25.0)

    assert stream.run(runs) == 0
    known = beat_of(stream).queries["counts"]
    stream.clock.advance(600)
    assert stream.run(runs, attempt=stream.next_attempt()) == 0
    again = beat_of(stream)
    assert (again.attempt, again.queries["counts"].batch_id) == (2, known.batch_id)
    assert again.queries["counts"].committed_at == known.committed_at
    stream.control.home.delete(layout.heartbeat_key("flights", "d-0001"))
    assert stream.run(runs, attempt=stream.next_attempt()) == 0
    assert beat_of(stream).queries["counts"].committed_at is None
    resumed_at = stream.clock.now()
    plan.sources[0].add(*range(20_000, 21_250, 250))
    assert stream.run(runs, attempt=stream.next_attempt()) == 0
    newest = beat_of(stream).queries["counts"]
    assert (newest.batch_id or 0) > (known.batch_id or 0)
    assert newest.committed_at is not None
    assert newest.committed_at > resumed_at


def test_a_restored_batch_has_the_time_at_which_the_deployment_before_saw_it(stream: SimulatedStream) -> None:
    """Not that of the copy, nor of the first poll; of a deployment that it did not start with nothing is taken."""
    plan = make_plan(15)
    stop(stream, plan, seconds=40.0)
    known = beat_of(stream).queries["counts"]
    assert known.committed_at is not None
    for number, predecessor_id, expected in ((2, "d-0001", known.committed_at), (3, "d-0002", None)):
        stream.deploy(number, StartPlan("restore", "d-0001-stopped-000001", predecessor_id))

        def runs(driver: SimulatedDriver) -> None:
            driver.start(plan)
            driver.clock.sleep(15.0)

        assert stream.run(runs, f"d-{number:04d}") == 0
        beat = stream.control.heartbeat(f"d-{number:04d}")
        assert beat is not None
        assert (beat.queries["counts"].batch_id, beat.queries["counts"].committed_at) == (known.batch_id, expected)


def test_the_batch_of_a_flush_has_the_time_at_which_it_was_seen(stream: SimulatedStream) -> None:
    """Also in an attempt that is there for the flush alone, and reports of no query that it was started."""
    plan = make_plan(15)
    stop(stream, plan, seconds=15.0)
    before = beat_of(stream).queries["counts"]
    stream.clock.advance(600)
    attempt = stream.next_attempt()
    stream.order(DrainNotification, attempt=attempt)
    began_at = stream.clock.now()
    assert stream.run(waiting_script(plan), attempt=attempt) == 0
    assert stream.events_of(Drained)
    flushed = beat_of(stream).queries["counts"]
    assert flushed.batch_id == (before.batch_id or 0) + 1
    assert flushed.committed_at is not None
    assert flushed.committed_at > began_at


def test_a_batch_that_was_committed_before_its_start_could_be_told_is_dated() -> None:
    """The store took no event for a while; what was committed then was seen all the same."""
    store = HookedStore()
    stream = SimulatedStream(checkpoints=store)
    stream.deploy()

    def takes_no_event(verb: str, key: str) -> None:
        if verb == "create" and "/events/" in key:
            raise UnavailableError("not now")

    def script(driver: SimulatedDriver) -> None:
        store.before = takes_no_event
        driver.start(make_plan(5))
        driver.clock.sleep(25.0)
        store.before = None
        driver.clock.sleep(25.0)

    assert stream.run(script) == 0
    assert beat_of(stream).queries["counts"].batch_id is not None
    assert beat_of(stream).queries["counts"].committed_at is not None


def test_the_time_of_a_batch_is_the_mean_of_the_last_ones() -> None:
    """Also of those between two signs of life; a batch that is seen again, or without a time, adds nothing."""
    pace = HeartbeatPace()
    assert pace.batch_seconds(3, START_AT) is None
    assert pace.batch_seconds(3, START_AT + timedelta(seconds=99)) is None
    assert pace.batch_seconds(7, START_AT + timedelta(seconds=10)) == 2.5
    assert pace.batch_seconds(8, None) == 2.5
    for number in range(100):
        last = pace.batch_seconds(9 + number, START_AT + timedelta(seconds=14 + 4 * number))
    assert last == 4.0


def test_a_pace_of_one_batch_that_two_threads_have_seen_is_not_known() -> None:
    """Both threads of the agent may take it in at once."""
    pace = HeartbeatPace()
    pace._seen += [(5, START_AT), (5, START_AT)]
    assert pace.batch_seconds(5, START_AT) is None
    assert pace.batch_seconds(7, START_AT + timedelta(seconds=3)) == 1.5


@pytest.mark.parametrize(
    ("changes", "has_ended"),
    [({"trigger": "available_now"}, True), ({"trigger": "once"}, True), ({}, False)],
)
def test_the_end_of_a_run_that_ends_by_itself_is_told(
    stream: SimulatedStream, changes: dict[str, str], *, has_ended: bool
) -> None:
    """While the script runs on."""
    seen: list[Heartbeat] = []

    def script(driver: SimulatedDriver) -> None:
        driver.start(make_plan(15, **changes))
        driver.clock.sleep(25.0)
        seen.append(beat_of(stream))

    assert stream.run(script) == 0
    query = seen[0].queries["counts"]
    assert (query.run_has_ended, query.is_active) == (has_ended, not has_ended)


def test_the_end_of_a_run_that_failed_is_not_told_as_its_own(stream: SimulatedStream) -> None:
    """The event of the failure speaks for it."""
    seen: list[Heartbeat] = []

    def script(driver: SimulatedDriver) -> None:
        driver.start(make_plan(15, trigger="available_now", fails_at={1}))
        driver.clock.sleep(25.0)
        seen.append(beat_of(stream))

    stream.run(script)
    assert (seen[0].queries["counts"].is_active, seen[0].queries["counts"].run_has_ended) == (False, False)


def test_when_a_deployment_first_had_nothing_to_commit_stays_told(stream: SimulatedStream) -> None:
    """Over all its attempts; a query that commits first has none, however long it finds nothing later."""
    plan = make_plan(0)
    stop(stream, plan)
    (idle_at,) = beat_of(stream).first_idles.values()
    assert idle_at <= beat_of(stream).at
    stop(stream, plan, stream.next_attempt())
    assert beat_of(stream).first_idles == {"counts": idle_at}


def test_a_query_that_commits_at_once_has_no_first_idle_trigger(stream: SimulatedStream) -> None:
    """What it finds later is none of its start."""
    stop(stream, make_plan(15), seconds=25.0)
    assert beat_of(stream).queries["counts"].is_idle
    assert beat_of(stream).first_idles == {}


def test_the_rate_of_input_is_that_of_the_last_minute() -> None:
    """An empty trigger between batches makes no 0 of it; what is older than a minute counts no more."""
    rates, at = RowRates(), START_AT
    assert rates.input(at, 0) is None
    seen = []
    for look in range(1, 13):
        seen.append(rates.input(at + timedelta(seconds=10 * look), 600 * min((look + 1) // 2, 3)))
    assert seen[:4] == [60.0, 30.0, 40.0, 30.0]  # a batch of 600 rows at every other look
    assert seen[-1] == 0.0
    assert rates.input(at + timedelta(seconds=130), 5) is None  # started once more


def test_the_rate_of_processing_is_that_of_batches_with_rows() -> None:
    """Of the last minute; an empty batch shows nothing about it."""
    rates, at = RowRates(), START_AT

    def look(seconds: float, batch_id: int, rows: int, *, is_idle: bool = False) -> float:
        progress = QueryProgress(
            batch_id, rows, None, (), None, (), (), is_idle=is_idle, durations_ms={"triggerExecution": 2000}
        )
        return rates.processed(at + timedelta(seconds=seconds), progress)

    assert look(0, 0, 0) == 0.0
    assert look(10, 1, 600) == look(20, 1, 600, is_idle=True) == look(30, 2, 0) == 300.0
    assert look(40, 3, 200) == 200.0
    assert look(75, 3, 200, is_idle=True) == 100.0
    assert look(101, 3, 200, is_idle=True) == 0.0
