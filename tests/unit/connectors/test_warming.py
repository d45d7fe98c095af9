"""What is written alongside a sink, with Spark's writer played: the real ones are asked in ``tests/sinks``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_streamstate.connectors.files import FileSink
from airflow_streamstate.connectors.plain import ConsoleSink, ForeachBatchSink, KafkaSink, MemorySink, NoopSink
from airflow_streamstate.connectors.sink import Sink, WarmingSink
from airflow_streamstate.connectors.tables import DeltaSink

OPTIONS = {
    "path": "/data/out",
    "checkpointlocation": "/data/checkpoint",
    "compression": "zstd",
    "txnappid": "mine",
    "txnversion": "7",
}


@dataclass
class _Frame:
    """A frame and its writer, which reports what was written where; and a session that makes one."""

    told: list[tuple[str, str, dict[str, str], str | None]] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    _format: str = ""
    _mode: str = ""
    _options: dict[str, str] = field(default_factory=dict)

    @property
    def write(self) -> _Frame:
        return self

    @property
    def session(self) -> _Frame:
        return self

    def format(self, name: str) -> _Frame:
        self._format = name
        return self

    def options(self, **options: str) -> _Frame:
        self._options = options
        return self

    def mode(self, name: str) -> _Frame:
        self._mode = name
        return self

    def save(self, path: str | None = None) -> None:
        self.told.append((self._format, self._mode, self._options, path))

    def __getattr__(self, name: str) -> Any:
        def step(*words: object) -> _Frame:
            self.steps.append(f"{name} {words}")
            return self

        return step


@pytest.mark.parametrize(
    ("connector", "sink"),
    [(FileSink(), Sink("parquet", "/data/out", options=OPTIONS)), (DeltaSink(), Sink("delta", None, "t", OPTIONS))],
)
def test_a_row_is_written_beside_with_the_options_of_the_sink_and_never_to_its_place(
    connector: WarmingSink, sink: Sink
) -> None:
    """Twice: the second one finds a table. What marks a batch of the sink's own would make Delta skip it."""
    row, reach = _Frame(), _Frame()
    connector.warm(sink, row, "/scratch", reach)
    assert row.told == [(sink.format, "append", {"compression": "zstd"}, "/scratch")] * 2
    assert reach.told == []


@pytest.mark.parametrize("topic", ["orders", None])
def test_to_kafka_a_batch_without_a_row_is_given_under_the_producer_options_of_the_sink(topic: str | None) -> None:
    """By the same options the first batch takes the same producer; the row that is there never goes."""
    options = {"kafka.bootstrap.servers": "broker:9092", "kafka.acks": "all"} | ({"topic": topic} if topic else {})
    row, reach = _Frame(), _Frame()
    KafkaSink().warm(Sink("kafka", options=options), row, "/scratch", reach)
    assert reach.told == [("kafka", "", {"topic": "none", **options}, None)]
    assert "where ('id < 0',)" in reach.steps
    assert (row.told, row.steps) == ([], [])


@pytest.mark.parametrize("connector", [ForeachBatchSink(), MemorySink(), ConsoleSink(), NoopSink()])
def test_what_cannot_be_tried_without_a_trace_is_not_tried(connector: object) -> None:
    """A function of the user's may do anything."""
    assert not isinstance(connector, WarmingSink)
