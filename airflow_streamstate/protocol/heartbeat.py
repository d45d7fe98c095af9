"""The sign of life of an attempt: a beacon, last write wins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from airflow_streamstate.protocol.codec import Message, message
from airflow_streamstate.protocol.downtimes import FirstBatch


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
    """

    source: str
    behind: int | None = None
    unit: str = ""
    seconds_to_zero: float | None = None
    since_snapshot: int | None = None
    since_snapshot_unit: str = ""
    untold: str = ""


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
