"""Upgrades: what was asked for, the steps that were taken, and what people said meanwhile.

An upgrade is one record, and a journal of steps of which each is written before the act that it is about. Whoever reads
both can go on with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from airflow_streamstate.protocol.codec import Message, message
from airflow_streamstate.protocol.downtimes import Downtime
from airflow_streamstate.protocol.heartbeat import QueryBeat

UpgradeKind = Literal["upgrade", "rollback"]
UpgradeMode = Literal["auto", "restore", "drain", "fresh"]
ReturnWay = Literal["resume", "handover", "forward", "undo"]
AfterStop = Literal["finish", "rollback"]
Phase = Literal[
    "begun", "rehearsing", "planned", "waiting", "ready", "stopping", "ended", "started",
    "unhealthy", "trying", "returning", "returned", "upgraded", "rolled_back", "refused", "failed",
]  # fmt: skip
OVER: frozenset[Phase] = frozenset({"upgraded", "rolled_back", "refused", "failed"})
WAITS = "waits"
"""Of a step: the driver that was rehearsed waits to take over."""
BEFORE_THE_STOP: frozenset[Phase] = frozenset({"begun", "rehearsing", "planned", "waiting", "ready"})
"""Phases in which nothing has happened to the stream."""


@dataclass(frozen=True)
class HealthyWhen:
    """When a new version has proven itself.

    Attributes:
        batches: that every query must have committed past the handover; a query that finds no input is taken for one
            that would.
        within_seconds: from its launch.
        caught_up: nothing may be left to read, as far as each source can tell or by a trigger that found no input, or
            no more than the version before had left. Else a version that is only slower is kept.
        roll_back_if_slower: give a version up that cannot keep up with its input, and reads less than one in so many of
            what the version before read in the same time; None to keep it, with a warning.
    """

    batches: int = 3
    within_seconds: float = 300.0
    caught_up: bool = False
    roll_back_if_slower: float | None = None


@message
@dataclass(frozen=True)
class Upgrade(Message):
    """An upgrade, or a rollback, as it was asked for; written before anything else of it.

    What is to run is its ``DeploymentSpec``, under the same keys as that of a deployment.

    Attributes:
        asked: an upgrade to another version, or a rollback to the one before.
        old_deployment_id: the deployment that was current when it was asked for.
        allow_drain: ``auto`` may drain where the state does not fit.
        runs_batches: the rehearsal runs an empty batch of each query on a fork of its state; else plans alone count.
        warm: the driver that takes over is launched before the other one is stopped, and waits; on the way back, too.
        needs_approval: a person has to say yes to the plan first.
        accept_hazards: a plan that is ``hazardous`` is wanted as it is.
        rehearsal_within_seconds: how long it may take.
        way: of a rollback; None for the first that is exact.
        undo_command: undoes what a ``foreachBatch`` wrote.
        accepts_duplicates: rows may come twice on sinks that cannot be undone.
        to_snapshot_id: of a rollback, by name: where it goes back to; None for where the current deployment had begun.
    """

    stream_id: str
    upgrade_id: str
    asked: UpgradeKind
    old_deployment_id: str
    mode: UpgradeMode
    request_id: str
    request_digest: str
    requested_by: str
    reason: str
    created_at: datetime
    write_id: str
    healthy_when: HealthyWhen = field(default_factory=HealthyWhen)
    allow_drain: bool = False
    runs_batches: bool = True
    warm: bool = True
    needs_approval: bool = False
    accept_hazards: bool = False
    rehearsal_within_seconds: float = 300.0
    discard_state: bool = False
    fresh_queries: tuple[str, ...] = ()
    accept_lost_input: tuple[str, ...] = ()
    way: ReturnWay | None = None
    undo_command: tuple[str, ...] = ()
    accepts_duplicates: bool = False
    to_snapshot_id: str | None = None


@message
@dataclass(frozen=True)
class UpgradeStep(Message):
    """One step of an upgrade. What a later step does not say stays as an earlier one said it.

    Attributes:
        number: from 1.
        phase: what holds from now on.
        taken_by: whoever took it.
        text: for people, one line.
        rehearsal_id: of the version that is to come, or to come back.
        mode: in which way the state is handed over; never ``auto``.
        verdict, report: of the plan.
        command_id: the order that ends the old version.
        bad_command_id: the order that ends a new version that is given up.
        snapshot_id: the handover: where the old version ended.
        new_deployment_id: the new version's.
        returned_deployment_id: the old version's, when it came back.
        way: how it comes back: ``resume``: nothing of the new version ever ran; ``handover``: it committed nothing;
            ``forward``: from its last commit; ``undo``: from the handover, with the sinks undone.
        bad_batches: first and last batch of each query that the version that was given up committed: its output.
        begun_batches: the batch of each query that it had begun and not committed: the version that came back runs it
            again over the same bounds, or has undone it. Versions before this field counted it to ``bad_batches``.
        first_beats: how the new version's queries stood when it had begun.
        old_beats: how the old version's queries stood, and went, before it was told to end.
        gap_seconds: as earlier releases wrote ``not_running_seconds``; not written any more.
        not_running_seconds: how long no query of the stream ran while it was moved, the way back included.
        downtimes: per query, from the last commit of one deployment to the first commit of the next, the way back
            included; None where they could not be read.
        audit_ok: whether the chain of custody was whole at the end.
        cancelled_by: who called it off, where that is why it comes to its end, or goes back.
        is_decided: in the phase ``trying``: the way back is decided on, and a driver for it is to come up.
        driver: which driver takes over: ``waits``: the one that was rehearsed, warm; else one that is launched after
            the stop, and why none waits; "" where there is nothing to say of it.
        warnings: what a person should know of a version that was kept, in sentences.
    """

    stream_id: str
    upgrade_id: str
    number: int
    phase: Phase
    taken_at: datetime
    taken_by: str
    write_id: str
    text: str = ""
    rehearsal_id: str | None = None
    mode: UpgradeMode | None = None
    verdict: str | None = None
    report: Mapping[str, object] | None = None
    command_id: str | None = None
    bad_command_id: str | None = None
    snapshot_id: str | None = None
    new_deployment_id: str | None = None
    returned_deployment_id: str | None = None
    way: ReturnWay | None = None
    bad_batches: Mapping[str, tuple[int, ...]] | None = None
    begun_batches: Mapping[str, int] | None = None
    first_beats: Mapping[str, QueryBeat] | None = None
    gap_seconds: float | None = None
    audit_ok: bool | None = None
    cancelled_by: str | None = None
    not_running_seconds: float | None = None
    downtimes: tuple[Downtime, ...] | None = None
    is_decided: bool | None = None
    driver: str | None = None
    old_beats: Mapping[str, QueryBeat] | None = None
    warnings: tuple[str, ...] | None = None


@message
@dataclass(frozen=True)
class Approval(Message):
    """What a person said to the plan of an upgrade; the first word counts."""

    stream_id: str
    upgrade_id: str
    is_approved: bool
    given_by: str
    given_at: datetime
    write_id: str
    reason: str = ""


@message
@dataclass(frozen=True)
class Cancellation(Message):
    """An upgrade that is not wanted any more: before the stop nothing happens; after it, ``after_stop`` is done."""

    stream_id: str
    upgrade_id: str
    after_stop: AfterStop
    cancelled_by: str
    cancelled_at: datetime
    write_id: str
    reason: str = ""


@message
@dataclass(frozen=True)
class UpgradeLease(Message):
    """A beacon: an Airflow task drives an upgrade, until a moment that it moves on while it lives.

    Attributes:
        held_by: the task, or another caller that has gone on with its upgrade.
        until_at: later than this, an upgrade that has not touched the stream holds nothing up.
    """

    stream_id: str
    upgrade_id: str
    held_by: str
    until_at: datetime
    write_id: str
