"""Queries of one deployment that feed each other, drained in the order of their data on real Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.protocol.events import Drained, Draining
from support.drivers import WINDOWED_COUNTS, Deployments, seconds_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400), pytest.mark.usefixtures("quick_jvm")]
SCRIPT = (
    WINDOWED_COUNTS
    + """
import os
os.makedirs(base + "/out", exist_ok=True)
landed = spark.readStream.schema("start timestamp, k string, n long, s long").json(base + "/out")
per_minute = (landed.withWatermark("start", "0 seconds").groupBy(F.window("start", "1 minute"), "k")
    .agg(F.count("*").alias("windows"), F.sum("n").alias("n")))
per_minute.writeStream.queryName("per_minute").format("json").trigger(processingTime="1 hour").start(base + "/minutes")
counts.writeStream.queryName("per_window").format("json").start(base + "/out")
spark.streams.awaitAnyTermination()
"""
)


def test_the_downstream_counts_every_window_that_the_upstream_flushed(tmp_path: Path) -> None:
    """Although it sleeps for an hour: it reads what the upstream's flush has written, and is flushed then."""
    with Deployments(tmp_path) as stream:
        for minute in range(3):
            stream.feed(*({"t": seconds_of(minute, at), "k": "a", "v": 1} for at in (1, 21, 41)))
        driver = stream.deploy(SCRIPT, str(tmp_path))
        stream.wait_committed("per_window", 1, driver)
        stream.drain()
        assert driver.exit_status() == 0, driver.log
        assert "Traceback" not in driver.log, driver.log
        (drained,) = stream.events(Drained)
        assert {name: query.state_rows_left for name, query in drained.queries.items()} == {
            "per_window": 0, "per_minute": 0,
        }  # fmt: skip
        assert [sorted(event.flush_batch_ids) for event in stream.events(Draining)] == [["per_window"], ["per_minute"]]
        windows = stream.output()
        counted = sum(int(str(row["n"])) for row in windows)
        assert counted >= 6
        assert counted % 3 == 0
        minutes = stream.output("minutes")
        assert sum(int(str(row["windows"])) for row in minutes) == len(windows)
        assert sum(int(str(row["n"])) for row in minutes) == counted
