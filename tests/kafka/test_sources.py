"""Kafka behind the real runtime and a real broker: what is lost is found before a start, what is there is read once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.connectors.kafka import KafkaSource
from airflow_streamstate.connectors.source import Source
from airflow_streamstate.connectors.testing import check_open_source
from airflow_streamstate.errors import IncompatibleUpgradeError, InputLostError
from airflow_streamstate.protocol.events import Accepted, Drained, Failed, QueryStarted, Stopped
from airflow_streamstate.protocol.records import StartPlan
from support.drivers import wait_until
from support.kafka_broker import KafkaBroker
from support.kafka_topics import Topics
from support.session_stream import SessionDriver, SessionStream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]

NAMED_BY = "airflow_streamstate.driver.spark.writer_facts"  # read_sources: shown here, on Spark's own plans


@pytest.fixture
def stream(kafka_spark: SparkSession, tmp_path: Path) -> Any:
    """A stream on the one Spark of this folder."""
    with SessionStream(kafka_spark, tmp_path) as running:
        yield running


@pytest.fixture
def read(kafka_spark: SparkSession, topics: Topics) -> Callable[..., DataFrame]:
    """What a script would read of topics: their values, as text."""

    def rows(topic: str, **options: str) -> DataFrame:
        reader = kafka_spark.readStream.format("kafka").option("kafka.bootstrap.servers", topics.servers)
        for name, value in {"startingOffsets": "earliest", "subscribe": topic, **options}.items():
            reader = reader.option(name, value)
        return reader.load().selectExpr("CAST(value AS STRING) AS v")

    return rows


def to_files(frame: DataFrame) -> DataStreamWriter:
    return frame.writeStream.format("json")


def stopped(stream: SessionStream, driver: SessionDriver) -> StartPlan:
    stream.stop()
    assert driver.end() == 0, driver.said
    return StartPlan("restore", stream.events(Stopped)[0].snapshot_id, stream.deployment_id)


def drained(stream: SessionStream, driver: SessionDriver) -> StartPlan:
    stream.drain()
    assert driver.end() == 0, driver.said
    return StartPlan("seed", stream.events(Drained)[0].snapshot_id, stream.deployment_id)


def written(stream: SessionStream) -> Counter[int]:
    return Counter(int(str(found["v"])) for found in stream.output())


def test_rows_that_retention_took_are_refused_with_their_number(
    stream: SessionStream, read: Callable[..., DataFrame], topics: Topics
) -> None:
    """At a restore and at a seed: nothing is built; what was accepted by name is passed over, the rest read once."""
    topic, out = topics.create("in", 2), str(stream.base / "out")
    topics.write(topic, range(100), 0)
    topics.write(topic, range(100, 150), 1)
    first = stream.start(to_files(read(topic)), path=out)
    stream.wait_read(topic, 150)
    restore = stopped(stream, first)
    topics.write(topic, range(1000, 1040), 0)
    topics.write(topic, range(1040, 1060), 1)
    topics.remove_before(topic, 0, 115)

    refused = stream.start(to_files(read(topic)), path=out, start=restore)
    assert isinstance(refused.refusal, InputLostError)
    assert f"{topic}[0]: 15 rows removed at the source" in str(refused.refusal)
    assert refused.refusal.context["rows"] == 15
    assert "--accept-lost-input rows" in refused.refusal.next_step
    assert not stream.checkpoint_folder("rows").exists()
    assert "InputLostError" in stream.events(Failed)[0].error

    second = stream.start(to_files(read(topic)), path=out, start=replace(restore, accept_lost_input=("rows",)))
    stream.wait_read(topic, 210)
    assert "passed over" in " ".join(stream.events(QueryStarted)[0].repairs)
    seed = drained(stream, second)
    assert written(stream) == Counter([*range(150), *range(1015, 1060)])

    topics.write(topic, range(2000, 2030), 1)
    topics.remove_before(topic, 1, 75)
    refused = stream.start(to_files(read(topic).where("v <> ''")), path=out, start=seed)
    assert isinstance(refused.refusal, InputLostError)
    assert f"{topic}[1]: 5 rows removed" in str(refused.refusal)
    accepted = replace(seed, accept_lost_input=("rows",))
    third = stream.start(to_files(read(topic).where("v <> ''")), path=out, start=accepted)
    stream.wait_read(topic, 240)
    stopped(stream, third)
    assert written(stream) == Counter([*range(150), *range(1015, 1060), *range(2005, 2030)])


def test_a_topic_that_is_gone_or_made_anew_or_another_is_told(
    stream: SessionStream, read: Callable[..., DataFrame], topics: Topics
) -> None:
    """A topic of the same name and more rows is not the topic; nor is a topic of a different name."""
    topic, out = topics.create("in"), str(stream.base / "out")
    topics.write(topic, range(10))
    first = stream.start(to_files(read(topic)), path=out)
    stream.wait_read(topic, 10)
    seed = drained(stream, first)
    other = topics.create("other")
    refused = stream.start(to_files(read(other)), path=out, start=seed)
    assert isinstance(refused.refusal, IncompatibleUpgradeError)
    assert topic in str(refused.refusal)
    assert other in str(refused.refusal)

    topics.delete(topic)
    refused = stream.start(to_files(read(topic)), path=out, start=seed)
    assert isinstance(refused.refusal, InputLostError)
    assert "not there any more" in str(refused.refusal)

    topics.create("in")
    topics.write(topic, range(500, 550))
    for said in ("made since the offset was kept",):
        refused = stream.start(to_files(read(topic, failOnDataLoss="false")), path=out, start=seed)
        assert isinstance(refused.refusal, InputLostError)
        assert said in str(refused.refusal)
    again = stream.start(to_files(read(topic)), path=out, start=replace(seed, accept_lost_input=("rows",)))
    stream.wait_read(topic, 50)
    stopped(stream, again)
    assert written(stream) == Counter([*range(10), *range(500, 550)])


def test_sources_that_change_places_take_their_offsets_along(
    stream: SessionStream, read: Callable[..., DataFrame], topics: Topics
) -> None:
    """Swapped, one added, later one less: by places Spark would read all again, or fail (source by source)."""
    one, two, three = topics.create("one"), topics.create("two", 2), topics.create("three")
    out = str(stream.base / "out")
    topics.write(one, range(30))
    topics.write(two, range(100, 120), 0)

    def of(*names: str) -> DataStreamWriter:
        frames = [read(name, failOnDataLoss="false") for name in names]
        joined = frames[0]
        for frame in frames[1:]:
            joined = joined.union(frame)
        return to_files(joined)

    first = stream.start(of(one, two), path=out)
    stream.wait_read(one, 30)
    stream.wait_read(two, 20)
    seed = drained(stream, first)
    topics.write(one, range(30, 35))
    topics.write(two, range(120, 140), 1)
    topics.write(three, range(200, 203))

    second = stream.start(of(two, three, one), path=out, start=seed)
    stream.wait_read(one, 35)
    stream.wait_read(two, 40)
    stream.wait_read(three, 3)
    (started,) = stream.events(QueryStarted)
    assert [identity.what for identity in started.identities] == [
        f"kafka subscribe {name}" for name in (two, three, one)
    ]
    assert started.identities[0].marks["cluster_id"]
    assert any("failOnDataLoss=false" in remark for remark in started.remarks)
    seed = drained(stream, second)
    expected = Counter([*range(35), *range(100, 140), *range(200, 203)])
    assert written(stream) == expected

    topics.write(one, [35])
    third = stream.start(of(three, one), path=out, start=seed)
    stream.wait_read(one, 36)
    stopped(stream, third)
    assert written(stream) == expected + Counter([35])


def test_the_lag_is_the_brokers(
    stream: SessionStream, read: Callable[..., DataFrame], topics: Topics, kafka_spark: SparkSession
) -> None:
    """Spark's own metric reads 0 without maxOffsetsPerTrigger; the sign of life reports what the broker has."""
    topic = topics.create("in", 2)
    topics.write(topic, range(10), 0)
    frame = read(topic)
    driver = stream.start(to_files(frame).trigger(processingTime="1 hour"), path=str(stream.base / "out"))
    stream.wait_read(topic, 10)
    stream.beat_until(lambda beat: beat.rows_behind == 0, "nothing behind")
    SYSTEM_CLOCK.sleep(0.1)
    between = SYSTEM_CLOCK.now()
    SYSTEM_CLOCK.sleep(0.1)
    topics.write(topic, range(10, 4321), 1)
    beat = stream.beat_until(lambda beat: beat.rows_behind == 4311, "4311 rows behind")
    assert beat.lags_at is not None
    assert [(lag.behind, lag.unit) for lag in beat.lags] == [(4311, "rows")]
    query = driver.query
    assert query is not None
    assert query.run is not None
    metrics = dict(query.run.jquery.lastProgress().sources()[0].metrics())  # type: ignore[attr-defined]
    assert metrics["maxOffsetsBehindLatest"] == "0"
    stopped(stream, driver)

    options = {"subscribe": topic, "kafka.bootstrap.servers": topics.servers}
    opened = KafkaSource().open(Source("kafka", options), query.startable.door)
    start, end = (f'{{"{topic}":{{"0":{zero},"1":{one}}}}}' for zero, one in ((0, 0), (10, 4311)))
    at = opened.offset_at(between, end), opened.offset_at(SYSTEM_CLOCK.now(), end)
    assert at == (f'{{"{topic}":{{"0":10,"1":0}}}}', end)  # by the times of the records
    check_open_source(opened, start, end, 4321)


def test_a_seed_begins_with_the_records_of_a_moment(
    stream: SessionStream, read: Callable[..., DataFrame], topics: Topics
) -> None:
    """By the broker's own answer, in each partition; refused where nobody accepted what is read again. (Law 14)"""
    topic, out = topics.create("in", 2), str(stream.base / "out")
    topics.write(topic, range(10), 0)
    first = stream.start(to_files(read(topic)), path=out)
    stream.wait_read(topic, 10)
    SYSTEM_CLOCK.sleep(0.1)
    at = SYSTEM_CLOCK.now()
    SYSTEM_CLOCK.sleep(0.1)
    topics.write(topic, range(10, 20), 1)
    topics.write(topic, range(20, 30), 0)
    stream.wait_read(topic, 30)
    seed = replace(drained(stream, first), begins_at=at)

    refused = stream.start(to_files(read(topic)), path=str(stream.base / "again"), start=seed)
    assert "20 rows read again" in str(refused.refusal)
    accepted = replace(seed, accept_repeated_input=("rows",))
    second = stream.start(to_files(read(topic)), path=str(stream.base / "again"), start=accepted)
    topics.write(topic, range(30, 35), 1)
    stream.wait_read(topic, 35)
    stopped(stream, second)
    assert Counter(int(str(found["v"])) for found in stream.output("again")) == Counter(range(10, 35))


def test_a_broker_that_goes_away_in_a_drain_loses_nothing(
    stream: SessionStream, read: Callable[..., DataFrame], topics: Topics, broker: KafkaBroker
) -> None:
    """The drain waits or fails, and reports that; when the broker is back what is left is read once (1a.5, 1a.7)."""
    topic, out = topics.create("in", 2), str(stream.base / "out")
    topics.write(topic, range(50), 0)
    driver = stream.start(to_files(read(topic)), path=out)
    stream.wait_read(topic, 50)
    topics.write(topic, range(50, 90), 1)
    broker.kill()
    command_id = stream.drain()
    wait_until(
        lambda: any(event.command_id == command_id for event in stream.events(Accepted)),
        lambda: f"the drain to be taken up: {driver.said}",
        120,
    )
    broker.start()
    status = driver.end(240)
    while not stream.events(Drained):
        assert status == 1, driver.said
        driver = stream.start_again(to_files(read(topic)), path=out)
        status = driver.end(240)
    seed = StartPlan("seed", stream.events(Drained)[0].snapshot_id, stream.deployment_id)
    topics.write(topic, range(90, 100), 0)
    second = stream.start(to_files(read(topic)), path=out, start=seed)
    stream.wait_read(topic, 100)
    stopped(stream, second)
    assert written(stream) == Counter(range(100))


def test_plans_tell_what_their_sources_are(
    stream: SessionStream, read: Callable[..., DataFrame], topics: Topics, kafka_spark: SparkSession
) -> None:
    """Format, options and table of each, in the order of the offset lines, with the number of Spark's own log of it."""
    from airflow_streamstate.driver.spark.spark_query import SparkWriter

    topic, folder = topics.create("in"), stream.base / "in"
    (folder / "one.txt").write_text("1\n")
    topics.write(topic, [2])
    kafka_spark.sql("CREATE TABLE IF NOT EXISTS texts (v STRING) USING text")
    files = kafka_spark.readStream.text(str(folder)).selectExpr("value AS v")
    made_up = (
        kafka_spark.readStream.format("rate").option("rowsPerSecond", 3).load().selectExpr("CAST(value AS STRING) v")
    )
    table = kafka_spark.readStream.table("texts")
    frame = files.union(read(topic)).union(files).union(made_up).union(table)
    writer = to_files(frame)
    facts = SparkWriter(kafka_spark, frame._jdf, writer._jwrite, None, None).facts  # type: ignore[attr-defined]
    found = [source.planned for source in facts.sources]
    assert [source.format for source in found] == ["text", "kafka", "text", "rate", "text"]
    assert found[0].options["path"] == str(folder)
    assert found[1].options["subscribe"] == topic
    assert found[3].options["rowspersecond"] == "3"
    assert found[4].table.endswith("default.texts")
    assert facts.sources_count == 5

    driver = stream.start(writer, path=str(stream.base / "out"))
    stream.wait_read(topic, 1)
    logs = stream.checkpoint_folder("rows") / "sources"
    # Each source that keeps a log has it under the number that the plan gives it: Kafka its first offset, a folder
    # that has files the files; nobody else's number is among them.
    assert (logs / str(facts.sources[1].log_folder) / "0").is_file()
    assert (logs / str(facts.sources[0].log_folder) / "0").is_file()
    assert {int(log.name) for log in logs.iterdir()} <= {source.log_folder for source in facts.sources}
    stopped(stream, driver)
