"""Positions of queries, the heartbeat that reports them, and the downtime between two deployments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import datetime
from typing import ClassVar

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import (
    Attempt,
    DeploymentId,
    EventTime,
    Message,
    Milliseconds,
    QueryName,
    Seconds,
    SnapshotId,
    StreamId,
    message,
)
from airflow_streamstate.protocol.forms import View, selected


@dataclass(frozen=True)
class StateLeft:
    """State of one operator that a drain could not flush.

    Attributes:
        operator: Spark's name of it, e.g. ``stateStoreSave``.
        operator_id: its number in the plan.
        reason: why the rows could not be flushed.
    """

    operator: str
    operator_id: int
    rows: int
    reason: str


@dataclass(frozen=True)
class WatermarkSpec:
    """One ``withWatermark`` of a query."""

    column: str
    delay_ms: Milliseconds


@dataclass(frozen=True)
class SourceIdentity:
    """What one source of a query is.

    Attributes:
        adapter: the source connector that reported it; "" where none knows it.
        what: what it reads, in that connector's words; equal while offsets mean the same.
        log_folder: the number of Spark's own log of it, below ``sources/``.
        marks: ids that distinguish it from others of its name, when its offset was kept.
    """

    adapter: str
    what: str
    log_folder: int = 0
    marks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SourceMove:
    """How the position of one source was moved on purpose.

    Attributes:
        source: what it reads, as text.
        from_offset: where it stood, as Spark wrote it; ``-`` for nothing read yet.
        to_offset: where it continues.
        passed_over: how much of its input is never read: a gap. None where unknown.
        read_again: how much of it is read a second time. None where unknown.
        unit: of both: ``rows``, ``files``, ``versions``; "" where both are unknown.
    """

    source: str
    from_offset: str
    to_offset: str
    passed_over: int | None = None
    read_again: int | None = None
    unit: str = ""


@dataclass(frozen=True)
class QueryPosition:
    """Where one query ended, or was captured.

    Attributes:
        batch_id: last committed batch; None without one.
        end_offsets: per source, that batch's end offset as Spark's own JSON text, ``-`` if not set. In the order of the
            plan; of named sources, in the order of their names.
        planned_batch_id: a batch that Spark had planned and not committed; the successor runs it first (1a.6).
        watermark_at: event-time watermark (of before the flush, for a drain); None if not set.
        state_rows_left: rows in the state afterwards; None where not counted.
        state_left: which operators hold them, for a drain.
        rows_written_early: rows that the flush wrote; None without a flush.
        rows_dropped: rows dropped as late in the attempt that ended, by Spark's count; None where not counted.
        open_windows_from_at, open_windows_until_at: earliest start and latest end of the windows that the flush closed
            early; None where unknown.
    """

    batch_id: int | None
    end_offsets: tuple[str, ...] = ()
    planned_batch_id: int | None = None
    watermark_at: EventTime | None = None
    state_rows_left: int | None = None
    state_left: tuple[StateLeft, ...] = ()
    rows_written_early: int | None = None
    open_windows_from_at: EventTime | None = None
    open_windows_until_at: EventTime | None = None
    rows_dropped: int | None = None


# Downtime of a query: from the last commit of one deployment to the first commit of the next, and what is between.
#
# A query that runs and has nothing to commit is not down: such time is counted apart, before the end of the old
# version and from the first trigger of the new one that finds nothing.
#
# Each time names its clock: the store's (of a commit file), a driver's, or a controller's. Two clocks may differ;
# ``Downtime.seconds`` is between two times of one clock.

STORE, DRIVER, CONTROLLER = "store", "driver", "controller"


@dataclass(frozen=True)
class QueryEnd:
    """When a query of an attempt ended, by the driver's clock; None where the driver did not see it.

    Attributes:
        barrier_at: its barrier was certain.
        ended_at: its run had ended at the barrier.
        flushed_at: the flush of its drain had ended.
    """

    barrier_at: datetime | None = None
    ended_at: datetime | None = None
    flushed_at: datetime | None = None

    @property
    def last_at(self) -> datetime | None:
        """The time after which nothing of it ran."""
        return self.flushed_at or self.ended_at


@dataclass(frozen=True)
class FirstBatch:
    """The first batch that a query committed in a deployment.

    Attributes:
        seen_at: when the agent saw the commit, by the driver's clock; ``committed_at`` for a batch of an earlier
            attempt that did not report it.
        committed_at: when its commit file was created, by the store's clock; None where the store cannot report it.
        triggered_at: when its trigger started, by the driver's clock; None where Spark has forgotten it.
        durations_ms: of the trigger, by Spark's own names (``walCommit``, ``queryPlanning``, ``addBatch``, …).
        state_load_ms: time to open the state, all partitions together; None where Spark does not measure it.
    """

    batch_id: int
    seen_at: datetime
    committed_at: datetime | None = None
    triggered_at: datetime | None = None
    durations_ms: Mapping[str, Milliseconds] = field(default_factory=dict)
    state_load_ms: Milliseconds | None = None


@dataclass(frozen=True)
class Mark:
    """One moment between two commits.

    Attributes:
        phase: one of ``PHASES``.
        clock: of ``at``: ``store``, ``driver`` or ``controller``.
    """

    phase: str
    at: datetime
    clock: str


@dataclass(frozen=True)
class Downtime(View):
    """How long a query committed nothing while its stream moved from one deployment to another.

    Attributes:
        from_deployment_id: the deployment that committed its last batch before, or ran with nothing to commit.
        to_deployment_id: the deployment that committed the next one, or was the first to find nothing to commit.
        from_at: the last commit; if that deployment committed nothing, when it was last known to find nothing.
        until_at: the first commit, or the first trigger that found nothing, if that was before it; None before both,
            or where the time is unknown.
        seconds: between them, by one clock where both are known by one; None where ``until_at`` is.
        marks: the known moments, in the order of ``PHASES``.
        state_load_ms: as in ``FirstBatch``.
        has_ended: the new deployment has committed, even if the time is unknown: Spark has removed its first commit,
            and no heartbeat has it.
    """

    form: ClassVar[str] = (
        "query=query_name from_deployment_id to_deployment_id from_at until_at seconds has_ended=is_over idle_seconds"
        " downtime_seconds has_found_nothing state_load_ms waterfall"
    )

    query_name: QueryName
    from_deployment_id: DeploymentId
    to_deployment_id: DeploymentId
    from_at: datetime
    until_at: datetime | None = None
    seconds: Seconds | None = None
    marks: tuple[Mark, ...] = ()
    state_load_ms: Milliseconds | None = None
    has_ended: bool = False

    @property
    def is_over(self) -> bool:
        """Whether the new deployment has committed, or has found nothing to commit."""
        return self.has_ended or self.until_at is not None

    @property
    def waterfall(self) -> list[dict[str, object]]:
        """The marks as JSON, with the seconds since the last commit."""
        return [
            selected(mark, "phase at clock") | {"after_seconds": round((mark.at - self.from_at).total_seconds(), 3)}
            for mark in self.marks
        ]

    @property
    def idle_seconds(self) -> float:
        """Seconds that the old query ran on with nothing to commit; 0.0 if unknown.

        Until its barrier was certain; where it ended without one, until it was last seen with nothing to read.
        """
        known = {mark.phase: mark.at for mark in self.marks}
        until = known.get("barrier_certain") or known.get("last_idle") or self.from_at
        return round(max((until - self.from_at).total_seconds(), 0.0), 3)

    @property
    def has_found_nothing(self) -> bool:
        """Whether the new query ended the downtime by finding nothing to commit."""
        return any(mark.phase == "found_nothing" for mark in self.marks)

    @property
    def downtime_seconds(self) -> float | None:
        """``seconds`` without ``idle_seconds``; None where ``seconds`` is."""
        return None if self.seconds is None else round(max(self.seconds - self.idle_seconds, 0.0), 3)


PHASES: Mapping[str, str] = {
    "last_commit": "the last batch of the old deployment is committed",
    "last_idle": "the old query was last seen with nothing to read",
    "barrier_certain": "the barrier is certain",
    "query_ended": "the query has ended",
    "snapshot": "the snapshot is taken",
    "old_ended": "the old driver has written its last event",
    "deployed": "the new deployment is recorded",
    "claimed": "the new driver is its attempt",
    "fork": "the checkpoint is built",
    "prepared": "source, sink and plan are seen to",
    "first_start": "Spark has started the query",
    "triggered": "the first trigger has started",
    "batch_planned": "the first batch is planned",
    "first_batch_run": "the first batch has run",
    "first_commit": "the first batch is committed",
    "found_nothing": "a trigger has found nothing to commit",
}
"""The moments of a handover in their order. The barrier may be certain before the last commit: for a query in a batch,
and for a drain, whose flush is the last commit."""


def worst_of(found: Sequence[Downtime]) -> Downtime | None:
    """The downtime of the query that was down longest; one without a commit yet counts only if no other has one."""
    return max(found, key=lambda one: -1.0 if one.downtime_seconds is None else one.downtime_seconds, default=None)


def downtime_by_query(found: Sequence[Downtime]) -> dict[str, float | None]:
    """Per query, sorted by name, the seconds of all its downtimes; None where the end of one is unknown or to come."""
    totals: dict[str, float | None] = {}
    for one in sorted(found, key=lambda one: (one.query_name, one.to_deployment_id)):
        before, seconds = totals.get(one.query_name, 0.0), one.downtime_seconds
        totals[one.query_name] = None if before is None or seconds is None else round(before + seconds, 3)
    return totals


def downtime_seconds(found: Sequence[Downtime]) -> float | None:
    """The downtime of the stream: that of the query that was down longest; None where none is known."""
    return max((seconds for seconds in downtime_by_query(found).values() if seconds is not None), default=None)


# The heartbeat of an attempt: a beacon, last write wins.


@dataclass(frozen=True)
class LagTrend:
    """How a query kept up with one source over a window of its last batches, in the unit of its ``SourceLag``.

    The backlog at one moment depends on how much of a batch has passed: it is least right after a commit. So arrived
    and read input are counted from offsets, and of the backlog only the least of several batches is kept. A trigger
    that found no input had no backlog, and the counts start there.

    Attributes:
        batches: committed from the first poll that counts to the last.
        read, read_seconds: what these batches read, from the commit of the first to that of the last; None where the
            source's offsets do not show it.
        came, came_seconds: what arrived at the source from that poll to the last; None as ``read``.
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
        source: what it reads, as text.
        behind: how many, of ``unit``; None where unknown.
        unit: ``rows``, ``files``, ``versions`` or ``bytes``; "" without one.
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
        batch_id: last committed batch; None without one.
        committed_at: when an agent saw that commit; None where none did.
        idle_triggers: triggers that found no input, in this attempt.
        state_rows: rows in its state; None before the first progress.
        watermark_at: its event-time watermark; None if not set.
        skipped_batches: batches of this attempt that moved offsets and read nothing (``BatchesSkipped``).
        rows_behind: rows that its sources have after its last committed batch; None where unknown.
        lags, lags_at: the same for each source, in its own unit, and when the agent asked; empty before the first poll.
        is_idle: its newest trigger found no input.
        snapshot_id: the newest snapshot that has it, at ``lags_at``; None without one.
        batches_since_snapshot: committed batches after that; None for no snapshot.
        input_rows_per_second: rows of input over the last minute; at the first poll Spark's own rate of the last
            trigger; None before the first progress.
        processed_rows_per_second: how fast the batches of the last minute went that read rows, of those that an agent
            saw; 0 where none did, None before the first progress.
        batch_seconds: from one commit to the next, over the last batches of this attempt; None before there were two.
        read_batch_id, read_rows: the newest batch of this attempt that read rows, and how many; None without one.
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
