"""A stop with a deadline: then the controller withdraws the order, or ends the driver and keeps its end (1a.8).

The order is an ordinary stop. The same verb with the same request id continues where an earlier controller died. The
end of the driver may be forced twice, or by two controllers at once: intent and kill have one id per attempt, and one
snapshot is the end of one attempt.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.commands.recorded_orders import Orders
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.decide import INTENT_SECONDS, refuse_other_intent
from airflow_streamstate.controller.deploy.attempts import Attempts, someone_was_first
from airflow_streamstate.controller.deploy.takeover import ResumedError, take_over
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.controller.observe.outcomes import decide_command_outcome, decide_end
from airflow_streamstate.controller.observe.views import CommandView, Outcome, SnapshotFacts
from airflow_streamstate.controller.stream_guards import refuse_during_upgrade, request_id_or_new
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.controller.wait.waiting import Report, Waits, describe, read_command
from airflow_streamstate.controller.wait.watching import Watching, redacted
from airflow_streamstate.errors import (
    ConflictError,
    DeadlineExceededError,
    DeploymentFailedError,
    OutcomeUnknownError,
    StreamStateError,
    VersionConflictError,
)
from airflow_streamstate.protocol.commands import StopRequest
from airflow_streamstate.protocol.forms import View
from airflow_streamstate.protocol.ids import launch_key_for, snapshot_id_for
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.records import Intent, StreamRegister
from airflow_streamstate.protocol.terms.order import OnStopDeadline
from airflow_streamstate.protocol.terms.version import digest_of

log = logging.getLogger(__name__)
KILL_GRACE_SECONDS = 10.0
"""How long the processes of a driver may take to end by themselves after the deadline."""
TRIES = 5
WITHDRAW_TRIES = 3
"""An order that still exists after these is past its deadline, so no driver starts it."""


@dataclass(frozen=True)
class ForcedStop(View):
    """How a stop with a deadline ended.

    Attributes:
        outcome: ``stopped``, ``finished`` or ``drained`` for a clean end; ``killed`` where the driver was ended at the
            deadline, and ``failed`` where it had died by itself: then the controller took its end over.
        cut_batches: per query, the batch that was planned and not committed; it runs again at the next start.
    """

    form: ClassVar[str] = "**outcome cut_batches"

    outcome: Outcome
    cut_batches: Mapping[str, int] = field(default_factory=dict)


class ForcedEnd:
    """Ends one attempt, and no other; ``command_id``: the stop that was ordered, or ""."""

    def __init__(
        self,
        context: ControllerContext,
        attempts: Attempts,
        watching: Watching,
        control: StreamControl,
        deployment_id: str,
        attempt: int,
        command_id: str,
    ) -> None:
        self._context = context
        self._attempts = attempts
        self._watching = watching
        self._control = control
        self._deployment_id = deployment_id
        self._attempt = attempt
        self._command_id = command_id
        self._launch_key = launch_key_for(deployment_id, attempt)
        self._intent_id = f"taking-{self._launch_key}"
        self._kill_id = f"killing-{self._launch_key}"

    def come_to(self) -> ForcedStop:
        """End the driver, prove its end, and keep it; its own clean end, if it has one.

        Raises:
            ConflictError: it cannot be ended from here; its end cannot be taken over; the stream was moved.
            DataError: a checkpoint is damaged.
        """
        try:
            for _try in range(TRIES):
                try:
                    return self._try()
                except VersionConflictError:
                    continue  # another controller changed the register: read it again, and decide again
            raise someone_was_first(self._control)
        finally:
            self._release()

    def _try(self) -> ForcedStop:
        seen = self._look()
        clean = self._clean_end(seen)
        if clean is not None:
            return clean
        self._hold()
        if not _is_proven_dead(seen):
            self._end_driver(seen)
            seen = self._look()  # its terminal event may have arrived while it was ended
            clean = self._clean_end(seen)
            if clean is not None:
                return clean
        self._attempts.keep_ended(seen, "stopped")
        self._context.endings.prove(self._control, seen)
        self._hold()  # the proof may have taken longer than an intent lasts
        manifest = take_over(
            self._context.home,
            self._control,
            seen,
            snapshot_id_for(self._deployment_id, "stopped", self._attempt),
            self._intent_id,
            may_discard=False,
            still_ours=self._check_still_ours,
        )
        return self._taken_over(self._look(), manifest)

    def _release(self) -> None:
        def let_go(register: StreamRegister) -> StreamRegister:
            return replace(register, intent=None) if self._is_held(register) else register

        try:
            self._context.update_register(self._control, let_go)
        except StreamStateError as error:
            log.info("the intent of a forced stop stays in the register until it is old: %s", error)

    def _look(self) -> Observation:
        return self._context.observer.observe(self._control.stream_id, self._deployment_id)

    def _clean_end(self, seen: Observation) -> ForcedStop | None:
        """Its end, where it ended by itself after all; raises ConflictError where another attempt is current."""
        end = decide_end(seen, StopRequest.kind)
        if end is not None and end.is_what_was_ordered:
            if seen.was_interrupted:
                self._attempts.keep_ended(seen, "stopped")
            return ForcedStop(self._watching.outcome(seen, end, self._command_id))
        self._refuse_moved(seen.register)
        return None

    def _refuse_moved(self, register: StreamRegister) -> None:
        if (register.deployment_id, register.attempt) != (self._deployment_id, self._attempt):
            raise ConflictError(
                "the stream was moved since this stop was ordered, so nothing is ended for it",
                stream_id=register.stream_id,
                deployment_id=self._deployment_id,
                attempt=self._attempt,
                current_deployment_id=register.deployment_id,
                current_attempt=register.attempt,
                moved_by=register.updated_by,
                next_step=f"`streamstate status {register.stream_id}` shows its state; then decide again.",
            )

    def _hold(self) -> None:
        """Put the intent into the register, so that no other controller resumes or deploys in the meantime (1a.8)."""
        now = self._context.clock.now()

        def hold(register: StreamRegister) -> StreamRegister:
            self._refuse_moved(register)
            refused = refuse_other_intent(register, self._intent_id, now)
            if refused is not None:
                raise refused.error
            intent = register.intent
            if intent is not None and intent.request_id == self._intent_id:
                age_seconds = (now - intent.requested_at).total_seconds()
                if age_seconds < INTENT_SECONDS / 2:
                    return register  # perhaps of a different controller that forces the same end: one intent for both
            mine = Intent(self._intent_id, self._deployment_id, now, self._context.requested_by)
            return replace(register, intent=mine)

        self._context.update_register(self._control, hold)

    def _is_held(self, register: StreamRegister) -> bool:
        return register.intent is not None and register.intent.request_id == self._intent_id

    def _check_still_ours(self) -> None:
        register = self._control.need_register().value
        is_same = (register.deployment_id, register.attempt) == (self._deployment_id, self._attempt)
        if is_same and self._is_held(register):
            return
        is_resumed = register.deployment_id == self._deployment_id and register.attempt > self._attempt
        raise (ResumedError if is_resumed else VersionConflictError)(
            "another controller moved the stream", stream_id=register.stream_id
        )

    def _end_driver(self, seen: Observation) -> None:
        if seen.terminal is None:
            # Recorded before the kill (Law 1): later controllers then know that it did not die by itself.
            digest = digest_of({"verb": "kill"})
            self._attempts.record_request(self._control, self._kill_id, "kill", digest, seen, self._launch_key)
        try:
            self._attempts.end_driver(seen, KILL_GRACE_SECONDS)
        except ConflictError as error:
            raise ConflictError(
                f"the driver has not stopped by the deadline, and {error.message}",
                **error.context,
                command_id=self._command_id,
                order="stands",
                next_step="End it where it runs, then give the same verb again: it keeps its end.",
            ) from None

    def _taken_over(self, seen: Observation, manifest: SnapshotManifest) -> ForcedStop:
        positions = {name: query.position for name, query in sorted(manifest.queries.items())}
        planned = {name: position.planned_batch_id for name, position in positions.items()}
        cut = {name: batch_id for name, batch_id in planned.items() if batch_id is not None}
        is_killed = self._control.request(self._kill_id) is not None
        outcome = Outcome(
            stream_id=seen.stream_id,
            deployment_id=seen.deployment_id,
            outcome="killed" if is_killed else "failed",
            state=seen.state,
            snapshot_id=manifest.snapshot_id,
            snapshot=SnapshotFacts.of(manifest),
            queries=positions,
            reason="; ".join([_how_it_ended(seen, is_killed=is_killed), *_describe_cut(cut)]),
            command_id=self._command_id,
        )
        return ForcedStop(outcome, cut)


def _is_proven_dead(seen: Observation) -> bool:
    if seen.launch_status is not None:
        return seen.launch_status.has_ended
    return seen.is_closed or seen.terminal is not None


def _how_it_ended(seen: Observation, *, is_killed: bool) -> str:
    if is_killed:
        return "the driver had not stopped by the deadline and was ended"
    end = decide_end(seen)
    why = "" if end is None else redacted(seen, end.reason)
    return f"it had ended before it could be stopped: {why}"


def _describe_cut(cut: Mapping[str, int]) -> list[str]:
    return [
        f"batch {batch_id} of query {name} was planned and not committed: the next start runs it again, over the same"
        " bounds"
        for name, batch_id in cut.items()
    ]


class ForcedStops:
    """Stops streams by a deadline."""

    def __init__(
        self, context: ControllerContext, attempts: Attempts, orders: Orders, watching: Watching, waits: Waits
    ) -> None:
        self._context = context
        self._observer = context.observer
        self._attempts = attempts
        self._orders = orders
        self._watching = watching
        self._waits = waits

    def order(
        self,
        stream_id: str,
        *,
        deadline_seconds: float,
        on_deadline: OnStopDeadline = "fail",
        deployment_id: str | None = None,
        request_id: str,
        reason: str = "",
    ) -> CommandView | None:
        """Order such a stop without waiting; ``stop`` with the same request id continues from there.

        As ``Controller.stop``, but None for a ``kill`` of a dead driver: there is nothing to order.
        """
        control = self._context.home.control(stream_id)
        if on_deadline == "kill" and self._dead(control, deployment_id, request_id) is not None:
            return None
        return self._orders.order(
            stream_id,
            "stop",
            deployment_id=deployment_id,
            request_id=request_id,
            reason=reason,
            expires_in_seconds=_expiry(deadline_seconds, on_deadline),
            is_forced=on_deadline == "kill",
        )

    def stop(
        self,
        stream_id: str,
        *,
        deadline_seconds: float,
        on_deadline: OnStopDeadline = "fail",
        deployment_id: str | None = None,
        request_id: str | None = None,
        reason: str = "",
        on_progress: Report | None = None,
    ) -> ForcedStop:
        """Order a stop, wait until it is complete, and act at the deadline.

        Args:
            deadline_seconds: from the moment the order is recorded.
            on_deadline: ``fail`` withdraws an order that no driver obeys yet; ``kill`` ends the driver and takes its
                end over, also that of a driver that had died before.
            deployment_id: None for the current deployment.
            request_id: one for all tries of a request; None for a new one.
            reason: kept with the order.
            on_progress: called while waiting with what was seen.

        Raises:
            StreamNotFoundError, DeploymentNotFoundError: it does not exist.
            DeadlineExceededError: for ``fail``: it has not stopped; the error states whether the order is withdrawn.
            DeploymentFailedError: for ``fail``: it failed.
            ConflictError: no driver would obey; it cannot be ended from here; its end cannot be taken over; the stream
                was moved.
            DataError: a checkpoint is damaged.
        """
        context, control = self._context, self._context.home.control(stream_id)
        request_id = request_id_or_new(request_id, context.clock)
        dead = self._dead(control, deployment_id, request_id) if on_deadline == "kill" else None
        if dead is not None:
            refuse_during_upgrade(control, control.need_register().value, None)
            return self._force(control, *dead)
        order = self._orders.order(
            stream_id,
            "stop",
            deployment_id=deployment_id,
            request_id=request_id,
            reason=reason,
            expires_in_seconds=_expiry(deadline_seconds, on_deadline),
            is_forced=on_deadline == "kill",
        )
        attempt, age_seconds = self._ordered(control, order)
        left_seconds = max(0.0, deadline_seconds - age_seconds)
        try:
            outcome = self._waits.wait(WaitCondition.of(order), left_seconds, on_progress).end
        except DeadlineExceededError:
            if on_deadline == "fail":
                return self._withdraw(control, order, deadline_seconds)
            self._refuse_unobeyed(order)
        except DeploymentFailedError:
            if on_deadline == "fail":
                raise
        else:
            return ForcedStop(outcome)
        return self._force(control, order.deployment_id, attempt, order.command_id)

    def _dead(self, control: StreamControl, deployment_id: str | None, request_id: str) -> tuple[str, int, str] | None:
        """Deployment, attempt and order ("": none yet) of this request, if the driver has failed; else None."""
        command_id, record = "", control.request(request_id)
        if record is not None:
            if record.verb != "stop":
                return None  # the order will be refused for that
            deployment_id, command_id = record.deployment_id, record.command_id or ""
        seen = self._observer.observe(control.stream_id, deployment_id)
        if not seen.is_current or seen.state != "failed":
            return None
        return seen.deployment_id, seen.attempt, command_id

    def _ordered(self, control: StreamControl, order: CommandView) -> tuple[int, float]:
        """The attempt for which a stop was ordered, and how many seconds ago."""
        seen = self._observer.observe(order.stream_id, order.deployment_id)
        command = read_command(control, seen, order.command_id)
        if not isinstance(command, StopRequest):
            return seen.attempt, 0.0  # answered without having been written
        return command.attempt, (self._context.clock.now() - command.requested_at).total_seconds()

    def _withdraw(self, control: StreamControl, order: CommandView, deadline_seconds: float) -> ForcedStop:
        """Delete the order where no driver has started to obey it; its end, else an error with the stream's state."""
        journal = control.journal(order.deployment_id)
        for _try in range(WITHDRAW_TRIES):
            found = [
                slot for slot in journal.commands() if slot.command and slot.command.command_id == order.command_id
            ]
            if not found:
                break
            with contextlib.suppress(OutcomeUnknownError, VersionConflictError):  # read back by the next try (Law 8)
                journal.delete_command(found[0])
        seen = self._observer.observe(order.stream_id, order.deployment_id)
        end = decide_command_outcome(seen, order.command_id, StopRequest.kind)
        if end is None or end.outcome == "lost":
            raise _late(seen, order, deadline_seconds)
        if not end.is_what_was_ordered:
            raise self._waits.error_of(seen, end)
        return ForcedStop(self._watching.outcome(seen, end, order.command_id))

    def _refuse_unobeyed(self, order: CommandView) -> None:
        """Raise for an order of an earlier try that expired: it must not be started, so nothing is ended for it."""
        seen = self._observer.observe(order.stream_id, order.deployment_id)
        end = decide_command_outcome(seen, order.command_id, StopRequest.kind)
        if end is not None and end.outcome == "expired":
            raise self._waits.error_of(seen, end)

    def _force(self, control: StreamControl, deployment_id: str, attempt: int, command_id: str) -> ForcedStop:
        return ForcedEnd(
            self._context, self._attempts, self._watching, control, deployment_id, attempt, command_id
        ).come_to()


def _expiry(deadline_seconds: float, on_deadline: OnStopDeadline) -> float | None:
    """An order that will be withdrawn at the deadline also expires then: the controller may have died by then."""
    return deadline_seconds if on_deadline == "fail" else None


def _late(seen: Observation, order: CommandView, deadline_seconds: float) -> DeadlineExceededError:
    """The error at the deadline: whether the order stays in effect, and the state of the stream."""
    state = seen.state
    is_begun = seen.command_status(order.command_id).is_begun
    if is_begun:
        fact = "the order stays in effect: its driver obeys it already, which cannot be withdrawn"
    elif state in ("stopping", "draining"):
        fact = "this order is withdrawn, and an earlier one is being obeyed"
    elif state == "lost":
        fact = "the order is withdrawn, and whether its driver runs is not known"
    elif state == "silent":
        fact = "the order is withdrawn, and its driver is silent"
    else:
        fact = "the order is withdrawn, and the stream runs on"
    return DeadlineExceededError(
        f"the driver has not stopped by the deadline; {fact}",
        stream_id=seen.stream_id,
        deployment_id=seen.deployment_id,
        attempt=seen.attempt,
        command_id=order.command_id,
        deadline_seconds=deadline_seconds,
        state=state,
        order="stands" if is_begun else "withdrawn",
        last_seen=redacted(seen, describe(seen)),
        next_step=f"Look at `streamstate logs {seen.stream_id}` for why; --on-deadline kill ends its driver and keeps"
        " its end.",
    )
