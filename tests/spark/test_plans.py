"""What the reading of plans rests on: how Spark numbers operators, and what a real writer reports."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_streamstate.driver.spark.spark_query import SparkWriter
from airflow_streamstate.driver.spark.writer_facts import read_facts
from airflow_streamstate.plan.model import SETTINGS, PlannedSink, QueryPlan
from airflow_streamstate.plan.record import kept_operators
from airflow_streamstate.plan.spark_json import PlanFacts, read_plan
from support.plan_queries import QUERIES
from support.real_queries import local_checkpoint, use_provider

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of a pandas that pyspark does not know yet
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

SHAPES = ("chained", "union", "joined_full", "limited", "session", "deduplicated_within", "sql", "tws_pandas")


@pytest.mark.parametrize("name", SHAPES)
def test_spark_gives_operators_the_ids_that_the_reading_gives(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """State is bound by these: the names that Spark writes alongside each id are those of the reading."""
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    use_provider(spark, "rocksdb")
    frame = QUERIES[name](spark, tmp_path)
    _feed(tmp_path)
    plan = _read(spark, frame)
    _run_once(frame, tmp_path)
    kept = kept_operators(local_checkpoint(tmp_path), 0, len(plan.operators))
    assert [(each.operator_id, each.operator_name) for each in kept] == [
        (each.operator_id, each.spark_name) for each in plan.operators
    ]


def test_a_writer_says_what_it_is_going_to_do(spark: SparkSession, tmp_path: Path) -> None:
    """The plan as Spark has analyzed it, the sink, and how that is partitioned; options keep no credential."""
    frame = QUERIES["tumbling"](spark, tmp_path)
    writer = frame.writeStream.format("parquet").partitionBy("k").option("fs.s3a.secret.key", "hunter2")
    analyzed = _writer(spark, frame, writer, str(tmp_path / "out")).analyzed_plan()
    assert json.loads(analyzed.text)[0]["class"].endswith("logical.Project")
    assert (analyzed.sink.format, analyzed.sink.path, analyzed.partitioned_by) == (
        "parquet", str(tmp_path / "out"), ("k",),
    )  # fmt: skip
    table = SparkWriter(spark, frame._jdf, frame.writeStream._jwrite, None, "there.is.none").analyzed_plan()
    assert (table.sink.table, table.partitioned_by) == ("there.is.none", ())


def test_the_settings_that_are_kept_are_sparks(spark: SparkSession, tmp_path: Path) -> None:
    """Each has a value in every session, but those that only a RocksDB store, or a newer Spark, has a word for."""
    frame = QUERIES["stateless"](spark, tmp_path)
    found = _writer(spark, frame, frame.writeStream, None).session_conf(SETTINGS)
    assert {name for name in SETTINGS if name not in found} <= {
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
        "spark.sql.streaming.queryEvolution.enableSourceEvolution",
    }


def test_two_texts_of_one_script_are_one_plan(spark: SparkSession, tmp_path: Path) -> None:
    """Built twice in one session, every id of an expression is another; the plan is the same."""
    for name in ("chained", "joined_full", "expressions"):
        first, second = (_read(spark, QUERIES[name](spark, tmp_path)) for _ in range(2))
        assert first == second


def _read(spark: SparkSession, frame: Any) -> QueryPlan:
    facts = read_facts(spark._jvm, frame._jdf, frame.writeStream._jwrite, None)
    return read_plan(
        frame._jdf.queryExecution().analyzed().toJSON(),
        PlanFacts("q", spark.version, facts.output_mode, "once", PlannedSink("noop"), facts.watermarks),
    )


def _feed(folder: Path) -> None:
    for sub in (path for path in folder.iterdir() if path.is_dir()):
        (sub / "x.json").write_text('{"ts":"2024-01-01T00:00:00Z","k":"a","v":500}\n')


def _run_once(frame: Any, folder: Path) -> None:
    from pyspark.errors import StreamingQueryException

    query = frame.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
    with contextlib.suppress(StreamingQueryException):
        # What the user's functions make of the row is no matter: the operators are written when the batch is planned.
        query.trigger(once=True).start().awaitTermination()


def _writer(spark: SparkSession, frame: Any, writer: Any, path: str | None) -> SparkWriter:
    return SparkWriter(spark, frame._jdf, writer._jwrite, path, None)
