"""Requests for snapshots: repeated while no driver answers, and at most one snapshot per request (Law 2).

A request becomes a command to the current attempt. Where no driver takes it up in time it is dated again; where another
attempt or deployment is current by then, that gets its own command under the same request id. A poll decides this,
a step of a wait does it. All ids follow from the request id, so any process can continue where another one died.
"""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from airflow_streamstate.control.command_status import command_in
from airflow_streamstate.control.journal import CommandSlot
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.commands.recorded_orders import Answered, agreed_protocol, decide_order
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.decide import Refused
from airflow_streamstate.controller.deploy.attempts import Attempts
from airflow_streamstate.controller.observe.health import beats_of
from airflow_streamstate.controller.observe.observation import ALIVE, Observation
from airflow_streamstate.controller.observe.outcomes import decide_command_outcome, decide_end
from airflow_streamstate.controller.observe.views import CommandView, Outcome
from airflow_streamstate.controller.stream_guards import check_same_request
from airflow_streamstate.controller.wait.condition import WaitCondition, WaitResult
from airflow_streamstate.controller.wait.waiting import Waits
from airflow_streamstate.controller.wait.watching import Watching
from airflow_streamstate.errors import InvalidRequestError, OutcomeUnknownError, VersionConflictError
from airflow_streamstate.protocol.codec import fields_json
from airflow_streamstate.protocol.commands import SnapshotRequest
from airflow_streamstate.protocol.events import Ignored, SnapshotReady
from airflow_streamstate.protocol.records import RequestRecord, SnapshotWish
from airflow_streamstate.protocol.terms.order import DEFAULT_SNAPSHOT, SnapshotTerms
from airflow_streamstate.protocol.terms.version import NO_SNAPSHOTS, digest_of
from airflow_streamstate.snapshot.location import no_snapshots, requested_snapshot

_NAMESPACE = uuid.UUID("0c9f3d4e-5b0a-5a44-8f37-2f1d6f0b9a11")
Slots = Callable[[], Sequence[CommandSlot]]


@dataclass(frozen=True)
class Came:
    """The snapshot exists: its own, or the one at the end of the deployment."""

    end: Outcome


@dataclass(frozen=True)
class Over:
    """It cannot come by waiting."""

    end: Outcome


@dataclass(frozen=True)
class Pending:
    """It may still come."""

    command_id: str
    slot: CommandSlot | None = None


@dataclass(frozen=True)
class Ask:
    """Send the command to the current attempt; ``slot``: replace this object by the same command with a later date."""

    command_id: str
    slot: CommandSlot | None = None


def asking_command_id(stream_id: str, request_id: str, deployment_id: str, attempt: int, tries: int = 1) -> str:
    """The id of the command of a request to an attempt, by the number of the try, from 1 (Law 2)."""
    return str(uuid.uuid5(_NAMESPACE, f"{stream_id}/{request_id}/{deployment_id}/{attempt}/{tries}"))


def decide_asking(
    seen: Observation, record: RequestRecord, request: SnapshotWish, slots: Slots, *, anew: bool = False
) -> Came | Over | Pending | Ask:
    """What to do about a recorded request. Pure.

    Args:
        seen: the current deployment.
        record: of the request.
        request: its terms.
        slots: the commands of the deployment, read only if that matters.
        anew: a client repeats the request, so an earlier refusal does not count.
    """
    ready = ready_of(seen, record)
    if ready is not None:
        return Came(ready)
    state = seen.state
    if state not in ALIVE:
        return _after_the_end(seen)
    command_id, before = _open_try(seen, record.request_id)
    if seen.command_status(command_id).is_begun:
        return Pending(command_id)
    refusal = _refusal(seen, request, before, anew=anew)
    if refusal is not None:
        return refusal
    slot = next((one for one in slots() if one.command is not None and one.command.command_id == command_id), None)
    if slot is None:
        return Ask(command_id)
    if request.requested_at is None and slot.command is not None and _is_unheard(seen, slot.command):
        return Ask(command_id, slot)
    return Pending(command_id, slot)


def ready_of(seen: Observation, record: RequestRecord) -> Outcome | None:
    """The snapshot of the observed deployment for a request, by its events, or None."""
    for entry in seen.events:
        event = entry.event
        if not isinstance(event, SnapshotReady):
            continue
        if event.request_id == record.request_id:
            return decide_command_outcome(seen, event.command_id, SnapshotRequest.kind)
    return None


def _after_the_end(seen: Observation) -> Came | Over | Pending:
    end = decide_end(seen, SnapshotRequest.kind)
    if end is None or end.outcome == "lost":
        return Pending("")
    if end.is_what_was_ordered and end.snapshot_id is not None:
        return Came(end)
    # It may be started again: the request stays open for the usual time.
    ended_at = seen.silent_since_at if seen.terminal is None else seen.terminal.at
    return Pending("") if seen.observed_at - ended_at < _timeout(seen) else Over(end)


def _open_try(seen: Observation, request_id: str) -> tuple[str, str | None]:
    """The first command to the current attempt that has no end, written or not; and the one before it."""
    ids = (seen.stream_id, request_id, seen.deployment_id, seen.attempt)
    tries, before = 1, None
    while seen.command_status(command_id := asking_command_id(*ids, tries)).is_ended:
        tries, before = tries + 1, command_id
    return command_id, before


def _refusal(seen: Observation, request: SnapshotWish, before: str | None, *, anew: bool) -> Over | Pending | None:
    """What the end of the last command means for the request; None where it may be sent again."""
    if before is None:
        return None
    said = seen.command_status(before).end
    end = decide_command_outcome(seen, before, SnapshotRequest.kind)
    if end is None or said is None:
        return None
    if end.outcome == "expired":
        return Over(end)  # its deadline is the request's
    if not isinstance(said, Ignored):
        return None if anew else Over(end)
    command = command_in(said)
    is_ahead = command is not None and command.requested_at > said.at
    if request.requested_at is not None or (is_ahead and not anew):
        return Over(end)  # the date is the client's, or this clock is wrong: it would be ignored again
    return None if anew or seen.observed_at - said.at >= _timeout(seen) else Pending(before)


def _is_unheard(seen: Observation, command: object) -> bool:
    """Whether no driver has taken a command up in time."""
    return isinstance(command, SnapshotRequest) and seen.observed_at - command.requested_at >= _timeout(seen)


def _is_before_the_first_commit(seen: Observation) -> bool:
    """Whether no query has committed anything yet, by the driver's last sign of life."""
    beats = beats_of(seen).values()
    return seen.spec.start.snapshot_id is None and bool(beats) and all(one.batch_id is None for one in beats)


def _timeout(seen: Observation) -> timedelta:
    return timedelta(seconds=seen.spec.version.settings.snapshot_request_timeout_seconds)


class SnapshotRequests:
    """Requests snapshots, and looks at the requests."""

    def __init__(self, context: ControllerContext, attempts: Attempts, watching: Watching, waits: Waits) -> None:
        self._context = context
        self._observer = context.observer
        self._attempts = attempts
        self._watching = watching
        self._waits = waits

    def ask(
        self,
        stream_id: str,
        *,
        request_id: str,
        terms: SnapshotTerms = DEFAULT_SNAPSHOT,
        reason: str = "",
        expires_in_seconds: float | None = None,
    ) -> CommandView:
        """As ``Controller.order``."""
        control = self._context.home.control(stream_id)
        digest = _digest(terms)
        record = control.request(request_id)
        if record is not None:
            check_same_request(record, digest)
            return self._ask_recorded(control, record)
        seen = self._observer.observe(stream_id)
        decision = decide_order(seen, "snapshot", request_id)
        if isinstance(decision, Refused):
            raise decision.error
        if seen.spec.version.snapshots == NO_SNAPSHOTS:
            raise no_snapshots(seen.deployment_id)
        command_id = asking_command_id(stream_id, request_id, seen.deployment_id, seen.attempt)
        request = self._request_now(terms, reason, expires_in_seconds)
        self._attempts.record_request(control, request_id, "snapshot", digest, seen, command_id, request)
        if isinstance(decision, Answered):
            return self._view(seen, request_id, command_id, self._outcome(seen, decision.end))
        return self._give(control, seen, request_id, request, Ask(command_id))

    def look(self, condition: WaitCondition) -> WaitResult:
        """One look at a recorded request; the due write sends it again. Raises InvalidRequestError for no request."""
        seen, request_id = self._observer.observe(condition.stream_id), condition.request_id or ""
        control = self._context.home.control(seen.stream_id)
        record = self._need_record(control, request_id)
        request = self._request_in(record)
        decision = decide_asking(seen, record, request, control.journal(seen.deployment_id).commands)
        pending = self._waits.result_of(condition, seen, None)
        if _is_before_the_first_commit(seen):
            words = f"{pending.last_seen}; nothing is committed yet: the snapshot is taken after the first commit"
            pending = dataclasses.replace(pending, last_seen=words)
        if isinstance(decision, Came):
            return self._waits.result_of(condition, seen, decision.end, self._outcome(seen, decision.end))
        if isinstance(decision, Pending) and decision.slot is not None:
            return pending
        kept = self._kept(control, seen, request_id)
        if kept is not None:
            return self._waits.result_of(condition, seen, kept, kept)
        if isinstance(decision, Over):
            return self._waits.result_of(condition, seen, decision.end, self._outcome(seen, decision.end))
        if isinstance(decision, Ask):
            return dataclasses.replace(
                pending, due=partial(self._ask_again, control, seen, request_id, request, decision)
            )
        return pending

    def _ask_again(
        self, control: StreamControl, seen: Observation, request_id: str, request: SnapshotWish, ask: Ask
    ) -> None:
        with contextlib.suppress(OutcomeUnknownError):  # the next poll reads it back (Law 8)
            self._give(control, seen, request_id, request, ask)

    def _ask_recorded(self, control: StreamControl, record: RequestRecord) -> CommandView:
        """What a repeated request has become, or the command that repeats it."""
        seen, request_id = self._observer.observe(control.stream_id), record.request_id
        request, first_id = self._request_in(record), record.command_id or ""
        decision = decide_asking(seen, record, request, control.journal(seen.deployment_id).commands, anew=True)
        if isinstance(decision, Came):
            return self._view(seen, request_id, first_id, self._outcome(seen, decision.end))
        kept = self._kept(control, seen, request_id)
        if kept is not None:
            return self._view(seen, request_id, first_id, kept)
        order = decide_order(seen, "snapshot", request_id)
        if isinstance(order, Refused) and not isinstance(decision, Pending):
            raise order.error
        if isinstance(decision, Over):
            return self._view(seen, request_id, first_id, self._outcome(seen, decision.end))
        if isinstance(decision, Ask):
            return self._give(control, seen, request_id, request, decision)
        view = self._view(seen, request_id, decision.command_id)
        if decision.slot is None:
            accepted = seen.command_status(decision.command_id).accepted
            return dataclasses.replace(view, number=None if accepted is None else accepted.command_number)
        return dataclasses.replace(view, number=decision.slot.number, key=decision.slot.key)

    def _give(
        self, control: StreamControl, seen: Observation, request_id: str, request: SnapshotWish, ask: Ask
    ) -> CommandView:
        settings = seen.spec.version.settings
        command = SnapshotRequest(
            command_id=ask.command_id,
            stream_id=seen.stream_id,
            deployment_id=seen.deployment_id,
            requested_at=request.requested_at or self._context.clock.now(),
            deadline_at=request.deadline_at,
            requested_by=request.requested_by,
            reason=request.reason,
            attempt=seen.attempt,
            request_id=request_id,
            ttl_seconds=settings.snapshot_ttl_seconds if request.ttl_seconds is None else request.ttl_seconds,
            consistent=request.consistent,
        )
        journal, protocol = control.journal(seen.deployment_id), agreed_protocol(seen)
        if ask.slot is None:
            number, key = journal.write_command(command, protocol)
        else:
            number, key = ask.slot.number or 0, ask.slot.key
            with contextlib.suppress(VersionConflictError):  # a driver took it up in the meantime
                journal.renew_command(ask.slot, command, protocol)
        return dataclasses.replace(self._view(seen, request_id, ask.command_id), number=number, key=key)

    def _kept(self, control: StreamControl, seen: Observation, request_id: str) -> Outcome | None:
        """The snapshot of this request by a driver that wrote no event, or by a deployment that is not current."""
        events = [entry.event for entry in seen.events]
        manifest = requested_snapshot(control, request_id, seen.deployment_id, events)
        if manifest is None:
            return None
        end = Outcome(
            seen.stream_id,
            manifest.deployment_id,
            "snapshot_ready",
            seen.state,
            snapshot_id=manifest.snapshot_id,
            queries={name: query.position for name, query in manifest.queries.items()},
            command_kind=SnapshotRequest.kind,
        )
        return self._watching.outcome(seen, end, manifest.command_id)

    def _outcome(self, seen: Observation, end: Outcome) -> Outcome:
        return self._watching.outcome(seen, end, getattr(end.event, "command_id", ""))

    def _view(self, seen: Observation, request_id: str, command_id: str, outcome: Outcome | None = None) -> CommandView:
        return CommandView(
            stream_id=seen.stream_id,
            deployment_id=seen.deployment_id,
            command_id=command_id,
            number=None,
            key=None,
            state=seen.state if outcome is None else outcome.state,
            verb="snapshot",
            outcome=outcome,
            request_id=request_id,
        )

    def _request_now(self, terms: SnapshotTerms, reason: str, expires_in_seconds: float | None) -> SnapshotWish:
        now = self._context.clock.now()
        return SnapshotWish(
            requested_at=terms.requested_at,
            ttl_seconds=terms.ttl_seconds,
            deadline_at=None if expires_in_seconds is None else now + timedelta(seconds=expires_in_seconds),
            requested_by=self._context.requested_by,
            reason=reason,
            consistent=terms.consistent,
        )

    def _request_in(self, record: RequestRecord) -> SnapshotWish:
        return record.snapshot or self._request_now(DEFAULT_SNAPSHOT, "", None)

    def _need_record(self, control: StreamControl, request_id: str) -> RequestRecord:
        record = control.request(request_id)
        if record is None or record.verb != "snapshot":
            raise InvalidRequestError(
                "no snapshot was asked for under this request id",
                stream_id=control.stream_id,
                request_id=request_id,
                next_step=f"`streamstate snapshot create {control.stream_id} --request-id {request_id}` asks for one.",
            )
        return record


def _digest(terms: SnapshotTerms) -> str:
    return digest_of({"verb": "snapshot", **fields_json(terms)})
