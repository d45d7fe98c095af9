"""The sign of life of an attempt: a beacon, last write wins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from airflow_streamstate.protocol.codec import Message, message
from airflow_streamstate.protocol.downtimes import FirstBatch


@dataclass(frozen=True)
class LagTrend:
    """How a query went with one source over a window of its last batches, in the unit of its ``SourceLag``.

    What is behind at one moment depends on how much of a batch has passed by then: it is least right after a commit and
    most right before the next one. So what came and what was read are counted from offsets, and of what was behind only
    the least of several batches is kept.

    Where a trigger found no input within the window, nothing was behind at that moment, and the counts begin there.

    Attributes:
        batches: committed from the first look that is counted to the last.
        read, read_seconds: what these batches read, and the time from the commit of the first to that of the last.
            None where the offsets of the source do not tell.
        came, came_seconds: what came to the source from that look to the last. None as ``read``.
        least_before: the least that was behind in the older half of the window.
        least: the same of the newer half.
        least_lately: the same of the newest three batches.
    """

    batches: int
    read: int | None
    read_seconds: float | None
    came: int | None
    came_seconds: float | None
    least_before: int
    least: int
    least_lately: int

    @property
    def read_per_second(self) -> float | None:
        """How fast the query read; None where that is not known."""
        return _per_second(self.read, self.read_seconds)

    @property
    def came_per_second(self) -> float | None:
        """How fast the input came; None where that is not known."""
        return _per_second(self.came, self.came_seconds)


def _per_second(count: int | None, seconds: float | None) -> float | None:
    return None if count is None or not seconds or seconds <= 0 else count / seconds


@dataclass(frozen=True)
class SourceLag:
    """How far one source is ahead of what its query has read.

    Attributes:
        source: what it reads, in words.
        behind: how many, of ``unit``; None where that cannot be told.
        unit: ``rows``, ``files``, ``versions`` or ``bytes``; "" where there is none.
        seconds_to_zero: until nothing is behind, as it went over the last batches; None where it does not fall, or
            nobody has seen it for long enough.
        since_snapshot: what was read of it since the newest snapshot, and would be read again behind that; in
            ``since_snapshot_unit``. None where that cannot be told.
        untold: why ``behind`` is None; "" where it is not.
        trend: how it went over the last batches; None before there were two, and of a driver of before there was any.
    """

    source: str
    behind: int | None = None
    unit: str = ""
    seconds_to_zero: float | None = None
    since_snapshot: int | None = None
    since_snapshot_unit: str = ""
    untold: str = ""
    trend: LagTrend | None = None


@dataclass(frozen=True)
class QueryBeat:
    """One query, as its last progress told.

    Attributes:
        batch_id: last committed batch; None for none.
        committed_at: when an agent saw that batch committed; None where none did.
        idle_triggers: triggers that found no input, in this attempt.
        state_rows: rows in its state; None before the first progress.
        watermark_at: its event-time watermark; None for none.
        skipped_batches: batches of this attempt that moved offsets and read nothing (``BatchesSkipped``).
        rows_behind: rows that its sources have and its last committed batch has not, by asking them; None where that
            cannot be told.
        rows_behind_at: when they were asked.
        lags: the same for each source, in its own unit; empty where nobody has asked yet.
        lags_at: when they were asked.
        is_idle: its newest trigger found no input.
        snapshot_id: the newest snapshot that has it, when the sources were asked; None for none.
        batches_since_snapshot: committed batches that are not in that; None for no snapshot.
        input_rows_per_second, processed_rows_per_second: Spark's own rates; None before the first progress.
        batch_seconds: from one commit to the next, over the last batches of this attempt; None before there were two.
    """

    batch_id: int | None
    committed_at: datetime | None
    is_active: bool
    idle_triggers: int = 0
    state_rows: int | None = None
    watermark_at: datetime | None = None
    input_rows_per_second: float | None = None
    processed_rows_per_second: float | None = None
    skipped_batches: int = 0
    rows_behind: int | None = None
    rows_behind_at: datetime | None = None
    lags: tuple[SourceLag, ...] = ()
    lags_at: datetime | None = None
    is_idle: bool = False
    snapshot_id: str | None = None
    batches_since_snapshot: int | None = None
    batch_seconds: float | None = None


@message
@dataclass(frozen=True)
class Heartbeat(Message):
    """Written every ``heartbeat_seconds``, and at once when a query commits its first batch.

    Attributes:
        first_batches: per query, the first batch that it committed in this deployment, whichever attempt that was.
    """

    stream_id: str
    deployment_id: str
    attempt: int
    at: datetime
    queries: Mapping[str, QueryBeat]
    first_batches: Mapping[str, FirstBatch] = field(default_factory=dict)
