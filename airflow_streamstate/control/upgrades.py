"""The upgrades of one stream: what was asked for, and the journal of the steps that were taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import DataError, InvalidRequestError, ObjectExistsError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.ids import check_id, is_upgrade_id
from airflow_streamstate.protocol.upgrades import (
    BEFORE_THE_STOP,
    OVER,
    Approval,
    Cancellation,
    Phase,
    Upgrade,
    UpgradeLease,
    UpgradeStep,
)

ABANDONED = "the caller that drove it is gone"
"""The reason of a cancellation that another command records, of an upgrade whose lease ran out before its stop."""
LOST_CLAIM = "another upgrade had the stream first"
"""The reason of a cancellation of an upgrade that was recorded, and never came to hold the stream."""


@dataclass(frozen=True)
class UpgradeState:
    """Where an upgrade stands: the sum of its steps.

    Attributes:
        upgrade: as it was asked for.
        last: the newest step; of what it does not say itself, what the steps before it said.
        since: when each phase was first entered.
        phase_since: when the phase of now was entered.
    """

    upgrade: Upgrade
    last: UpgradeStep
    since: dict[Phase, datetime]
    phase_since: datetime

    @property
    def phase(self) -> Phase:
        """What holds now."""
        return self.last.phase

    @property
    def is_cancelled(self) -> bool:
        """Whether it came to its end, or goes back, because somebody called it off."""
        return self.last.cancelled_by is not None

    @property
    def phase_for_people(self) -> str:
        """The phase by its name, but that nothing is called unhealthy, or refused, because somebody asked for it."""
        if self.phase == "unhealthy" and (self.is_cancelled or self.upgrade.asked == "rollback"):
            return "going back"
        return "cancelled" if self.phase == "refused" and self.is_cancelled else self.phase

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is still to be done."""
        return self.phase in OVER

    @property
    def has_touched_nothing(self) -> bool:
        """Whether the stream runs as before, so that the upgrade can end as if it had never been asked for."""
        if self.upgrade.asked == "rollback":
            return not self.is_over and "returning" not in self.since
        return self.phase in BEFORE_THE_STOP


def state_of(upgrade: Upgrade, steps: Sequence[UpgradeStep]) -> UpgradeState:
    """The sum of the steps of an upgrade, of which there is at least one."""
    since: dict[Phase, datetime] = {}
    phase_since, said = steps[0].taken_at, dict[str, object]()
    for before, step in zip((None, *steps), steps, strict=False):
        since.setdefault(step.phase, step.taken_at)
        if before is None or before.phase != step.phase:
            phase_since = step.taken_at
        said |= {each.name: value for each in fields(step) if (value := getattr(step, each.name)) is not None}
    return UpgradeState(upgrade, UpgradeStep(**said), since, phase_since)  # type: ignore[arg-type]


class UpgradeJournal:
    """The records of the upgrades of a stream.

    Args:
        control: the stream.
    """

    def __init__(self, control: StreamControl) -> None:
        self._control = control
        self._cells = control.cells
        self._stream_id = control.stream_id

    def ids(self) -> list[str]:
        """Every upgrade of which anything is recorded, sorted."""
        names = self._cells.store.list_folders(layout.upgrades_folder(self._stream_id))
        return list(filter(is_upgrade_id, names))

    def create(self, upgrade: Upgrade) -> None:
        """Record an upgrade; raises ObjectExistsError where it is recorded already."""
        self._cells.create(layout.upgrade_key(self._stream_id, upgrade.upgrade_id), upgrade)

    def upgrade(self, upgrade_id: str) -> Upgrade | None:
        """An upgrade as it was asked for; None where there is none."""
        check_id(upgrade_id, "upgrade id")
        key = layout.upgrade_key(self._stream_id, upgrade_id)
        stored = self._cells.read(key, Upgrade, stream_id=self._stream_id, upgrade_id=upgrade_id)
        return None if stored is None else stored.value

    def state(self, upgrade_id: str) -> UpgradeState | None:
        """Where an upgrade stands; None where it is not begun.

        Raises:
            DataError: a step of it cannot be read.
        """
        upgrade = self.upgrade(upgrade_id)
        steps = [] if upgrade is None else self.steps(upgrade_id)
        return state_of(upgrade, steps) if upgrade is not None and steps else None

    def need_state(self, upgrade_id: str) -> UpgradeState:
        """Where an upgrade stands.

        Raises:
            InvalidRequestError: there is none.
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
            stored = self._cells.read(info.key, UpgradeStep, stream_id=self._stream_id, upgrade_id=upgrade_id)
            if stored is not None:
                found.append(stored.value)
        return found

    def take(self, step: UpgradeStep) -> bool:
        """Record a step; False where another took the step of this number."""
        try:
            self._cells.create(layout.upgrade_step_key(self._stream_id, step.upgrade_id, step.number), step)
        except ObjectExistsError:
            return False
        return True

    def is_under_way(self, upgrade_id: str | None) -> bool:
        """Whether this upgrade is begun and not over; one that cannot be read is taken for under way."""
        if upgrade_id is None:
            return False
        try:
            state = self.state(upgrade_id)
        except DataError:
            return True
        return state is not None and not state.is_over

    def hold(self, lease: UpgradeLease) -> None:
        """Say until when a task drives an upgrade; the last word counts."""
        self._cells.put(layout.upgrade_lease_key(self._stream_id, lease.upgrade_id), lease)

    def lease(self, upgrade_id: str) -> UpgradeLease | None:
        """Until when a task drives an upgrade; None where no task ever did, or what it wrote cannot be read."""
        key = layout.upgrade_lease_key(self._stream_id, upgrade_id)
        try:
            stored = self._cells.read(key, UpgradeLease, stream_id=self._stream_id, upgrade_id=upgrade_id)
        except DataError:
            return None
        return None if stored is None else stored.value

    def abandoned_lease(self, state: UpgradeState) -> UpgradeLease | None:
        """The lease of an upgrade whose task is gone, and which has touched nothing; None where it is not so."""
        if not state.has_touched_nothing:
            return None
        lease = self.lease(state.upgrade.upgrade_id)
        return lease if lease is not None and self._cells.clock.now() > lease.until_at else None

    def end_abandoned(self, upgrade_id: str) -> bool:
        """End an upgrade whose task is gone before it touched the stream, so that it holds nothing up.

        Its next step is recorded, as any end is: a task that comes back after all finds that it is over. Where the task
        has taken another step meanwhile, that one counts, and nothing is recorded: by the cancellation the next try of
        the task knows that this end was no answer, so it comes after the step.

        Returns:
            Whether it is over now.
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
                text=f"{ABANDONED}: {lease.held_by} said nothing after {format_time(lease.until_at)}; nothing has"
                " happened to the stream",
                cancelled_by=lease.held_by,
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
        """Record what a person said; what was said first."""
        key = layout.approval_key(self._stream_id, approval.upgrade_id)
        try:
            self._cells.create(key, approval)
        except ObjectExistsError:
            return self.approval(approval.upgrade_id) or approval
        return approval

    def approval(self, upgrade_id: str) -> Approval | None:
        """What a person said to its plan; None for nothing yet."""
        key = layout.approval_key(self._stream_id, upgrade_id)
        stored = self._cells.read(key, Approval, stream_id=self._stream_id, upgrade_id=upgrade_id)
        return None if stored is None else stored.value

    def cancel(self, cancellation: Cancellation) -> Cancellation:
        """Record that it is not wanted any more; what was said first."""
        key = layout.cancellation_key(self._stream_id, cancellation.upgrade_id)
        try:
            self._cells.create(key, cancellation)
        except ObjectExistsError:
            return self.cancellation(cancellation.upgrade_id) or cancellation
        return cancellation

    def cancellation(self, upgrade_id: str) -> Cancellation | None:
        """Whether it is not wanted any more; None where it is."""
        key = layout.cancellation_key(self._stream_id, upgrade_id)
        stored = self._cells.read(key, Cancellation, stream_id=self._stream_id, upgrade_id=upgrade_id)
        return None if stored is None else stored.value
