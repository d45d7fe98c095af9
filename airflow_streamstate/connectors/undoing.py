"""Going back to an older batch: what a sink offers for taking out what came after it (Law 14).

A start from an older snapshot runs other rows under batch ids that the sink has had. So the sink is undone to the batch
of that snapshot first, exactly or not at all: a connector that can do so has ``find_undo`` and ``undo_batches``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from airflow_streamstate.connectors.sink import Sink, SinkConnector, SinkReach, connector_for
from airflow_streamstate.errors import ConflictError, InvalidRequestError

UndoMeans = Literal["exact by undo", "by command", "only doubled", "unknown"]
"""What can be done about batches that a sink is to give back.

``exact by undo``: its connector takes them out. ``by command``: only a command of the user can. ``only doubled``:
nothing can, and the sink takes everything again. ``unknown``: no connector knows this sink; a command of the user may.
"""
NOTHING_STAYS = -1
"""``to_batch_id`` of an undo to before the first batch."""


@dataclass(frozen=True)
class UndoOrder:
    """What a sink is to be undone to.

    Attributes:
        undo_id: of this undo, the same at every try; letters, digits and dashes.
        to_batch_id: the last batch that stays; ``NOTHING_STAYS`` for none.
        query_ids: every id under which the query wrote to this sink: what is another's is never undone.
        last_batch_id: the last batch that was ever planned for it; None where nobody knows.
    """

    undo_id: str
    to_batch_id: int
    query_ids: frozenset[str]
    last_batch_id: int | None = None


@dataclass(frozen=True)
class FoundUndo:
    """What an undo takes out of a sink.

    Attributes:
        batch_ids: ascending, those that an earlier try has taken out too, as far as the sink still shows them.
        removed: what they are in the sink, by name: files, versions, snapshots.
        target: what the sink goes back to, in its own words; "" where nothing is left to do.
        marks: the same by numbers, for the connector itself.
    """

    batch_ids: tuple[int, ...] = ()
    removed: tuple[str, ...] = ()
    target: str = ""
    marks: Mapping[str, int] = field(default_factory=dict)


@runtime_checkable
class UndoingSink(SinkConnector, Protocol):
    """A sink connector that can take batches out again.

    Attributes:
        undo_needs_query_id: the sink remembers the batches of a query that were taken out, so that the query has to go
            on under another id.
    """

    undo_needs_query_id: bool

    def find_undo(self, sink: Sink, wish: UndoOrder, reach: SinkReach) -> FoundUndo:
        """What there is to undo. Changes nothing.

        Raises:
            InvalidRequestError: it cannot be exact: the sink's history does not reach back to the batch, or holds what
                somebody else wrote since.
        """

    def undo_batches(self, sink: Sink, wish: UndoOrder, found: FoundUndo, reach: SinkReach) -> None:
        """Take them out. Cut off anywhere and done again, with ``find_undo`` before it, it is done once (Law 2).

        Raises:
            ConflictError: somebody wrote to the sink meanwhile.
        """


def undo_means(sink_format: str, connectors: Iterable[SinkConnector]) -> UndoMeans:
    """What can be done about batches that a sink of this format is to give back; asks nobody.

    Args:
        sink_format: as a recorded plan has it (``PlannedSink.format``); "" where nobody knows.
        connectors: as ``known_sinks().connectors``.
    """
    return means_of(connector_for(Sink(sink_format), connectors) if sink_format else None)


def means_of(connector: SinkConnector | None) -> UndoMeans:
    """The same of the connector that knows the sink; None where none does."""
    if isinstance(connector, UndoingSink):
        return "exact by undo"
    if connector is None:
        return "unknown"
    if connector.skips == "nothing":
        return "only doubled"
    return "by command" if connector.name == "foreachBatch" else "unknown"


def cannot_undo(reason: str, sink: Sink, wish: UndoOrder, **facts: object) -> InvalidRequestError:
    """The refusal of an undo that would not be exact; nothing was changed."""
    return InvalidRequestError(
        f"the sink cannot be undone exactly: {reason}",
        sink=sink.place,
        to_batch_id=wish.to_batch_id,
        **facts,
        next_step="Go on from the snapshot at the end of the last deployment (a rollback without undo), or take what"
        " came after that batch out of the sink by hand (docs/how-to/sinks.md says how) and write to it as before.",
    )


def written_meanwhile(sink: Sink, wish: UndoOrder, **facts: object) -> ConflictError:
    """What is raised where somebody wrote to the sink while it was undone."""
    return ConflictError(
        "somebody else wrote to the sink while it was undone, and what he wrote is undone, too",
        sink=sink.place,
        to_batch_id=wish.to_batch_id,
        **facts,
        next_step="Stop whoever writes there, bring his rows back by the table's own history, and start again.",
    )
