"""Polls a stream, and does what ``reconcile`` decides; every act is one compare-and-swap of the register."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.clock import Clock
from airflow_streamstate.control.command_status import of_kind
from airflow_streamstate.control.journal import had_checkpoint
from airflow_streamstate.control.objects import Stored, Unchanged
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.control.upgrade_journal import OWN_REQUEST
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.decide import refuse_other_intent
from airflow_streamstate.controller.deploy.attempts import Attempts
from airflow_streamstate.controller.observe.observation import Observation, checkpoint_of, pending_drain
from airflow_streamstate.controller.stream_guards import BusyError, UpgradeHold, hold_of
from airflow_streamstate.controller.supervise.reconcile import (
    ENDING_SECONDS,
    Action,
    ContinueReturn,
    Desired,
    EndHung,
    GoBack,
    LaunchCurrent,
    Leave,
    Observed,
    Record,
    StartNext,
    TakeOverDriver,
    after_refusal,
    fresh_record,
    reconcile,
)
from airflow_streamstate.controller.wait.watching import secrets_seen
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    IncompatibleUpgradeError,
    InputLostError,
    InvalidRequestError,
    StreamStateError,
    VersionConflictError,
)
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.commands import BY_THE_DRIVER, StopRequest
from airflow_streamstate.protocol.events import QueryStarted
from airflow_streamstate.protocol.ids import order_of
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest
from airflow_streamstate.protocol.policies import Restarts
from airflow_streamstate.protocol.records import DeploymentSpec, StreamRegister
from airflow_streamstate.protocol.terms.order import RollbackTerms
from airflow_streamstate.snapshot.verify import check_before_start

if TYPE_CHECKING:
    from airflow_streamstate.controller.upgrade.upgrade_views import UpgradeView
    from airflow_streamstate.controller.upgrade.upgrades import Upgrades

# For how long one process has seen a driver silent, by nothing but its own clock.

MOST_PAUSE_SECONDS = 60.0
"""Two looks that are further apart prove nothing of the time between them: the home, or this process, was away."""


class SilenceWatch:
    """What is remembered of one stream."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sign: tuple[str, int, datetime | None] | None = None
        self._since = self._last = 0.0

    def seconds(self, seen: Observation) -> float:
        """Take in a poll; returns for how long the same attempt has been silent, with the same last heartbeat."""
        if seen.state != "silent":
            self._sign = None
            return 0.0
        now = self._clock.monotonic_seconds()
        sign = (seen.deployment_id, seen.attempt, None if seen.heartbeat is None else seen.heartbeat.at)
        if sign != self._sign or now - self._last > MOST_PAUSE_SECONDS:
            self._sign, self._since = sign, now
        self._last = now
        return now - self._since


FAILED = frozenset({"failed", "fenced"})
_REFUSALS = (InvalidRequestError, DataError, InputLostError)
"""Errors of a start that do not pass by themselves: they count as a failure."""


@dataclass(frozen=True)
class Inspection:
    """One poll of a stream: what was seen, and what must be done."""

    control: StreamControl
    stored: Stored[StreamRegister]
    observed: Observed
    action: Action

    @property
    def seen(self) -> Observation:
        """The current deployment."""
        return self.observed.seen


class Supervision:
    """The restart policies of the streams of one home, and what they ask for."""

    def __init__(self, context: ControllerContext, attempts: Attempts, upgrades: Callable[[], Upgrades]) -> None:
        self._context = context
        self._attempts = attempts
        self._upgrades = upgrades
        self._clock = context.clock

    # watching

    def look(
        self,
        control: StreamControl,
        stored: Stored[StreamRegister],
        *,
        waited_seconds: float,
        host: str,
        signs: Unchanged | None = None,
        silence: SilenceWatch | None = None,
    ) -> Inspection:
        """Look at a stream whose register was just read, and decide; writes nothing.

        Args:
            waited_seconds: how long the caller has seen the register as it is.
            host: the caller's, for records.
            signs: what the caller remembers of the owner of the upgrade that holds the stream; None: the clocks decide
                whether it is gone.
            silence: what the caller has seen of this stream's silence; None: nothing.

        Raises:
            StreamStateError: a store does not answer, or a record cannot be read.
        """
        seen = self._context.observer.look(control, stored, str(stored.value.deployment_id))
        secrets = secrets_seen(seen.spec, seen.handle)
        observed = Observed(
            seen,
            waited_seconds=waited_seconds,
            silent_seconds=0.0 if silence is None else silence.seconds(seen),
            host=host,
            secrets=secrets,
        )
        hold = hold_of(control, seen.register)
        observed = self._held(observed, hold, signs)
        policy = seen.register.restart_policy
        if (seen.state in FAILED or seen.was_ended_by_machine) and policy.on_failure != "nothing":
            lost = self._lost(seen) if policy.on_failure == "restart" else ""
            owner = observed.owner or self._deployer(seen)
            observed = replace(observed, owner=owner, order=self._order(control, seen), lost=lost)
        elif seen.state == "silent" and policy.on_failure == "restart":
            owner = observed.owner or self._deployer(seen)
            observed = replace(observed, owner=owner, order=self._order(control, seen))
        action = reconcile(Desired.of(seen.register), observed, self._clock.now(), self._clock.jitter())
        return Inspection(control, stored, observed, action)

    def _held(self, observed: Observed, hold: UpgradeHold, signs: Unchanged | None) -> Observed:
        """What an upgrade that holds the stream leaves to watchers. While it waits for a person's answer it has touched
        nothing, so the stream is restarted as any other."""
        if hold.is_of_watchers:
            return replace(observed, own_return=hold.upgrade_id)
        if not hold.kind or hold.kind == "waiting":
            return observed
        owner = hold.owner
        is_gone = owner is not None and (
            hold.kind in ("abandoned", "gone") if signs is None else owner.is_gone_after(signs.seconds(owner.sign))
        )
        # What has to be launched is launched where its driver ran, or where its cluster is reached: as a restart.
        if is_gone and (hold.kind == "gone" or not _is_elsewhere(observed.seen)):
            return replace(observed, abandoned=hold.upgrade_id)
        return replace(observed, owner=hold.text)

    def act(self, look: Inspection) -> Leave:
        """Do what the poll decided; returns what to report of it, in one line without secrets.

        Raises:
            UnavailableError, OutcomeUnknownError: a store or the launcher does not answer; the next poll continues.
        """
        left = self._act(look)
        return replace(left, text=look.observed.line(left.text))

    def _act(self, look: Inspection) -> Leave:
        action = look.action
        if isinstance(action, Leave):
            return action
        if isinstance(action, Record):
            return self._record(look, action)
        if isinstance(action, EndHung):
            return self._end_hung(look, action)
        if isinstance(action, LaunchCurrent):
            return self._launch(look, look.seen.attempt, action.text)
        if isinstance(action, GoBack):
            return self._go_back(look, action)
        if isinstance(action, ContinueReturn):
            return self._continue_return(look, action.upgrade_id)
        if isinstance(action, TakeOverDriver):
            return self._take_over(look, action.upgrade_id)
        try:
            self._attempts.restart(look.control, look.seen, _hidden(look.observed, action.record))
        except _REFUSALS as error:
            return self._refused(look, action, error)
        except ConflictError as error:
            return Leave("held", error.message, due_seconds=1.0)
        return self._launch(look, look.seen.attempt + 1, action.text)

    def _record(self, look: Inspection, action: Record) -> Leave:
        record = None if action.record is None else _hidden(look.observed, action.record)
        try:
            self._context.update_register(
                look.control, lambda register: replace(register, restarts=record), since=look.stored
            )
        except VersionConflictError as error:
            return Leave("held", error.message, due_seconds=0.0)
        return Leave(action.sight, action.text, None if record is None else record.backoff_seconds)

    def _end_hung(self, look: Inspection, action: EndHung) -> Leave:
        """End a driver that hangs. Its next attempt follows once its end is proven, as that of any other failure."""
        if action.record is not None:  # first the record: whoever sees its end knows why (Law 1)
            left = self._record(look, Record(action.record, "silent", action.text))
            if left.sight == "held":
                return left
        status = self._attempts.end_hung(look.seen)
        if status.has_ended:
            return Leave("recorded", f"{action.text}; its driver was ended", due_seconds=0.0)
        how = "its end is reported, and not proven yet" if status.reported_end else "it could not be ended from here"
        reason = f" ({status.reason})" if status.reason else ""
        return Leave("silent", f"{action.text}; {how}{reason}", ENDING_SECONDS)

    def _refused(self, look: Inspection, action: StartNext, error: StreamStateError) -> Leave:
        """Record that the next attempt could not be started, which counts as one that failed."""
        seen, is_final = look.seen, isinstance(error, InputLostError)
        failure = replace(
            action.record, attempt=seen.attempt, is_started=False, ages_seconds=action.record.ages_seconds[:-1]
        )
        found = after_refusal(
            failure,
            seen.register.restart_policy,
            str(error),
            self._clock.now(),
            self._clock.jitter(),
            is_final=is_final,
        )
        return self._record(
            look, Record(found, "gave_up" if found.gave_up else "recorded", found.gave_up or found.reason)
        )

    def _launch(self, look: Inspection, attempt: int, text: str) -> Leave:
        drivers, seen = self._context.drivers, look.seen
        try:
            drivers.launch(look.control, seen.spec, attempt)
        except (InvalidRequestError, DataError) as error:
            why = look.observed.line(f"its launch was refused: {error.message}")
            drivers.close(look.control, seen.deployment_id, attempt, why)
            return Leave("recorded", str(error), due_seconds=0.0)
        return Leave("restarting", text, due_seconds=1.0)

    def _go_back(self, look: Inspection, action: GoBack) -> Leave:
        """Start the rollback to the newest good snapshot; the same failure starts the same one (Law 2)."""
        seen, stream_id = look.seen, look.seen.stream_id
        snapshot_id = self._newest_good_snapshot(look.control, seen.spec)
        if snapshot_id is None:
            return self._give_up(look, f"{action.text}, and the stream has no good snapshot to go back to")
        by = self._context.requested_by
        reason = look.observed.line(f"restarted by {by}: {action.text}")
        from airflow_streamstate.controller.upgrade.upgrades import RollbackRequest

        request = RollbackRequest(stream_id, RollbackTerms(snapshot_id=snapshot_id), reason=reason)
        try:
            view = self._upgrades().begin_rollback(request, f"{OWN_REQUEST}{seen.deployment_id}-{seen.attempt}")
        except BusyError as error:
            return Leave("held", error.message)
        except (*_REFUSALS, ConflictError, IncompatibleUpgradeError) as error:
            return self._give_up(look, f"{action.text}, and going back to {snapshot_id} was refused: {error.message}")
        if view.is_over:
            return self._after_return(look, view)
        back = f"{action.text}: back to {snapshot_id}, with the sinks undone to it ({view.upgrade_id})"
        return Leave("restarting", back, due_seconds=0.0)

    def _newest_good_snapshot(self, control: StreamControl, spec: DeploymentSpec) -> str | None:
        """The newest snapshot with state that this deployment has continued from and whose files are all there."""
        for manifest in _snapshots_behind(control, spec):
            try:
                check_before_start(control, self._context.home.places.of(manifest), manifest)
            except DataError:
                continue
            return manifest.snapshot_id
        return None

    def _continue_return(self, look: Inspection, upgrade_id: str) -> Leave:
        try:
            view = self._upgrades().advance(look.seen.stream_id, upgrade_id)
        except ConflictError as error:
            return Leave("held", error.message, due_seconds=1.0)
        if view.is_over:
            return self._after_return(look, view)
        return Leave("restarting", f"{upgrade_id}: {view.waits_for}", due_seconds=max(view.pause_seconds, 0.5))

    def _take_over(self, look: Inspection, upgrade_id: str) -> Leave:
        try:
            view = self._upgrades().take_over(look.seen.stream_id, upgrade_id)
        except ConflictError as error:
            return Leave("held", error.message, due_seconds=1.0)
        whose = f"{upgrade_id}, which nobody drove any more"
        if view.is_over:
            return Leave("upgrading", f"{whose}, has ended: {view.outcome}: {view.state.text}", due_seconds=0.0)
        return Leave("upgrading", f"{whose}: {view.waits_for}", due_seconds=max(view.pause_seconds, 0.5))

    def _after_return(self, look: Inspection, view: UpgradeView) -> Leave:
        if view.is_what_was_asked:
            return Leave("restarting", f"{view.upgrade_id}: it went back", due_seconds=0.0)
        stored = look.control.need_register()
        seen = self._context.observer.look(look.control, stored, str(stored.value.deployment_id))
        secrets = (*look.observed.secrets, *secrets_seen(seen.spec, seen.handle))
        again = Inspection(look.control, stored, replace(look.observed, seen=seen, secrets=secrets), look.action)
        return self._give_up(again, f"the rollback {view.upgrade_id} ended as {view.outcome}: {view.state.text}")

    def _give_up(self, look: Inspection, why: str) -> Leave:
        record = after_refusal(
            look.seen.register.restarts or fresh_record(look.observed, self._clock.now(), why),
            look.seen.register.restart_policy,
            why,
            self._clock.now(),
            0.0,
            is_final=True,
        )
        return self._record(look, Record(record, "gave_up", why))

    def _deployer(self, seen: Observation) -> str:
        """The deploy that holds a failed stream, or ""."""
        refused = refuse_other_intent(seen.register, "", self._clock.now())
        return "" if refused is None else refused.error.message

    def _order(self, control: StreamControl, seen: Observation) -> str:
        """The stop or drain that holds for a failed deployment, or ""."""
        if seen.register.attempt_mode == "drain":
            return "it was started for a drain: `drain` finishes that"
        slots = control.journal(seen.deployment_id).commands()
        # The drain of a deployment that has read all its input is finished by the next attempt.
        drain = pending_drain(seen, slots, is_from_outside=True)
        if drain is not None:
            return f"{drain.requested_by} has ordered a drain: `drain` finishes it, `cancel` takes it back"
        for command, status in of_kind(seen.commands_with(slots), StopRequest):
            is_wished = command.requested_by != BY_THE_DRIVER and status.holds(seen.observed_at)
            if command.attempt >= seen.register.oldest_stopped_attempt and is_wished:
                return f"{command.requested_by} has ordered a stop: `resume` starts it again"
        return ""

    def _lost(self, seen: Observation) -> str:
        """What is lost or damaged of the checkpoints of a failed deployment; "" for nothing."""
        events = [entry.event for entry in seen.events]
        names = {event.query_name for event in events if isinstance(event, QueryStarted)}
        for name in sorted(names):
            checkpoint = checkpoint_of(self._context.home, seen, name)
            if not checkpoint.exists() and had_checkpoint(events, name):
                return f"the checkpoint of query {name} is gone"
            damage = _damage(checkpoint)
            if damage:
                return f"the checkpoint of query {name} is damaged: {damage}"
        return ""


def _is_elsewhere(seen: Observation) -> bool:
    """Whether the driver is on another machine, or of a cluster that does not answer."""
    return seen.launch_status is not None and seen.launch_status.state == "unknown"


def _snapshots_behind(control: StreamControl, spec: DeploymentSpec) -> Iterator[SnapshotManifest]:
    """The snapshots with state of this deployment, then those up to the one that it started from, and so on; each time
    newest first.

    None of a version that was rolled back, or from before a start with nothing.
    """
    manifests = [control.readable_manifest(snapshot_id) for snapshot_id in control.snapshot_ids()]
    found = [each for each in manifests if each is not None and each.queries and each.snapshot_kind != "drained"]
    found.sort(key=lambda each: each.taken_at, reverse=True)
    deployment_id, last = spec.deployment_id, None
    while True:
        own = [each for each in found if each.deployment_id == deployment_id]
        yield from (each for each in own if last is None or not _is_beyond(each, last))
        start_id = control.spec(deployment_id).start.snapshot_id
        last = None if start_id is None else control.readable_manifest(start_id)
        if last is None or order_of(last.deployment_id) >= order_of(deployment_id):
            return
        deployment_id = last.deployment_id


def _is_beyond(one: SnapshotManifest, other: SnapshotManifest) -> bool:
    """Whether a query is further in one snapshot of a deployment than in another one."""

    def batch_id(query: QuerySnapshot) -> int:
        return -1 if query.position.batch_id is None else query.position.batch_id

    both = set(one.queries) & set(other.queries)
    return any(batch_id(one.queries[name]) > batch_id(other.queries[name]) for name in both)


def _hidden(observed: Observed, record: Restarts) -> Restarts:
    """The record without secrets, its texts in one line each; that of its batch is so already."""
    return replace(record, reason=observed.line(record.reason), gave_up=observed.line(record.gave_up))


def _damage(checkpoint: Checkpoint) -> str:
    try:
        checkpoint.position()
    except DataError as error:
        return error.message
    return ""
