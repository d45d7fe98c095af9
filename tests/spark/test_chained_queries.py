"""Queries of one deployment that feed each other, drained in the order of their data on real Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.chained import PER_MINUTE, ROWS, drain_in_order, feed_minutes
from support.drivers import WINDOWED_COUNTS, Deployments

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]
SCRIPT = (
    WINDOWED_COUNTS
    + """
import os
os.makedirs(base + "/out", exist_ok=True)
landed = spark.readStream.schema("start timestamp, k string, n long, s long").json(base + "/out")
"""
    + PER_MINUTE
    + """
counts.writeStream.queryName("per_window").format("json").start(base + "/out")
spark.streams.awaitAnyTermination()
"""
)


def test_the_downstream_counts_every_window_that_the_upstream_flushed(tmp_path: Path) -> None:
    """Although it sleeps for an hour: it reads what the upstream's flush has written, and is flushed then."""
    with Deployments(tmp_path) as stream:
        feed_minutes(stream)
        driver = stream.deploy(SCRIPT, str(tmp_path))
        drain_in_order(stream, driver)
        assert "Traceback" not in driver.log, driver.log
        assert sum(int(str(row["n"])) for row in stream.output()) == ROWS
