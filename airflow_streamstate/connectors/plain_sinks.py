"""Sinks that keep no batch ids: a repeated batch is there twice, or only the user's code can tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_streamstate.connectors.sink import HeldBatches, Sink, SinkReach, Skips
from airflow_streamstate.protocol.data_events import RepeatMeans


class _PlainSink:
    """Cannot say which batches it holds. Implements ``SinkConnector``."""

    name = ""
    formats: frozenset[str] = frozenset()
    skips: Skips = "nothing"
    undo = ""
    unknown_reason = ""

    def matches(self, sink: Sink) -> bool:
        return sink.format in self.formats

    def held_batches(self, sink: Sink, query_id: str | None, from_batch_id: int, reach: SinkReach) -> HeldBatches:
        return HeldBatches(unknown_reason=self.unknown_reason)

    def prepare(self, sink: Sink, next_batch_id: int, reach: SinkReach) -> tuple[str, ...]:
        return ()


class KafkaSink(_PlainSink):
    """Topics: a repeated batch is there twice. Implements ``WarmingSink``."""

    name = "kafka"
    formats = frozenset({"kafka"})
    undo = "consumers that deduplicate: a topic takes nothing back"
    unknown_reason = "a topic does not know which batch a record came from"

    def warm(self, sink: Sink, row: Any, scratch_uri: str, reach: SinkReach) -> None:
        # A task without a row creates the producer that the first batch will use, and sends nothing. The filter is on a
        # column, because a constant filter would make Spark run no task.
        nothing = reach.session.range(0, 1, 1, 1).where("id < 0").selectExpr("CAST(id AS STRING) AS value")
        nothing.write.format("kafka").options(**{"topic": "none", **sink.options}).save()


class ForeachBatchSink(_PlainSink):
    """The user's own function. Implements ``SinkConnector``."""

    name = "foreachBatch"
    formats = frozenset({"foreachbatch", "foreach"})
    skips: Skips = "unknown"
    undo = "whatever the function's target offers; rows that carry their batch id can be deleted by it"
    unknown_reason = "only the script's own function knows what it wrote"


class MemorySink(_PlainSink):
    """A table in the driver's memory, empty at each start of a driver. Implements ``SinkConnector``."""

    name = "memory"
    formats = frozenset({"memory"})
    undo = "it is gone with its driver"
    unknown_reason = "what it holds is in the memory of one driver"

    def repeats(self, sink: Sink, conf: Mapping[str, str]) -> RepeatMeans:
        return "skipped"  # the earlier driver's rows are gone with it


class ConsoleSink(_PlainSink):
    """Prints, and prints a repeated batch again. Implements ``SinkConnector``."""

    name = "console"
    formats = frozenset({"console"})
    undo = "what is printed is printed"
    unknown_reason = "what was printed cannot be asked"


class NoopSink(_PlainSink):
    """Drops every row. Implements ``SinkConnector``."""

    name = "noop"
    formats = frozenset({"noop"})
    undo = "nothing is there"

    def repeats(self, sink: Sink, conf: Mapping[str, str]) -> RepeatMeans:
        return "skipped"

    def held_batches(self, sink: Sink, query_id: str | None, from_batch_id: int, reach: SinkReach) -> HeldBatches:
        return HeldBatches()
