"""Queries of one deployment with a topic between them, drained in the order of their data."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.chained import PER_MINUTE, ROWS, drain_in_order, feed_minutes
from support.drivers import WINDOWED_COUNTS, Deployments
from support.kafka_topics import Topics, spark_jars

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

SCRIPT = (
    WINDOWED_COUNTS.replace("base = sys.argv[1]", "base, servers, topic = sys.argv[1:]")
    + """
reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
read = reader.option("startingOffsets", "earliest").load().select(F.col("value").cast("string"))
landed = read.select(F.from_json("value", "start timestamp, k string, n long").alias("r")).select("r.*")
"""
    + PER_MINUTE
    + """
written = counts.select(F.to_json(F.struct("start", "k", "n")).alias("value"))
written = written.writeStream.queryName("per_window").format("kafka").option("kafka.bootstrap.servers", servers)
written.option("topic", topic).start()
spark.streams.awaitAnyTermination()
"""
)


def test_the_downstream_reads_every_window_that_the_upstream_flushed_into_a_topic(
    tmp_path: Path, topics: Topics
) -> None:
    """Although it sleeps for an hour: what the flush has written is read to its end, and flushed then."""
    topic = topics.create("windows", 2)
    with Deployments(tmp_path) as stream:
        feed_minutes(stream)
        driver = stream.deploy(SCRIPT, str(tmp_path), topics.servers, topic, conf={"spark.jars": spark_jars()})
        drain_in_order(stream, driver)
        assert sum(found["n"] for found in topics.read(topic)) == ROWS
