"""Connectors without batch ids or offsets of their own: console, memory, foreach, ``rate`` and ``socket``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_streamstate.connectors.sink import HeldBatches, Sink, SinkReach, Skips
from airflow_streamstate.connectors.source import (
    NO_OFFSET,
    Lag,
    LostInput,
    OffsetOrder,
    Preflight,
    Source,
    SparkDoor,
    UnaskedSource,
)
from airflow_streamstate.protocol.events import RepeatMeans


class _PlainSink:
    """Does not know which batches it has. Implements ``SinkConnector``."""

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


# The sources that generate rows as time passes: ``rate`` and ``rate-micro-batch``. They cannot lose input.

_SHAPING = ("rowspersecond", "rowsperbatch", "rampuptime", "numpartitions", "starttimestamp", "advancemillisperbatch")


class RateSource:
    """Spark's ``rate`` and ``rate-micro-batch``."""

    name = "rate"

    def identify(self, source: Source) -> str | None:
        if source.format not in ("rate", "rate-micro-batch"):
            return None
        # An offset is a number of seconds or rows: at another rate it means other values.
        shape = [f"{name}={source.options[name]}" for name in _SHAPING if name in source.options]
        return " ".join((source.format, *shape))

    def continues(self, source: Source, offset: str) -> bool:
        return False

    def compare(self, first: str, second: str) -> OffsetOrder:
        if first == second:
            return "same"
        return (
            "ahead"
            if _rate_count(first) > _rate_count(second)
            else "behind"
            if _rate_count(first) < _rate_count(second)
            else "same"
        )

    def between(self, first: str, second: str) -> Lag | None:
        """In rows, for ``rate-micro-batch``; an offset of ``rate`` is a number of seconds, at an unknown rate."""
        if not any(offset.startswith("{") for offset in (first, second)):
            return None
        return Lag(max(0, _rate_count(second) - max(0, _rate_count(first))))

    def open(self, source: Source, spark: SparkDoor) -> UnaskedSource:
        return UnaskedSource("it makes up rows as time passes")

    def remarks(self, source: Source) -> tuple[str, ...]:
        return ()

    def explain(self, failure: str) -> str | None:
        return None


def _rate_count(offset: str) -> int:
    if offset == NO_OFFSET:
        return -1
    value = json.loads(offset)
    if isinstance(value, dict):  # rate-micro-batch
        value = value.get("offset")
    if isinstance(value, int):
        return value
    raise ValueError(f"no offset of a rate source: {offset[:100]}")


# Spark's ``socket``: a source that sends each row once, and counts from its connection on.
#
# Each start reconnects and counts from -1. Started from an earlier offset, Spark commits -1 over that position and
# fails ("Offsets committed out of order"). Started from -1 it waits for ever: it connects with its first batch, which
# needs news. So it starts without an offset.

SENDS_ONCE = "a socket sends each row once, and counts its rows from each connection on"


class SocketSource:
    """Rows of a socket. Implements ``SendingOnceConnector``."""

    name = "socket"
    sends_once = SENDS_ONCE

    def identify(self, source: Source) -> str | None:
        if source.format not in ("socket", "textsocket"):
            return None
        return f"socket {source.options.get('host', '')}:{source.options.get('port', '')}"

    def continues(self, source: Source, offset: str) -> bool:
        return False

    def compare(self, first: str, second: str) -> OffsetOrder:
        one, other = _socket_count(first), _socket_count(second)
        return "ahead" if one > other else "behind" if one < other else "same"

    def between(self, first: str, second: str) -> Lag | None:
        return Lag(max(0, _socket_count(second) - max(-1, _socket_count(first))))

    def open(self, source: Source, spark: SparkDoor) -> OpenSocket:
        return OpenSocket(self.identify(source) or self.name)

    def remarks(self, source: Source) -> tuple[str, ...]:
        return (
            f"{SENDS_ONCE}: what was read and not committed when the driver ends is lost, and no later start continues"
            " from its offsets, unless --accept-lost-input names the query",
        )

    def explain(self, failure: str) -> str | None:
        if "Offsets committed out of order" not in failure:
            return None
        return f"{SENDS_ONCE}, so that it cannot continue from an offset: deploy with --accept-lost-input"


class OpenSocket(UnaskedSource):
    """A socket. Nothing connects to it here, which would take its rows."""

    def __init__(self, what: str) -> None:
        super().__init__("a socket does not say what it has")
        self._what = what

    def preflight(self, offset: str, marks: Mapping[str, str]) -> Preflight:
        return Preflight((LostInput(self._what, "sent_once"),), NO_OFFSET)


def _socket_count(offset: str) -> int:
    if offset == NO_OFFSET:
        return -2
    value = json.loads(offset)
    if type(value) is int:
        return value
    raise ValueError(f"no offset of a socket: {offset[:100]}")
