"""The lag of a stream in Kafka's own tools: offsets of committed batches as those of a consumer group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from airflow_streamstate.protocol.settings import AgentSettings
from support.drivers import wait_until
from support.kafka_topics import Topics
from support.session_stream import SessionStream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.named, pytest.mark.timeout(900)]


@contextmanager
def group_of(servers: str, group: str) -> Iterator[Consumer]:
    """A member of nothing that reads and moves the offsets of a group, as Kafka's own tools do."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "log_level": 0})
    try:
        yield consumer
    finally:
        consumer.close()


def offsets_of(consumer: Consumer, topic: str) -> tuple[int, ...]:
    """The offset of each of two partitions; those without one are negative."""
    try:
        found = consumer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], timeout=10)
    except KafkaException:
        return ()  # a broker that makes its topic of groups answers so for a while
    return tuple(part.offset for part in found)


def test_a_group_follows_the_committed_batches_and_is_never_read(
    kafka_spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    """As each batch is committed; a group that is moved away changes nothing of what is read."""
    topic, group = topics.create("in", 2), topics.name("lag")
    settings = AgentSettings(commit_offsets_to_group=group, command_poll_seconds=0.1)
    reader = kafka_spark.readStream.format("kafka").option("kafka.bootstrap.servers", topics.servers)
    frame = reader.option("subscribe", topic).option("startingOffsets", "earliest").load()
    rows = frame.selectExpr("CAST(value AS STRING) AS v").writeStream.format("json")

    def follows(first: int, second: int) -> None:
        wait_until(
            lambda: offsets_of(consumer, topic) == (first, second), lambda: str(offsets_of(consumer, topic)), 120
        )

    with SessionStream(kafka_spark, tmp_path) as stream, group_of(topics.servers, group) as consumer:
        topics.write(topic, range(30), 0)
        topics.write(topic, range(30, 50), 1)
        driver = stream.start(rows, path=str(tmp_path / "out"), settings=settings)
        stream.wait_read(topic, 50)
        follows(30, 20)
        moved = [TopicPartition(topic, 0, 7), TopicPartition(topic, 1, 7)]
        consumer.commit(offsets=moved, asynchronous=False)
        topics.write(topic, range(50, 60), 0)
        stream.wait_read(topic, 60)
        follows(40, 20)
        stream.stop()
        assert driver.end() == 0, driver.said
        assert sorted(int(str(found["v"])) for found in stream.output()) == list(range(60))
