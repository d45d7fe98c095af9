"""Requests for snapshots: asked once, asked again while no driver answers, and one snapshot however often.

A look at a request tells that it is to be asked again: no driver has taken the command up in time, or another
deployment or attempt is current by now. A step of a wait does that. All of it goes by the request id alone, so that any
process can go on where another one died.
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
from airflow_streamstate.controller.commands.orders import Answered, agreed_protocol, decide_order
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.decide import Refused
from airflow_streamstate.controller.deploy.attempts import Attempts
from airflow_streamstate.controller.idempotency import check_same_request
from airflow_streamstate.controller.observe.observation import ALIVE, Observation
from airflow_streamstate.controller.observe.outcomes import End, decide_command_outcome, decide_end
from airflow_streamstate.controller.observe.views import CommandView, Outcome
from airflow_streamstate.controller.request.version import digest_of
from airflow_streamstate.controller.wait.condition import WaitCondition, WaitResult
from airflow_streamstate.controller.wait.waiting import Waits
from airflow_streamstate.controller.wait.watching import Watching
from airflow_streamstate.errors import InvalidRequestError, OutcomeUnknownError, VersionConflictError
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.commands import DEFAULT_SNAPSHOT_TERMS, SnapshotRequest, SnapshotTerms
from airflow_streamstate.protocol.events import Ignored, SnapshotReady
from airflow_streamstate.protocol.records import NO_SNAPSHOTS, RequestRecord, SnapshotWish
from airflow_streamstate.snapshot.placing import no_snapshots
from airflow_streamstate.snapshot.requested import requested_snapshot

# What is to be done about a request for a snapshot: pure, from what was observed.
#
# A request becomes a command to the attempt that is current. Where that is replaced or restarted before it has taken
# the snapshot, the next one is asked anew, by a command of its own under the same request id, until the first one is
# ready.

_NAMESPACE = uuid.UUID("0c9f3d4e-5b0a-5a44-8f37-2f1d6f0b9a11")
Slots = Callable[[], Sequence[CommandSlot]]


@dataclass(frozen=True)
class Came:
    """It is there: its own snapshot, or the one at the end of what was to be snapshotted."""

    end: End


@dataclass(frozen=True)
class Over:
    """It cannot come by waiting."""

    end: End


@dataclass(frozen=True)
class Pending:
    """It may still come."""

    command_id: str
    slot: CommandSlot | None = None


@dataclass(frozen=True)
class Ask:
    """Ask the current attempt; ``slot``: put the same command with a later date in the place of this one."""

    command_id: str
    slot: CommandSlot | None = None


def asking_command_id(stream_id: str, request_id: str, deployment_id: str, attempt: int, tries: int = 1) -> str:
    """The id of the command that a request becomes for an attempt; ``tries``: for which time, from 1 (Law 2)."""
    return str(uuid.uuid5(_NAMESPACE, f"{stream_id}/{request_id}/{deployment_id}/{attempt}/{tries}"))


def decide_asking(
    seen: Observation, record: RequestRecord, wish: SnapshotWish, slots: Slots, *, anew: bool = False
) -> Came | Over | Pending | Ask:
    """What is to be done about a request that is recorded.

    Args:
        seen: the current deployment.
        record: of the request.
        wish: how it was asked for.
        slots: the commands that lie there, looked at only where that matters.
        anew: somebody asks for it again by himself, so that an earlier no is no answer.
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
    refusal = _refusal(seen, wish, before, anew=anew)
    if refusal is not None:
        return refusal
    slot = next((one for one in slots() if one.command is not None and one.command.command_id == command_id), None)
    if slot is None:
        return Ask(command_id)
    if wish.requested_at is None and slot.command is not None and _is_unheard(seen, slot.command):
        return Ask(command_id, slot)
    return Pending(command_id, slot)


def ready_of(seen: Observation, record: RequestRecord) -> End | None:
    """The snapshot that the observed deployment has taken for a request, as it told of it; None for none."""
    for entry in seen.events:
        event = entry.event
        if not isinstance(event, SnapshotReady):
            continue
        is_first = record.command_id is not None and event.command_id == record.command_id
        if is_first or event.request_id == record.request_id or _is_try(seen, record.request_id, event):
            return decide_command_outcome(seen, event.command_id, SnapshotRequest.kind)
    return None


def _is_try(seen: Observation, request_id: str, event: SnapshotReady) -> bool:
    """Whether this is about the first command to its attempt: older agents do not say what it was asked under."""
    ids = (seen.stream_id, request_id, seen.deployment_id, event.attempt)
    return not event.request_id and event.command_id == asking_command_id(*ids)


def _after_the_end(seen: Observation) -> Came | Over | Pending:
    end = decide_end(seen, SnapshotRequest.kind)
    if end is None or end.outcome == "lost":
        return Pending("")
    if end.is_what_was_ordered and end.snapshot_id is not None:
        return Came(end)
    # Somebody may be about to start it again: it is asked again after as long as at any other time.
    ended_at = seen.silent_since_at if seen.terminal is None else seen.terminal.at
    patience = timedelta(seconds=seen.spec.settings.snapshot_request_timeout_seconds)
    return Pending("") if seen.observed_at - ended_at < patience else Over(end)


def _open_try(seen: Observation, request_id: str) -> tuple[str, str | None]:
    """The command to the current attempt that has no end yet, written or not; and the one before it."""
    ids = (seen.stream_id, request_id, seen.deployment_id, seen.attempt)
    tries, before = 1, None
    while seen.command_status(command_id := asking_command_id(*ids, tries)).is_ended:
        tries, before = tries + 1, command_id
    return command_id, before


def _refusal(seen: Observation, wish: SnapshotWish, before: str | None, *, anew: bool) -> Over | Pending | None:
    """What the end of the last command means for the next one; None where there may be one."""
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
    if wish.requested_at is not None or (is_ahead and not anew):
        return Over(end)  # the date is the user's, or our clock is wrong: it would be ignored again
    timeout = timedelta(seconds=seen.spec.settings.snapshot_request_timeout_seconds)
    return None if anew or seen.observed_at - said.at >= timeout else Pending(before)


def _is_unheard(seen: Observation, command: object) -> bool:
    """Whether nobody has taken a command up for so long that it is to be asked again."""
    timeout = timedelta(seconds=seen.spec.settings.snapshot_request_timeout_seconds)
    return isinstance(command, SnapshotRequest) and seen.observed_at - command.requested_at >= timeout


class SnapshotRequests:
    """Asks for snapshots.

    Args:
        means: of the controller.
        attempts: records requests.
        watching: turns what was seen into outcomes.
        waits: has looks at requests as part of its own.
    """

    def __init__(self, context: ControllerContext, attempts: Attempts, watching: Watching, waits: Waits) -> None:
        self._context = context
        self._observer = context.observer
        self._attempts = attempts
        self._watching = watching
        self._waits = waits
        waits.add("snapshot request", self.look)

    def ask(
        self,
        stream_id: str,
        *,
        request_id: str,
        terms: SnapshotTerms = DEFAULT_SNAPSHOT_TERMS,
        reason: str = "",
        expires_in_seconds: float | None = None,
    ) -> CommandView:
        """As ``Controller.snapshot``."""
        control = self._context.home.control(stream_id)
        _check_terms(terms)
        digest = _digest(terms)
        record = control.request(request_id)
        if record is not None:
            check_same_request(record, digest)
            return self._ask_recorded(control, record)
        seen = self._observer.observe(stream_id)
        decision = decide_order(seen, "snapshot", request_id)
        if isinstance(decision, Refused):
            raise decision.error
        if seen.spec.snapshots == NO_SNAPSHOTS:
            raise no_snapshots(seen.deployment_id)
        command_id = asking_command_id(stream_id, request_id, seen.deployment_id, seen.attempt)
        wish = self._wish(terms, reason, expires_in_seconds)
        self._attempts.record_request(control, request_id, "snapshot", digest, seen, command_id, wish)
        if isinstance(decision, Answered):
            return self._view(seen, request_id, command_id, self._outcome(seen, decision.end))
        return self._give(control, seen, request_id, wish, Ask(command_id))

    def look(self, condition: WaitCondition) -> WaitResult:
        """One look at a request that was asked for, of whichever deployment is current.

        Due is to ask again, where no driver has taken the command up within ``snapshot_request_timeout_seconds``, or
        where another deployment or attempt is current than the one that was asked.

        Raises:
            InvalidRequestError: it was not asked for.
            StreamNotFoundError: there is no such stream.
        """
        seen, request_id = self._observer.observe(condition.stream_id), condition.request_id or ""
        control = self._context.home.control(seen.stream_id)
        record = self._need_record(control, request_id)
        wish = self._wish_of(record)
        decision = decide_asking(seen, record, wish, control.journal(seen.deployment_id).commands)
        pending = self._waits.result_of(condition, seen, None)
        if isinstance(decision, Came):
            return self._waits.result_of(condition, seen, decision.end, self._outcome(seen, decision.end))
        if isinstance(decision, Pending) and decision.slot is not None:
            return pending
        kept = self._kept(control, seen, request_id)
        if kept is not None:
            return self._waits.result_of(condition, seen, *kept)
        if isinstance(decision, Over):
            return self._waits.result_of(condition, seen, decision.end, self._outcome(seen, decision.end))
        if isinstance(decision, Ask):
            return dataclasses.replace(pending, due=partial(self._ask_again, control, seen, request_id, wish, decision))
        return pending

    def _ask_again(
        self, control: StreamControl, seen: Observation, request_id: str, wish: SnapshotWish, ask: Ask
    ) -> None:
        with contextlib.suppress(OutcomeUnknownError):  # the next look tells (Law 8)
            self._give(control, seen, request_id, wish, ask)

    def _ask_recorded(self, control: StreamControl, record: RequestRecord) -> CommandView:
        """It was asked for before: it is what it has become, or is asked again."""
        seen, request_id = self._observer.observe(control.stream_id), record.request_id
        wish, first_id = self._wish_of(record), record.command_id or ""
        decision = decide_asking(seen, record, wish, control.journal(seen.deployment_id).commands, anew=True)
        if isinstance(decision, Came):
            return self._view(seen, request_id, first_id, self._outcome(seen, decision.end))
        kept = self._kept(control, seen, request_id)
        if kept is not None:
            return self._view(seen, request_id, first_id, kept[1])
        order = decide_order(seen, "snapshot", request_id)
        if isinstance(order, Refused) and not isinstance(decision, Pending):
            raise order.error
        if isinstance(decision, Over):
            return self._view(seen, request_id, first_id, self._outcome(seen, decision.end))
        if isinstance(decision, Ask):
            return self._give(control, seen, request_id, wish, decision)
        view = self._view(seen, request_id, decision.command_id)
        if decision.slot is None:
            return dataclasses.replace(view, number=_accepted_number(seen, decision.command_id))
        return dataclasses.replace(view, number=decision.slot.number, key=decision.slot.key)

    def _give(
        self, control: StreamControl, seen: Observation, request_id: str, wish: SnapshotWish, ask: Ask
    ) -> CommandView:
        settings = seen.spec.settings
        command = SnapshotRequest(
            command_id=ask.command_id,
            stream_id=seen.stream_id,
            deployment_id=seen.deployment_id,
            requested_at=wish.requested_at or self._context.clock.now(),
            deadline_at=wish.deadline_at,
            requested_by=wish.requested_by,
            reason=wish.reason,
            attempt=seen.attempt,
            request_id=request_id,
            ttl_seconds=settings.snapshot_ttl_seconds if wish.ttl_seconds is None else wish.ttl_seconds,
            consistent=wish.consistent,
        )
        journal, protocol = control.journal(seen.deployment_id), agreed_protocol(seen)
        if ask.slot is None:
            number, key = journal.write_command(command, protocol)
        else:
            number, key = ask.slot.number or 0, ask.slot.key
            with contextlib.suppress(VersionConflictError):  # taken up this very moment
                journal.renew_command(ask.slot, command, protocol)
        return dataclasses.replace(self._view(seen, request_id, ask.command_id), number=number, key=key)

    def _kept(self, control: StreamControl, seen: Observation, request_id: str) -> tuple[End, Outcome] | None:
        """The snapshot that a deployment or an attempt has taken which could not tell of it, or is not current."""
        events = [entry.event for entry in seen.events]
        manifest = requested_snapshot(control, request_id, seen.deployment_id, events)
        if manifest is None:
            return None
        end = End(
            "snapshot_ready",
            seen.state,
            snapshot_id=manifest.snapshot_id,
            queries={name: query.position for name, query in manifest.queries.items()},
            command_kind=SnapshotRequest.kind,
        )
        outcome = self._watching.outcome(seen, end, manifest.command_id)
        return end, dataclasses.replace(outcome, deployment_id=manifest.deployment_id)

    def _outcome(self, seen: Observation, end: End) -> Outcome:
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

    def _wish(self, terms: SnapshotTerms, reason: str, expires_in_seconds: float | None) -> SnapshotWish:
        now = self._context.clock.now()
        return SnapshotWish(
            requested_at=terms.requested_at,
            ttl_seconds=terms.ttl_seconds,
            deadline_at=None if expires_in_seconds is None else now + timedelta(seconds=expires_in_seconds),
            requested_by=self._context.requested_by,
            reason=reason,
            consistent=terms.consistent,
        )

    def _wish_of(self, record: RequestRecord) -> SnapshotWish:
        return record.snapshot or self._wish(DEFAULT_SNAPSHOT_TERMS, "", None)

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


def _accepted_number(seen: Observation, command_id: str) -> int | None:
    """The number of a command that a driver has taken up; None where none has."""
    accepted = seen.command_status(command_id).accepted
    return None if accepted is None else accepted.command_number


def _check_terms(terms: SnapshotTerms) -> None:
    if terms.requested_at is not None and terms.requested_at.tzinfo is None:
        raise InvalidRequestError(
            "the time of asking has no time zone",
            requested_at=terms.requested_at.isoformat(),
            next_step="Give it with one, as 2026-03-01T10:05:00Z.",
        )
    if terms.ttl_seconds is not None and not 0 < terms.ttl_seconds < float("inf"):
        raise InvalidRequestError(
            "this is no time to live", ttl_seconds=str(terms.ttl_seconds), next_step="Give a number of seconds above 0."
        )


def _digest(terms: SnapshotTerms) -> str:
    asked: dict[str, object] = {"verb": "snapshot", "mode": "default", "deployment_id": None}
    if terms.requested_at is not None:  # without any, the digest is the one that earlier versions recorded
        asked["requested_at"] = format_time(terms.requested_at)
    if terms.ttl_seconds is not None:
        asked["ttl_seconds"] = terms.ttl_seconds
    if terms.consistent:
        asked["consistent"] = True
    return digest_of(asked)
