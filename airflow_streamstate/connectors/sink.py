"""The public interface of a sink connector: which batches a sink holds, and what it needs before a stream starts into
it.

A sink that is idempotent by batch id silently skips every id that it holds, whatever its rows (Law 14), so the driver
asks it before the start. A connector reports; the driver refuses.

A package brings connectors by the entry-point group ``airflow_streamstate.sinks``, each a class without arguments
(``registry``); ``testing.check_sink`` checks its promises.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal, Protocol, runtime_checkable

from airflow_streamstate.connectors.registry import SINKS, FoundConnectors, find_connectors
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.data_events import RepeatMeans

Skips = Literal["batch_id", "query_id_and_batch_id", "nothing", "unknown"]
"""By what a sink recognises a batch that it was given before, and skips it."""


@dataclass(frozen=True)
class Sink:
    """What a query writes to, as its writer says.

    Attributes:
        format: lower case, e.g. ``parquet``, ``delta``, ``foreachbatch``; of a table: its provider.
        path: as the script spelled it; of a table: its location; None where unknown.
        table: the argument of ``toTable``; None for ``start``.
        options: the writer's, names in lower case.
        output_mode: ``append``, ``update`` or ``complete``.
        is_there: of a table: its catalog has it.
    """

    format: str
    path: str | None = None
    table: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    output_mode: str = "append"
    is_there: bool = False

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return self.table or self.path or self.options.get("topic") or self.format


@dataclass(frozen=True)
class HeldBatches:
    """Which of the requested batches a sink holds.

    Attributes:
        batch_ids: ascending; a ``range`` where every id up to the newest counts as held.
        unknown_reason: why that is unknown, a lower-case sentence; else "".
    """

    batch_ids: Sequence[int] = ()
    unknown_reason: str = ""

    def lacks(self, batch_id: int) -> bool:
        """Whether the sink provably does not hold this batch."""
        return not self.unknown_reason and batch_id not in self.batch_ids


def held_up_to(newest: int | None, from_batch_id: int) -> HeldBatches:
    """For a sink that skips every id up to its newest batch; None: it holds none."""
    return HeldBatches(() if newest is None else range(from_batch_id, newest + 1))


def held_without_place(sink: Sink) -> HeldBatches:
    """For a sink of unknown location: a table that does not exist yet holds nothing; all else is unknown."""
    if sink.is_there:
        return HeldBatches(unknown_reason="its catalog does not say where it lies")
    return HeldBatches(unknown_reason="" if sink.table is not None else "no path was given")


class SinkReach(Protocol):
    """What a connector may use. Raises what Spark and Hadoop raise."""

    @property
    def session(self) -> Any:
        """The ``SparkSession`` of the script."""

    def names_in(self, folder: str) -> tuple[str, ...] | None:
        """The names in a folder that Hadoop reaches, unsorted; None where the folder does not exist."""

    def read_text(self, uri: str) -> str:
        """A whole UTF-8 file."""

    def create_text(self, uri: str, text: str) -> None:
        """Write a file, and its folder, atomically; an existing file stays as it is."""

    def delete(self, uri: str) -> None:
        """Delete a file, if it exists."""

    def move(self, uri: str, to_uri: str) -> None:
        """Move a file, creating folders; a missing file counts as moved."""


@runtime_checkable
class SinkConnector(Protocol):
    """What is known of one kind of sink.

    Attributes:
        name: of the kind, e.g. ``delta``.
        skips: by what it recognises a batch that it was given before.
        undo: how a bad version's output is removed from it, in words.
    """

    name: str
    skips: Skips
    undo: str

    def matches(self, sink: Sink) -> bool:
        """Whether this connector knows this sink."""

    def held_batches(self, sink: Sink, query_id: str | None, from_batch_id: int, reach: SinkReach) -> HeldBatches:
        """Which batches of this query the sink holds, at or above an id. Changes nothing.

        Args:
            sink: it may not exist yet, and then holds nothing.
            query_id: Spark's id of the query; None before it has one.
            from_batch_id: the lowest id in question.
        """

    def prepare(self, sink: Sink, next_batch_id: int, reach: SinkReach) -> tuple[str, ...]:
        """Prepare a sink whose next batch has this id; may be repeated. Returns what was done, in words."""


@runtime_checkable
class RepeatedSink(Protocol):
    """Also implemented by a ``SinkConnector`` whose ``skips`` does not say what becomes of a repeated batch, because
    that
    depends on the location or on a setting.
    """

    def repeats(self, sink: Sink, conf: Mapping[str, str]) -> RepeatMeans:
        """What this sink makes of a batch that it was given before, without asking it.

        Args:
            conf: the settings ``REPEAT_SETTINGS`` of the session, without those that are not set.
        """


REPEAT_SETTINGS = ("spark.wap.id", "spark.wap.branch")
"""The settings of a session that change how a sink is written to."""


def repeat_means(sink: Sink, connectors: Iterable[SinkConnector], conf: Mapping[str, str] | None = None) -> RepeatMeans:
    """What a sink makes of a batch that it was given before.

    Args:
        connectors: as ``known_sinks().connectors``.
        conf: as ``RepeatedSink.repeats``; None for unknown.
    """
    connector = connector_for(sink, connectors)
    if isinstance(connector, RepeatedSink):
        return connector.repeats(sink, conf or {})
    if connector is None or connector.skips == "unknown":
        return "unknown"
    return "doubled" if connector.skips == "nothing" else "skipped"


@functools.cache
def known_sinks() -> FoundConnectors[SinkConnector]:
    """Every sink connector that can be imported here, cached: finding them reads the metadata of all packages."""
    return find_connectors(SINKS, SinkConnector)  # type: ignore[type-abstract]


def connector_for(sink: Sink, connectors: Iterable[SinkConnector]) -> SinkConnector | None:
    """The first connector that knows the sink; None where none does."""
    return next((connector for connector in connectors if connector.matches(sink)), None)
