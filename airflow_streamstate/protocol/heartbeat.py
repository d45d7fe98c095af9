"""The heartbeat of an attempt: a beacon, last write wins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import Message, message
from airflow_streamstate.protocol.downtimes import FirstBatch
from airflow_streamstate.protocol.fields import (
    Attempt,
    DeploymentId,
    EventTime,
    QueryName,
    Seconds,
    SnapshotId,
    StreamId,
)


@dataclass(frozen=True)
class LagTrend:
    """How a query kept up with one source over a window of its last batches, in the unit of its ``SourceLag``.

    The backlog at one moment depends on how much of a batch has passed: it is least right after a commit. So arrived
    and
    read input are counted from offsets, and of the backlog only the least of several batches is kept. A trigger that
    found no input had no backlog, and the counts begin there.

    Attributes:
        batches: committed from the first look that counts to the last.
        read, read_seconds: what these batches read, from the commit of the first to that of the last; None where the
            source's offsets do not tell.
        came, came_seconds: what arrived at the source from that look to the last; None as ``read``.
        least_before, least, least_lately: the smallest backlog in the older half of the window, in the newer half, and
            in the newest three batches.
    """

    batches: int
    read: int | None
    read_seconds: Seconds | None
    came: int | None
    came_seconds: Seconds | None
    least_before: int
    least: int
    least_lately: int

    @property
    def read_per_second(self) -> float | None:
        return _per_second(self.read, self.read_seconds)

    @property
    def came_per_second(self) -> float | None:
        return _per_second(self.came, self.came_seconds)


def _per_second(count: int | None, seconds: float | None) -> float | None:
    return None if count is None or not seconds or seconds <= 0 else count / seconds


@dataclass(frozen=True)
class SourceLag:
    """How far one source is ahead of what its query has read.

    Attributes:
        source: what it reads, in words.
        behind: how many, of ``unit``; None where unknown.
        unit: ``rows``, ``files``, ``versions`` or ``bytes``; "" for none.
        seconds_to_zero: until nothing is behind, extrapolated from the last batches; None where the backlog does not
            shrink, or was not observed for long enough.
        since_snapshot: what was read since the newest snapshot, in ``since_snapshot_unit``; None where unknown.
        untold: why ``behind`` is None; else "".
        trend: over the last batches; None before there were two.
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
    """One query, from its last progress.

    Attributes:
        batch_id: last committed batch; None for none.
        committed_at: when an agent saw that commit; None where none did.
        idle_triggers: triggers that found no input, in this attempt.
        state_rows: rows in its state; None before the first progress.
        watermark_at: its event-time watermark; None for none.
        skipped_batches: batches of this attempt that moved offsets and read nothing (``BatchesSkipped``).
        rows_behind: rows that its sources have after its last committed batch; None where unknown.
        lags, lags_at: the same for each source, in its own unit, and when the agent asked; empty before the first look.
        is_idle: its newest trigger found no input.
        snapshot_id: the newest snapshot that has it, at ``lags_at``; None for none.
        batches_since_snapshot: committed batches after that; None for no snapshot.
        input_rows_per_second: rows of input over the last minute; at the first look Spark's own rate of the last
            trigger; None before the first progress.
        processed_rows_per_second: how fast the batches of the last minute went that read rows, of those that an agent
            saw; 0 where none did, None before the first progress.
        batch_seconds: from one commit to the next, over the last batches of this attempt; None before there were two.
        read_batch_id, read_rows: the newest batch of this attempt that read rows, and how many; None for none.
        run_has_ended: its trigger (``once``, ``availableNow``) has ended its last run, without a failure.
        state_memory_bytes: the memory of its state, as Spark reports it (``memoryUsedBytes``); None where it does not.
    """

    batch_id: int | None
    committed_at: datetime | None
    is_active: bool
    idle_triggers: int = 0
    state_rows: int | None = None
    watermark_at: EventTime | None = None
    input_rows_per_second: float | None = None
    processed_rows_per_second: float | None = None
    skipped_batches: int = 0
    rows_behind: int | None = None
    lags: tuple[SourceLag, ...] = ()
    lags_at: datetime | None = None
    is_idle: bool = False
    snapshot_id: SnapshotId | None = None
    batches_since_snapshot: int | None = None
    batch_seconds: Seconds | None = None
    read_batch_id: int | None = None
    read_rows: int | None = None
    run_has_ended: bool = False
    state_memory_bytes: int | None = None


@message
@dataclass(frozen=True)
class Heartbeat(Message):
    """Written every ``heartbeat_seconds``, and at once when a query commits its first batch.

    Attributes:
        first_batches: per query, the first batch that it committed in this deployment, in any attempt.
        changed_files: a sentence on each file that the script read and that has other content now.
        first_idles: per query, when an agent first saw that a trigger had found nothing to commit, if that was before
            its first batch.
    """

    stream_id: StreamId
    deployment_id: DeploymentId
    attempt: Attempt
    at: datetime
    queries: Mapping[QueryName, QueryBeat]
    first_batches: Mapping[QueryName, FirstBatch] = field(default_factory=dict)
    changed_files: tuple[str, ...] = ()
    first_idles: Mapping[QueryName, datetime] = field(default_factory=dict)
