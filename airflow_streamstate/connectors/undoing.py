"""Going back to an older batch: how a sink removes what came after it (Law 14).

A start from an older snapshot runs other rows under batch ids that the sink has had. So the sink is first undone to the
batch of that snapshot, exactly or not at all, by a connector with ``find_undo`` and ``undo_batches``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Literal, Protocol, runtime_checkable

from airflow_streamstate.connectors.sink import Sink, SinkConnector, SinkReach, connector_for
from airflow_streamstate.errors import ConflictError, InvalidRequestError
from airflow_streamstate.frozen import dataclass

UndoMeans = Literal["exact by undo", "by command", "only doubled", "unknown"]
"""How batches can be removed from a sink.

``exact by undo``: by its connector. ``by command``: only by a command of the user. ``only doubled``: not at all, and
the sink takes everything again. ``unknown``: no connector knows this sink; a command of the user may.
"""
NOTHING_STAYS = -1
"""``to_batch_id`` of an undo to before the first batch."""


@dataclass(frozen=True)
class UndoOrder:
    """What a sink is to be undone to.

    Attributes:
        undo_id: the same at every try; letters, digits and dashes.
        to_batch_id: the last batch that stays; ``NOTHING_STAYS`` for none.
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
        undo_needs_query_id: the sink remembers removed batches of a query, so that the query has to go on under another
            id.
    """

    undo_needs_query_id: bool

    def find_undo(self, sink: Sink, request: UndoOrder, reach: SinkReach) -> FoundUndo:
        """What there is to undo. Changes nothing.

        Raises:
            InvalidRequestError: it cannot be exact: the sink's history does not reach back to the batch, or has changes
                of another writer since.
        """

    def undo_batches(self, sink: Sink, request: UndoOrder, found: FoundUndo, reach: SinkReach) -> None:
        """Remove them. After an interruption, ``find_undo`` and this call complete it (Law 2).

        Raises:
            ConflictError: another writer wrote to the sink meanwhile.
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
    """The path of a sink of files; None for a table that does not exist, where there is nothing to undo.

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
        next_step="Go on from the snapshot at the end of the last deployment (a rollback without undo), or remove what"
        " came after that batch from the sink by hand (docs/how-to/sinks.md says how) and write to it as before.",
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
