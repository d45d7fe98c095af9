"""Downtime of a query: from the last commit of one deployment to the first commit of the next, and what lies between.

Each time names its clock: the store's (of a commit file), a driver's, or a controller's. Two clocks may differ;
``Downtime.seconds`` is between two times of one clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

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
        committed_at: when its commit file was created, by the store's clock; None where the store cannot tell.
        triggered_at: when its trigger began, by the driver's clock; None where Spark has forgotten it.
        durations_ms: of the trigger, by Spark's own names (``walCommit``, ``queryPlanning``, ``addBatch``, …).
        state_load_ms: time to open the state, all partitions together; None where Spark does not measure it.
    """

    batch_id: int
    seen_at: datetime
    committed_at: datetime | None = None
    triggered_at: datetime | None = None
    durations_ms: Mapping[str, int] = field(default_factory=dict)
    state_load_ms: int | None = None


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
class Downtime:
    """How long a query committed nothing while its stream moved from one deployment to another.

    Attributes:
        from_deployment_id: the deployment that committed its last batch before.
        to_deployment_id: the deployment that committed the next one.
        from_at, until_at: the two commits; ``until_at`` is None before the second, or where its time is unknown.
        seconds: between them, by one clock; None where ``until_at`` is.
        marks: the known moments, in the order of ``PHASES``.
        state_load_ms: as in ``FirstBatch``.
        has_ended: the new deployment has committed, even if the time is unknown: Spark has removed its first commit,
            and an older agent did not keep the time.
    """

    query_name: str
    from_deployment_id: str
    to_deployment_id: str
    from_at: datetime
    until_at: datetime | None = None
    seconds: float | None = None
    marks: tuple[Mark, ...] = ()
    state_load_ms: int | None = None
    has_ended: bool = False

    @property
    def idle_seconds(self) -> float:
        """Seconds that the old query ran on with nothing to commit, until its barrier was certain; 0.0 if unknown."""
        barrier = next((mark.at for mark in self.marks if mark.phase == "barrier_certain"), self.from_at)
        return round(max((barrier - self.from_at).total_seconds(), 0.0), 3)


PHASES: Mapping[str, str] = {
    "last_commit": "the last batch of the old deployment is committed",
    "barrier_certain": "the barrier is certain",
    "query_ended": "the query has ended",
    "snapshot": "the snapshot is taken",
    "old_ended": "the old driver has said its last word",
    "deployed": "the new deployment is recorded",
    "claimed": "the new driver is its attempt",
    "fork": "the checkpoint is built",
    "prepared": "source, sink and plan are seen to",
    "first_start": "Spark has started the query",
    "triggered": "the first trigger has begun",
    "batch_planned": "the first batch is planned",
    "first_batch_run": "the first batch has run",
    "first_commit": "the first batch is committed",
}
"""The moments of a handover in their order. The barrier may be certain before the last commit: for a query in a batch,
and for a drain, whose flush is the last commit."""


def worst_of(found: Sequence[Downtime]) -> Downtime | None:
    """The downtime of the query that was down longest; one without a commit yet counts only if no other has one."""
    return max(found, key=lambda one: -1.0 if one.seconds is None else one.seconds, default=None)


def downtime_by_query(found: Sequence[Downtime]) -> dict[str, float | None]:
    """Per query, sorted by name, the seconds of all its downtimes; None where the end of one is unknown or to come."""
    totals: dict[str, float | None] = {}
    for one in sorted(found, key=lambda one: (one.query_name, one.to_deployment_id)):
        before = totals.get(one.query_name, 0.0)
        is_known = before is not None and one.seconds is not None
        totals[one.query_name] = round(before + one.seconds, 3) if is_known else None  # type: ignore[operator]
    return totals


def downtime_seconds(found: Sequence[Downtime]) -> float | None:
    """The downtime of the stream: that of the query that was down longest; None where none is known."""
    return max((seconds for seconds in downtime_by_query(found).values() if seconds is not None), default=None)
