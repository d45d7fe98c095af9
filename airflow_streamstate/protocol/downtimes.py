"""Downtime of a query: from the last commit of one deployment to the first commit of the next, and what lies between.

A query that runs and has nothing to commit is not down: such time is counted apart, before the end of the old version
and from the first trigger of the new one that finds nothing.

Each time names its clock: the store's (of a commit file), a driver's, or a controller's. Two clocks may differ;
``Downtime.seconds`` is between two times of one clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import datetime
from typing import ClassVar

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.fields import DeploymentId, Milliseconds, QueryName, Seconds
from airflow_streamstate.protocol.views import View, selected

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
        from_at: the last commit; where that deployment committed nothing, when it was last known to find nothing.
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
