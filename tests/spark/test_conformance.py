"""Real Spark does what the simulation does: the same steps as ``tests/unit/driver/test_conformance_simulated.py``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.store.local import LocalStore
from support.conformance import BASE_SECONDS, DELAY_SECONDS, STEPS, WINDOW_SECONDS, Step
from support.file_sink import rows_in
from support.real_queries import PROVIDERS, Feed, row_at

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.fast, pytest.mark.spark, pytest.mark.timeout(900)]


class RealStage:
    """A query in Spark: JSON files in, counts per minute out."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        from airflow_streamstate.driver.spark.spark_query import SparkWriter

        self.clock = SYSTEM_CLOCK
        self._folder = folder
        self._feed = Feed(folder / "in")
        self.checkpoint = Checkpoint(LocalStore(folder / "store"), "counts")
        self.uri = f"file://{folder}/store/counts"
        writer = self._writer(spark)
        self.startable = SparkWriter(spark, writer._df._jdf, writer._jwrite, str(folder / "out"), None)

    def _writer(self, spark: SparkSession) -> Any:
        from pyspark.sql import functions as fn

        folder = str(self._folder)

        def passed_on(k: str) -> str:
            while Path(folder, "hold").exists():
                time.sleep(0.02)  # noqa: TID251 - a batch that takes its time
            if Path(folder, "spoilt").exists():
                raise ValueError("the input is spoilt")
            return k

        gate = fn.udf(passed_on, "string", useArrow=False)
        rows = spark.readStream.schema("ts timestamp, k string, v long").option("maxFilesPerTrigger", 1)
        held = rows.json(f"{folder}/in").withColumn("k", gate("k")).withWatermark("ts", f"{DELAY_SECONDS} seconds")
        counts = held.groupBy(fn.window("ts", f"{WINDOW_SECONDS} seconds")).agg(fn.count("k").alias("n"))
        start = fn.unix_timestamp("window.start").alias("start")
        return counts.select(start, "n").writeStream.format("json").outputMode("append")

    def feed(self, first_second: int, second_second: int) -> None:
        self._feed.write([row_at(first_second, "a", 1), row_at(second_second, "a", 2)])

    def counts(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for row in rows_in(self._folder / "out"):
            second = row["start"] - BASE_SECONDS
            found[second] = found.get(second, 0) + row["n"]
        return found

    def hold(self) -> None:
        (self._folder / "hold").touch()

    def let_go(self) -> None:
        (self._folder / "hold").unlink(missing_ok=True)

    def spoil(self) -> None:
        (self._folder / "spoilt").touch()

    def mend(self) -> None:
        (self._folder / "spoilt").unlink(missing_ok=True)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_spark_does_what_the_simulation_says(spark: SparkSession, folder: Path, provider: str, step: Step) -> None:
    """Both providers; the day a release of Spark changes one of these facts, this shows it first."""
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDERS[provider])
    stage = RealStage(spark, folder)
    try:
        step(stage)
    finally:
        stage.let_go()
