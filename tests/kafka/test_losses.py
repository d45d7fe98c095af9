"""Input that is lost while a query reads it, or between two versions: what Spark reports, and what we report then."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_streamstate.protocol.events import Drained, Failed, Noted, QueryStarted, Stopped
from airflow_streamstate.protocol.records import StartPlan
from support.drivers import wait_until
from support.kafka_topics import Topics
from support.session_stream import SessionStream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]

WAIT_SECONDS = 120


@pytest.fixture
def stream(kafka_spark: SparkSession, tmp_path: Path) -> Iterator[SessionStream]:
    """A stream on the one Spark of this folder."""
    with SessionStream(kafka_spark, tmp_path) as running:
        yield running


class Gate:
    """A sink that keeps what it gets and lets the first batch wait: nobody asks the broker until then."""

    def __init__(self) -> None:
        self.rows: Counter[int] = Counter()
        self.is_in_batch = threading.Event()
        self._opened = threading.Event()

    def take(self, batch: DataFrame, _batch_id: int) -> None:
        self.rows.update(int(row["v"]) for row in batch.collect())
        self.is_in_batch.set()
        self._opened.wait(WAIT_SECONDS)

    def open(self) -> None:
        self._opened.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Open at the end, whatever came."""
    made = Gate()
    yield made
    made.open()


@pytest.fixture
def write(kafka_spark: SparkSession, topics: Topics) -> Callable[..., DataStreamWriter]:
    """What a script does: each row of these topics to a function. Its consumers wait seconds and not minutes."""

    def writer(gate: Gate, topic: str, **options: str) -> DataStreamWriter:
        reader = kafka_spark.readStream.format("kafka").option("kafka.bootstrap.servers", topics.servers)
        quick = {"kafkaConsumer.pollTimeoutMs": "3000", "startingOffsets": "earliest", "subscribe": topic}
        for name, value in {**quick, **options}.items():
            reader = reader.option(name, value)
        return reader.load().selectExpr("CAST(value AS STRING) AS v").writeStream.foreachBatch(gate.take)

    return writer


@pytest.mark.parametrize(
    ("way", "words", "sentence"),
    [
        ("retention", "Could not read records in offset [50, 100)", "rows that it was about to read are gone"),
        ("created again", "offset was changed from 50 to 3", "its topic was created again"),
    ],
)
def test_a_query_that_loses_its_input_ends_with_one_clear_sentence(
    stream: SessionStream,
    write: Callable[..., DataStreamWriter],
    topics: Topics,
    gate: Gate,
    way: str,
    words: str,
    sentence: str,
) -> None:
    """Rows go, or the topic, before Spark plans the next batch: its error is reported in our words, with what to do."""
    topic = topics.create("in")
    topics.write(topic, range(50))
    driver = stream.start(write(gate, topic))
    assert gate.is_in_batch.wait(WAIT_SECONDS), driver.said
    if way == "retention":
        topics.write(topic, range(50, 100))
        topics.remove_before(topic, 0, 80)
    else:
        topics.delete(topic)
        topics.create("in")
        topics.write(topic, range(1000, 1003))
    gate.open()
    assert driver.end(240) == 1, driver.said
    assert driver.query is not None
    assert words in str(driver.query.failure())
    (failed,) = stream.events(Failed)
    assert sentence in failed.explanation
    assert "deploy again: the start reports how many rows are gone" in failed.explanation
    assert failed.sentence.startswith(failed.explanation)
    assert gate.rows == Counter(range(50))


@pytest.mark.parametrize("way", ["stop", "drain"])
def test_a_topic_made_anew_under_a_query_that_passes_over_losses_is_gone_on_with(
    stream: SessionStream, write: Callable[..., DataStreamWriter], topics: Topics, gate: Gate, way: str
) -> None:
    """The offsets at the end are of the new topic: the next deployment starts there, and reads nothing twice."""
    topic = topics.create("in")
    topics.write(topic, range(50))
    driver = stream.start(write(gate, topic, failOnDataLoss="false"))
    assert gate.is_in_batch.wait(WAIT_SECONDS), driver.said
    (old,) = stream.events(QueryStarted)[0].identities
    topics.delete(topic)
    topics.create("in")
    topics.write(topic, range(1000, 1010))
    gate.open()

    def end() -> Any:
        return stream.end_offsets()[:1]

    wait_until(lambda: end() == [{topic: {"0": 10}}], lambda: f"the new topic: {end()} {driver.said}", WAIT_SECONDS)
    topics.write(topic, range(1010, 1015))
    wait_until(lambda: end() == [{topic: {"0": 15}}], lambda: f"its rows: {end()} {driver.said}", WAIT_SECONDS)
    getattr(stream, way)()
    assert driver.end() == 0, driver.said
    assert any("created again while this query reads it" in event.text for event in stream.events(Noted)), driver.said
    end_event = stream.events(Drained if way == "drain" else Stopped)[0]
    (kept,) = stream.control.need_manifest(str(end_event.snapshot_id)).queries["rows"].identities
    mark = f"topic_id {topic}"
    assert kept.marks["cluster_id"] == old.marks["cluster_id"]
    assert kept.marks[mark] != old.marks[mark]

    topics.write(topic, range(1015, 1020))
    start = StartPlan("seed" if way == "drain" else "restore", end_event.snapshot_id, stream.deployment_id)
    again = Gate()
    again.open()
    second = stream.start(write(again, topic), start=start)
    assert second.refusal is None
    stream.wait_read(topic, 20)
    stream.stop()
    assert second.end() == 0, second.said
    assert again.rows == Counter(range(1015, 1020))
    assert set(range(1010, 1015)) <= set(gate.rows)


def test_a_topic_taken_out_of_the_list_is_left_where_it_was(
    stream: SessionStream, write: Callable[..., DataStreamWriter], topics: Topics, gate: Gate
) -> None:
    """At a seed: the other topic keeps its offsets, nobody has to accept anything, and what was left is reported."""
    kept, left = topics.create("kept", 2), topics.create("left")
    gate.open()
    topics.write(kept, range(10), 0)
    topics.write(left, range(100, 105))
    driver = stream.start(write(gate, f"{kept},{left}"))
    stream.wait_read(kept, 10)
    stream.wait_read(left, 5)
    stream.drain()
    assert driver.end() == 0, driver.said
    start = StartPlan("seed", stream.events(Drained)[0].snapshot_id, stream.deployment_id)
    topics.write(kept, range(10, 15), 1)
    topics.write(left, range(105, 110))
    second = stream.start(write(gate, kept), start=start)
    assert second.refusal is None
    stream.wait_read(kept, 15)
    stream.stop()
    assert second.end() == 0, second.said
    assert any(f"{left}[0] at 5" in word for word in stream.events(QueryStarted)[0].repairs)
    assert gate.rows == Counter([*range(15), *range(100, 105)])
