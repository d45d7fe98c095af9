"""Seeds on real Spark: fresh state at the drained positions, ids continuing, late rows staying late."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.checkpoint.barrier import exchange_for_drain
from airflow_streamstate.checkpoint.log import Checkpoint, format_offset_entry, stop_entry
from airflow_streamstate.checkpoint.repair import repair_before_start
from airflow_streamstate.checkpoint.seed import (
    PINNED_BY_ALL,
    PINNED_IN_LATER_3_5,
    PINNED_SINCE_4_0,
    PINNED_SINCE_4_2,
    SeedPlan,
    finish_seed,
    prepare_seed,
    source_files_of,
)
from airflow_streamstate.checkpoint.state_files import files_of
from support.checkpoints import barrier_mark, end_offsets
from support.real_queries import (
    Collected,
    Feed,
    local_checkpoint,
    read_files,
    row_at,
    rows_in,
    run_to_end,
    use_provider,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
Plan = Callable[[Any, Path], Any]
PINNED_BY_4_2 = (*PINNED_BY_ALL, *PINNED_IN_LATER_3_5, *PINNED_SINCE_4_0, *PINNED_SINCE_4_2)


def windowed(spark: Any, folder: Path) -> Any:
    from pyspark.sql import functions as fn

    stream = read_files(spark, folder).withWatermark("ts", "10 seconds")
    return stream.groupBy(fn.window("ts", "1 minute"), "k").agg(fn.sum("v").alias("v")).select("k", "v")


def windowed_otherwise(spark: Any, folder: Path) -> Any:
    """Another grouping key and another aggregate: no state of ``windowed`` could be read by it."""
    from pyspark.sql import functions as fn

    stream = read_files(spark, folder).withWatermark("ts", "10 seconds")
    counts = stream.groupBy(fn.window("ts", "1 minute")).agg(fn.count("*").alias("n"), fn.sum("v").alias("v"))
    return counts.selectExpr("cast(n as string) as k", "v")


def deduplicated(spark: Any, folder: Path) -> Any:
    stream = read_files(spark, folder).withWatermark("ts", "3 minutes")
    return stream.dropDuplicatesWithinWatermark(["v"]).select("k", "v")


def joined(spark: Any, folder: Path) -> Any:
    left = read_files(spark, folder).withWatermark("ts", "10 seconds").selectExpr("ts as lts", "k", "v")
    right = read_files(spark, folder).withWatermark("ts", "10 seconds").selectExpr("ts as rts", "v as rv")
    return left.join(right, (left.lts == right.rts) & (left.v == right.rv), "leftOuter").select("k", "v")


def strictly_joined(spark: Any, folder: Path) -> Any:
    """An inner join whose script filters its columns for not null, event time as a value included: before Spark 4.3
    the empty batch of a seed leaves another schema than a batch with input has."""
    from pyspark.sql import functions as fn

    left = read_files(spark, folder).where("k is not null and v is not null and ts is not null")
    left = left.withWatermark("ts", "10 seconds")
    right = read_files(spark, folder).withWatermark("ts", "10 seconds").selectExpr("ts as rts", "v as rv")
    condition = "v = rv and rts >= ts and rts <= ts + interval 1 minute"
    return left.join(right, fn.expr(condition)).select("k", "v")


def stateless(spark: Any, folder: Path) -> Any:
    return read_files(spark, folder).select("k", "v")


PLANS: dict[str, tuple[Plan, Plan]] = {
    "windowed": (windowed, windowed_otherwise),
    "deduplicated": (deduplicated, deduplicated),
    "joined": (joined, joined),
    "strictly joined": (strictly_joined, strictly_joined),
    "stateless": (stateless, stateless),
}


def drain(spark: Any, folder: Path, plan: Plan, checkpoint: Checkpoint, sink: Any) -> int:
    """Stop entry, exchange, flush: what the runtime does with a query that has ended. Returns the watermark before."""
    position = checkpoint.position()
    last, watermark_ms = position.batch_id, checkpoint.watermark_ms()
    assert last is not None
    body = format_offset_entry(stop_entry(checkpoint.read_offset(last), barrier_mark()))
    checkpoint.store.create(checkpoint.offset_key(position.barrier_id), body)
    exchange_for_drain(checkpoint, barrier_mark("drain"))
    assert repair_before_start(checkpoint, "d-0001").run == "once"
    run_to_end(plan(spark, folder), checkpoint, sink, once=True)
    return watermark_ms


def seed(
    spark: Any,
    folder: Path,
    plan: Plan,
    checkpoint: Checkpoint,
    *,
    watermark_ms: int = 0,
) -> Checkpoint:
    """A seed of a drained checkpoint for a new plan, as the runner makes it at ``start()``; the old one is deleted."""
    position = checkpoint.position()
    files = {key[len(checkpoint.prefix) + 1 :]: key for key in files_of(checkpoint, position, with_state=False)}
    query_id = checkpoint.query_id()
    assert query_id is not None
    assert position.batch_id is not None
    seeding = SeedPlan(query_id, position.batch_id, end_offsets(checkpoint), watermark_ms)
    building, target = Checkpoint(checkpoint.store, "building"), Checkpoint(checkpoint.store, "seeded")
    conf = {key: spark.conf.get(key) for key in PINNED_BY_4_2}
    prepare_seed(building, seeding, conf=conf, batch_timestamp_ms=1_704_067_200_000)
    run_to_end(plan(spark, folder), building, once=True)
    assert finish_seed(building, seeding, source_files_of(files), target)
    shutil.rmtree(folder / checkpoint.prefix)
    shutil.rmtree(folder / "building", ignore_errors=True)
    return target


@pytest.mark.parametrize("name", PLANS)
def test_seed_goes_on_at_the_drained_offsets(spark: Any, folder: Path, provider: str, name: str) -> None:
    """Every row comes out exactly once over drain and seed, into one file sink that knows batch ids (Law 9, 1a.10)."""
    use_provider(spark, provider)
    old, new = PLANS[name]
    feed = Feed(folder / "in")
    feed.add(4)
    checkpoint = local_checkpoint(folder)
    run_to_end(old(spark, folder), checkpoint, folder / "out")
    watermark_ms = drain(spark, folder, old, checkpoint, folder / "out")
    drained, query_id = checkpoint.position().batch_id, checkpoint.query_id()
    assert drained is not None
    assert sum(row[-1] for row in rows_in(spark, folder / "out")) == sum(row["v"] for row in feed.fed)
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    target = seed(spark, folder, new, checkpoint, watermark_ms=watermark_ms)
    assert (target.position().batch_id, target.query_id()) == (drained, query_id)
    feed.add(2)
    query = run_to_end(new(spark, folder), target, folder / "out")
    assert query.exception() is None
    assert sorted(target.commit_ids())[:3] == [drained - 1, drained, drained + 1]
    drain(spark, folder, new, target, folder / "out")
    assert sum(row[-1] for row in rows_in(spark, folder / "out")) == sum(row["v"] for row in feed.fed)
    assert target.read_offset(drained + 1).conf["spark.sql.shuffle.partitions"] == "3"


@pytest.mark.parametrize("keep_watermark", [True, False])
def test_rows_that_were_late_stay_late_with_the_old_watermark(
    spark: Any, folder: Path, provider: str, keep_watermark: bool
) -> None:
    """With the watermark of before the flush a late row is dropped; with 0 it reopens a written window (1a.10)."""
    use_provider(spark, provider)
    feed, sink = Feed(folder / "in"), Collected()
    feed.add(6)
    checkpoint = local_checkpoint(folder)
    run_to_end(windowed(spark, folder), checkpoint, sink)
    watermark_ms = drain(spark, folder, windowed, checkpoint, sink)
    target = seed(spark, folder, windowed, checkpoint, watermark_ms=watermark_ms if keep_watermark else 0)
    feed.write([row_at(30, "late", 77), row_at(400, "new", 88)])
    run_to_end(windowed(spark, folder), target, sink)
    drain(spark, folder, windowed, target, sink)
    assert 88 in sink.values
    assert (77 in sink.values) is not keep_watermark


def test_fresh_ids_lose_rows_in_the_file_sink(spark: Any, folder: Path) -> None:
    """The loss that Law 9 prevents: a checkpoint that starts at 0 again writes nothing into the same folder."""
    feed = Feed(folder / "in")
    feed.add(2)
    run_to_end(stateless(spark, folder), local_checkpoint(folder), folder / "out")
    shutil.rmtree(folder / "in")
    (folder / "in").mkdir()
    Feed(folder / "in").write([row_at(1000, "a", 5)])
    run_to_end(stateless(spark, folder), local_checkpoint(folder, "fresh"), folder / "out")
    assert len(rows_in(spark, folder / "out")) == 8


def test_pinned_settings_are_those_that_spark_pins(spark: Any, folder: Path) -> None:
    """Each setting that Spark writes into an entry is one that a seed sets: no format of Spark 2 comes back."""
    Feed(folder / "in").add(1)
    checkpoint = local_checkpoint(folder)
    run_to_end(stateless(spark, folder), checkpoint)
    assert set(checkpoint.read_offset(0).conf) == set(PINNED_BY_4_2)
