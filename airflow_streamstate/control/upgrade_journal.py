"""The upgrades of one stream: the requests, and the journal of their steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime, timedelta

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import DataError, InvalidRequestError, ObjectExistsError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.ids import check_id, is_upgrade_id
from airflow_streamstate.protocol.positions import Downtime, QueryBeat
from airflow_streamstate.protocol.terms.order import UpgradeMode
from airflow_streamstate.protocol.upgrades import (
    BEFORE_THE_STOP,
    OVER,
    Approval,
    Cancellation,
    CancelledByUser,
    Decision,
    DriverChoice,
    DriverWaits,
    NewDeployed,
    NewGivenUp,
    NewOrdered,
    NewRehearsed,
    NoStandby,
    OldEnded,
    OldOrdered,
    OldRehearsed,
    Phase,
    Planned,
    PlanVerdict,
    Preparation,
    QueriesStarted,
    Ready,
    Returning,
    ReturnWay,
    Standby,
    Stopping,
    Takeover,
    Upgrade,
    UpgradeLease,
    UpgradePlan,
    UpgradeResult,
    UpgradeStep,
    WayBack,
    WayDecided,
)

ABANDONED = "the caller that drove it is gone"
"""The reason of the cancellation of an upgrade that nobody drives any more."""
LOST_CLAIM = "another upgrade had the stream first"
"""The reason of the cancellation of an upgrade that was recorded, and never held the stream."""
OWN_REQUEST = "restart-"
"""The prefix of the request ids of rollbacks that watchers have started; any watcher drives them."""
LEASE_SECONDS = 120.0
"""A caller that drives an upgrade counts as gone this long after its last sign of life."""


@dataclass(frozen=True)
class UpgradeState:
    """The state of an upgrade: the sum of its steps.

    Attributes:
        last: the newest step.
        since: when each phase was first entered.
        phase_since: when the current phase was entered.
        plan: None before it is known.
        mode: how the state is handed over; None before the plan is accepted.
        rehearsal_id: the newest rehearsal of the version that is to come, or to come back; None before the first.
        driver: who runs the version that takes over, or comes back; None before that is decided.
        standby: the driver that is kept ready for the rollback, or why none is; None if that is not decided, or not
            asked for.
        old_beats: the old version's queries and their trend before it was ordered to end; None before.
        command_id: of the order that ends the old version; None before it.
        bad_command_id: of the order that ends a version that is abandoned; None before it.
        snapshot_id: the handover: where the old version ended; None where unknown.
        new_deployment_id: the new version's; None before it is deployed.
        returned_deployment_id: that of the old version when it came back; None before.
        way: how it comes back; None before that is decided.
        is_way_decided: the rollback is decided, since its last rehearsal.
        has_begun: each query of the new version has started.
        bad_batches, begun_batches: as in ``OldReturned``; empty before.
        not_running_seconds, downtimes: so far; None and empty where unknown.
        cancelled_by: the user that cancelled it, if that is why it ended, or goes back; None otherwise.
        result: None before its end.
    """

    upgrade: Upgrade
    last: UpgradeStep
    since: Mapping[Phase, datetime]
    phase_since: datetime
    plan: UpgradePlan | None = None
    mode: UpgradeMode | None = None
    rehearsal_id: str | None = None
    driver: DriverChoice | None = None
    standby: Standby | NoStandby | None = None
    old_beats: Mapping[str, QueryBeat] | None = None
    command_id: str | None = None
    bad_command_id: str | None = None
    snapshot_id: str | None = None
    new_deployment_id: str | None = None
    returned_deployment_id: str | None = None
    way: ReturnWay | None = None
    is_way_decided: bool = False
    has_begun: bool = False
    bad_batches: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    begun_batches: Mapping[str, int] = field(default_factory=dict)
    not_running_seconds: float | None = None
    downtimes: tuple[Downtime, ...] = ()
    cancelled_by: str | None = None
    result: UpgradeResult | None = None

    @property
    def phase(self) -> Phase:
        return self.last.phase

    @property
    def text(self) -> str:
        """The text of the newest step, human-readable."""
        return self.last.text

    @property
    def verdict(self) -> PlanVerdict | None:
        """Of the plan; None before it is known."""
        return None if self.plan is None else self.plan.verdict

    @property
    def report(self) -> Mapping[str, object]:
        """Of the plan; empty before it is known."""
        return {} if self.plan is None else self.plan.report

    @property
    def audit_ok(self) -> bool | None:
        """Whether the lineage was whole at the end; None before, and where it is unknown."""
        return None if self.result is None else self.result.audit_ok

    @property
    def warnings(self) -> tuple[str, ...]:
        """About a version that was kept."""
        return () if self.result is None else self.result.warnings

    @property
    def result_so_far(self) -> UpgradeResult:
        """What is known of the facts at the end."""
        return UpgradeResult(
            refused_plan=None,
            stream_state=None,
            cancelled_by=self.cancelled_by,
            audit_ok=None,
            not_running_seconds=self.not_running_seconds,
            downtimes=self.downtimes,
            bad_batches=self.bad_batches,
            warnings=(),
        )

    @property
    def standby_id(self) -> str | None:
        """The rehearsal whose driver is kept ready for the rollback; None without one."""
        return self.standby.rehearsal_id if isinstance(self.standby, Standby) else None

    @property
    def is_cancelled(self) -> bool:
        """Whether it ends, or goes back, because a user cancelled it."""
        return self.cancelled_by is not None

    @property
    def phase_for_people(self) -> str:
        """The name of the phase; nothing that a user asked for is called unhealthy or refused."""
        if self.phase == "unhealthy" and (self.is_cancelled or self.upgrade.asked == "rollback"):
            return "going back"
        return "cancelled" if self.phase == "refused" and self.is_cancelled else self.phase

    @property
    def is_over(self) -> bool:
        return self.phase in OVER

    @property
    def has_touched_nothing(self) -> bool:
        """Whether the stream runs as before, so that the upgrade can end without any effect."""
        if self.upgrade.asked == "rollback":
            return not self.is_over and "returning" not in self.since
        return self.phase in BEFORE_THE_STOP


@dataclass(frozen=True)
class Owner:
    """Who drives an upgrade, by the last sign of life.

    Attributes:
        sign: another one for each sign of life.
        until_at: how long this sign counts, by the clock of the one that gave it.
        seconds: the same from when it was given; 0: the owner has left the upgrade.
    """

    name: str
    sign: str
    until_at: datetime
    seconds: float

    def is_gone(self, now: datetime) -> bool:
        """Whether it counts as gone, by the clocks."""
        return not self.seconds or now > self.until_at

    def is_gone_after(self, unchanged_seconds: float) -> bool:
        """Whether it counts as gone for a reader that has seen the same sign for this long; needs no equal clocks."""
        return unchanged_seconds >= self.seconds


def state_of(upgrade: Upgrade, steps: Sequence[UpgradeStep]) -> UpgradeState:
    """The sum of the steps of an upgrade; there is at least one."""
    first = steps[0]
    state = UpgradeState(upgrade, first, {}, first.taken_at)
    for step in steps:
        since = state.since if step.phase in state.since else {**state.since, step.phase: step.taken_at}
        phase_since = state.phase_since if step.phase == state.phase else step.taken_at
        state = _with(replace(state, last=step, since=since, phase_since=phase_since), step.decision)
    return state


def _with(state: UpgradeState, decision: Decision | None) -> UpgradeState:
    if decision is None:
        return state
    if isinstance(decision, UpgradeResult):
        return replace(
            state,
            plan=decision.refused_plan or state.plan,
            cancelled_by=decision.cancelled_by,
            not_running_seconds=decision.not_running_seconds,
            downtimes=decision.downtimes,
            bad_batches=decision.bad_batches,
            result=decision,
        )
    if isinstance(decision, (NewRehearsed, Planned, Standby, NoStandby, Ready)):
        return _prepared(state, decision)
    if isinstance(decision, (Stopping, OldOrdered, OldEnded, NewDeployed, QueriesStarted)):
        return _taken_over(state, decision)
    return _going_back(state, decision)


def _prepared(state: UpgradeState, made: Preparation) -> UpgradeState:
    if isinstance(made, NewRehearsed):
        return replace(state, rehearsal_id=made.rehearsal_id)
    if isinstance(made, Planned):
        return replace(state, plan=made.plan, mode=made.mode)
    if isinstance(made, (Standby, NoStandby)):
        return replace(state, standby=made)
    return replace(state, driver=made.driver)


def _taken_over(state: UpgradeState, made: Takeover) -> UpgradeState:
    if isinstance(made, Stopping):
        return replace(state, old_beats=made.old_beats)
    if isinstance(made, OldOrdered):
        return replace(state, command_id=made.command_id)
    if isinstance(made, OldEnded):
        return replace(state, snapshot_id=made.snapshot_id)
    if isinstance(made, NewDeployed):
        return replace(state, new_deployment_id=made.deployment_id, snapshot_id=made.snapshot_id or state.snapshot_id)
    seconds, downtimes = made.not_running_seconds, made.downtimes
    return replace(state, has_begun=True, not_running_seconds=seconds, downtimes=downtimes)


def _going_back(state: UpgradeState, made: WayBack) -> UpgradeState:
    if isinstance(made, NewGivenUp):
        return replace(state, new_deployment_id=made.deployment_id)
    if isinstance(made, CancelledByUser):
        return replace(state, cancelled_by=made.cancelled_by, new_deployment_id=made.deployment_id)
    if isinstance(made, OldRehearsed):
        return replace(state, rehearsal_id=made.rehearsal_id, is_way_decided=False)
    if isinstance(made, WayDecided):
        return replace(state, way=made.way, rehearsal_id=made.rehearsal_id, is_way_decided=True)
    if isinstance(made, Returning):
        newest_id = made.driver.rehearsal_id if isinstance(made.driver, DriverWaits) else state.rehearsal_id
        return replace(state, way=made.way, driver=made.driver, rehearsal_id=newest_id)
    if isinstance(made, NewOrdered):
        return replace(state, bad_command_id=made.command_id)
    bad, begun = made.bad_batches, made.begun_batches
    return replace(state, returned_deployment_id=made.deployment_id, bad_batches=bad, begun_batches=begun)


def rehearsal_ids_in(steps: Iterable[UpgradeStep]) -> set[str]:
    """The rehearsals that steps name, except those whose driver is only kept ready for the rollback."""
    found = set()
    for step in steps:
        named = step.decision.driver if isinstance(step.decision, Returning) else step.decision
        if isinstance(named, (NewRehearsed, OldRehearsed, WayDecided, DriverWaits)):
            found.add(named.rehearsal_id)
    return found


class UpgradeJournal:
    """The records of the upgrades of a stream."""

    def __init__(self, control: StreamControl) -> None:
        self._control = control
        self._cells = control.cells
        self._stream_id = control.stream_id

    def ids(self) -> list[str]:
        """Every upgrade that has a folder, sorted."""
        names = self._cells.store.list_folders(layout.upgrades_folder(self._stream_id))
        return list(filter(is_upgrade_id, names))

    def create(self, upgrade: Upgrade) -> None:
        """Record an upgrade; raises ObjectExistsError where it is recorded already."""
        self._cells.create(layout.upgrade_key(self._stream_id, upgrade.upgrade_id), upgrade)

    def upgrade(self, upgrade_id: str) -> Upgrade | None:
        check_id(upgrade_id, "upgrade id")
        key = layout.upgrade_key(self._stream_id, upgrade_id)
        return self._cells.value(key, Upgrade, stream_id=self._stream_id, upgrade_id=upgrade_id)

    def state(self, upgrade_id: str) -> UpgradeState | None:
        """The state of an upgrade; None if it was not started.

        Raises:
            DataError: a step of it cannot be read.
        """
        upgrade = self.upgrade(upgrade_id)
        steps = [] if upgrade is None else self.steps(upgrade_id)
        return state_of(upgrade, steps) if upgrade is not None and steps else None

    def need_state(self, upgrade_id: str) -> UpgradeState:
        """The state of an upgrade.

        Raises:
            InvalidRequestError: there is no such upgrade.
        """
        state = self.state(upgrade_id)
        if state is None:
            raise InvalidRequestError(
                "this stream has no such upgrade",
                stream_id=self._stream_id,
                upgrade_id=upgrade_id,
                next_step="`streamstate status` names the one that is under way.",
            )
        return state

    def steps(self, upgrade_id: str) -> list[UpgradeStep]:
        """The steps of an upgrade, in order; raises DataError where one cannot be read."""
        found = []
        for info in self._cells.store.list_objects(layout.upgrade_steps_prefix(self._stream_id, upgrade_id)):
            step = self._cells.listed(info, UpgradeStep, stream_id=self._stream_id, upgrade_id=upgrade_id)
            if step is not None:
                found.append(step)
        return found

    def take(self, step: UpgradeStep) -> bool:
        """Record a step; False where another controller took the step of this number."""
        try:
            self._cells.create(layout.upgrade_step_key(self._stream_id, step.upgrade_id, step.number), step)
        except ObjectExistsError:
            return False
        return True

    def is_under_way(self, upgrade_id: str | None) -> bool:
        """Whether this upgrade was started and has not ended; an unreadable one counts as under way."""
        if upgrade_id is None:
            return False
        try:
            state = self.state(upgrade_id)
        except DataError:
            return True
        return state is not None and not state.is_over

    def hold(self, lease: UpgradeLease) -> None:
        """Write until when a caller drives an upgrade; the last write counts."""
        self._cells.put(layout.upgrade_lease_key(self._stream_id, lease.upgrade_id), lease)

    def lease(self, upgrade_id: str) -> UpgradeLease | None:
        """Until when a caller drives an upgrade; None if no caller has recorded it, or the record cannot be read."""
        key = layout.upgrade_lease_key(self._stream_id, upgrade_id)
        try:
            return self._cells.value(key, UpgradeLease, stream_id=self._stream_id, upgrade_id=upgrade_id)
        except DataError:
            return None

    def release(self, upgrade_id: str, held_by: str) -> None:
        """Record that nobody drives an upgrade from now on; ``held_by``: who did, where no lease names it."""
        lease, now, write_id = self.lease(upgrade_id), self._cells.clock.now(), self._cells.clock.new_uuid()
        if lease is None:
            self.hold(UpgradeLease(self._stream_id, upgrade_id, held_by, now, write_id, 0.0))
        elif lease.seconds != 0.0:
            self.hold(replace(lease, until_at=now, write_id=write_id, seconds=0.0))

    def prolong(self, upgrade_id: str, seconds: float) -> None:
        """Let the lease end this long from now, in the name of its holder, unless it has ended or was given back."""
        lease, now = self.lease(upgrade_id), self._cells.clock.now()
        if lease is None or lease.seconds == 0.0 or now > lease.until_at:
            return
        until_at, write_id = now + timedelta(seconds=seconds), self._cells.clock.new_uuid()
        self.hold(replace(lease, until_at=until_at, write_id=write_id, seconds=seconds))

    def owner(self, state: UpgradeState) -> Owner | None:
        """Who drives an upgrade; None if nobody has to.

        Nobody has to where it has ended, any watcher drives it, or a person has to answer first. Where no lease was
        ever written, each step is a sign of life.
        """
        upgrade, last = state.upgrade, state.last
        if state.is_over or upgrade.request_id.startswith(OWN_REQUEST) or self.waits_for_a_person(state):
            return None
        lease = self.lease(upgrade.upgrade_id)
        if lease is None:
            until_at = last.taken_at + timedelta(seconds=LEASE_SECONDS)
            return Owner(last.taken_by, last.write_id, until_at, LEASE_SECONDS)
        return Owner(lease.held_by, lease.write_id, lease.until_at, lease.seconds)

    def waits_for_a_person(self, state: UpgradeState) -> bool:
        """Whether nothing happens until a person approves or rejects the plan, or cancels."""
        upgrade = state.upgrade
        if state.phase != "planned" or not upgrade.terms.waits_for_approval:
            return False
        return self.approval(upgrade.upgrade_id) is None and self.cancellation(upgrade.upgrade_id) is None

    def abandoned_lease(self, state: UpgradeState) -> UpgradeLease | None:
        """The expired lease of a task's upgrade that has touched nothing; None otherwise."""
        if not (state.has_touched_nothing and state.upgrade.ends_untouched):
            return None
        lease = self.lease(state.upgrade.upgrade_id)
        if lease is None:
            return None
        return lease if lease.seconds == 0.0 or self._cells.clock.now() > lease.until_at else None

    def end_abandoned(self, upgrade_id: str) -> bool:
        """End an upgrade whose task is gone before it touched the stream, so that it blocks nothing.

        Returns whether it has ended. Its next step is recorded, as any end is, so that a task that comes back finds it
        over. If the task has taken another step in the meantime, that one counts and nothing is recorded. The
        cancellation shows the task's next try that this end was no answer, so it is written after the step.
        """
        try:
            state = self.state(upgrade_id)
        except DataError:
            return False
        lease = None if state is None else self.abandoned_lease(state)
        if state is None or lease is None:
            return state is None or state.is_over
        clock = self._cells.clock
        moment = clock.now()
        is_ended = self.take(
            UpgradeStep(
                stream_id=self._stream_id,
                upgrade_id=upgrade_id,
                number=state.last.number + 1,
                phase="refused",
                taken_at=moment,
                taken_by=lease.held_by,
                write_id=clock.new_uuid(),
                text=f"{ABANDONED}: {lease.held_by} reported nothing after {format_time(lease.until_at)}; nothing has"
                " happened to the stream",
                decision=replace(state.result_so_far, cancelled_by=lease.held_by),
            )
        )
        if is_ended:
            self.cancel(
                Cancellation(
                    self._stream_id, upgrade_id, "finish", lease.held_by, moment, clock.new_uuid(), reason=ABANDONED
                )
            )
        return not self.is_under_way(upgrade_id)

    def approve(self, approval: Approval) -> Approval:
        """Record a person's decision; returns the first one."""
        key = layout.approval_key(self._stream_id, approval.upgrade_id)
        try:
            self._cells.create(key, approval)
        except ObjectExistsError:
            return self.approval(approval.upgrade_id) or approval
        return approval

    def approval(self, upgrade_id: str) -> Approval | None:
        key = layout.approval_key(self._stream_id, upgrade_id)
        return self._cells.value(key, Approval, stream_id=self._stream_id, upgrade_id=upgrade_id)

    def cancel(self, cancellation: Cancellation) -> Cancellation:
        """Record a cancellation; returns the first one."""
        key = layout.cancellation_key(self._stream_id, cancellation.upgrade_id)
        try:
            self._cells.create(key, cancellation)
        except ObjectExistsError:
            return self.cancellation(cancellation.upgrade_id) or cancellation
        return cancellation

    def cancellation(self, upgrade_id: str) -> Cancellation | None:
        key = layout.cancellation_key(self._stream_id, upgrade_id)
        return self._cells.value(key, Cancellation, stream_id=self._stream_id, upgrade_id=upgrade_id)
