"""Topics that are read under names, in offset log 2: lag, lost input and positions are those of the right one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_streamstate.checkpoint.guards import OFFSET_LOG_FORMAT
from airflow_streamstate.checkpoint.log import SOURCES_NAMED
from airflow_streamstate.errors import InputLostError
from airflow_streamstate.protocol.events import Drained, QueryStarted, Stopped
from airflow_streamstate.protocol.records import StartPlan
from support.kafka_topics import Topics
from support.session_stream import SessionStream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import DataStreamWriter

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]


@pytest.fixture
def session(kafka_spark: SparkSession) -> SparkSession:
    """One in which sources have names."""
    made = kafka_spark.newSession()
    made.conf.set(OFFSET_LOG_FORMAT, "2")
    made.conf.set(SOURCES_NAMED, "true")
    return made


@pytest.fixture
def stream(session: SparkSession, tmp_path: Path) -> Iterator[SessionStream]:
    """A stream of its own."""
    with SessionStream(session, tmp_path) as running:
        yield running


def reading(session: SparkSession, topics: Topics, **names: str) -> DataStreamWriter:
    """Over these topics, in this order, under these names."""
    frames = []
    for name, topic in names.items():
        reader = session.readStream.name(name).format("kafka").option("kafka.bootstrap.servers", topics.servers)
        reader = reader.option("startingOffsets", "earliest").option("subscribe", topic)
        frames.append(reader.load().selectExpr("CAST(value AS STRING) AS v"))
    rows = frames[0]
    for frame in frames[1:]:
        rows = rows.union(frame)
    return rows.writeStream.format("json")


def test_lag_lost_input_and_positions_are_those_of_the_right_topic(
    session: SparkSession, stream: SessionStream, topics: Topics
) -> None:
    """The plan has them in another order than their names have, and then in yet another, one under a new name: every
    row once, but for those that retention took, which are counted where they were (1a.10, Law 5)."""
    one, two, out = topics.create("one"), topics.create("two"), str(stream.base / "out")
    topics.write(one, range(100), 0)
    topics.write(two, range(1000, 1050), 0)
    first = stream.start(reading(session, topics, zeta=one, alpha=two), path=out)
    stream.wait_read(one, 100)
    stream.wait_read(two, 50)
    stream.beat_until(lambda beat: beat.rows_behind == 0, "nothing behind")
    stream.drain()
    assert first.end() == 0, first.said
    seed = StartPlan("seed", stream.events(Drained)[0].snapshot_id, stream.deployment_id)

    topics.write(one, range(100, 140), 0)
    topics.write(two, range(1050, 1060), 0)
    topics.remove_before(one, 0, 115)
    refused = stream.start(reading(session, topics, alpha=two, zeta=one), path=out, start=seed)
    assert isinstance(refused.refusal, InputLostError), refused.refusal
    assert f"{one}[0]: 15 rows removed at the source" in str(refused.refusal)
    accepted = replace(seed, accept_lost_input=("rows",))
    second = stream.start(reading(session, topics, alpha=one, gamma=two), path=out, start=accepted)
    stream.wait_read(one, 140)
    stream.wait_read(two, 60)
    (started,) = stream.events(QueryStarted)
    assert started.how == "seeded"
    stream.stop()
    assert second.end() == 0, second.said
    assert stream.events(Stopped)
    found = Counter(int(str(row["v"])) for row in stream.output())
    assert found == Counter([*range(100), *range(115, 140), *range(1000, 1060)])
