"""What is behind an offset of Kafka, how far it is behind, and whose offset it is."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from airflow_streamstate.connectors.kafka import (
    CLUSTER,
    NO_TOPIC_ID,
    KafkaAdmin,
    KafkaSource,
    format_offset,
    parse_offset,
)
from airflow_streamstate.connectors.source import GroupedSource, Lag, LostInput, Source, Untold
from airflow_streamstate.connectors.testing import check_open_source
from support.fake_kafka import FakeKafka, FakeTopic

FLIGHTS = Source("kafka", {"subscribe": "flights", "kafka.bootstrap.servers": "b:9092", "kafka.sasl.x": "Secret"})
LOST = (
    "org.apache.spark.sql.kafka010.KafkaIllegalStateException: Some data may have been lost because they are not"
    " available in Kafka any more;\neither the data was aged out by Kafka or … Reason:"
)
MARKS = {CLUSTER: "cluster-1", "topic_id flights": "T1"}


@pytest.fixture
def kafka() -> FakeKafka:
    """A cluster with one topic of two partitions."""
    return FakeKafka(topics={"flights": FakeTopic("T1", [(0, 100), (0, 50)])})


def test_it_keeps_the_suite_connected(kafka: FakeKafka) -> None:
    """Nothing lost, a true lag, marks that stay, closed twice."""
    opened = KafkaSource().open(FLIGHTS, kafka)
    check_open_source(opened, '{"flights":{"0":0,"1":0}}', '{"flights":{"0":100,"1":50}}', 150)
    assert kafka.closed == 1
    assert kafka.settings["bootstrap.servers"] == "b:9092"
    assert kafka.settings["sasl.x"] == "Secret"
    assert "subscribe" not in kafka.settings
    assert int(kafka.settings["default.api.timeout.ms"]) < 10_000


def test_servers_may_change_and_topics_may_be_told_in_any_order() -> None:
    """By which servers a topic is reached is no part of what it is."""
    connector = KafkaSource()
    elsewhere = Source("kafka", {"subscribe": " flights", "kafka.bootstrap.servers": "other:9092"})
    assert connector.identify(FLIGHTS) == connector.identify(elsewhere) == "kafka subscribe flights"
    one, other = (Source("kafka", {"subscribe": text}) for text in ("a,b", "b, a"))
    assert connector.identify(one) == connector.identify(other)
    assert connector.identify(Source("json", {"path": "/a"})) is None


@pytest.mark.parametrize(
    ("options", "offset", "goes_on"),
    [
        ({"subscribe": "flights,orders"}, '{"flights":{"0":3}}', True),
        ({"subscribe": "orders"}, '{"flights":{"0":3}}', False),
        ({"subscribe": "flights"}, '{"flights":{"0":3},"orders":{"0":1}}', False),
        ({"subscribepattern": "fl.*"}, '{"flights":{"0":3}}', True),
        ({"subscribepattern": "(?<bad"}, '{"flights":{"0":3}}', True),
        ({"subscribepattern": "[a-z&&[^x]]+"}, '{"flights":{"0":3}}', True),
        ({"subscribepattern": "[xf[a-z]]+"}, '{"flights":{"0":3}}', True),
        ({"subscribepattern": r"[a-w]+\[?"}, '{"xyz":{"0":3}}', False),
        ({"assign": '{"flights":[0]}'}, '{"flights":{"0":3}}', True),
        ({"subscribe": "flights"}, "{}", False),
    ],
)
def test_a_source_of_more_topics_reads_on(options: dict[str, str], offset: str, goes_on: bool) -> None:
    """Whatever reads all topics of an offset can continue from it."""
    assert KafkaSource().continues(Source("kafka", options), offset) is goes_on


def test_rows_that_retention_took_are_counted_per_partition(kafka: FakeKafka) -> None:
    """What is gone is reported with its number; what is still there is where reading would continue."""
    kafka.topics["flights"].parts = [(40, 100), (0, 50)]
    found = KafkaSource().open(FLIGHTS, kafka).preflight('{"flights":{"0":12,"1":50}}', MARKS)
    assert found.lost == (LostInput("flights[0]", "removed", 28),)
    assert found.readable == '{"flights":{"0":40,"1":50}}'


@pytest.mark.parametrize("marks", [MARKS, {}])
def test_a_topic_made_anew_is_told(kafka: FakeKafka, marks: dict[str, str]) -> None:
    """By its id where that was kept; else by an offset that it has not reached yet."""
    kafka.topics["flights"] = FakeTopic("T2", [(0, 7), (0, 90)])
    found = KafkaSource().open(FLIGHTS, kafka).preflight('{"flights":{"0":12,"1":50}}', marks)
    remade = [lost.part for lost in found.lost if lost.reason == "remade"]
    assert remade == (["flights[0]", "flights[1]"] if marks else ["flights[0]"])
    assert parse_offset(found.readable)["flights", 0] == 0
    meant = "kept of the topic with the id T1, and the present topic has T2" if marks else "ends at 7 now"
    assert meant in found.lost[0].detail


def test_a_topic_or_partition_that_is_not_there_is_told(kafka: FakeKafka) -> None:
    """Nothing of it is left in what could be read on from."""
    offset = '{"flights":{"0":12,"1":50,"2":3}}'
    found = KafkaSource().open(FLIGHTS, kafka).preflight(offset, MARKS)
    assert found.lost == (LostInput("flights[2]", "gone"),)
    assert found.readable == '{"flights":{"0":12,"1":50}}'
    kafka.topics.clear()
    found = KafkaSource().open(FLIGHTS, kafka).preflight(offset, MARKS)
    assert {lost.reason for lost in found.lost} == {"gone"}
    assert found.readable == "{}"


def test_another_topic_and_another_cluster_are_told(kafka: FakeKafka) -> None:
    """An offset of what is not read any more, or of a cluster of a different id, means nothing here."""
    kafka.topics["orders"] = FakeTopic("T9", [(0, 10)])
    offset = '{"flights":{"0":12},"orders":{"0":4}}'
    found = KafkaSource().open(FLIGHTS, kafka).preflight(offset, MARKS)
    assert found.lost == (LostInput("orders[0]", "elsewhere", 6),)
    found = KafkaSource().open(FLIGHTS, kafka).preflight('{"flights":{"0":12}}', {**MARKS, CLUSTER: "cluster-0"})
    told = "its cluster was cluster-0 and is cluster-1 now"
    assert found.lost == (LostInput("flights[0]", "elsewhere", 88, told),)


def test_the_lag_counts_partitions_that_are_new(kafka: FakeKafka) -> None:
    """A partition without an offset is behind by all that it has; a pattern finds its topics."""
    opened = KafkaSource().open(FLIGHTS, kafka)
    lag = opened.lag('{"flights":{"0":90}}')
    assert lag is not None
    assert (lag.behind, lag.unit) == (60, "rows")
    kafka.topics["fuel"] = FakeTopic("T3", [(5, 9)])
    by_pattern = KafkaSource().open(Source("kafka", {"subscribepattern": "f.*"}), kafka).lag("-")
    assert by_pattern is not None
    assert by_pattern.behind == 154
    assigned = Source("kafka", {"assign": '{"flights":[1]}'})
    of_one = KafkaSource().open(assigned, kafka).lag("-")
    assert of_one is not None
    assert of_one.behind == 50


def test_a_cluster_that_does_not_answer_raises(kafka: FakeKafka) -> None:
    """No answer is never taken for an answer."""
    kafka.outage = TimeoutError("no answer")
    opened = KafkaSource().open(FLIGHTS, kafka)
    for ask in (opened.marks, lambda: opened.lag("-"), lambda: opened.preflight('{"flights":{"0":1}}', {})):
        with pytest.raises(TimeoutError):
            ask()


def test_offsets_are_written_as_spark_writes_them() -> None:
    """Read and written again they are the same text."""
    text = '{"flights":{"0":12,"10":3},"orders":{"0":4}}'
    assert format_offset(parse_offset(text)) == text
    with pytest.raises(ValueError):
        parse_offset('{"logOffset":3}')
    for given in ("-1", "-2", "1.5", "true", "null", '"3"'):
        with pytest.raises(ValueError, match="no offset of Kafka"):
            parse_offset(f'{{"flights":{{"0":{given}}}}}')


def test_fail_on_data_loss_false_is_called_what_it_is() -> None:
    """Silence about lost input is reported; the default needs no word."""
    connector = KafkaSource()
    assert connector.remarks(FLIGHTS) == ()
    assert not connector.passes_over_lost(FLIGHTS)
    assert connector.passes_over_lost(Source("kafka", {"failondataloss": "False"}))
    (said,) = connector.remarks(Source("kafka", {"failondataloss": "False"}))
    assert "failOnDataLoss=false" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Some data may …", "gone from Kafka"),
        ("[KAFKA_DATA_LOSS.START_OFFSET_RESET] …", "gone from Kafka"),
        ("[KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED] …", "created again"),
        ("[KAFKA_DATA_LOSS.PARTITIONS_DELETED] …", "not there"),
        ("[KAFKA_DATA_LOSS.PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT] …", "not there"),
        ("[KAFKA_DATA_LOSS.ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO] …", "new partition"),
        ("[KAFKA_DATA_LOSS.INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS] …", "new partitions"),
        ("[KAFKA_DATA_LOSS.SOMETHING_NEW] …", "gone from Kafka"),
        ("org.apache.kafka.common.errors.UnknownTopicOrPartitionException: This server …", "is not there"),
        (f"{LOST}\nCould not read records in offset [50, 100) for topic partition a-0\nwith …", "gone from Kafka"),
        (f"{LOST}\nStarting offset for a-0 was 5 but consumer reset to 9.", "gone from Kafka"),
        (f"{LOST}\nPartition a-0 offset was changed from 50 to 3.\nThis could be either …", "created again"),
        (f"{LOST}\nPartitions Set(a-0) have been deleted.", "not there"),
        ("Some of partitions in Kafka topic(s) have been lost during running query with …", "not there"),
        (f"{LOST}\nAdded partition a-1 starts from 4 instead of 0.", "new partition"),
        (f"{LOST}\nCannot find initial offsets for partitions Set(a-1). They may …", "new partitions"),
        (f"{LOST} Something else.", "gone from Kafka"),
    ],
)
def test_each_way_to_lose_input_has_its_sentence(words: str, said: str) -> None:
    """Spark's class of the loss becomes one sentence with what to do next."""
    explained = KafkaSource().explain(words)
    assert explained is not None
    assert said in explained
    assert any(word in explained for word in ("deploy", "resume", "create")), explained


def test_a_cluster_that_names_no_ids_tells_nothing_by_them(kafka: FakeKafka) -> None:
    """Brokers older than 2.8 give every topic the same empty id: once they are upgraded, no topic was recreated."""
    kafka.topics["flights"].id = NO_TOPIC_ID
    kafka.cluster_id = ""
    offset = '{"flights":{"0":12,"1":50}}'
    marks = KafkaSource().open(FLIGHTS, kafka).marks()
    assert marks == {}
    assert not KafkaSource().open(FLIGHTS, kafka).preflight(offset, MARKS).lost
    kafka.topics["flights"].id, kafka.cluster_id = "T1", "cluster-1"
    early = {CLUSTER: "", "topic_id flights": NO_TOPIC_ID}
    for kept in (marks, early):
        assert not KafkaSource().open(FLIGHTS, kafka).preflight(offset, kept).lost


@pytest.mark.parametrize(
    ("options", "kept", "left", "is_named"),
    [
        ({"subscribe": "a"}, '{"a":{"0":3,"1":4}}', {"b[0]": "5"}, True),
        ({"assign": '{"a":[1]}'}, '{"a":{"1":4}}', {"a[0]": "3", "b[0]": "5"}, True),
        ({"subscribepattern": "a.*"}, '{"a":{"0":3,"1":4}}', {"b[0]": "5"}, False),
        ({"subscribe": "a,c"}, '{"a":{"0":3,"1":4}}', {"b[0]": "5"}, False),
        ({"assign": '{"a":[0,2],"b":[0]}'}, '{"a":{"0":3},"b":{"0":5}}', {"a[1]": "4"}, False),
    ],
)
def test_a_source_that_reads_less_keeps_the_offsets_of_what_it_reads(
    options: dict[str, str], kept: str, left: dict[str, str], is_named: bool
) -> None:
    """What was taken out of a list was taken out by name; what fell out of a pattern, or has another one in its place,
    was not."""
    source, offset = Source("kafka", options), '{"a":{"0":3,"1":4},"b":{"0":5}}'
    narrowed = KafkaSource().narrow(source, offset)
    assert narrowed is not None
    assert (narrowed.kept, dict(narrowed.left), narrowed.is_named) == (kept, left, is_named)
    assert not KafkaSource().continues(source, offset)


def test_a_source_of_nothing_or_all_of_an_offset_does_not_read_less() -> None:
    """Another topic is another source; more topics read on."""
    connector, offset = KafkaSource(), '{"a":{"0":3}}'
    assert connector.narrow(Source("kafka", {"subscribe": "b"}), offset) is None
    assert connector.narrow(Source("kafka", {"subscribe": "a,b"}), offset) is None


def test_a_time_is_mapped_to_offsets_by_the_broker(kafka: FakeKafka) -> None:
    """The first record of that time or later; a partition that has none since then is read to its end."""
    kafka.topics["flights"].times = [{1_772_359_200_000: 40}, {}]
    opened = KafkaSource().open(FLIGHTS, kafka)
    found = opened.offset_at(datetime(2026, 3, 1, 10, tzinfo=timezone.utc), '{"flights":{"0":90,"1":50}}')
    assert found == '{"flights":{"0":40,"1":50}}'
    gone = KafkaSource().open(Source("kafka", {"subscribe": "nosuch"}), kafka)
    assert gone.offset_at(datetime(2026, 3, 1, 10, tzinfo=timezone.utc), "-") == Untold("none of its topics exists")


def test_rows_between_two_offsets_are_a_difference_in_each_partition() -> None:
    """What one partition is ahead does not make up for what another is behind."""
    connector = KafkaSource()
    assert connector.between('{"t":{"0":3,"1":9}}', '{"t":{"0":5,"1":8}}') == Lag(2)
    assert connector.between('{"t":{"0":5,"1":8}}', '{"t":{"0":3,"1":9}}') == Lag(1)
    assert connector.between('{"t":{"0":5}}', '{"t":{"0":5,"1":4}}') == Lag(4)


def test_a_share_of_a_batch_is_the_same_share_of_each_partition() -> None:
    """Rounded up, never beyond its end, and never before its beginning; a new partition starts at its first row."""
    connector = KafkaSource()
    before, after = '{"t":{"0":10,"1":7}}', '{"t":{"0":20,"1":7,"2":3}}'
    assert connector.part_way(before, after, 0.25) == '{"t":{"0":13,"1":7,"2":1}}'
    assert connector.part_way(before, after, 1.0) == after
    assert connector.part_way('{"t":{"0":30}}', '{"t":{"0":20}}', 0.5) == '{"t":{"0":20}}'


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


def test_offsets_are_kept_as_those_of_a_consumer_group() -> None:
    """For Kafka's own tools: as Kafka counts them, the next one to read."""
    kafka = FakeKafka(topics={"a": FakeTopic("T", [(0, 9), (0, 9)])})
    opened = KafkaSource().open(Source("kafka", {"subscribe": "a", "kafka.bootstrap.servers": "x:1"}), kafka)
    assert isinstance(opened, GroupedSource)
    opened.commit_to_group("lag", '{"a":{"0":7,"1":0}}')
    assert kafka.groups == {"lag": {("a", 0): 7, ("a", 1): 0}}
    kafka.outage = TimeoutError()
    with pytest.raises(TimeoutError):
        opened.commit_to_group("lag", '{"a":{"0":8}}')
