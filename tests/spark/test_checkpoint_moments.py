"""Moments in which an entry costs rows, held still on real Spark: lost without our care, and none with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.checkpoint.barrier import (
    BarrierPlacement,
    NotInitialised,
    Placed,
    Uncertain,
)
from airflow_streamstate.checkpoint.fork import fork
from airflow_streamstate.checkpoint.log import Checkpoint, format_offset_entry, stop_entry
from airflow_streamstate.checkpoint.repair import repair_before_start
from airflow_streamstate.checkpoint.state_files import files_of
from airflow_streamstate.clock import SYSTEM_CLOCK
from support.checkpoints import barrier_mark
from support.held_disk import Gate, hold_disk_of
from support.placing import place_barrier
from support.real_queries import (
    Collected,
    Feed,
    RealQuery,
    local_checkpoint,
    read_files,
    rows_in,
    run_to_end,
    start,
    wait_until,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture
def gate(spark: Any, folder: Path) -> Gate:
    """The gate of the disk under this test's queries."""
    return hold_disk_of(spark, folder)


def put_carelessly(checkpoint: Checkpoint, batch_id: int, base_id: int) -> None:
    """Our stop entry, as somebody puts it who does not ask whether it is the moment."""
    base = checkpoint.read_offset(base_id)
    assert base is not None
    checkpoint.store.create(checkpoint.offset_key(batch_id), format_offset_entry(stop_entry(base, barrier_mark())))


# an entry while the query starts up (1a.2)


def starting_over_a_planned_batch(spark: Any, folder: Path, gate: Gate) -> tuple[Feed, Collected, Checkpoint, Any]:
    """Batch 1 is planned and not committed; the query is started again, and held just before it reads its log."""
    feed, sink = Feed(folder / "in"), Collected(fail_at=1)
    feed.add(2)
    checkpoint = local_checkpoint(folder)
    failed = start(read_files(spark, folder), checkpoint, sink)
    wait_until(RealQuery(failed).has_ended, "batch 1 failed")
    assert checkpoint.position().planned_id == 1
    sink.fail_at = None
    gate.hold("list", "/checkpoint/offsets")
    query = start(read_files(spark, folder), checkpoint, sink)
    wait_until(lambda: gate.is_reached, "the query was about to read its log")
    return feed, sink, checkpoint, query


def test_an_entry_put_while_the_query_starts_up_loses_a_batch(spark: Any, folder: Path, gate: Gate) -> None:
    """The loss: Spark takes the entry for its latest plan, passes over batch 1, runs on, and reports nothing (1a.2)."""
    feed, sink, checkpoint, query = starting_over_a_planned_batch(spark, folder, gate)
    put_carelessly(checkpoint, 2, 1)
    gate.open()
    feed.add(1)
    wait_until(lambda: checkpoint.is_committed(3), "the query ran on")
    query.stop()
    assert query.exception() is None
    assert 1 not in sink.batches
    assert (checkpoint.commit_ids(), len(sink.values)) == ([0, 2, 3], len(feed.fed) - 4)


def test_no_entry_is_put_while_the_query_starts_up(spark: Any, folder: Path, gate: Gate) -> None:
    """The same moment, asked first: nothing is put before Spark has read its log, and then no row is lost (1a.2)."""
    feed, sink, checkpoint, query = starting_over_a_planned_batch(spark, folder, gate)
    placement = BarrierPlacement(checkpoint, barrier_mark(), RealQuery(query))
    for _ in range(3):
        assert placement.step() == NotInitialised()
    assert checkpoint.offset_ids() == [0, 1]
    gate.open()
    placed = place_barrier(checkpoint, barrier_mark(), RealQuery(query), clock=SYSTEM_CLOCK, deadline_seconds=60)
    assert placed == Placed(1, 2, barrier_mark())
    query.stop()
    feed.add(1)
    repair_before_start(checkpoint, "d-0001")
    run_to_end(read_files(spark, folder), checkpoint, sink)
    assert sink.values == sorted(row["v"] for row in feed.fed)
    assert checkpoint.commit_ids() == [0, 1, 2]


# an entry that Spark's rename overwrites (1a.3)


def about_to_claim_batch_1(spark: Any, folder: Path, gate: Gate) -> tuple[Feed, Checkpoint, Any]:
    """Batch 0 is committed; Spark has looked that nobody has claimed batch 1, and is held just before its rename."""
    feed = Feed(folder / "in")
    feed.add(1)
    checkpoint = local_checkpoint(folder)
    query = start(read_files(spark, folder).select("k", "v"), checkpoint, folder / "out")
    wait_until(lambda: checkpoint.is_committed(0), "batch 0 was committed")
    gate.hold("rename", "/checkpoint/offsets/1")
    feed.add(1)
    wait_until(lambda: gate.is_reached, "batch 1 was about to be claimed")
    assert checkpoint.offset_ids() == [0]
    return feed, checkpoint, query


def successor_of(spark: Any, folder: Path, checkpoint: Checkpoint) -> None:
    """What starts from where the checkpoint was reported to be, over wider bounds, into the same sink."""
    wide = read_files(spark, folder, files_per_batch=10).select("k", "v")
    run_to_end(wide, checkpoint, folder / "out")


def kept_as(checkpoint: Checkpoint, name: str) -> Checkpoint:
    """The end that was believed in, as a successor gets it."""
    files = {key[len(checkpoint.prefix) + 1 :]: key for key in files_of(checkpoint, checkpoint.position())}
    target = Checkpoint(checkpoint.store, name)
    assert fork(checkpoint.store, files, target)
    return target


def test_an_entry_that_is_believed_too_early_loses_rows(spark: Any, folder: Path, gate: Gate) -> None:
    """The loss: our entry is there and reads back as ours, and Spark's rename goes over it. Batch 1 runs after the
    end that was kept, and a successor's batch 1 over other bounds is skipped by the sink (1a.3, Law 14)."""
    feed, checkpoint, query = about_to_claim_batch_1(spark, folder, gate)
    put_carelessly(checkpoint, 1, 0)
    entry = checkpoint.read_offset(1)
    assert entry is not None
    assert entry.is_ours
    kept = kept_as(checkpoint, "believed")
    gate.open()
    wait_until(lambda: checkpoint.is_committed(1), "Spark ran the batch that it had claimed")
    entry = checkpoint.read_offset(1)
    assert entry is not None
    assert not entry.is_ours
    query.stop()
    feed.add(2)
    successor_of(spark, folder, kept)
    assert len(rows_in(spark, folder / "out")) == len(feed.fed) - 8


def test_an_entry_is_not_believed_before_it_is_certain(spark: Any, folder: Path, gate: Gate) -> None:
    """The same moment: uncertain as long as Spark may still rename over it; then it is put again above what Spark
    claimed, the end that is kept is the true one, and every row comes out once (1a.3, Law 13)."""
    feed, checkpoint, query = about_to_claim_batch_1(spark, folder, gate)
    placement = BarrierPlacement(checkpoint, barrier_mark(), RealQuery(query))
    for _ in range(3):
        assert placement.step() == Uncertain(0, 1)
    gate.open()
    placed = place_barrier(checkpoint, barrier_mark(), RealQuery(query), clock=SYSTEM_CLOCK, deadline_seconds=60)
    assert placed == Placed(1, 2, barrier_mark())
    query.stop()
    kept = kept_as(checkpoint, "kept")
    feed.add(2)
    successor_of(spark, folder, kept)
    assert sorted(row[-1] for row in rows_in(spark, folder / "out")) == sorted(row["v"] for row in feed.fed)
