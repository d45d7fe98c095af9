"""A batch that a sink skipped is distinguished from one of which a filter left no row, on real Spark."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_streamstate.driver.attempt.ports import SkippedBySink
from support.drivers import wait_until

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.mark.parametrize("form", ["parquet", "json"])
def test_rows_that_a_filter_kept_from_being_read_are_no_skipped_batch(
    spark: SparkSession, folder: Path, form: str
) -> None:
    """Spark counts no input row for them, nor for what a sink skips: the alarm is for the latter alone (Law 14)."""
    from airflow_streamstate.driver.spark.spark_query import SparkWriter

    for number in range(3):
        rows = spark.range(10).selectExpr(f"id + {number} AS v").coalesce(1)
        rows.write.format(form).mode("append").save(str(folder / "in"))

    def run() -> Any:
        read = spark.readStream.schema("v long").option("maxFilesPerTrigger", 1).format(form).load(str(folder / "in"))
        writer: Any = read.where("v > 1000").writeStream.format("json").trigger(availableNow=True)
        query = SparkWriter(spark, writer._df._jdf, writer._jwrite, str(folder / "out"), None)
        found = query.start(f"file://{folder}/ck")
        wait_until(found.has_ended, lambda: "the end of the query", 120)
        assert found.failure() is None
        return found

    first = run()
    progress = first.last_progress()
    assert (progress.batch_id, progress.input_rows) == (2, 0)
    assert first.skipped() == SkippedBySink()

    for name in ("offsets", "commits", "sources"):
        shutil.rmtree(folder / "ck" / name)
    again = run()
    assert again.query_id == first.query_id
    assert again.skipped() == SkippedBySink(2, (1, 2), 1)  # of a first batch nobody knows where it started
