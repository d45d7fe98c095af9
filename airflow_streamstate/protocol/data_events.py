"""Facts about rows: batches that a sink skipped, output that was undone, input that was passed over or read again."""

from __future__ import annotations

from typing import ClassVar, Literal

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import message
from airflow_streamstate.protocol.event import Event
from airflow_streamstate.protocol.fields import QueryName
from airflow_streamstate.protocol.positions import SourceMove

UndoneBy = Literal["undo", "command", "doubled"]
RepeatMeans = Literal["skipped", "doubled", "unknown"]
"""What a sink makes of a batch that it was given before.

``skipped``: it recognises the batch, or keeps nothing of an earlier run: no row twice. ``doubled``: it writes the rows
again. ``unknown``: only the script's own function knows, or no connector knows the sink.
"""


@message
@dataclass(frozen=True)
class BatchesSkipped(Event):
    """Batches moved their offsets and read no row, as when a sink skips a batch that it already has.

    A warning, no proof: input without rows (empty files, aborted transactions) looks the same. The query runs on.

    Attributes:
        batch_ids: the newest, at most ten.
        count: in this attempt so far; the agent reports again each time it has doubled, and at the end.
    """

    query_name: QueryName
    batch_ids: tuple[int, ...]
    count: int


@dataclass(frozen=True)
class SinkUndo(Event):
    """What a query's sink holds after the batch to go back to.

    Attributes:
        sink: where it is, for people.
        means: ``undo`` by its connector, ``command`` of the user, or ``doubled``: it stays, and its rows come again.
        to_batch_id: the last batch that stays; -1 for none.
        first_batch_id, last_batch_id: what is removed; None for nothing, or unknown.
        target: what the sink goes back to, in its own words; "" for unknown.
        removed: names of what is removed (files, versions, snapshots), at most a hundred.
        removed_count: how many there are.
        rows_again: for ``doubled``: at most so many input rows come twice, by the sources' offsets after the snapshot
            and the last batch's log; None where unknown.
    """

    query_name: QueryName
    sink: str
    means: UndoneBy
    to_batch_id: int
    first_batch_id: int | None
    last_batch_id: int | None
    target: str = ""
    removed: tuple[str, ...] = ()
    removed_count: int = 0
    rows_again: int | None = None


@message
@dataclass(frozen=True)
class Undoing(SinkUndo):
    """This start goes back to an older snapshot: the driver is about to remove from the sink what it has after that
    (Law 1)."""


@message
@dataclass(frozen=True)
class Undone(SinkUndo):
    """The sink no longer has what ``Undoing`` named; the query continues after that batch."""


@message
@dataclass(frozen=True)
class Skipped(Event):
    """A planned batch was committed without reading its rows, as ordered: its input is a named gap.

    Attributes:
        command_id, command_number: the ``SkipRequest``.
        moves: per source, the offsets between which its input is passed over.
        requested_by, reason: of the request.
    """

    mark: ClassVar[str] = "batch skipped"

    command_id: str
    command_number: int
    query_name: QueryName
    batch_id: int
    moves: tuple[SourceMove, ...]
    requested_by: str = ""
    reason: str = ""


@message
@dataclass(frozen=True)
class Repositioned(Event):
    """A query starts at other offsets than where it ended, as ordered: what is passed over, and what is read again.

    Attributes:
        batch_id: the last batch before.
        moves: per source, where it ended and where it begins, in the order of the snapshot.
        reason: how the offsets are known.
    """

    mark: ClassVar[str] = "offsets set"

    query_name: QueryName
    batch_id: int
    moves: tuple[SourceMove, ...]
    reason: str = ""


@message
@dataclass(frozen=True)
class BatchRepeated(Event):
    """The driver is about to run a batch again that an earlier run planned, perhaps wrote, and did not commit.

    Attributes:
        sink: for people.
        means: what that sink makes of it.
        moves: per source, the offsets between which the batch reads; empty where unknown.
        is_flush: it is the flush of a drain, which reads no input.
    """

    query_name: QueryName
    batch_id: int
    sink: str
    means: RepeatMeans
    moves: tuple[SourceMove, ...] = ()
    is_flush: bool = False
