"""Orders to stop, to drain and to cancel a drain, recorded for the agent of a deployment.

A command's id follows from the request id alone, so a repeated request is one order, also after the command was
answered and deleted (Law 2).
"""

from __future__ import annotations

import uuid
from dataclasses import asdict
from datetime import timedelta
from typing import Literal

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.decide import Refused, refuse_other_intent
from airflow_streamstate.controller.deploy.attempts import Attempts, someone_was_first
from airflow_streamstate.controller.observe.observation import (
    ENDED,
    NOT_ENDED,
    Observation,
    pending_drain,
    silent_error,
)
from airflow_streamstate.controller.observe.outcomes import decide_command_outcome, decide_end
from airflow_streamstate.controller.observe.pending_orders import ORDERS, OrderVerb
from airflow_streamstate.controller.observe.views import CommandView, Outcome
from airflow_streamstate.controller.stream_guards import check_same_request, refuse_during_upgrade
from airflow_streamstate.controller.wait.watching import Watching
from airflow_streamstate.errors import ConflictError, StreamStateError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import NEWEST_PROTOCOL, version_for
from airflow_streamstate.protocol.commands import (
    CancelRequest,
    Command,
    DrainNotification,
    StopRequest,
)
from airflow_streamstate.protocol.events import Draining
from airflow_streamstate.protocol.terms.order import DEFAULT_DRAIN, DrainTerms
from airflow_streamstate.protocol.terms.version import digest_of

EndingVerb = Literal["stop", "drain", "cancel"]
_NAMESPACE = uuid.UUID("6d7b7a52-0a0b-5d3c-9b53-7f7d0c6a2f10")


@dataclass(frozen=True)
class Answered:
    """What was ordered has happened already."""

    end: Outcome


@dataclass(frozen=True)
class Write:
    """Write the command; ``launch``: then start a driver for the current attempt, which has none."""

    launch: bool = False


@dataclass(frozen=True)
class LaunchToDrain:
    """The deployment is dead: start an attempt that only flushes."""


def decide_order(
    seen: Observation, verb: OrderVerb, request_id: str, *, is_forced: bool = False
) -> Answered | Write | LaunchToDrain | Refused:
    """What to do about an order to a deployment.

    Args:
        is_forced: the driver is ended where it does not obey, so one that is silent gets the order, too.
    """
    state = seen.state
    end = decide_end(seen, ORDERS[verb].kind)
    has_end = end is not None and end.is_what_was_ordered
    if end is not None and has_end and verb != "cancel" and (verb != "snapshot" or end.snapshot_id is not None):
        return Answered(end)
    if not seen.is_current:
        return Refused(_not_current(seen))
    if verb == "cancel":
        return Write()  # also for a dead deployment: its next attempt would finish a drain that was started
    if state == "silent" and not is_forced:
        return Refused(silent_error(seen, verb))
    if state in NOT_ENDED:
        return Write(launch=verb == "drain" and seen.is_unlaunched)
    if verb == "drain" and state != "lost":
        return refuse_other_intent(seen.register, request_id, seen.observed_at) or LaunchToDrain()
    return Refused(_not_running(seen, verb, state))


def command_id_for(stream_id: str, verb: EndingVerb, request_id: str) -> str:
    """The id of the command that a request becomes."""
    return str(uuid.uuid5(_NAMESPACE, f"{stream_id}/{verb}/{request_id}"))


class Orders:
    """Records orders, and starts the attempt that flushes a dead deployment."""

    def __init__(self, context: ControllerContext, attempts: Attempts, watching: Watching) -> None:
        self._context = context
        self._observer = context.observer
        self._attempts = attempts
        self._watching = watching

    def order(
        self,
        stream_id: str,
        verb: EndingVerb,
        *,
        deployment_id: str | None,
        request_id: str,
        reason: str,
        expires_in_seconds: float | None,
        terms: DrainTerms = DEFAULT_DRAIN,
        upgrade_id: str | None = None,
        is_forced: bool = False,
    ) -> CommandView:
        """As ``Controller.order``.

        Args:
            upgrade_id: the upgrade that this is a step of, or None.
            is_forced: as of ``decide_order``.
        """
        control = self._context.home.control(stream_id)
        command_id = command_id_for(stream_id, verb, request_id)
        digest = _order_digest(verb, deployment_id, terms)
        record = control.request(request_id)
        if record is not None:
            check_same_request(record, digest)
            deployment_id = record.deployment_id
        seen = self._observer.observe(stream_id, deployment_id)
        if record is not None:
            end = decide_command_outcome(seen, command_id, ORDERS[verb].kind)
            if end is not None and (seen.command_status(command_id).is_ended or not seen.is_current):
                return self._answered(seen, verb, command_id, end)
        decision = decide_order(seen, verb, request_id, is_forced=is_forced)
        if isinstance(decision, Refused):
            raise self._refusal(control, seen, verb, decision, upgrade_id)
        if record is None or upgrade_id is not None:
            refuse_during_upgrade(control, seen.register, upgrade_id)
        if record is None:
            _refuse_cancel(control, seen, verb)
            self._attempts.record_request(control, request_id, verb, digest, seen, command_id)
        if isinstance(decision, Answered):
            self._keep_ended(control, seen, verb, upgrade_id)
            return self._answered(seen, verb, command_id, decision.end)
        attempt = seen.attempt
        if isinstance(decision, LaunchToDrain):
            self._attempts.move(control, seen, "drain", assume_dead=False, reason=reason)
            attempt += 1
        command = self._command(seen, verb, command_id, attempt, reason, expires_in_seconds, terms)
        number, key = control.journal(seen.deployment_id).write_command(command, agreed_protocol(seen))
        if isinstance(decision, LaunchToDrain) or decision.launch:
            self._context.drivers.launch(control, seen.spec, attempt)
            seen = self._observer.observe(stream_id, seen.deployment_id)
        return CommandView(stream_id, seen.deployment_id, command_id, number, key, seen.state, verb)

    def _refusal(
        self, control: StreamControl, seen: Observation, verb: EndingVerb, refused: Refused, upgrade_id: str | None
    ) -> StreamStateError:
        """The error of a refused order. A stop that finds only a pending restart records that none follows."""
        if verb != "stop" or upgrade_id is not None or not _is_restarted(seen):
            return refused.error
        refuse_during_upgrade(control, seen.register, None)
        return _kept_ended(seen) if self._attempts.keep_ended(seen, "stopped") else someone_was_first(control)

    def _keep_ended(self, control: StreamControl, seen: Observation, verb: EndingVerb, upgrade_id: str | None) -> None:
        """A stop of a stream that has ended without being asked holds: no watcher starts it again."""
        if verb != "stop" or upgrade_id is not None:
            return
        if seen.was_interrupted and _is_restarted(seen) and not self._attempts.keep_ended(seen, "stopped"):
            raise someone_was_first(control)

    def _answered(self, seen: Observation, verb: EndingVerb, command_id: str, end: Outcome) -> CommandView:
        outcome = self._watching.outcome(seen, end, command_id)
        return CommandView(seen.stream_id, seen.deployment_id, command_id, None, None, end.state, verb, outcome)

    def _command(
        self,
        seen: Observation,
        verb: EndingVerb,
        command_id: str,
        attempt: int,
        reason: str,
        expires_in_seconds: float | None,
        terms: DrainTerms,
    ) -> Command:
        now = self._context.clock.now()
        deadline_at = None if expires_in_seconds is None else now + timedelta(seconds=expires_in_seconds)
        within_seconds = terms.batches_deadline_seconds
        batches_by_at = None if within_seconds is None else now + timedelta(seconds=within_seconds)
        if terms.on_batches_deadline == "fail":
            deadline_at = deadline_at or batches_by_at  # a drain that is called off then is not started later
        head = (command_id, seen.stream_id, seen.deployment_id, now, deadline_at, self._context.requested_by, reason)
        if verb == "drain":
            return DrainNotification(
                *head,
                mode=terms.mode,
                rehearse=terms.rehearse,
                allow_state_loss=terms.allow_state_loss,
                batches_by_at=batches_by_at,
                on_deadline=terms.on_batches_deadline,
                flush_within_seconds=terms.flush_deadline_seconds,
                on_flush_deadline=terms.on_flush_deadline,
                leave_queries=terms.leave_queries,
            )
        return CancelRequest(*head) if verb == "cancel" else StopRequest(*head, attempt=attempt)


def _order_digest(verb: EndingVerb, deployment_id: str | None, terms: DrainTerms) -> str:
    return digest_of({"verb": verb, "deployment_id": deployment_id, **asdict(terms)})


def _refuse_cancel(control: StreamControl, seen: Observation, verb: EndingVerb) -> None:
    """Refuse a cancel where no drain is under way, or its flush has started."""
    if verb != "cancel":
        return
    drain = pending_drain(seen, control.journal(seen.deployment_id).commands())
    facts = {"stream_id": seen.stream_id, "deployment_id": seen.deployment_id}
    if drain is None:
        raise ConflictError(
            "no drain of this deployment is under way, so nothing can be withdrawn",
            **facts,
            next_step=f"`streamstate status {seen.stream_id}` shows its state.",
        )
    if any(event.command_id == drain.command_id for event in seen.of_kind(Draining, any_attempt=True)):
        raise ConflictError(
            "the flush of this drain has started, and cannot be withdrawn",
            **facts,
            command_id=drain.command_id,
            next_step=f"Let it come to its end; `streamstate rollback {seen.stream_id} --snapshot` with its snapshot"
            " pre-drain goes back to the state of before, with what the flush wrote undone.",
        )


def agreed_protocol(seen: Observation) -> int:
    """The highest version of the protocol that the agent and this package both know."""
    if seen.claim is None or not seen.is_claimed:
        return NEWEST_PROTOCOL
    return version_for(seen.claim.oldest_protocol, seen.claim.newest_protocol)


def _not_current(seen: Observation) -> ConflictError:
    return ConflictError(
        "deployment is not the stream's current one any more: command not sent",
        stream_id=seen.stream_id,
        deployment_id=seen.deployment_id,
        current_deployment_id=seen.register.deployment_id,
        next_step="Give the order to the current deployment.",
    )


def _is_restarted(seen: Observation) -> bool:
    """Whether a watcher may start this deployment again, which has failed."""
    return seen.is_current and seen.state in ENDED and seen.register.restart_policy.on_failure == "restart"


def _kept_ended(seen: Observation) -> StreamStateError:
    return ConflictError(
        f"stream is {seen.state}, so there is nothing to stop: no watcher restarts it any more",
        stream_id=seen.stream_id,
        deployment_id=seen.deployment_id,
        attempt=seen.attempt,
        state=seen.state,
        next_step="Deploy takes over from where it ended, and keeps its state; resume starts it again.",
    )


def _not_running(seen: Observation, verb: OrderVerb, state: str) -> StreamStateError:
    hints = {
        "stop": "Deploy takes over from where it ended, and keeps its state; resume starts it again.",
        "snapshot": "Resume it first; deploy and drain take their own snapshot of where it ended.",
        "cancel": "There is nothing to withdraw.",
        "drain": "Only when its driver is surely dead: `resume --assume-dead`, then drain.",
    }
    return ConflictError(
        f"stream is {state}: command not sent",
        stream_id=seen.stream_id,
        deployment_id=seen.deployment_id,
        attempt=seen.attempt,
        state=state,
        next_step=hints[verb],
    )
