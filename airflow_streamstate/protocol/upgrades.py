"""Upgrades: the request, the steps taken, and what people decided.

An upgrade is one record and a journal of steps, each written before its act; any controller that reads both can go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Literal

from airflow_streamstate.protocol.codec import Message, message
from airflow_streamstate.protocol.downtimes import Downtime
from airflow_streamstate.protocol.fields import (
    DeploymentId,
    QueryName,
    RehearsalId,
    RehearsalIdOrNone,
    Seconds,
    SnapshotId,
    StreamId,
    UpgradeId,
)
from airflow_streamstate.protocol.heartbeat import QueryBeat
from airflow_streamstate.protocol.records import StateRewrite
from airflow_streamstate.protocol.terms.declaration import values_of
from airflow_streamstate.protocol.terms.start import HandoverTerms
from airflow_streamstate.protocol.terms.upgrade import RollbackTerms, TakeoverTerms, UpgradeMode, UpgradeTerms
from airflow_streamstate.protocol.terms.version import Version

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
WAITS = "waits"
"""``UpgradeStep.driver``: the rehearsed driver waits to take over."""
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
            its task begins anew. Else it is finished.
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
        """The terms of its way back; of an upgrade those that it has in common with a rollback, and its defaults."""
        return self.rollback_terms or RollbackTerms(**values_of(TakeoverTerms, self.upgrade_terms))


@message
@dataclass(frozen=True)
class UpgradeStep(Message):
    """One step of an upgrade. A field that a later step leaves out keeps the value of an earlier one.

    Attributes:
        number: from 1.
        phase: what holds from now on.
        text: for people, one line.
        rehearsal_id: of the version that is to come, or to come back.
        mode: how the state is handed over; never ``auto``.
        verdict, report: of the plan.
        command_id: the command that ends the old version.
        bad_command_id: the command that ends a new version that is given up.
        snapshot_id: the handover: where the old version ended.
        new_deployment_id: the new version's.
        returned_deployment_id: the old version's, when it came back.
        way: how it comes back: ``resume``: nothing of the new version ever ran; ``handover``: it committed nothing;
            ``forward``: from its last commit; ``undo``: from the handover, with the sinks undone.
        bad_batches: first and last batch of each query that the given-up version committed: its output.
        begun_batches: the batch of each query that it had begun and not committed: the returned version runs it again
            over the same bounds, or has undone it. Versions before this field counted it in ``bad_batches``.
        first_beats: the new version's queries when it began.
        old_beats: the old version's queries and their trend before it was told to end.
        gap_seconds: as earlier releases wrote ``not_running_seconds``; not written any more.
        not_running_seconds: how long no query of the stream ran while it was moved, the way back included.
        downtimes: per query, the way back included; None where they could not be read.
        audit_ok: whether the chain of custody was whole at the end.
        cancelled_by: the user that cancelled it, where that is why it ends, or goes back.
        is_decided: in the phase ``trying``: the way back is decided, and a driver for it is coming up.
        driver: ``waits``: the rehearsed driver takes over, warm; else why a new one is launched after the stop; "" for
            no remark.
        warnings: about a version that was kept, in sentences.
        standby_rehearsal_id: the rehearsal of the old version whose driver is kept ready for the way back; "" where
            none is.
        stream_state: of a refusal: the state in which it leaves the stream; "" or None where unknown.
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
    rehearsal_id: RehearsalId | None = None
    mode: UpgradeMode | None = None
    verdict: PlanVerdict | None = None
    report: Mapping[str, object] | None = None
    command_id: str | None = None
    bad_command_id: str | None = None
    snapshot_id: SnapshotId | None = None
    new_deployment_id: DeploymentId | None = None
    returned_deployment_id: DeploymentId | None = None
    way: ReturnWay | None = None
    bad_batches: Mapping[QueryName, tuple[int, ...]] | None = None
    begun_batches: Mapping[QueryName, int] | None = None
    first_beats: Mapping[QueryName, QueryBeat] | None = None
    gap_seconds: Seconds | None = None
    audit_ok: bool | None = None
    cancelled_by: str | None = None
    not_running_seconds: Seconds | None = None
    downtimes: tuple[Downtime, ...] | None = None
    is_decided: bool | None = None
    driver: str | None = None
    old_beats: Mapping[QueryName, QueryBeat] | None = None
    warnings: tuple[str, ...] | None = None
    standby_rehearsal_id: RehearsalIdOrNone | None = None
    stream_state: str | None = None


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
        held_by: the task, the shell, or another caller that has gone on with the upgrade.
        until_at: by the clock of the one that wrote it. Later than this, watchers bring the upgrade to its end, and one
            that has not touched the stream blocks nothing.
        seconds: how long it lasts after this write: a reader whose clock differs sees it unchanged for so long. 0: it
            was given back, so that nobody drives the upgrade.
    """

    is_signed: ClassVar[bool] = True

    stream_id: StreamId
    upgrade_id: UpgradeId
    held_by: str
    until_at: datetime
    write_id: str
    seconds: Seconds
