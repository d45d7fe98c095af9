"""The next attempt of a deployment: its recorded code, on its own checkpoints; damage that is reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from airflow_streamstate.checkpoint.log import batches_passed_over, listed_batches
from airflow_streamstate.control.objects import Stored
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.decide import LaunchSame, NextAttempt, Refused, decide_resume
from airflow_streamstate.controller.deploy.takeover import built_checkpoints, has_committed, has_committed_since
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.observation import (
    Observation,
    describe_foreseen,
    one_time_sources,
    pending_drain,
)
from airflow_streamstate.controller.observe.views import DeploymentView
from airflow_streamstate.controller.stream_guards import check_same_request, refuse_during_upgrade, refuse_retired
from airflow_streamstate.errors import ConflictError, ObjectExistsError, StreamStateError, VersionConflictError
from airflow_streamstate.launch.interface import LaunchStatus
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.commands import DrainNotification
from airflow_streamstate.protocol.events import Finished
from airflow_streamstate.protocol.ids import attempt_of, launch_key_for
from airflow_streamstate.protocol.policies import Restarts
from airflow_streamstate.protocol.records import RequestRecord, SnapshotWish, StreamRegister
from airflow_streamstate.protocol.terms.version import digest_of
from airflow_streamstate.snapshot.location import OUTRUN, batches_after
from airflow_streamstate.snapshot.verify import Problem

_RESUME_DIGEST = digest_of({"verb": "resume"})
HUNG_GRACE_SECONDS = 5.0
"""How long a driver that hangs may take to end by itself."""
_MOST_LOOKS = 5
"""So often a kill looks again where a watcher was first."""


class Attempts:
    """Starts and ends the attempts of a deployment."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._home = context.home
        self._observer = context.observer
        self._clock = context.clock

    def resume(
        self,
        stream_id: str,
        request_id: str,
        *,
        assume_dead: bool,
        reason: str = "",
        upgrade_id: str | None = None,
        until_finished: bool = False,
        accept_hazards: bool = False,
    ) -> DeploymentView:
        """As ``Controller.resume``; ``upgrade_id``: the upgrade that this is a step of."""
        control = self._home.control(stream_id)
        record = control.request(request_id)
        if record is not None:
            check_same_request(record, _RESUME_DIGEST)
        seen = self._observer.observe(stream_id)
        if record is None:
            return self._resume(control, seen, request_id, None, assume_dead, reason, upgrade_id, accept_hazards)
        # A repeated request finishes its attempt, or tries again if that failed before it had worked.
        if seen.deployment_id != record.deployment_id:
            raise ConflictError(
                "a newer deployment is current than the one that this request resumed",
                deployment_id=record.deployment_id,
                current_deployment_id=seen.deployment_id,
                deployed_by=seen.spec.requested_by,
                next_step="Resume with a new request id, if the current one is meant.",
            )
        began = None if record.command_id is None else attempt_of(record.command_id)
        if began is None or seen.attempt < began:
            return self._resume(control, seen, request_id, record, assume_dead, reason, upgrade_id, accept_hazards)

        def has_worked() -> bool:
            return has_finished(seen, began) if until_finished else has_committed_since(self._home, seen, began)

        return self._go_on(control, seen, has_worked, reason=reason, accept_hazards=accept_hazards)

    def _resume(
        self,
        control: StreamControl,
        seen: Observation,
        request_id: str,
        record: RequestRecord | None,
        assume_dead: bool,
        reason: str,
        upgrade_id: str | None,
        accept_hazards: bool,
    ) -> DeploymentView:
        drain = pending_drain(seen, control.journal(seen.deployment_id).commands())
        decision = decide_resume(
            seen,
            request_id,
            assume_dead=assume_dead,
            has_drain=drain is not None,
            one_time=one_time_sources(self._home, seen),
        )
        if isinstance(decision, Refused):
            raise decision.error
        attempt = seen.attempt if isinstance(decision, LaunchSame) else seen.attempt + 1
        if record is None or upgrade_id is not None:
            refuse_during_upgrade(control, seen.register, upgrade_id)
        if record is None:
            launch_key = launch_key_for(seen.deployment_id, attempt)
            self.record_request(control, request_id, "resume", _RESUME_DIGEST, seen, launch_key)
        if isinstance(decision, NextAttempt):
            self.move(control, seen, "run", assume_dead=assume_dead, reason=reason, accept_hazards=accept_hazards)
        else:
            self._note(control, seen, reason, accept_hazards)
        notes = [] if drain is None else [_drains_first(drain)]
        if repeats := describe_foreseen(self._home, seen):  # before the driver changes what is planned
            notes.append(repeats)
        self._context.drivers.launch(control, seen.spec, attempt)
        return self.view(control.stream_id, seen.deployment_id, tuple(notes))

    def go_on(
        self,
        control: StreamControl,
        seen: Observation,
        rehearsal_id: str | None = None,
        *,
        until_finished: bool = False,
    ) -> DeploymentView:
        """Repeat the request that became this deployment: launch the driver of an attempt that never got one, or the
        next attempt where the current one failed before its first commit; otherwise change nothing.

        Args:
            rehearsal_id: the rehearsal whose driver may wait to be the first attempt.
            until_finished: the next attempt also where batches were committed, until an attempt has finished.
        """

        def has_worked() -> bool:
            return has_finished(seen, 1) if until_finished else has_committed(self._home, control, seen)

        return self._go_on(control, seen, has_worked, rehearsal_id)

    def _go_on(
        self,
        control: StreamControl,
        seen: Observation,
        has_worked: Callable[[], bool],
        rehearsal_id: str | None = None,
        reason: str = "",
        accept_hazards: bool = False,
    ) -> DeploymentView:
        state = seen.state
        if state == "launching" and seen.is_unlaunched:
            self._note(control, seen, reason, accept_hazards)
            self._context.drivers.start(control, seen.spec, seen.attempt, rehearsal_id if seen.attempt == 1 else None)
        elif state == "failed" and not has_worked():
            self.move(control, seen, "run", assume_dead=False, reason=reason, accept_hazards=accept_hazards)
            self._context.drivers.launch(control, seen.spec, seen.attempt + 1)
        return self.view(control.stream_id, seen.deployment_id)

    def _note(self, control: StreamControl, seen: Observation, reason: str, accept_hazards: bool) -> None:
        """Record the reason and the consent for an attempt that is in the register and was never launched."""
        register = seen.register
        noted = {
            "attempt_reason": reason or register.attempt_reason,
            "attempt_accepts_hazards": accept_hazards or register.attempt_accepts_hazards,
        }
        if any(getattr(register, name) != value for name, value in noted.items()):
            self._update_register(control, seen, **noted)

    def _update_register(self, control: StreamControl, seen: Observation, **changes: Any) -> None:
        stored = Stored(seen.register, seen.register_version)
        try:
            self._context.update_register(control, lambda register: replace(register, **changes), since=stored)
        except VersionConflictError:
            raise someone_was_first(control) from None

    def move(
        self,
        control: StreamControl,
        seen: Observation,
        mode: Literal["run", "drain"],
        *,
        assume_dead: bool,
        reason: str = "",
        restarts: Restarts | None = None,
        accept_hazards: bool = False,
    ) -> None:
        """Prove the observed attempt ended, then move the register to the next one (1a.8).

        Args:
            restarts: what a watcher records with it; None where anybody else starts the attempt.
            accept_hazards: that attempt may continue the state by a hazardous plan (Law 17).

        Raises:
            InvalidRequestError, DataError: the next attempt could not be launched; nothing was changed.
            ConflictError: the driver runs or its state is unknown, another writer moved the register, or the stream
                is retired.
        """
        refuse_retired(seen.register)
        self._context.drivers.check(seen.spec, seen.attempt + 1)
        self._context.drivers.check_pinned(seen.spec)
        self._context.endings.prove(control, seen, assume_dead=assume_dead)
        self._update_register(
            control,
            seen,
            attempt=seen.attempt + 1,
            attempt_mode=mode,
            intent=None,
            attempt_reason=reason,
            attempt_accepts_hazards=accept_hazards,
            restarts=restarts,
        )

    def restart(self, control: StreamControl, seen: Observation, restarts: Restarts) -> None:
        """Move a failed deployment to its next attempt in the name of a watcher; ``Drivers.launch`` comes next.

        The write of the register is the act and its record in one, so of any number of callers that have seen the same
        failure one succeeds.

        Raises:
            InputLostError: no attempt can continue from the offsets of a source.
            StreamStateError: as ``move``.
        """
        drain = pending_drain(seen, control.journal(seen.deployment_id).commands())
        one_time = one_time_sources(self._home, seen)
        decision = decide_resume(seen, "", assume_dead=False, has_drain=drain is not None, one_time=one_time)
        if isinstance(decision, Refused):
            raise decision.error
        reason = f"restarted by {self._context.requested_by}: {restarts.reason}"
        accepted = seen.register.attempt_accepts_hazards
        self.move(control, seen, "run", assume_dead=False, reason=reason, restarts=restarts, accept_hazards=accepted)

    def kill(self, stream_id: str, grace_seconds: float) -> DeploymentView:
        """As ``Controller.kill``."""
        seen = self._observer.observe(stream_id)
        for _ in range(_MOST_LOOKS):
            if self.keep_ended(seen, "killed"):
                break
            # A watcher was first: its attempt is the one to end, and never one that a person has started since.
            seen = self._after_watcher(seen)
        else:
            raise someone_was_first(self._home.control(stream_id))
        self.end_driver(seen, grace_seconds)
        return self.view(stream_id, seen.deployment_id)

    def _after_watcher(self, before: Observation) -> Observation:
        """The stream as it is now, where a watcher has moved it since this poll. Raises ConflictError."""
        seen = self._observer.observe(before.stream_id)
        record = seen.register.restarts
        if seen.deployment_id != before.deployment_id or record is None or not record.is_started:
            raise someone_was_first(self._home.control(before.stream_id))
        return seen

    def keep_ended(self, seen: Observation, how: Literal["killed", "stopped"]) -> bool:
        """Record that no watcher is to start the observed attempt's successor, whatever the policy is or will be.

        A reason why watchers had given it up stays.

        Returns:
            False where another attempt or deployment is current by now; nothing was changed.
        """
        by = self._context.requested_by
        ended = Restarts(
            deployment_id=seen.deployment_id,
            attempt=seen.attempt,
            is_started=False,
            recorded_at=self._clock.now(),
            recorded_on="",
            reason=f"{how} by {by}",
            gave_up=f"it was {how} by {by}: `streamstate resume {seen.stream_id}` starts it again",
        )
        is_kept = False

        def keep(register: StreamRegister) -> StreamRegister:
            nonlocal is_kept
            is_kept = (register.deployment_id, register.attempt) == (seen.deployment_id, seen.attempt)
            record = register.restarts
            is_given_up = record is not None and record.attempt == seen.attempt and bool(record.gave_up)
            return replace(register, restarts=ended) if is_kept and not is_given_up else register

        self._context.update_register(self._home.control(seen.stream_id), keep)
        return is_kept

    def end_driver(self, seen: Observation, grace_seconds: float) -> None:
        """End the driver of the observed attempt, or close an attempt that never got a driver. Idempotent.

        Raises:
            ConflictError: the driver cannot be ended from here.
        """
        context, control = self._context, self._home.control(seen.stream_id)
        if seen.handle is None:
            if seen.claim is None:
                context.drivers.close(control, seen.deployment_id, seen.attempt, f"killed by {context.requested_by}")
            elif seen.is_claimed and seen.terminal is None:
                raise _cannot_end(seen, "its launch was not recorded")
        else:
            if not context.launcher.knows(seen.handle):
                raise _cannot_end(seen, seen.handle.refused or f"it was launched by {seen.handle.launcher}")
            status = context.launcher.kill(seen.handle, grace_seconds)
            if status.reported_end:
                status = context.endings.silent(control, seen, status)
            if not status.has_ended:
                raise _cannot_end(seen, status.reason)

    def end_hung(self, seen: Observation) -> LaunchStatus:
        """End the driver of the observed attempt, which hangs, and no other; its status then. May be repeated."""
        if seen.handle is None or not self._context.launcher.knows(seen.handle):
            refused = "" if seen.handle is None else seen.handle.refused
            raise _cannot_end(seen, refused or "no launcher here knows its driver")
        return self._context.launcher.kill(seen.handle, HUNG_GRACE_SECONDS)

    def record_request(
        self,
        control: StreamControl,
        request_id: str,
        verb: str,
        digest: str,
        seen: Observation,
        command_id: str | None,
        snapshot: SnapshotWish | None = None,
    ) -> None:
        """Record what a request becomes, before the first act (Law 2).

        Raises:
            ConflictError: another request was recorded under the same id in the meantime.
        """
        record = RequestRecord(
            request_id=request_id,
            stream_id=control.stream_id,
            verb=verb,
            request_digest=digest,
            deployment_id=seen.deployment_id,
            write_id=self._clock.new_uuid(),
            created_at=self._clock.now(),
            command_id=command_id,
            snapshot=snapshot,
        )
        try:
            control.create_request(record)
        except ObjectExistsError:
            there = control.request(request_id)
            if there is None or (there.deployment_id, there.command_id) != (record.deployment_id, command_id):
                raise someone_was_first(control) from None
            check_same_request(there, digest)

    def view(self, stream_id: str, deployment_id: str, notes: tuple[str, ...] = ()) -> DeploymentView:
        """The deployment as it is now."""
        seen = self._observer.observe(stream_id, deployment_id)
        return DeploymentView(
            stream_id=stream_id,
            deployment_id=deployment_id,
            attempt=seen.attempt,
            state=seen.state,
            start=seen.spec.start,
            notes=notes,
        )


def has_finished(seen: Observation, attempt: int) -> bool:
    """Whether this attempt, or a later one, has read all there was and come to its end by itself."""
    return any(event.attempt >= attempt and not event.unfinished for event in seen.of_kind(Finished, any_attempt=True))


def _drains_first(drain: DrainNotification) -> str:
    return (
        f"a drain that {drain.requested_by} ordered at {format_time(drain.requested_at)} holds: this attempt reads no"
        f" input, flushes and ends; until then `streamstate cancel {drain.stream_id}` cancels it"
    )


def _cannot_end(seen: Observation, reason: str) -> ConflictError:
    return ConflictError(
        "this driver cannot be ended from here",
        stream_id=seen.stream_id,
        deployment_id=seen.deployment_id,
        attempt=seen.attempt,
        reason=reason,
        next_step="End it where it runs.",
    )


def someone_was_first(control: StreamControl) -> ConflictError:
    """The error of a writer whose stream was moved by another one in the meantime."""
    stored = control.register()
    register = None if stored is None else stored.value
    intent = None if register is None else register.intent
    return ConflictError(
        "another writer changed this stream first",
        stream_id=control.stream_id,
        deployment_id=None if register is None else register.deployment_id,
        attempt=None if register is None else register.attempt,
        changed_by=None if register is None else (intent.requested_by if intent is not None else register.updated_by),
        next_step=f"`streamstate status {control.stream_id}` shows its state; then decide again.",
    )


# Damage that no controller can prevent: the next deploy and ``verify`` report it (Law 12, 1a.8).


def audit_notes(home: Home, control: StreamControl, seen: Observation) -> tuple[str, ...]:
    """Notes on a deployment that is about to be replaced: batches that its logs pass over, and batches that its
    predecessor ran after the snapshot at its end."""
    notes = []
    try:
        for name, checkpoint in sorted(built_checkpoints(home, seen).items()):
            if passed_over := batches_passed_over(checkpoint.commit_ids()):
                listed = listed_batches(passed_over)
                notes.append(f"query {name} of {seen.deployment_id} passed over batch {listed}: rows may be lost")
        start = seen.spec.start
        # After a rollback, batches behind the older snapshot are expected: their output is undone.
        for problem in outrun_problems(home, control, start.snapshot_id if start.undoes is None else None):
            notes.append(f"query {problem.query}: {problem.detail}")
    except StreamStateError as error:
        notes.append(f"the logs before this deployment could not be audited: {error.message}")
    return tuple(notes)


def outrun_problems(home: Home, control: StreamControl, snapshot_id: str | None) -> list[Problem]:
    """Batches that the snapshot's own deployment ran after another one had started from it; none without a snapshot."""
    manifest = None if snapshot_id is None else control.manifest(snapshot_id)
    if manifest is None:
        return []
    return [
        Problem(
            "outrun",
            name,
            f"commits/{later[-1]}",
            f"{OUTRUN}: batch {listed_batches(later)} of {manifest.deployment_id}",
        )
        for name, later in sorted(batches_after(home.checkpoints, manifest).items())
    ]


def is_start_of_another(control: StreamControl, snapshot_id: str) -> bool:
    """Whether the current deployment started from this snapshot without undoing the batches after it."""
    stored = control.register()
    if stored is None or stored.value.deployment_id is None:
        return False
    start = control.spec(stored.value.deployment_id).start
    return start.undoes is None and start.snapshot_id == snapshot_id
