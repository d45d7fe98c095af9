"""A stream from Kafka to files and to Kafka, with a producer that never pauses: every row once."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from airflow_streamstate.protocol.events import Drained, QueryStarted, Stopped
from airflow_streamstate.protocol.records import StartPlan
from support.drivers import Deployments, Driver, wait_until
from support.kafka_topics import Topics, row, spark_jars, sums
from support.sparks import IN_FULL, spark_of

pytestmark = [pytest.mark.named, pytest.mark.kafka, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

HEAD = """
import sys
from pyspark.sql import SparkSession, functions as F

base, servers, source, target = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()

def read(topic, **options):
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    for name, value in {"startingOffsets": "earliest", **options}.items():
        reader = reader.option(name, value)
    return reader.option("subscribe", topic).load().select(F.col("value").cast("string"))

rows = read(source).select(F.from_json("value", "i long, t long, k string, v int").alias("r")).select("r.*")
rows = rows.withColumn("t", F.timestamp_millis("t"))
"""
COUNTS = """
windows = rows.withWatermark("t", "30 seconds").groupBy(F.window("t", "10 seconds"), "k")
counts = windows.agg(F.count("*").alias("n"), F.sum("v").alias("s")).select("window.start", "k", "n", "s")
"""
MORE_KEYS = COUNTS.replace('"k")', '"k", "v")').replace('"window.start", "k"', '"window.start", "k", "v"')
WRITE = """
counts.writeStream.queryName("counts").format("json").trigger(processingTime="500 milliseconds").start(base + "/out")
copy = read(source).writeStream.queryName("copies").format("kafka").option("topic", target)
copy.option("kafka.bootstrap.servers", servers).trigger(processingTime="500 milliseconds").start()
spark.streams.awaitAnyTermination()
"""


@pytest.mark.parametrize("spark", [IN_FULL, "3.5.9"])
def test_every_row_comes_out_once_while_a_producer_writes(tmp_path: Path, topics: Topics, spark: str) -> None:
    """Drain, seed with other keys, stop, restore, drain; partitions are added while it runs (1a.4, 1a.5, Law 9)."""
    source, target = topics.create("in", 2), topics.create("copies", 2)
    arguments = (str(tmp_path), topics.servers, source, target)
    conf = {"spark.jars": spark_jars(spark)}
    with Deployments(tmp_path, spark=None if spark == IN_FULL else spark_of(spark)) as stream:
        flow = topics.flow(source, 300)

        def wait_batches(driver: Driver, count: int) -> None:
            """Wait for ``count`` more batches of each query than the deployment started after, or than there are."""
            stream.wait_event(QueryStarted, driver, 2, seconds=180)
            for query in ("counts", "copies"):
                (started,) = (event for event in stream.events(QueryStarted) if event.query_name == query)
                first = max(stream.committed(query), default=-1 if started.batch_id is None else started.batch_id)
                wait_until(
                    lambda query=query, last=first + count: max(stream.committed(query), default=-1) >= last,  # type: ignore[misc]
                    lambda: f"{count} more batches after {first} of {query}:\n{driver.log}",  # noqa: B023
                    180,
                )

        first = stream.deploy(HEAD + COUNTS + WRITE, *arguments, conf=conf)
        wait_batches(first, 2)
        with flow.renewed():
            topics.add_partitions(source, 3)
        wait_batches(first, 2)
        stream.drain()
        assert first.exit_status() == 0, first.log
        drained = stream.events(Drained)[0]
        assert drained.queries["counts"].state_rows_left == 0
        with flow.renewed():
            topics.add_partitions(source, 4)

        seed = StartPlan("seed", drained.snapshot_id, "d-0001")
        second = stream.deploy(HEAD + MORE_KEYS + WRITE, *arguments, conf=conf, start=seed)
        wait_batches(second, 2)
        stream.stop()
        assert second.exit_status() == 0, second.log
        assert {event.how for event in stream.events(QueryStarted)} == {"seeded"}
        stopped = stream.events(Stopped)[0]

        restore = StartPlan("restore", stopped.snapshot_id, "d-0002")
        third = stream.deploy(HEAD + MORE_KEYS + WRITE, *arguments, conf=conf, start=restore)
        wait_batches(third, 2)
        sent = flow.stop()
        wait_until(
            lambda: len(topics.read(target)) >= sent or third.launcher.status(third.handle).has_ended,
            lambda: f"{sent} copies:\n{third.log}",
            180,
        )
        wait_until(lambda: not _is_behind(stream, sent), lambda: f"the last rows:\n{third.log}", 180)
        stream.drain()
        assert third.exit_status() == 0, third.log
        assert {event.how for event in stream.events(QueryStarted)} == {"restored"}
        assert all(query.rows_dropped in (0, None) for query in stream.events(Drained)[0].queries.values())
    assert sums(stream.output()) == sums(row(number) for number in range(sent))
    copies = Counter(found["i"] for found in topics.read(target))
    assert copies == Counter(range(sent))


def _is_behind(stream: Deployments, sent: int) -> bool:
    """Whether the last committed batch of the counts ends before the last row, by its own offsets."""
    last = max(stream.committed("counts"))
    line = (stream.checkpoint_folder("counts") / "offsets" / str(last)).read_text().splitlines()[-1]
    (parts,) = json.loads(line).values()
    return sum(parts.values()) < sent
