"""The public interface of a sink connector: batches that a sink holds, its warming, and undo (Law 14)."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal, Protocol, runtime_checkable

from airflow_streamstate.connectors.registry import SINKS, FoundConnectors, find_connectors
from airflow_streamstate.errors import ConflictError, InvalidRequestError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.events import RepeatMeans

Skips = Literal["batch_id", "query_id_and_batch_id", "nothing", "unknown"]
"""By what a sink recognises a batch that it was given before, and skips it."""


@dataclass(frozen=True)
class Sink:
    """What a query writes to, as its writer describes it.

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
        """Where it is, human-readable."""
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
        return HeldBatches(unknown_reason="its catalog does not state where it is stored")
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
        undo: how a bad version's output is removed from it, as text.
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
        """Prepare a sink whose next batch has this id; may be repeated. Returns what was done, as text."""


@runtime_checkable
class RepeatedSink(Protocol):
    """Also implemented by a ``SinkConnector`` whose location or settings decide what becomes of a repeated batch."""

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


# Going back to an older batch: how a sink removes what came after it (Law 14).
#
# A start from an older snapshot runs other rows under batch ids that the sink has had. So the sink is first undone to
# the batch of that snapshot, exactly or not at all, by a connector with ``find_undo`` and ``undo_batches``.

UndoMeans = Literal["exact by undo", "by command", "only doubled", "unknown"]
"""How batches can be removed from a sink.

``exact by undo``: by its connector. ``by command``: only by a command of the user. ``only doubled``: not at all, and
the sink takes everything again. ``unknown``: no connector knows this sink; a command of the user may.
"""
NOTHING_STAYS = -1
"""``to_batch_id`` of an undo to before the first batch."""


@dataclass(frozen=True)
class UndoOrder:
    """What a sink must be undone to.

    Attributes:
        undo_id: the same at every try; letters, digits and dashes.
        to_batch_id: the last batch that stays; ``NOTHING_STAYS`` if no batch stays.
        query_ids: every id under which the query wrote to this sink; batches of other queries are never undone.
        last_batch_id: the last batch that was ever planned for it; None where unknown.
    """

    undo_id: str
    to_batch_id: int
    query_ids: frozenset[str]
    last_batch_id: int | None = None


@dataclass(frozen=True)
class FoundUndo:
    """What an undo removes from a sink.

    Attributes:
        batch_ids: ascending, including those that an earlier try has removed, as far as the sink still shows them.
        removed: names in the sink: files, versions, snapshots.
        target: what the sink goes back to, in its own words; "" where nothing is left to do.
        marks: the same as numbers, for the connector itself.
    """

    batch_ids: tuple[int, ...] = ()
    removed: tuple[str, ...] = ()
    target: str = ""
    marks: Mapping[str, int] = field(default_factory=dict)


@runtime_checkable
class UndoingSink(SinkConnector, Protocol):
    """A sink connector that can remove batches.

    Attributes:
        undo_needs_query_id: the sink remembers removed batches of a query, so that the query has to continue under
            another id.
    """

    undo_needs_query_id: bool

    def find_undo(self, sink: Sink, request: UndoOrder, reach: SinkReach) -> FoundUndo:
        """What there is to undo. Changes nothing.

        Raises:
            InvalidRequestError: it cannot be exact: the sink's history does not reach back to the batch, or another
                writer has changed it since.
        """

    def undo_batches(self, sink: Sink, request: UndoOrder, found: FoundUndo, reach: SinkReach) -> None:
        """Remove them. After an interruption, ``find_undo`` and this call complete it (Law 2).

        Raises:
            ConflictError: another writer wrote to the sink in the meantime.
        """


def undo_means(sink_format: str, connectors: Iterable[SinkConnector]) -> UndoMeans:
    """How batches can be removed from a sink of this format, without asking it.

    Args:
        sink_format: as a recorded plan has it (``PlannedSink.format``); "" where unknown.
        connectors: as ``known_sinks().connectors``.
    """
    return means_of(connector_for(Sink(sink_format), connectors) if sink_format else None)


def means_of(connector: SinkConnector | None) -> UndoMeans:
    """The same for the connector that knows the sink; None where none does."""
    if isinstance(connector, UndoingSink):
        return "exact by undo"
    if connector is None:
        return "unknown"
    if connector.skips == "nothing":
        return "only doubled"
    return "by command" if connector.name == "foreachBatch" else "unknown"


def path_to_undo(sink: Sink, request: UndoOrder) -> str | None:
    """The path of a sink of files; None for a table that does not exist: there is nothing to undo.

    Raises:
        InvalidRequestError: the path is unknown.
    """
    if sink.path is None and (sink.table is None or sink.is_there):
        raise cannot_undo("its location is unknown", sink, request)
    return sink.path


def cannot_undo(reason: str, sink: Sink, request: UndoOrder, **facts: object) -> InvalidRequestError:
    """The refusal of an undo that would not be exact; nothing was changed."""
    return InvalidRequestError(
        f"the sink cannot be undone exactly: {reason}",
        sink=sink.place,
        to_batch_id=request.to_batch_id,
        **facts,
        next_step="Continue from the snapshot at the end of the last deployment (a rollback without undo), or remove"
        " what was written after that batch by hand (docs/how-to/sinks.md shows how), and write as before.",
    )


def written_meanwhile(sink: Sink, request: UndoOrder, **facts: object) -> ConflictError:
    """The error where another writer wrote to the sink while it was undone."""
    return ConflictError(
        "another writer wrote to the sink while it was undone, and its rows are undone, too",
        sink=sink.place,
        to_batch_id=request.to_batch_id,
        **facts,
        next_step="Stop that writer, restore its rows from the table's own history, and start again.",
    )


# Warming a sink: a waiting driver prepares to write to it before the old version ends, without a trace in it.
#
# In a JVM that never wrote to a kind of sink, the first batch loads and compiles the code for it; a driver that waits
# for a handover does so while the old version still runs.

_OF_THE_SINK = frozenset({"path", "checkpointlocation", "queryname", "txnappid", "txnversion"})


@runtime_checkable
class WarmingSink(SinkConnector, Protocol):
    """A sink connector that can make a driver load the code that writes to its sink."""

    def warm(self, sink: Sink, row: Any, scratch_uri: str, reach: SinkReach) -> None:
        """Load and compile what the first batch needs to write. It may read the sink, and changes nothing in it.

        An error leaves the sink cold and is reported; nothing else follows.

        Args:
            sink: it may not exist yet.
            row: a ``DataFrame`` of one row that has the columns of the query, and null in each.
            scratch_uri: a separate folder, which Hadoop reaches and which is removed later: empty, or with what an
                earlier call left.
        """


def write_beside(sink: Sink, row: Any, scratch_uri: str) -> None:
    """Write a row into a scratch folder, in the format of a sink and with its options.

    Twice, because the second write finds a table where the first one creates it.
    """
    for _ in range(2):
        row.write.format(sink.format).options(**options_to_write(sink)).mode("append").save(scratch_uri)


def options_to_write(sink: Sink) -> dict[str, str]:
    """The options of a sink that define how its rows are written, and not where."""
    return {name: value for name, value in sink.options.items() if name not in _OF_THE_SINK}
