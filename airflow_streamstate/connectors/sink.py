"""What must be known of a sink before a stream starts into it: which batches it holds, and what a new one needs.

A sink that is idempotent by batch id skips every id that it holds, with whatever rows come under it, and says nothing
(Law 14). So it is asked before the start. A connector says what is so; the refusal is the runtime's.

Public: a package brings connectors of its own by the entry-point group ``airflow_streamstate.sinks``, each a class that
is made without arguments (``registry``); ``sink_conformance`` is what each has to keep to.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from airflow_streamstate.connectors.registry import SINKS, Found, find_connectors
from airflow_streamstate.protocol.data_events import RepeatMeans

Skips = Literal["batch_id", "query_id_and_batch_id", "nothing", "unknown"]
"""By what a sink knows a batch that it was given before, and skips it."""


@dataclass(frozen=True)
class Sink:
    """What a query writes to, as its writer says.

    Attributes:
        format: lower case, e.g. ``parquet``, ``delta``, ``foreachbatch``; of a table: its provider.
        path: where it lies, as the script spelled it; of a table: its location; None where nobody said.
        table: what ``toTable`` was given; None for ``start``.
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
    """Which batches a sink holds, of those that were asked for.

    Attributes:
        batch_ids: ascending; a ``range`` where every id up to the newest counts as held.
        unknown_reason: why it cannot be told, a lower-case sentence; "" where it can.
    """

    batch_ids: Sequence[int] = ()
    unknown_reason: str = ""

    def lacks(self, batch_id: int) -> bool:
        """Whether the sink provably does not hold this batch."""
        return not self.unknown_reason and batch_id not in self.batch_ids


def held_up_to(newest: int | None, from_batch_id: int) -> HeldBatches:
    """Of a sink that skips every id up to the newest one that it holds; None: it holds none."""
    return HeldBatches(() if newest is None else range(from_batch_id, newest + 1))


def held_where_nobody_says(sink: Sink) -> HeldBatches:
    """Of a sink without a place: a table that is not there yet holds nothing, and of all else nobody can tell."""
    if sink.is_there:
        return HeldBatches(unknown_reason="its catalog does not say where it lies")
    return HeldBatches(unknown_reason="" if sink.table is not None else "no path was given")


class SinkReach(Protocol):
    """What a connector asks with. Raises what Spark and Hadoop raise."""

    @property
    def session(self) -> Any:
        """The ``SparkSession`` of the script."""

    def names_in(self, folder: str) -> tuple[str, ...] | None:
        """The names in a folder that Hadoop reaches, any order; None where there is no such folder."""

    def read_text(self, uri: str) -> str:
        """A whole file, UTF-8."""

    def create_text(self, uri: str, text: str) -> None:
        """Write a file whole or not at all, with its folder; one that is there stays as it is."""

    def delete(self, uri: str) -> None:
        """Delete a file; one that is not there is deleted already."""

    def move(self, uri: str, to_uri: str) -> None:
        """Move a file, with the folders that it needs; one that is not there is moved already."""


@runtime_checkable
class SinkConnector(Protocol):
    """What is known of one kind of sink.

    Attributes:
        name: of the kind, e.g. ``delta``.
        skips: by what it knows a batch that it was given before.
        undo: how what a bad version wrote is taken out of it again, in words.
    """

    name: str
    skips: Skips
    undo: str

    def matches(self, sink: Sink) -> bool:
        """Whether this connector knows this sink."""

    def held_batches(self, sink: Sink, query_id: str | None, from_batch_id: int, reach: SinkReach) -> HeldBatches:
        """Which batches of this query the sink holds, at or above an id. Changes nothing.

        Args:
            sink: what is written to; it may not be there yet, and then holds nothing.
            query_id: Spark's id of the query; None for one that has none yet.
            from_batch_id: the lowest id that is asked for.
            reach: what to ask with.
        """

    def prepare(self, sink: Sink, next_batch_id: int, reach: SinkReach) -> tuple[str, ...]:
        """Make a sink ready whose next batch has this id; doing it twice is doing it once.

        Returns:
            What was done, in words; nothing where nothing was needed.
        """


@runtime_checkable
class RepeatedSink(Protocol):
    """What a ``SinkConnector`` has as well where ``skips`` does not say what becomes of a batch that runs again.

    That depends on the place that is written to, or on a setting.
    """

    def repeats(self, sink: Sink, conf: Mapping[str, str]) -> RepeatMeans:
        """What this sink makes of a batch that it was given before; asks nobody.

        Args:
            sink: what is written to.
            conf: settings of the session (``REPEAT_SETTINGS``); those that are not set are left out.
        """


REPEAT_SETTINGS = ("spark.wap.id", "spark.wap.branch")
"""The settings of a session by which a sink is written to in another way."""


def repeat_means(sink: Sink, connectors: Iterable[SinkConnector], conf: Mapping[str, str] | None = None) -> RepeatMeans:
    """What a sink makes of a batch that it was given before.

    Args:
        sink: what is written to.
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
def known_sinks() -> Found[SinkConnector]:
    """Every sink connector that can be imported here, looked for once: that reads the metadata of all packages."""
    return find_connectors(SINKS, SinkConnector)  # type: ignore[type-abstract]


def connector_for(sink: Sink, connectors: Iterable[SinkConnector]) -> SinkConnector | None:
    """The first connector that knows the sink; None where none does."""
    return next((connector for connector in connectors if connector.matches(sink)), None)
