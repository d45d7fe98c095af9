"""Drain (1a.5), and every end of a notification."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_streamstate.checkpoint.log import FLUSH_WATERMARK_MS, Checkpoint
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.commands import DrainNotification, StopRequest
from airflow_streamstate.protocol.events import Drained, DrainFailed, Draining, Rejected
from airflow_streamstate.protocol.records import StartPlan
from support.faulty_store import Fault, FaultPlan, FaultyStore
from support.simulated_driver import (
    STREAM,
    SimulatedDriver,
    SimulatedStream,
    assert_nothing_lost,
    make_plan,
    waiting_script,
)
from support.simulated_query import EPOCH, Phase, SimulatedPlan, SimulatedRun
from support.simulated_sources import SimulatedSink, WindowCount, expected_counts


def drain_once(stream: SimulatedStream, plan: SimulatedPlan, at_seconds: float = 2.1) -> Drained:
    stream.order_at(at_seconds, DrainNotification)
    assert stream.run(waiting_script(plan)) == 0
    return stream.events_of(Drained)[0]


def counts_of(plan: SimulatedPlan, rows: int) -> dict[int, int]:
    return expected_counts(plan.sources[0].rows[:rows], 1_000)


def test_a_drain_flushes_every_window_and_reads_nothing_more(stream: SimulatedStream) -> None:
    """Rows that were read are written completely, the others stay unread (1a.5)."""
    plan = make_plan(500)
    drained = drain_once(stream, plan)
    read = plan.sources[0].reads[-1][1]
    assert read < 500
    assert plan.sink.counts() == counts_of(plan, read)
    assert drained.queries["counts"].end_offsets == (f'{{"index":{read}}}',)
    assert drained.queries["counts"].state_rows_left == 0
    assert stream.kinds() == ["Claimed", "Started", "QueryStarted", "Accepted", "Draining", "Drained"]
    assert stream.commands() == []


def test_the_event_says_all_that_a_person_asks(stream: SimulatedStream) -> None:
    """Flush batch, watermark before it, rows written early, and when the query ended and was flushed (1a.5)."""
    plan = make_plan(500)
    drained = drain_once(stream, plan)
    position = drained.queries["counts"]
    flush_id, early = plan.sink.batches[-1]
    assert position.batch_id == flush_id
    assert position.rows_written_early == len(early)
    assert position.watermark_at is not None
    assert position.watermark_at.timestamp() * 1000 < FLUSH_WATERMARK_MS
    assert position.rows_dropped == 0
    windows = [row.window_start_ms for row in early if isinstance(row, WindowCount)]
    assert position.open_windows_from_at == EPOCH + timedelta(milliseconds=min(windows))
    assert position.open_windows_until_at == EPOCH + timedelta(milliseconds=max(windows) + 1_000)
    draining, end = stream.events_of(Draining)[0], drained.ends["counts"]
    assert draining.flush_batch_ids == {"counts": flush_id}
    assert draining.snapshot_id == "d-0001-pre-drain-000001"
    assert end.barrier_at is not None
    assert end.ended_at is not None
    assert end.flushed_at is not None
    assert end.barrier_at <= end.ended_at <= draining.at < end.flushed_at <= drained.at


def test_the_state_is_kept_aside_before_the_flush_and_positions_after_it(stream: SimulatedStream) -> None:
    """The snapshot pre-drain has the state at the barrier, the snapshot drained has positions only (1a.5)."""
    plan = make_plan(500)
    drained = drain_once(stream, plan)
    before = stream.control.need_manifest("d-0001-pre-drain-000001").queries["counts"]
    after = stream.control.need_manifest(drained.snapshot_id).queries["counts"]
    flush_id = drained.queries["counts"].batch_id or 0
    assert before.position.batch_id == flush_id - 1
    assert not before.drained
    assert any(entry.path.startswith("state/") for entry in before.files)
    assert after.drained
    assert not any(entry.path.startswith("state/") for entry in after.files)
    assert after.watermark_ms == before.watermark_ms


@pytest.mark.parametrize("at_seconds", [0.05, 0.3, 0.7, 1.0, 1.25, 3.3, 12.0])
def test_a_drain_is_exact_whenever_it_comes(stream: SimulatedStream, at_seconds: float) -> None:
    """While the query starts up, in the middle of a batch, when it is idle: nothing is lost or doubled (1a.2, 1a.5)."""
    plan = make_plan()
    drained = drain_once(stream, plan, at_seconds)
    read = max([end for _, end in plan.sources[0].reads], default=0)
    assert plan.sink.counts() == counts_of(plan, read)
    stream.deploy(2, StartPlan("seed", drained.snapshot_id, "d-0001"))
    stream.order_at(30.0, DrainNotification, "d-0002")
    assert stream.run(waiting_script(plan), "d-0002") == 0
    assert_nothing_lost(plan)


def test_state_that_no_watermark_passes_is_reported_per_operator(stream: SimulatedStream) -> None:
    """An aggregation without a watermark cannot be flushed: its rows are reported, not dropped (Law 16)."""
    plan = make_plan(20, delay_ms=None)
    drained = drain_once(stream, plan, 10.0)
    position = drained.queries["counts"]
    assert position.state_rows_left == 5
    assert [(left.operator, left.rows) for left in position.state_left] == [("stateStoreSave", 5)]
    assert "no watermark" in position.state_left[0].reason


def test_a_stateless_query_drains_with_nothing_to_flush(stream: SimulatedStream) -> None:
    """A query without state ends at its positions."""
    plan = make_plan(20, window_ms=None)
    drained = drain_once(stream, plan, 10.0)
    assert drained.queries["counts"].state_rows_left == 0
    assert len(plan.sink.rows) == 20


def test_several_queries_are_flushed_together(stream: SimulatedStream) -> None:
    """One notification drains the whole deployment, with queries that ended before by themselves (1a.11)."""
    plans = [make_plan(500), make_plan(30, trigger="available_now"), make_plan(500, batch_seconds=3)]
    stream.order_at(9.0, DrainNotification)

    def script(driver: SimulatedDriver) -> None:
        for name, plan in zip("abc", plans, strict=True):
            driver.start(plan, name)
        driver.queries[1].await_termination()
        driver.await_all()

    assert stream.run(script) == 0
    drained = stream.events_of(Drained)[0]
    assert {name: position.state_rows_left for name, position in drained.queries.items()} == {"a": 0, "b": 0, "c": 0}
    assert plans[1].sink.counts() == counts_of(plans[1], 30)


def test_the_script_sees_a_running_query_until_the_drain_is_complete(stream: SimulatedStream) -> None:
    """A loop over isActive continues until flush, snapshot and event are done, and then ends (1a.11)."""
    plan = make_plan(500)
    stream.order_at(2.1, DrainNotification)
    seen: list[int] = []

    def script(driver: SimulatedDriver) -> None:
        query = driver.start(plan)
        while query.is_active():
            seen.append(len(stream.events_of(Drained)))
            driver.clock.sleep(0.1)
        assert query.failure() is None

    assert stream.run(script) == 0
    assert set(seen) == {0}
    assert len(stream.events_of(Drained)) == 1


def test_a_second_notification_is_answered_by_the_same_event(stream: SimulatedStream) -> None:
    """Both commands are cleaned up."""
    plan = make_plan(500, batch_seconds=3)
    stream.order_at(2.0, DrainNotification)
    stream.order_at(3.0, DrainNotification)
    assert stream.run(waiting_script(plan)) == 0
    (drained,) = stream.events_of(Drained)
    assert len(drained.also_answers) == 1
    assert stream.commands() == []


def test_a_notification_after_the_drain_gets_its_own_answer(stream: SimulatedStream) -> None:
    """While the script still runs: the same snapshot, at once."""
    plan = make_plan(50)
    stream.order_at(2.0, DrainNotification)

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.await_all()
        stream.order(DrainNotification)
        driver.clock.sleep(2.0)

    assert stream.run(script) == 0
    first, second = stream.events_of(Drained)
    assert first.snapshot_id == second.snapshot_id
    assert first.command_id != second.command_id
    assert stream.commands() == []


def test_what_is_known_not_to_flush_is_rejected_before_any_barrier(stream: SimulatedStream) -> None:
    """An append-mode memory sink cannot start again from its checkpoint: the job runs on."""
    plan = make_plan(50, cannot_flush="the memory sink cannot recover")
    stream.order_at(1.0, DrainNotification)
    stream.order_at(20.0, StopRequest)
    assert stream.run(waiting_script(plan)) == 0
    assert "memory sink" in stream.events_of(Rejected)[0].reason
    assert stream.kinds()[-2:] == ["Accepted", "Stopped"]
    assert plan.sources[0].reads[-1][1] == 50


def test_a_notification_from_before_the_start_is_obeyed_reading_nothing(stream: SimulatedStream) -> None:
    """Ordered while the job was launching: its queries flush what they have and read nothing (1a.11)."""
    plan = make_plan(500)
    stream.order_at(2.1, StopRequest)
    assert stream.run(waiting_script(plan)) == 0
    attempt = stream.next_attempt()
    reads = list(plan.sources[0].reads)
    stream.order(DrainNotification)
    assert stream.run(waiting_script(plan), attempt=attempt) == 0
    assert plan.sources[0].reads == reads
    assert plan.sink.counts() == counts_of(plan, reads[-1][1])
    assert stream.kinds()[-5:] == ["Claimed", "Started", "Accepted", "Draining", "Drained"]


def test_a_failed_flush_that_the_sink_lacks_ends_stopped_with_its_state(stream: SimulatedStream) -> None:
    """The entry is withdrawn, the deployment is at its last commit, and can be resumed (1a.5)."""
    plan = make_plan(40)
    stream.order_at(10.0, DrainNotification)
    plan.fails_at.add(5)
    assert stream.run(waiting_script(plan)) == 0
    failed = stream.events_of(DrainFailed)[0]
    assert failed.withdrawn
    assert "division by zero" in failed.error
    assert failed.choices
    assert stream.kinds()[-2:] == ["DrainFailed", "Stopped"]
    checkpoint = Checkpoint(stream.checkpoints, layout.checkpoint_folder(STREAM, "d-0001", "counts"))
    assert checkpoint.position().barriers == ()
    assert stream.commands() == []
    plan.fails_at.clear()
    attempt = stream.next_attempt()
    plan.sources[0].add(*range(10_000, 12_000, 250))
    stream.order_at(30.0, DrainNotification)
    assert stream.run(waiting_script(plan), attempt=attempt) == 0
    assert_nothing_lost(plan)


def test_a_failed_flush_that_the_sink_may_hold_ends_failed_with_the_choices(stream: SimulatedStream) -> None:
    """The sink cannot be asked: nothing is withdrawn, a person decides (Law 14). A resume completes the flush, because
    the drain entry in the log counts, not the command (1a.7)."""
    plan = make_plan(40, sink=SimulatedSink("append"))
    stream.order_at(10.0, DrainNotification)
    plan.fails_at.add(5)
    assert stream.run(waiting_script(plan)) == 1
    failed = stream.events_of(DrainFailed)[0]
    assert not failed.withdrawn
    assert len(failed.choices) == 2
    assert stream.kinds()[-2:] == ["DrainFailed", "Failed"]
    assert stream.commands() == []
    plan.fails_at.clear()
    plan.sources[0].add(*range(10_000, 12_000, 250))
    assert stream.run(waiting_script(plan), attempt=stream.next_attempt()) == 0
    assert stream.kinds()[-1] == "Drained"
    assert plan.sink.counts() == counts_of(plan, 40)


def test_spark_refusing_to_start_the_flush_is_taken_back(stream: SimulatedStream) -> None:
    """No sink has a flush that never ran: the deployment ends stopped, with its state (1a.5)."""
    plan = make_plan(40, sink=SimulatedSink("append"))

    def order() -> None:
        plan.refuses_to_start = RuntimeError("this sink does not support recovering")
        stream.order(DrainNotification)

    stream.clock.after(10.0, order)
    assert stream.run(waiting_script(plan)) == 0
    assert stream.events_of(DrainFailed)[0].withdrawn
    assert stream.kinds()[-1] == "Stopped"


PHASES: tuple[Phase, ...] = ("initialise", "run", "state", "sink", "commit")


@pytest.mark.parametrize("phase", PHASES)
def test_a_driver_killed_within_the_flush_is_finished_by_the_next_attempt(
    stream: SimulatedStream, phase: Phase
) -> None:
    """Wherever in the flush it dies, the next attempt ends the drain, and every row is written once (1a.7)."""
    plan = make_plan(40)
    stream.order_at(10.0, DrainNotification)
    driver = SimulatedDriver(stream)

    def kill_the_flush(run: SimulatedRun, now: Phase) -> None:
        if now == phase and run is not driver.startables[0].runs[0]:
            driver.kill()

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.startables[0].before_phase = kill_the_flush
        driver.await_all()

    assert driver.run(script) is None
    assert stream.events_of(Drained) == []
    attempt = stream.next_attempt(attempt_mode="drain")
    plan.sources[0].add(50_000)
    assert stream.run(waiting_script(plan), attempt=attempt) == 0
    drained = stream.events_of(Drained)[0]
    assert drained.attempt == 2
    assert drained.queries["counts"].state_rows_left == 0
    assert plan.sink.counts() == counts_of(plan, 40)
    assert [event.attempt for event in stream.events_of(Draining)] == [1]
    assert stream.commands() == []


def test_a_drain_goes_on_through_an_outage_of_the_store() -> None:
    """The store is away for a minute in the middle: the drain waits, and is exact."""
    for moment in (10.05, 10.3, 10.7, 11.0):
        stream, plan = SimulatedStream(), make_plan(40)
        stream.deploy()
        faults = FaultPlan()
        store = FaultyStore(stream.checkpoints, faults)
        many = dict.fromkeys(range(1, 20_000), Fault.UNAVAILABLE)
        stream.clock.after(moment, lambda faults=faults, many=many: faults.at.update(many))
        stream.clock.after(70.0, faults.at.clear)
        stream.order_at(10.0, DrainNotification)
        driver = SimulatedDriver(stream, checkpoints=store, control=StreamControl(store, STREAM, stream.clock))
        assert driver.run(waiting_script(plan)) == 0
        assert stream.kinds()[-1] == "Drained"
        assert plan.sink.counts() == counts_of(plan, 40)
