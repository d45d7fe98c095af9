"""Questions to a Kafka cluster."""

from __future__ import annotations

from airflow_streamstate.connectors.kafka import KafkaAdmin
from support.fake_kafka import FakeKafka, FakeTopic


def test_nothing_is_asked_about_nothing_and_one_client_is_enough() -> None:
    """No question costs no connection; several share one, until it is closed."""
    kafka = FakeKafka(topics={"a": FakeTopic("T", [(1, 2)])})
    admin = KafkaAdmin(kafka.jvm, {"kafka.bootstrap.servers": "x:1"})
    assert admin.offsets([], "latest") == {}
    assert kafka.settings == {}
    assert admin.topics(["a", "not there"])["a"].partitions == (0,)
    assert admin.offsets([("a", 0)], "earliest") == {("a", 0): 1}
    assert admin.offsets([("a", 0)], "latest") == {("a", 0): 2}
    assert admin.topic_names() == ["a"]
    admin.close()
    admin.close()
    assert kafka.closed == 1
