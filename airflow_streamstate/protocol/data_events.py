"""Facts about rows: batches that a sink skipped, what was taken out of one, input that is passed over or read again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from airflow_streamstate.protocol.codec import message
from airflow_streamstate.protocol.event import Event
from airflow_streamstate.protocol.positions import SourceMove

UndoneBy = Literal["undo", "command", "doubled"]
RepeatMeans = Literal["skipped", "doubled", "unknown"]
"""What a sink makes of a batch that it was given before.

``skipped``: it knows its batches, or keeps nothing of an earlier run, so that no row is there twice. ``doubled``: it
cannot tell, and has the rows twice. ``unknown``: only the script's own function knows, or no connector knows the sink.
"""


@message
@dataclass(frozen=True)
class BatchesSkipped(Event):
    """Batches moved their offsets on and read no row: so it looks when a sink skips a batch that it holds already.

    An alarm, no proof: input without a row in it (empty files, aborted transactions) looks the same. It runs on.

    Attributes:
        batch_ids: the newest of them, at most ten.
        count: how many there were in this attempt up to now; told again whenever it has doubled, and at the end.
    """

    query_name: str
    batch_ids: tuple[int, ...]
    count: int


@dataclass(frozen=True)
class SinkUndo(Event):
    """What a query's sink holds behind the batch to go back to.

    Attributes:
        sink: where it is, for people.
        means: ``undo`` by its connector, ``command`` of the user, or ``doubled``: it stays, and its rows come again.
        to_batch_id: the last batch that stays; -1 for none.
        first_batch_id, last_batch_id: what is taken out; None where there is nothing, or nobody knows.
        target: what the sink goes back to, in its own words; "" where there is nothing to say.
        removed: what that is in the sink, by name (files, versions, snapshots): at most a hundred.
        removed_count: how many there are.
        rows_again: of ``doubled``: how many rows of input come a second time, at the most: what the sources had behind
            the snapshot, less what the last batch had not read, where its log is there. None where they do not tell.
    """

    query_name: str
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
    """It is about to be taken out of the sink (Law 1)."""


@message
@dataclass(frozen=True)
class Undone(SinkUndo):
    """It is out of the sink, and the query goes on behind that batch."""


@message
@dataclass(frozen=True)
class Skipped(Event):
    """A planned batch was committed without having read its rows, as was asked for: its input is a gap with a name.

    Attributes:
        command_id, command_number: the ``SkipRequest``.
        moves: per source, the offsets between which its input is passed over.
        requested_by, reason: whose wish it was, and why.
    """

    command_id: str
    command_number: int
    query_name: str
    batch_id: int
    moves: tuple[SourceMove, ...]
    requested_by: str = ""
    reason: str = ""


@message
@dataclass(frozen=True)
class Repositioned(Event):
    """A query begins at other offsets than those where it stood, as was asked for.

    Attributes:
        batch_id: the last batch before.
        moves: per source, where it stood and where it begins, in the order of the snapshot.
        reason: by what the offsets are known.
    """

    query_name: str
    batch_id: int
    moves: tuple[SourceMove, ...]
    reason: str = ""


@message
@dataclass(frozen=True)
class BatchRepeated(Event):
    """A batch that an earlier run planned and did not commit is about to run again; that run may have written it.

    Attributes:
        sink: what it writes to, for people.
        means: what that sink makes of it.
        moves: per source, the offsets between which the batch reads; empty where unknown.
        is_flush: it is the flush of a drain, which reads no input.
    """

    query_name: str
    batch_id: int
    sink: str
    means: RepeatMeans
    moves: tuple[SourceMove, ...] = ()
    is_flush: bool = False
