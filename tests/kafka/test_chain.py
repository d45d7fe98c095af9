"""Queries of one deployment with a topic between them, drained in the order of their data."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.protocol.events import Drained, Draining
from support.drivers import WINDOWED_COUNTS, Deployments, seconds_of
from support.kafka_topics import Topics, spark_jars

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(400), pytest.mark.usefixtures("quick_jvm")]

SCRIPT = (
    WINDOWED_COUNTS.replace("base = sys.argv[1]", "base, servers, topic = sys.argv[1:]")
    + """
reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
read = reader.option("startingOffsets", "earliest").load().select(F.col("value").cast("string"))
landed = read.select(F.from_json("value", "start timestamp, k string, n long").alias("r")).select("r.*")
per_minute = (landed.withWatermark("start", "0 seconds").groupBy(F.window("start", "1 minute"), "k")
    .agg(F.count("*").alias("windows"), F.sum("n").alias("n")))
per_minute.writeStream.queryName("per_minute").format("json").trigger(processingTime="1 hour").start(base + "/minutes")
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
        for minute in range(3):
            stream.feed(*({"t": seconds_of(minute, at), "k": "a", "v": 1} for at in (1, 21, 41)))
        driver = stream.deploy(SCRIPT, str(tmp_path), topics.servers, topic, conf={"spark.jars": spark_jars()})
        stream.wait_committed("per_window", 2, driver)
        stream.drain()
        assert driver.exit_status() == 0, driver.log
        (drained,) = stream.events(Drained)
        assert {name: query.state_rows_left for name, query in drained.queries.items()} == {
            "per_window": 0, "per_minute": 0,
        }  # fmt: skip
        assert [sorted(event.flush_batch_ids) for event in stream.events(Draining)] == [["per_window"], ["per_minute"]]
        windows, minutes = topics.read(topic), stream.output("minutes")
        assert sum(found["n"] for found in windows) == 9
        assert sum(int(str(row["windows"])) for row in minutes) == len(windows)
        assert sum(int(str(row["n"])) for row in minutes) == 9
