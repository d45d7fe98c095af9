"""Batches that ran again after a kill, and whether their rows may be in the sink twice.

A batch that was planned and not committed runs again over the same bounds. A sink that knows its batches skips one that
it holds; for other sinks it is unknown how much the earlier run wrote, so the batch is named with its offsets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar

from airflow_streamstate.connectors.moving import counted
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.data_events import BatchRepeated, RepeatMeans, Repositioned, Skipped
from airflow_streamstate.protocol.event import Event
from airflow_streamstate.protocol.positions import SourceMove
from airflow_streamstate.protocol.views import View

MOST_TOLD = 3


@dataclass(frozen=True)
class Repeat(View):
    """A batch that ran again, or that will.

    Attributes:
        attempt: the one that ran it again.
        sink: in words.
        means: what that sink makes of it.
        moves: per source, the offsets between which it reads; empty where they are gone.
        is_flush: the flush of a drain, which reads no input.
        at: RFC 3339; "" for a batch that will run again.
    """

    form: ClassVar[str] = "deployment_id attempt query=query_name batch_id sink means at is_flush rows_at_most moves"

    deployment_id: str
    query_name: str
    batch_id: int
    attempt: int
    sink: str
    means: RepeatMeans
    moves: tuple[SourceMove, ...] = ()
    is_flush: bool = False
    at: str = ""

    @property
    def may_be_doubled(self) -> bool:
        """Whether its rows may be in the sink twice."""
        return self.means != "skipped"

    @property
    def rows_at_most(self) -> int | None:
        """The rows that the batch reads; None where the offsets do not tell."""
        if not self.moves or any(move.unit != "rows" or move.passed_over is None for move in self.moves):
            return None
        return sum(move.passed_over or 0 for move in self.moves)


def repeats_of(events: Iterable[Event]) -> list[Repeat]:
    """The batches that ran again in a deployment, oldest first; ``events``: of all its attempts."""
    return [_told(event) for event in events if isinstance(event, BatchRepeated)]


def moves_in(events: Collection[Event | None]) -> list[Skipped | Repositioned]:
    """The events of one deployment about input that was passed over or read again, in their order.

    Of each query only the last ``Repositioned`` counts: an earlier start was cut off before it built the checkpoint.
    """
    last = {event.query_name: event for event in events if isinstance(event, Repositioned)}
    return [
        event
        for event in events
        if isinstance(event, Skipped) or (isinstance(event, Repositioned) and last[event.query_name] is event)
    ]


def describe_repeats(stream_id: str, repeats: Sequence[Repeat]) -> str:
    """One sentence on batches that ran again, or will; "" for none."""
    if not repeats:
        return ""
    doubled = [one for one in repeats if one.may_be_doubled]
    shown = (doubled or list(repeats))[-MOST_TOLD:]
    head = "rows may be doubled: " if doubled else "nothing is doubled: "
    clauses = "; ".join(describe(one) for one in shown)
    left = len(doubled or repeats) - len(shown)
    return head + clauses + (f"; and {left} more, which `streamstate audit {stream_id}` lists" if left else "")


def describe(one: Repeat) -> str:
    """One clause: which batch, and what its sink makes of it."""
    which = "the flush, " if one.is_flush else ""
    runs = "ran again" if one.at else "runs again first"
    text = f"{which}batch {one.batch_id} of {one.query_name} {runs}, into {one.sink}"
    if one.means == "skipped":
        return f"{text}, where no batch is there twice"
    sink = "which cannot tell" if one.means == "doubled" else "of which only the script knows whether it can tell"
    return f"{text}, {sink} a batch that it was given before{_how_much(one)}"


def _how_much(one: Repeat) -> str:
    if one.rows_at_most is not None:
        return f" (input of at most {counted(one.rows_at_most, 'rows')})"
    parts = [counted(move.passed_over, move.unit) for move in one.moves if move.passed_over is not None and move.unit]
    return f" (input of at most {' and '.join(parts)})" if parts and len(parts) == len(one.moves) else ""


def _told(event: BatchRepeated) -> Repeat:
    return Repeat(
        event.deployment_id,
        event.query_name,
        event.batch_id,
        event.attempt,
        event.sink,
        event.means,
        event.moves,
        event.is_flush,
        format_time(event.at),
    )
