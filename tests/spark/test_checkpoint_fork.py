"""Forks of real checkpoints: the listed files suffice, and nothing of the predecessor is needed or touched."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.checkpoint.fork import fork
from airflow_streamstate.checkpoint.log import Checkpoint, crc_key_of, format_offset_entry, stop_entry
from airflow_streamstate.checkpoint.state_files import files_of
from support.checkpoints import barrier_mark
from support.real_queries import (
    Collected,
    Feed,
    local_checkpoint,
    read_files,
    rows_in,
    run_to_end,
    start,
    use_provider,
    wait_until,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
Plan = Callable[[Any, Path], Any]


def windowed(spark: Any, folder: Path) -> Any:
    from pyspark.sql import functions as fn

    stream = read_files(spark, folder).withWatermark("ts", "10 seconds")
    sums = stream.groupBy(fn.window("ts", "5 minutes"), "k").agg(fn.sum("v").alias("v"))
    return sums.select("window.start", "k", "v")


def deduplicated(spark: Any, folder: Path) -> Any:
    return read_files(spark, folder).withWatermark("ts", "3 minutes").dropDuplicatesWithinWatermark(["k"])


def joined(spark: Any, folder: Path) -> Any:
    left = read_files(spark, folder).withWatermark("ts", "2 minutes").selectExpr("ts as lts", "k as lk", "v as lv")
    right = read_files(spark, folder).withWatermark("ts", "2 minutes").selectExpr("ts as rts", "k as rk", "v as rv")
    return left.join(right, left.lk == right.rk, "inner").where(
        "rts between lts - interval 90 seconds and lts + interval 90 seconds"
    )


def stateless(spark: Any, folder: Path) -> Any:
    return read_files(spark, folder).select("k", "v")


def read_twice(spark: Any, folder: Path) -> Any:
    stream = read_files(spark, folder).select("k", "v")
    return stream.union(stream)


def limited(spark: Any, folder: Path) -> Any:
    return read_files(spark, folder).select("k", "v").limit(12)


PLANS: dict[str, Plan] = {
    "windowed": windowed,
    "deduplicated": deduplicated,
    "joined": joined,
    "stateless": stateless,
    "read_twice": read_twice,
    "limited": limited,
}


def fork_to(checkpoint: Checkpoint, name: str) -> Checkpoint:
    """A fork of the checkpoint at its position, as a successor gets it."""
    position = checkpoint.position()
    files = {key[len(checkpoint.prefix) + 1 :]: key for key in files_of(checkpoint, position)}
    target = Checkpoint(checkpoint.store, name)
    assert fork(checkpoint.store, files, target)
    return target


def uninterrupted(spark: Any, folder: Path, plan: Plan) -> list[tuple[Any, ...]]:
    """What the query gives without anything of ours, over the same files."""
    run_to_end(plan(spark, folder), local_checkpoint(folder, "plain"), folder / "plain-out")
    return rows_in(spark, folder / "plain-out")


STATEFUL = ("windowed", "deduplicated", "joined", "limited")
CASES = [*((plan, "hdfs") for plan in PLANS), *((plan, "rocksdb") for plan in STATEFUL)]


@pytest.mark.parametrize(("plan", "provider"), CASES)
def test_fork_goes_on_where_its_source_stood(spark: Any, folder: Path, provider: str, plan: str) -> None:
    """Forked with state, predecessor deleted: ids continue, every row once, as if nothing had been (1a.6, 1a.10)."""
    use_provider(spark, provider)
    feed = Feed(folder / "in")
    feed.add(5)
    checkpoint = local_checkpoint(folder)
    run_to_end(PLANS[plan](spark, folder), checkpoint, folder / "out")
    target = fork_to(checkpoint, "fork")
    last = checkpoint.position().batch_id
    assert (target.position().batch_id, target.query_id()) == (last, checkpoint.query_id())
    shutil.rmtree(folder / "checkpoint")
    feed.add(2)
    run_to_end(PLANS[plan](spark, folder), target, folder / "out")
    assert target.position().batch_id > last
    assert rows_in(spark, folder / "out") == uninterrupted(spark, folder, PLANS[plan])


def test_fork_of_a_running_query_stands_at_a_committed_batch(spark: Any, folder: Path, provider: str) -> None:
    """Taken while batches run, old state is purged and snapshots are made: the fork gives every row once (1a.6)."""
    use_provider(spark, provider)
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "3")
    feed = Feed(folder / "in")
    feed.add(10)
    checkpoint = local_checkpoint(folder)
    sink, fork_sink, plain_sink = Collected(), Collected(), Collected()
    query = start(windowed(spark, folder), checkpoint, sink)
    wait_until(lambda: (checkpoint.position().batch_id or 0) >= 5, "some batches were committed")
    target = fork_to(checkpoint, "fork")
    last = target.position().batch_id
    query.processAllAvailable()
    query.stop()
    feed.add(1)
    run_to_end(windowed(spark, folder), target, fork_sink)
    run_to_end(windowed(spark, folder), local_checkpoint(folder, "plain"), plain_sink)
    before = [value for batch_id, values in sink.batches.items() if batch_id <= last for value in values]
    assert sorted(before + fork_sink.values) == plain_sink.values


def test_fork_with_a_planned_entry_runs_it_first(spark: Any, folder: Path, provider: str) -> None:
    """Killed between sink and commit: the planned entry goes along, runs over the same bounds, no row twice (1a.6)."""
    use_provider(spark, provider)
    feed = Feed(folder / "in")
    feed.add(5)
    checkpoint = local_checkpoint(folder)
    run_to_end(windowed(spark, folder), checkpoint, folder / "out")
    last = checkpoint.position().batch_id
    commit = checkpoint.commit_key(last)
    for key in (crc_key_of(commit), commit):
        checkpoint.store.delete(key)
    assert checkpoint.position().planned_id == last
    target = fork_to(checkpoint, "fork")
    assert target.store.get(target.offset_key(last)) is not None
    shutil.rmtree(folder / "checkpoint")
    feed.add(6)
    run_to_end(windowed(spark, folder), target, folder / "out")
    assert rows_in(spark, folder / "out") == uninterrupted(spark, folder, windowed)


def test_dropping_the_planned_entry_loses_rows(spark: Any, folder: Path) -> None:
    """The loss that 1a.6 prevents: planned again over other bounds, the file sink skips the id with its new rows."""
    feed = Feed(folder / "in")
    feed.add(3)
    checkpoint = local_checkpoint(folder)
    run_to_end(stateless(spark, folder), checkpoint, folder / "out")
    for folder_name in ("commits", "offsets"):
        for name in ("2", ".2.crc"):
            checkpoint.store.delete(checkpoint.key(f"{folder_name}/{name}"))
    feed.add(3)
    wide = read_files(spark, folder, files_per_batch=100).select("k", "v")
    run_to_end(wide, checkpoint, folder / "out")
    assert len(rows_in(spark, folder / "out")) < len(feed.fed)


def test_fork_carries_no_barrier(spark: Any, folder: Path) -> None:
    """A stopped checkpoint's entry of ours stays behind (1a.1)."""
    Feed(folder / "in").add(2)
    checkpoint = local_checkpoint(folder)
    run_to_end(stateless(spark, folder), checkpoint, folder / "out")
    body = format_offset_entry(stop_entry(checkpoint.read_offset(1), barrier_mark()))
    checkpoint.store.create(checkpoint.offset_key(2), body)
    assert fork_to(checkpoint, "fork").offset_ids() == [0, 1]


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")
def test_fork_of_a_query_with_its_own_state_names_no_file_of_its_predecessor(spark: Any, folder: Path) -> None:
    """transformWithState keeps absolute paths of its schema; in a fork they are the fork's own (Law 4)."""
    from pyspark.sql.streaming import StatefulProcessor

    class Counter(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._count = handle.getValueState("count", "n long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N803
            import pandas as pd

            seen = self._count.get()[0] if self._count.exists() else 0
            seen += sum(len(part) for part in rows)
            self._count.update((seen,))
            yield pd.DataFrame({"k": [key[0]], "n": [seen]})

        def close(self) -> None:
            pass

    use_provider(spark, "rocksdb")

    def counted() -> Any:
        stream = read_files(spark, folder).withWatermark("ts", "10 seconds").groupBy("k")
        return stream.transformWithStateInPandas(Counter(), "k string, n long", "append", "eventtime")

    feed = Feed(folder / "in")
    feed.add(2)
    checkpoint = local_checkpoint(folder)
    run_to_end(counted(), checkpoint, availableNow=True)
    target = fork_to(checkpoint, "fork")
    shutil.rmtree(folder / "checkpoint")
    feed.add(1)
    collected: list[tuple[str, int]] = []

    def collect(rows: Any, _: int) -> None:
        collected.extend((row["k"], row["n"]) for row in rows.collect())

    run_to_end(counted(), target, collect, availableNow=True)
    totals = {key: sum(row["k"] == key for row in feed.fed) for key in "abc"}
    assert dict(collected) == totals
    written = b"".join(path.read_bytes() for path in (folder / "fork" / "state").rglob("v2/*"))
    assert b"/fork/state/" in written
    assert b"/checkpoint/state/" not in written
