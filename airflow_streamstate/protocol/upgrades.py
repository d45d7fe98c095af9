"""Upgrades: the request, the steps taken, and what people decided.

An upgrade is one record and a journal of steps, each written before its act; any controller that reads both can
continue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from typing import ClassVar, Literal, Union

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import (
    DeploymentId,
    Message,
    QueryName,
    RehearsalId,
    Seconds,
    SnapshotId,
    StreamId,
    Tagged,
    UpgradeId,
    message,
)
from airflow_streamstate.protocol.positions import Downtime, QueryBeat
from airflow_streamstate.protocol.records import StateRewrite
from airflow_streamstate.protocol.terms.declaration import values_of
from airflow_streamstate.protocol.terms.order import RollbackTerms, TakeoverTerms, UpgradeMode, UpgradeTerms
from airflow_streamstate.protocol.terms.version import HandoverTerms, Version

UpgradeKind = Literal["upgrade", "rollback"]
ReturnWay = Literal["resume", "handover", "forward", "undo"]
AfterStop = Literal["finish", "rollback"]
PlanVerdict = Literal["same", "state-compatible", "needs-drain", "hazardous"]
"""What a change of the plan means for the state, from the lightest to the gravest."""
Phase = Literal[
    "begun", "rehearsing", "planned", "waiting", "ready", "stopping", "ended", "started",
    "unhealthy", "trying", "returning", "returned", "upgraded", "rolled_back", "refused", "failed",
]  # fmt: skip
OVER: frozenset[Phase] = frozenset({"upgraded", "rolled_back", "refused", "failed"})
BEFORE_THE_STOP: frozenset[Phase] = frozenset({"begun", "rehearsing", "planned", "waiting", "ready"})
"""Phases in which nothing has happened to the stream."""


@message
@dataclass(frozen=True)
class Upgrade(Message):
    """An upgrade, or a rollback, as requested; written before anything else of it.

    Attributes:
        old_deployment_id: the deployment that was current when it was requested.
        target: what the stream is to run, its files pinned.
        upgrade_terms, rollback_terms: of an upgrade, or of a rollback; the other one is None.
        rewrite: how the state is rewritten for the target; None for as it is.
        handover: what the target does with the state of the version before.
        if_abandoned: what a watcher does where nobody drives it any more and the stream was touched.
        ends_untouched: where nobody drives it any more and it has not touched the stream, it is ended: the next try of
            its task starts again. Else it is finished.
    """

    is_signed: ClassVar[bool] = True

    stream_id: StreamId
    upgrade_id: UpgradeId
    old_deployment_id: DeploymentId
    target: Version
    request_id: str
    request_digest: str
    requested_by: str
    reason: str
    created_at: datetime
    write_id: str
    upgrade_terms: UpgradeTerms | None = None
    rollback_terms: RollbackTerms | None = None
    rewrite: StateRewrite | None = None
    handover: HandoverTerms = field(default_factory=HandoverTerms)
    if_abandoned: AfterStop = "finish"
    ends_untouched: bool = False

    def __post_init__(self) -> None:
        if (self.upgrade_terms is None) == (self.rollback_terms is None):
            raise ValueError("it has either the terms of an upgrade or those of a rollback")

    @property
    def asked(self) -> UpgradeKind:
        """What was requested."""
        return "rollback" if self.upgrade_terms is None else "upgrade"

    @property
    def terms(self) -> UpgradeTerms:
        """Its terms; of a rollback those that it has in common with an upgrade, and an upgrade's defaults."""
        return self.upgrade_terms or UpgradeTerms(**values_of(TakeoverTerms, self.rollback_terms))

    @property
    def terms_of_return(self) -> RollbackTerms:
        """The terms of its rollback; of an upgrade those that it has in common with a rollback, and its defaults."""
        return self.rollback_terms or RollbackTerms(**values_of(TakeoverTerms, self.upgrade_terms))


@dataclass(frozen=True)
class DriverWaits(Tagged):
    """The driver of this rehearsal waits, warm, and takes over."""

    rehearsal_id: RehearsalId


@dataclass(frozen=True)
class DriverLaunchedLater(Tagged):
    """A driver is launched after the stop; ``why`` none waits, "" where none was wanted."""

    why: str


DriverChoice = Union[DriverWaits, DriverLaunchedLater]
"""Who runs a version that takes over, or comes back."""


@dataclass(frozen=True)
class UpgradePlan:
    """What the rehearsal has shown; ``verdict`` None: it ended before the plans were known."""

    verdict: PlanVerdict | None
    report: Mapping[str, object]


# What a step decides before the stream is touched.


@dataclass(frozen=True)
class NewRehearsed(Tagged):
    """The new version is rehearsed."""

    rehearsal_id: RehearsalId


@dataclass(frozen=True)
class Planned(Tagged):
    """The plan is accepted; ``mode``: how the state is handed over, never ``auto``."""

    plan: UpgradePlan
    mode: UpgradeMode


@dataclass(frozen=True)
class Standby(Tagged):
    """The driver of this rehearsal of the old version is kept ready for the rollback."""

    rehearsal_id: RehearsalId


@dataclass(frozen=True)
class NoStandby(Tagged):
    """No driver is kept ready for the rollback, although one was asked for."""

    why: str


@dataclass(frozen=True)
class Ready(Tagged):
    """The handover is prepared."""

    driver: DriverChoice


Preparation = Union[NewRehearsed, Planned, Standby, NoStandby, Ready]


# What a step decides while the new version takes over.


@dataclass(frozen=True)
class Stopping(Tagged):
    """The old version is about to be ended; its queries and their trend until then."""

    old_beats: Mapping[QueryName, QueryBeat]


@dataclass(frozen=True)
class OldOrdered(Tagged):
    """The end of the old version was ordered."""

    command_id: str


@dataclass(frozen=True)
class OldEnded(Tagged):
    """The old version has ended in this snapshot: the handover."""

    snapshot_id: SnapshotId


@dataclass(frozen=True)
class NewDeployed(Tagged):
    """The new version is deployed; ``snapshot_id``: what it starts from, None for a fresh start."""

    deployment_id: DeploymentId
    snapshot_id: SnapshotId | None


@dataclass(frozen=True)
class QueriesStarted(Tagged):
    """Each query of the new version has started.

    Attributes:
        beats: of that moment.
        not_running_seconds: how long no query of the stream ran while it was moved; None where unknown.
        downtimes: per query, until then.
    """

    beats: Mapping[QueryName, QueryBeat]
    not_running_seconds: Seconds | None
    downtimes: tuple[Downtime, ...]


Takeover = Union[Stopping, OldOrdered, OldEnded, NewDeployed, QueriesStarted]


# What a step decides during a rollback.


@dataclass(frozen=True)
class NewGivenUp(Tagged):
    """This deployment is abandoned; of a rollback the one that was current when it was asked for."""

    deployment_id: DeploymentId


@dataclass(frozen=True)
class CancelledByUser(Tagged):
    """A user cancelled the upgrade after the stop; ``deployment_id``: the new version's, None where not deployed."""

    cancelled_by: str
    deployment_id: DeploymentId | None


@dataclass(frozen=True)
class OldRehearsed(Tagged):
    """The old code is rehearsed on the state that the new version left."""

    rehearsal_id: RehearsalId


@dataclass(frozen=True)
class WayDecided(Tagged):
    """The way back is decided, and the driver of this rehearsal comes up for it while the given-up version runs."""

    way: ReturnWay
    rehearsal_id: RehearsalId


@dataclass(frozen=True)
class Returning(Tagged):
    """The given-up version ends now, and the old one comes back.

    Attributes:
        way: ``resume``: nothing of the new version ever ran; ``handover``: it committed nothing; ``forward``: from its
            last commit; ``undo``: from the handover, with the sinks undone.
    """

    way: ReturnWay
    driver: DriverChoice


@dataclass(frozen=True)
class NewOrdered(Tagged):
    """The end of the given-up version was ordered."""

    command_id: str


@dataclass(frozen=True)
class OldReturned(Tagged):
    """The old version was started again.

    Attributes:
        deployment_id: its own, or that of its code deployed again.
        bad_batches: first and last batch of each query that the given-up version committed: its output.
        begun_batches: the batch of each query that it had started and not committed: the returned version runs it again
            over the same bounds, or has undone it.
    """

    deployment_id: DeploymentId
    bad_batches: Mapping[QueryName, tuple[int, ...]]
    begun_batches: Mapping[QueryName, int]


WayBack = Union[NewGivenUp, CancelledByUser, OldRehearsed, WayDecided, Returning, NewOrdered, OldReturned]


@dataclass(frozen=True)
class UpgradeResult(Tagged):
    """The facts at the end; the phase of the step is the outcome.

    Attributes:
        refused_plan: the plan that was the reason of a refusal; None otherwise.
        stream_state: the state in which a refusal leaves the stream; None where unknown, or not refused.
        cancelled_by: the user that cancelled it, if that is why it ended, or went back; None otherwise.
        audit_ok: whether the lineage was whole; None where the stream was not touched, or it is unknown.
        not_running_seconds: how long no query of the stream ran while it was moved, the rollback included; None where
            unknown.
        downtimes: per query, the rollback included.
        bad_batches: as in ``OldReturned``, and those that were undone in the sinks.
        warnings: about a version that was kept, in sentences.
    """

    refused_plan: UpgradePlan | None
    stream_state: str | None
    cancelled_by: str | None
    audit_ok: bool | None
    not_running_seconds: Seconds | None
    downtimes: tuple[Downtime, ...]
    bad_batches: Mapping[QueryName, tuple[int, ...]]
    warnings: tuple[str, ...]


Decision = Union[Preparation, Takeover, WayBack, UpgradeResult]


@message
@dataclass(frozen=True)
class UpgradeStep(Message):
    """One step of an upgrade.

    Attributes:
        number: from 1.
        phase: what holds from now on.
        text: human-readable, one line.
        decision: what is decided with it; None where the phase suffices. The last one is an ``UpgradeResult``.
    """

    is_signed: ClassVar[bool] = True

    stream_id: StreamId
    upgrade_id: UpgradeId
    number: int
    phase: Phase
    taken_at: datetime
    taken_by: str
    write_id: str
    text: str = ""
    decision: Decision | None = None


@message
@dataclass(frozen=True)
class Approval(Message):
    """A person's decision about the plan of an upgrade; the first one counts."""

    is_signed: ClassVar[bool] = True

    stream_id: StreamId
    upgrade_id: UpgradeId
    is_approved: bool
    given_by: str
    given_at: datetime
    write_id: str
    reason: str = ""


@message
@dataclass(frozen=True)
class Cancellation(Message):
    """A request to cancel an upgrade: before the stop nothing happens; after it, ``after_stop`` is done."""

    is_signed: ClassVar[bool] = True

    stream_id: StreamId
    upgrade_id: UpgradeId
    after_stop: AfterStop
    cancelled_by: str
    cancelled_at: datetime
    write_id: str
    reason: str = ""


@message
@dataclass(frozen=True)
class UpgradeLease(Message):
    """A beacon: a task or a shell drives an upgrade until ``until_at``, which it moves on while it lives.

    Attributes:
        held_by: the task, the shell, or another caller that has taken over the upgrade.
        until_at: by the clock of the one that wrote it. Later than this, watchers bring the upgrade to its end, and one
            that has not touched the stream blocks nothing.
        seconds: how long it lasts after this write: a reader whose clock differs sees it unchanged for this long. 0: it
            was given back, so that nobody drives the upgrade.
    """

    is_signed: ClassVar[bool] = True

    stream_id: StreamId
    upgrade_id: UpgradeId
    held_by: str
    until_at: datetime
    write_id: str
    seconds: Seconds
