"""What simulated queries read and write: an input that only grows, and a sink that remembers batch by batch."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Literal

from airflow_streamstate.checkpoint.log import NO_OFFSET
from airflow_streamstate.connectors.sink import UndoMeans


@dataclass(frozen=True)
class Row:
    """One input row: something that happened at ``event_ms``."""

    event_ms: int
    name: str = ""


@dataclass(frozen=True)
class WindowCount:
    """One output row: how many rows fell into a window. A window may come out in several parts."""

    window_start_ms: int
    count: int


OutputRow = Row | WindowCount


class SimulatedSource:
    """An input that only grows, like a topic or a folder.

    Attributes:
        removed_below: retention took the rows below this one (only a preflight sees that).
        made: another one after it was deleted and made again.
        unseen: how many preflights still find that it is not there.
        silent_after: after how many preflights it stops answering them; None for never.
        groups: each offset that was kept as that of a consumer group, in order.

    Args:
        description: what it is, in Spark's words.
        max_rows_per_batch: how many rows one batch takes at most.
    """

    def __init__(self, description: str = "Simulated[flights]", *, max_rows_per_batch: int = 10) -> None:
        self.description = description
        self.max_rows_per_batch = max_rows_per_batch
        self.rows: list[Row] = []
        self.reads: list[tuple[int, int]] = []
        self.removed_below = 0
        self.made = "1"
        self.unseen = 0
        self.silent_after: int | None = None
        self.groups: list[tuple[str, int]] = []

    def add(self, *event_ms: int) -> None:
        """New input, one row for each time."""
        self.rows.extend(Row(moment, f"{self.description}#{len(self.rows) + at}") for at, moment in enumerate(event_ms))

    def end_line(self, start: str, *, upto: int | None = None) -> str:
        """The offset that a batch which starts at ``start`` would end at."""
        begin = index_in(start)
        end = min(begin + self.max_rows_per_batch, len(self.rows) if upto is None else upto)
        return start if end <= begin else json.dumps({"index": end}, separators=(",", ":"))

    def read(self, start: str, end: str) -> list[Row]:
        """The rows between two offsets."""
        begin, finish = index_in(start), index_in(end)
        if finish > begin:
            self.reads.append((begin, finish))
        return self.rows[begin:finish]


def index_in(line: str) -> int:
    """How many rows an offset covers."""
    return 0 if line == NO_OFFSET else int(json.loads(line)["index"])


@dataclass
class SimulatedSink:
    """Remembers what it was given.

    ``idempotent`` skips batch ids that it holds already, by the id alone like Spark's file sink; ``append`` takes
    everything again, like ``foreachBatch`` that appends. What can be undone, if that is not what its mode implies, is
    ``undo_means``.
    """

    mode: Literal["idempotent", "append"] = "idempotent"
    batches: list[tuple[int, tuple[OutputRow, ...]]] = field(default_factory=list)
    undo_means: UndoMeans | None = None
    undo_needs_query_id: bool = False

    def add_batch(self, batch_id: int, rows: tuple[OutputRow, ...]) -> bool:
        """Take a batch; whether it was taken."""
        if self.mode == "idempotent" and self.holds(batch_id):
            return False
        self.batches.append((batch_id, rows))
        return True

    def holds(self, batch_id: int) -> bool:
        """Whether a batch of this id was ever taken."""
        return any(held == batch_id for held, _ in self.batches)

    @property
    def rows(self) -> list[OutputRow]:
        """Everything, in order."""
        return [row for _, rows in self.batches for row in rows]

    def counts(self) -> dict[int, int]:
        """Window start -> rows counted, the parts of a window added up."""
        found: dict[int, int] = {}
        for row in self.rows:
            if isinstance(row, WindowCount):
                found[row.window_start_ms] = found.get(row.window_start_ms, 0) + row.count
        return found


def expected_counts(rows: list[Row], window_ms: int) -> dict[int, int]:
    """What a plain count over the same input gives."""
    found: dict[int, int] = {}
    for row in rows:
        start = row.event_ms // window_ms * window_ms
        found[start] = found.get(start, 0) + 1
    return found
