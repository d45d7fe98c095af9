"""The flush of one query (1a.5)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.checkpoint.log import FLUSH_WATERMARK_MS, Checkpoint
from airflow_streamstate.connectors.sink import HeldBatches
from airflow_streamstate.driver.attempt.latch import Order
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.driver.attempt.ports import QueryProgress
from airflow_streamstate.driver.shutdown.flush import NO_WATERMARK, Flush, FlushReach
from airflow_streamstate.errors import FencedError, UnavailableError
from airflow_streamstate.plan.record import recorded_plans
from airflow_streamstate.protocol.commands import StopRequest
from support.simulated_driver import SimulatedDriver, ended_by, make_plan
from support.simulated_query import SimulatedPlan, SimulatedRun, SimulatedStartable
from support.simulated_sources import SimulatedSink


def flush_of(driver: SimulatedDriver, query: LogicalQuery) -> Flush:
    attempt = driver.attempt_life.attempt
    return Flush(attempt, query, "c-1", FlushReach(attempt, Order("c-1"), recorded_plans(attempt.control, "d-0001")))


def at_its_barrier(plan: SimulatedPlan) -> tuple[SimulatedDriver, Flush]:
    """A query that is at its stop barrier, all its input read, and its flush."""
    driver = ended_by(StopRequest, plan)
    return driver, flush_of(driver, driver.queries[0])


def run(driver: SimulatedDriver, flush: Flush) -> None:
    flush.prepare()
    assert flush.look_ahead() is None
    flush.start()
    while not flush.has_ended():
        driver.clock.sleep(0.1)
    flush.conclude()


def test_a_flush_is_the_batch_after_the_last_committed_one() -> None:
    """The stop entry becomes the drain entry, with the watermark at the end of time (1a.5)."""
    plan = make_plan(20)
    driver, flush = at_its_barrier(plan)
    last = flush.query.checkpoint.position().batch_id or 0
    run(driver, flush)
    entry = flush.query.checkpoint.read_offset(flush.batch_id)
    assert flush.failure is None
    assert flush.batch_id == last + 1
    assert entry is not None
    assert entry.batch_watermark_ms == FLUSH_WATERMARK_MS
    assert flush.state_left() == (0, ())
    assert flush.rows_written() == len(plan.sink.batches[-1][1])


def test_a_flush_that_is_committed_is_not_run_again() -> None:
    """An earlier attempt ran it: it is only counted (1a.7)."""
    driver, flush = at_its_barrier(make_plan(20))
    run(driver, flush)
    again = flush_of(driver, flush.query)
    runs = len(flush.query.runs)
    run(driver, again)
    assert again.batch_id == flush.batch_id
    assert len(flush.query.runs) == runs
    assert again.failure is None
    assert again.state_left() == (0, ())
    assert again.rows_written() is None


def test_rows_left_are_counted_from_the_checkpoint_where_no_progress_tells() -> None:
    """The state reader counts the flush of an earlier attempt (Law 16)."""
    driver, flush = at_its_barrier(make_plan(20, delay_ms=None))
    run(driver, flush)
    again = flush_of(driver, flush.query)
    run(driver, again)
    assert again.state_left() == flush.state_left()
    assert flush.state_left()[0] == 5
    assert flush.state_left()[1][0].reason == NO_WATERMARK


@pytest.mark.parametrize(("mode", "withdrawn"), [("idempotent", True), ("append", False)])
def test_a_failed_flush_is_taken_back_only_where_the_sink_provably_lacks_it(mode: str, withdrawn: bool) -> None:
    """A sink that cannot be asked may hold the batch (Law 14)."""
    sink = SimulatedSink("idempotent" if mode == "idempotent" else "append")
    plan = make_plan(20, sink=sink)
    driver, flush = at_its_barrier(plan)
    plan.fails_at.add(flush.prepare())
    run(driver, flush)
    assert flush.failure is not None
    assert flush.failure.withdrawn is withdrawn
    assert (flush.query.checkpoint.read_offset(flush.batch_id) is None) is withdrawn


def test_a_flush_that_was_begun_before_is_not_taken_back_because_spark_refuses_now() -> None:
    """An earlier attempt may have given the sink the batch: a refusal now proves nothing (Law 14)."""
    plan = make_plan(20, sink=SimulatedSink("append"))
    driver, flush = at_its_barrier(plan)
    plan.fails_at.add(flush.prepare())
    run(driver, flush)
    plan.refuses_to_start = RuntimeError("no such table")
    again = flush_of(driver, flush.query)
    run(driver, again)
    assert again.failure is not None
    assert not again.failure.withdrawn
    assert "no such table" in again.failure.error


def test_a_failed_flush_whose_tasks_still_write_is_not_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the sink lacks now it may have in a moment (Law 14)."""
    plan = make_plan(20)
    driver, flush = at_its_barrier(plan)
    plan.fails_at.add(flush.prepare())
    monkeypatch.setattr(SimulatedRun, "has_running_tasks", lambda _: True)
    run(driver, flush)
    assert flush.failure is not None
    assert not flush.failure.withdrawn
    assert flush.query.checkpoint.read_offset(flush.batch_id) is not None


def test_the_state_of_another_batch_is_not_what_the_flush_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark may report the batch before: then the state is read (Law 16)."""
    driver, flush = at_its_barrier(make_plan(20, delay_ms=None))
    run(driver, flush)
    last_progress = SimulatedRun.last_progress

    def of_the_batch_before(one: SimulatedRun) -> QueryProgress | None:
        progress = last_progress(one)
        return None if progress is None else replace(progress, batch_id=progress.batch_id - 1, state=())

    monkeypatch.setattr(SimulatedRun, "last_progress", of_the_batch_before)
    assert flush.state_left()[0] == 5
    assert flush.rows_written() is None


def test_an_attempt_that_was_replaced_starts_no_flush() -> None:
    """Its successor continues with the state (Law 4)."""
    driver, flush = at_its_barrier(make_plan(20))
    flush.prepare()
    assert flush.look_ahead() is None
    before = flush.query.checkpoint.store.get(flush.query.checkpoint.offset_key(flush.batch_id))
    driver.stream.next_attempt()
    with pytest.raises(FencedError):
        flush.start()
    assert flush.query.checkpoint.store.get(flush.query.checkpoint.offset_key(flush.batch_id)) == before


def test_a_store_that_is_away_while_the_sink_is_asked_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the query id, a sink that is keyed by it holds nothing: the flush would be withdrawn, and its id skipped
    later with other rows (Law 14)."""
    plan = make_plan(20, sink=SimulatedSink("append"))
    driver, flush = at_its_barrier(plan)
    plan.fails_at.add(flush.prepare())
    run(driver, flush)
    plan.refuses_to_start = RuntimeError("the checkpoint cannot be reached")
    flush.query.run = None  # as in the next attempt
    asked: list[str | None] = []

    def by_query_id(_: object, query_id: str | None, from_batch_id: int) -> HeldBatches:
        asked.append(query_id)
        return HeldBatches() if query_id is None else HeldBatches((from_batch_id,))

    monkeypatch.setattr(SimulatedStartable, "held_batches", by_query_id)
    query_id, outage = flush.query.checkpoint.query_id(), [UnavailableError("the store does not answer")]

    def away_once(_: Checkpoint) -> str | None:
        if outage:
            raise outage.pop()
        return query_id

    monkeypatch.setattr(Checkpoint, "query_id", away_once)
    again = flush_of(driver, flush.query)
    run(driver, again)
    assert asked == [query_id]
    assert again.failure is not None
    assert not again.failure.withdrawn
