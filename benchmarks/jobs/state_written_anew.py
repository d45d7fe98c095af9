"""Rewrite RocksDB state in another number of partitions, and by Spark's own bare repartition, in turns; and through
a migration, by a function that adds a field, by the same in columns and by one that changes nothing; the seconds as
JSON.

Or only in another number of partitions, twice, of state that an earlier run has made; and by another Spark.
"""

import argparse
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, functions

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.checkpoint.seed import SeedPlan, prepare_seed
from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.driver.attempt.ports import RewriteOrder
from airflow_streamstate.driver.spark.state_rewriting import rewrite_state
from airflow_streamstate.migration import Migration
from airflow_streamstate.store.local import LocalStore

PARTITIONS = "spark.sql.shuffle.partitions"
OLD, NEW = 4, 6
parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--keys", type=int, required=True)
parser.add_argument("--pairs", type=int, default=0, help="without any, the state is only made")
parser.add_argument("--twice", action="store_true", help="only a rescale, in a driver that has just started, and again")
parser.add_argument("--rewriter", default="", help="the Spark that rewrites, where the job's own cannot")
parser.add_argument("--seconds-to", type=Path, required=True)
options = parser.parse_args()
options.folder.mkdir(parents=True, exist_ok=True)
spark = (
    SparkSession.builder.config(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    .config(PARTITIONS, str(OLD))
    .getOrCreate()
)
store = LocalStore(options.folder)


def query(has_last: bool) -> DataFrame:
    """About 250 bytes of state for each key: incompressible text, a count and a sum."""
    rows = spark.readStream.schema("id long").parquet(str(options.folder / "in"))
    text = functions.concat(*(functions.sha2(functions.concat("id", functions.lit(n)), 256) for n in range(3)))
    aggregates = [functions.max(text).alias("text"), functions.count("*").alias("n"), functions.sum("id").alias("s")]
    if has_last:
        aggregates.append(functions.max("id").alias("last"))
    return rows.groupBy(functions.col("id").alias("k")).agg(*aggregates)


def run(frame: DataFrame, name: str, *, once: bool) -> None:
    trigger = {"once": True} if once else {"availableNow": True}
    writer = frame.writeStream.outputMode("update").format("noop").option("checkpointLocation", place(name))
    writer.trigger(**trigger).start().awaitTermination()


def place(name: str) -> str:
    return f"file:{options.folder / name}"


def timed(act: Callable[[], object]) -> float:
    began = SYSTEM_CLOCK.monotonic_seconds()
    act()
    return SYSTEM_CLOCK.monotonic_seconds() - began


def written_anew(name: str, *, has_last: bool, partitions: int, migrate: Migration | None) -> None:
    """As the start of a deployment does it, behind the fork: an empty batch lays the schema down, then the rows."""
    after = Checkpoint(store, name)
    entry = Checkpoint(store, "old").read_offset(0)
    if entry is None:
        raise SystemExit("the query has run no batch")
    conf = entry.conf
    prepare_seed(
        after, SeedPlan(SYSTEM_CLOCK.new_uuid(), 1, ("-",)), conf={**conf, PARTITIONS: str(partitions)},
        batch_timestamp_ms=int(SYSTEM_CLOCK.now().timestamp() * 1000),
    )  # fmt: skip
    run(query(has_last), name, once=True)
    migrations = {} if migrate is None else {(0, "rows"): migrate}
    order = RewriteOrder(
        place("old"), 0, 1, True, place(name), {0: partitions}, 1, migrations=migrations, rewriter=options.rewriter
    )
    rewrite_state(spark, order)


def same(_: Mapping[str, object], state: Mapping[str, object]) -> Mapping[str, object]:
    return state


def with_last(key: Mapping[str, object], state: Mapping[str, object]) -> Mapping[str, object]:
    return {**state, "max_2": key["id"]}


def with_last_in_columns(rows: DataFrame) -> DataFrame:
    return rows.withColumn("state", rows.state.withField("max_2", rows.key.id))


def row_by_row(function: Callable[..., object]) -> Migration:
    return Migration("q", "aggregate:k", function)


def bytes_below(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def in_pairs() -> list[dict[str, float]]:
    """Each way in turns, in this driver."""
    columns = Migration("q", "aggregate:k", with_last_in_columns, is_vectorized=True)
    rounds: list[dict[str, float]] = []
    for _ in range(options.pairs):
        shutil.copytree(options.folder / "old", options.folder / "bare")
        bare = timed(lambda: spark._streamingCheckpointManager.repartition(place("bare"), NEW))
        rescaled = timed(rescale)
        identity = timed(lambda: written_anew("identity", has_last=False, partitions=OLD, migrate=row_by_row(same)))
        migrated = timed(lambda: written_anew("migrated", has_last=True, partitions=OLD, migrate=row_by_row(with_last)))
        in_columns = timed(lambda: written_anew("columns", has_last=True, partitions=OLD, migrate=columns))
        for name in ("rescaled", "identity", "migrated", "columns"):
            check_and_remove(name)
        shutil.rmtree(options.folder / "bare")
        rounds.append(
            {
                "repartition_seconds": bare,
                "rescale_seconds": rescaled,
                "identity_seconds": identity,
                "migration_seconds": migrated,
                "columns_seconds": in_columns,
            }
        )
    return rounds


def twice() -> list[dict[str, float]]:
    """Rescaled in a driver that has just started, and again."""
    cold = timed(rescale)
    shutil.rmtree(options.folder / "rescaled")
    warm = timed(rescale)
    check_and_remove("rescaled")
    return [{"cold_seconds": cold, "seconds": warm}]


def rescale() -> None:
    written_anew("rescaled", has_last=False, partitions=NEW, migrate=None)


def check_and_remove(name: str) -> None:
    count = spark.read.format("statestore").load(place(name)).count()
    if count != options.keys:
        raise SystemExit(f"{name} has {count} keys, not {options.keys}")
    shutil.rmtree(options.folder / name)


if not (options.folder / "old").exists():
    spark.range(0, options.keys, 1, OLD).write.parquet(str(options.folder / "in"))
    run(query(False), "old", once=False)
found = twice() if options.twice else in_pairs()
size = bytes_below(options.folder / "old" / "state")
options.seconds_to.write_text(json.dumps({"state_bytes": size, "rounds": found}))
spark.stop()
