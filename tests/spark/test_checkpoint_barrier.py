"""Barriers on real Spark: what they cost without our care, and that they cost nothing with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.checkpoint.barrier import (
    BatchFailed,
    Placed,
    exchange_for_drain,
    put_fence,
    withdraw,
)
from airflow_streamstate.checkpoint.log import (
    FLUSH_WATERMARK_MS,
    MARK_KEY,
    format_commit_entry,
    format_offset_entry,
    parse_commit_entry,
    parse_offset_entry,
    stop_entry,
)
from airflow_streamstate.checkpoint.repair import repair_before_start
from airflow_streamstate.clock import SYSTEM_CLOCK
from support.checkpoints import barrier_mark
from support.placing import place_barrier
from support.real_queries import (
    Collected,
    Feed,
    RealQuery,
    local_checkpoint,
    read_files,
    run_to_end,
    start,
    use_provider,
    wait_until,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
OURS = "d-0001"


def place(checkpoint: Any, query: Any) -> Placed | BatchFailed:
    return place_barrier(checkpoint, barrier_mark(), RealQuery(query), clock=SYSTEM_CLOCK, deadline_seconds=60)


def fed_values(feed: Feed) -> list[int]:
    return sorted(row["v"] for row in feed.fed)


def test_sparks_own_entries_survive_parse_and_format(spark: Any, folder: Path) -> None:
    """Every entry that real Spark wrote is reproduced byte for byte (1a.1)."""
    Feed(folder / "in").add(3)
    checkpoint = local_checkpoint(folder)
    run_to_end(read_files(spark, folder), checkpoint)
    assert checkpoint.offset_ids() == [0, 1, 2]
    for batch_id in checkpoint.offset_ids():
        offset, commit = checkpoint.offset_key(batch_id), checkpoint.commit_key(batch_id)
        body = checkpoint.store.get(offset).body
        assert format_offset_entry(parse_offset_entry(body, key=offset)) == body
        body = checkpoint.store.get(commit).body
        assert format_commit_entry(parse_commit_entry(body, key=commit)) == body


def test_barrier_ends_a_busy_query_at_a_batch_boundary(spark: Any, folder: Path) -> None:
    """The batch in flight commits, the next is never claimed, and a later start continues without a lost row (1a.4)."""
    feed, sink = Feed(folder / "in"), Collected(seconds=0.3)
    feed.add(12)
    checkpoint = local_checkpoint(folder)
    query = start(read_files(spark, folder), checkpoint, sink)
    wait_until(lambda: len(sink.batches) >= 2, "two batches ran")
    placed = place(checkpoint, query)
    assert isinstance(placed, Placed)
    wait_until(RealQuery(query).has_ended, "the query noticed")
    assert placed.batch_id == max(sink.batches) == checkpoint.position().batch_id
    report = repair_before_start(checkpoint, OURS)
    assert report.removed_ids == (placed.barrier_id,)
    run_to_end(read_files(spark, folder), checkpoint, sink)
    assert sink.values == fed_values(feed)
    assert sorted(sink.batches) == list(range(max(sink.batches) + 1))


def test_idle_query_is_stopped_without_an_error(spark: Any, folder: Path) -> None:
    """An idle query does not notice the barrier; once placed, stop() cuts nothing and raises nothing (1a.4)."""
    feed, sink = Feed(folder / "in"), Collected()
    feed.add(2)
    checkpoint = local_checkpoint(folder)
    query = start(read_files(spark, folder), checkpoint, sink)
    wait_until(lambda: checkpoint.commit_ids() == [0, 1], "all input was read")
    assert place(checkpoint, query) == Placed(1, 2, barrier_mark())
    assert not RealQuery(query).has_ended()
    query.stop()
    assert query.exception() is None
    assert checkpoint.position().batch_id == 1
    repair_before_start(checkpoint, OURS)
    feed.add(1)
    run_to_end(read_files(spark, folder), checkpoint, sink)
    assert sink.values == fed_values(feed)


def test_query_asleep_between_triggers_is_stopped_at_once(spark: Any, folder: Path) -> None:
    """A query that sleeps until its next trigger is outside one: certain, placed, and safe to stop (1a.3)."""
    Feed(folder / "in").add(2)
    checkpoint = local_checkpoint(folder)
    query = start(read_files(spark, folder), checkpoint, processingTime="1 hour")
    wait_until(lambda: checkpoint.commit_ids() == [0], "the first trigger was over")
    assert place(checkpoint, query) == Placed(0, 1, barrier_mark())
    query.stop()
    assert checkpoint.position().batch_id == 0


def test_spark_does_not_carry_our_mark_on(spark: Any, folder: Path) -> None:
    """A stop entry that somebody runs without us is an empty batch; our key does not leak into later entries (1a.1)."""
    feed, sink = Feed(folder / "in"), Collected()
    feed.add(1)
    checkpoint = local_checkpoint(folder)
    run_to_end(read_files(spark, folder), checkpoint, sink)
    body = format_offset_entry(stop_entry(checkpoint.read_offset(0), barrier_mark()))
    checkpoint.store.create(checkpoint.offset_key(1), body)
    feed.add(1)
    run_to_end(read_files(spark, folder), checkpoint, sink)
    assert (sink.batches[1], checkpoint.commit_ids()) == ([], [0, 1, 2])
    assert MARK_KEY not in checkpoint.read_offset(2).conf
    assert sink.values == fed_values(feed)


def failed_under_a_barrier(spark: Any, folder: Path) -> tuple[Feed, Collected, Any, Any]:
    """A query whose batch 2 failed while our entry was at 3, as after the death of its driver."""
    feed, sink = Feed(folder / "in"), Collected(fail_at=2)
    feed.add(3)
    checkpoint = local_checkpoint(folder)
    stream = read_files(spark, folder)
    query = start(stream, checkpoint, sink)
    wait_until(RealQuery(query).has_ended, "batch 2 failed")
    assert checkpoint.position().planned_id == 2
    body = format_offset_entry(stop_entry(checkpoint.read_offset(2), barrier_mark()))
    checkpoint.store.create(checkpoint.offset_key(3), body)
    sink.fail_at = None
    return feed, sink, checkpoint, stream


def test_barrier_over_an_uncommitted_batch_loses_it_without_repair(spark: Any, folder: Path) -> None:
    """The loss: Spark takes our entry for the latest plan, never runs batch 2, and reports nothing (Law 12, 1a.2)."""
    feed, sink, checkpoint, stream = failed_under_a_barrier(spark, folder)
    feed.add(1)
    query = run_to_end(stream, checkpoint, sink)
    assert query.exception() is None
    assert 2 not in sink.batches
    assert checkpoint.commit_ids() == [0, 1, 3, 4]
    assert len(sink.values) == len(fed_values(feed)) - 4


@pytest.mark.parametrize("stop_pending", [False, True])
def test_repair_before_the_start_saves_the_batch(spark: Any, folder: Path, stop_pending: bool) -> None:
    """The same, repaired: our entry is removed, batch 2 runs, alone if a stop is pending (1a.7)."""
    feed, sink, checkpoint, stream = failed_under_a_barrier(spark, folder)
    feed.add(1)
    report = repair_before_start(checkpoint, OURS, stop_pending=stop_pending)
    assert report.run == ("once" if stop_pending else "normal")
    if stop_pending:
        run_to_end(stream, checkpoint, sink, once=True)
        assert checkpoint.commit_ids() == [0, 1, 2]
        assert repair_before_start(checkpoint, OURS, stop_pending=True).run == "normal"
    run_to_end(stream, checkpoint, sink)
    assert sink.values == fed_values(feed)
    assert checkpoint.commit_ids() == [0, 1, 2, 3]


def test_batch_that_fails_under_the_barrier_takes_it_back(spark: Any, folder: Path) -> None:
    """Placing watches until the end: the batch fails, our entry is withdrawn, the next start loses nothing (Law 12)."""
    feed, sink = Feed(folder / "in"), Collected(seconds=0.7, fail_at=2)
    feed.add(4)
    checkpoint = local_checkpoint(folder)
    query = start(read_files(spark, folder), checkpoint, sink)
    wait_until(lambda: checkpoint.offset_ids()[-1:] == [2], "batch 2 was running")
    assert place(checkpoint, query) == BatchFailed(2)
    assert checkpoint.offset_ids() == [0, 1, 2]
    sink.fail_at = None
    run_to_end(read_files(spark, folder), checkpoint, sink)
    assert sink.values == fed_values(feed)


def test_query_without_any_batch_is_barred_and_goes_on_after_withdrawal(spark: Any, folder: Path) -> None:
    """Entry 0 of ours bars a query that never planned a batch; withdrawn, the next start reads everything (1a.3)."""
    feed, sink = Feed(folder / "in"), Collected()
    checkpoint = local_checkpoint(folder)
    query = start(read_files(spark, folder), checkpoint, sink)
    placed = place(checkpoint, query)
    assert placed == Placed(None, 0, barrier_mark())
    SYSTEM_CLOCK.sleep(0.5)
    assert query.isActive
    query.stop()
    assert query.exception() is None
    assert repair_before_start(checkpoint, OURS).removed_ids == (0,)
    feed.add(2)
    run_to_end(read_files(spark, folder), checkpoint, sink)
    assert sink.values == fed_values(feed)
    assert checkpoint.commit_ids() == [0, 1]


def test_barrier_over_no_batch_holds_when_input_arrives(spark: Any, folder: Path) -> None:
    """Input that arrives after the barrier is not read: batch 0 cannot be claimed, and the query ends."""
    feed, sink = Feed(folder / "in"), Collected()
    checkpoint = local_checkpoint(folder)
    query = start(read_files(spark, folder), checkpoint, sink)
    assert place(checkpoint, query) == Placed(None, 0, barrier_mark())
    feed.add(1)
    wait_until(RealQuery(query).has_ended, "the query failed to claim batch 0")
    assert sink.batches == {}
    assert withdraw(checkpoint, 0)
    run_to_end(read_files(spark, folder), checkpoint, sink)
    assert sink.values == fed_values(feed)


def test_spark_refuses_to_run_our_entry_over_no_batch(spark: Any, folder: Path) -> None:
    """Started without repair, entry 0 of ours is an error, not a silently skipped start."""
    feed, sink = Feed(folder / "in"), Collected()
    checkpoint = local_checkpoint(folder)
    query = start(read_files(spark, folder), checkpoint, sink)
    assert isinstance(place(checkpoint, query), Placed)
    query.stop()
    feed.add(1)
    again = start(read_files(spark, folder), checkpoint, sink)
    wait_until(RealQuery(again).has_ended, "the start failed")
    assert again.exception() is not None
    assert sink.batches == {}
    repair_before_start(checkpoint, OURS)
    run_to_end(read_files(spark, folder), checkpoint, sink)
    assert sink.values == fed_values(feed)


def test_left_over_of_the_first_claim_is_swept_before_the_start(spark: Any, folder: Path) -> None:
    """A temporary file of a claim that failed makes Spark refuse an empty log; repair removes it (1a.7)."""
    feed, sink = Feed(folder / "in"), Collected()
    checkpoint = local_checkpoint(folder)
    query = start(read_files(spark, folder), checkpoint, sink)
    assert isinstance(place(checkpoint, query), Placed)
    query.stop()
    feed.add(1)
    left = checkpoint.key("offsets/.0.0b1a8f0e-2f0a-4f0c-9d0b-5f3c0c7e9a11.tmp")
    checkpoint.store.put(left, b"v1")
    withdraw(checkpoint, 0)
    refused = start(read_files(spark, folder), checkpoint, sink)
    wait_until(RealQuery(refused).has_ended, "the start failed")
    assert "CHECKPOINT_LOCATION_NOT_EMPTY" in str(refused.exception())
    assert repair_before_start(checkpoint, OURS).swept_keys == (left,)
    run_to_end(read_files(spark, folder), checkpoint, sink)
    assert sink.values == fed_values(feed)


def test_barriers_at_any_moment_lose_and_double_nothing(spark: Any, folder: Path) -> None:
    """Six barriers at chosen moments of a fast query, also while an entry is being renamed: exact each time (1a.3)."""
    feed, sink = Feed(folder / "in"), Collected()
    checkpoint = local_checkpoint(folder)
    offsets = folder / "checkpoint" / "offsets"
    for round_number in range(6):
        feed.add(4)
        query = start(read_files(spark, folder), checkpoint, sink)
        view = RealQuery(query)
        wait_until(view.has_initialised, "the query had read its log")
        if round_number % 2:
            deadline = SYSTEM_CLOCK.monotonic_seconds() + 1.0
            while SYSTEM_CLOCK.monotonic_seconds() < deadline and not list(offsets.glob(".*.tmp")):
                pass
        else:
            SYSTEM_CLOCK.sleep(0.05 * round_number)
        placed = place_barrier(checkpoint, barrier_mark(), view, clock=SYSTEM_CLOCK, deadline_seconds=60)
        assert isinstance(placed, Placed)
        query.stop()
        assert checkpoint.position().batch_id == placed.batch_id
        repair_before_start(checkpoint, OURS)
    run_to_end(read_files(spark, folder), checkpoint, sink)
    assert sink.values == fed_values(feed)
    assert checkpoint.commit_ids() == checkpoint.offset_ids() == list(range(len(sink.batches)))


def test_fence_keeps_a_zombie_from_claiming_a_batch(spark: Any, folder: Path) -> None:
    """A driver that is still alive commits its batch and can claim no further one (1a.8)."""
    feed, sink = Feed(folder / "in"), Collected(seconds=0.5)
    feed.add(6)
    checkpoint = local_checkpoint(folder)
    query = start(read_files(spark, folder), checkpoint, sink)
    wait_until(lambda: checkpoint.offset_ids()[-1:] == [1], "batch 1 was running")
    fence_id = put_fence(checkpoint, barrier_mark("fence"))
    wait_until(RealQuery(query).has_ended, "the zombie ended")
    assert max(sink.batches) == fence_id - 1 == checkpoint.position().batch_id


def windowed(spark: Any, folder: Path) -> Any:
    """Sums per minute and key, closed ten seconds of event time later."""
    from pyspark.sql import functions as fn

    stream = read_files(spark, folder).withWatermark("ts", "10 seconds")
    return stream.groupBy(fn.window("ts", "1 minute"), "k").agg(fn.sum("v").alias("v")).select("v")


def test_drain_flushes_all_and_reads_nothing(spark: Any, folder: Path, provider: str) -> None:
    """Stop, exchange, Trigger.Once: every open window comes out, unread input stays unread, no state is left (1a.5)."""
    use_provider(spark, provider)
    feed, sink = Feed(folder / "in"), Collected()
    feed.add(4)
    checkpoint = local_checkpoint(folder)
    run_to_end(windowed(spark, folder), checkpoint, sink)
    open_before = sum(fed_values(feed)) - sum(sink.values)
    assert open_before > 0
    fed_before = sum(fed_values(feed))
    last = checkpoint.position().batch_id
    body = format_offset_entry(stop_entry(checkpoint.read_offset(last), barrier_mark()))
    checkpoint.store.create(checkpoint.offset_key(last + 1), body)
    assert exchange_for_drain(checkpoint, barrier_mark("drain")) == last + 1
    feed.add(2)
    report = repair_before_start(checkpoint, OURS)
    assert (report.run, report.batch_id) == ("once", last + 1)
    query = run_to_end(windowed(spark, folder), checkpoint, sink, once=True)
    assert sum(sink.values) == fed_before
    assert query.lastProgress["stateOperators"][0]["numRowsTotal"] == 0
    assert query.lastProgress["numInputRows"] == 0
    assert checkpoint.watermark_ms() == FLUSH_WATERMARK_MS
    assert repair_before_start(checkpoint, OURS).run == "nothing"
