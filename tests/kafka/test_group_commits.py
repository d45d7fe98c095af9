"""The lag of a stream in Kafka's own tools: offsets of committed batches as those of a consumer group."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_streamstate.protocol.settings import AgentSettings
from support.drivers import wait_until
from support.kafka_topics import Topics
from support.session_stream import SessionStream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.named, pytest.mark.timeout(900)]


def group_offsets(servers: str, group: str) -> dict[tuple[str, int], int]:
    """What Kafka's own tools show of a group."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    (future,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    try:
        parts: list[TopicPartition] = future.result(30).topic_partitions or []
    except KafkaException:
        return {}  # a broker that makes its topic of groups answers so for a while
    return {(part.topic, part.partition): part.offset for part in parts}


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
        wanted = {(topic, 0): first, (topic, 1): second}
        wait_until(lambda: group_offsets(topics.servers, group) == wanted, lambda: seen(), 120)

    def seen() -> Any:
        return group_offsets(topics.servers, group)

    with SessionStream(kafka_spark, tmp_path) as stream:
        topics.write(topic, range(30), 0)
        topics.write(topic, range(30, 50), 1)
        driver = stream.start(rows, path=str(tmp_path / "out"), settings=settings)
        stream.wait_read(topic, 50)
        follows(30, 20)
        moved = [TopicPartition(topic, 0, 7), TopicPartition(topic, 1, 7)]
        admin = AdminClient({"bootstrap.servers": topics.servers, "log_level": 0})
        (future,) = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, moved)]).values()
        future.result(30)
        topics.write(topic, range(50, 60), 0)
        stream.wait_read(topic, 60)
        follows(40, 20)
        stream.stop()
        assert driver.end() == 0, driver.said
        assert sorted(int(str(found["v"])) for found in stream.output()) == list(range(60))
