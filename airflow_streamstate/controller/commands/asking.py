"""What is to be done about a request for a snapshot: pure, from what was observed.

A request becomes a command to the attempt that is current. Where that is replaced or restarted before it has taken the
snapshot, the next one is asked anew, by a command of its own under the same request id, until the first one is ready.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from airflow_streamstate.control.command_status import answered_by, command_in, is_accepted
from airflow_streamstate.control.journal import CommandSlot
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.controller.observe.outcomes import End, decide_command_outcome, decide_end
from airflow_streamstate.controller.observe.state import ALIVE, decide_state
from airflow_streamstate.protocol.commands import SnapshotRequest
from airflow_streamstate.protocol.events import Ignored, SnapshotReady
from airflow_streamstate.protocol.records import RequestRecord, SnapshotWish

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
    state = decide_state(seen, seen.observed_at)
    if state not in ALIVE:
        return _after_the_end(seen)
    command_id, before = _open_try(seen, record.request_id)
    if is_accepted((entry.event for entry in seen.events), command_id):
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
    answered = frozenset[str]().union(*(answered_by(entry.event) for entry in seen.events))
    ids = (seen.stream_id, request_id, seen.deployment_id, seen.attempt)
    tries, before = 1, None
    while (command_id := asking_command_id(*ids, tries)) in answered:
        tries, before = tries + 1, command_id
    return command_id, before


def _refusal(seen: Observation, wish: SnapshotWish, before: str | None, *, anew: bool) -> Over | Pending | None:
    """What the end of the last command means for the next one; None where there may be one."""
    if before is None:
        return None
    entry = next(entry for entry in reversed(seen.events) if before in answered_by(entry.event))
    end = decide_command_outcome(seen, before, SnapshotRequest.kind)
    if end is None or entry.event is None:
        return None
    if end.outcome == "expired":
        return Over(end)  # its deadline is the request's
    if not isinstance(entry.event, Ignored):
        return None if anew else Over(end)
    command = command_in(entry.event)
    is_ahead = command is not None and command.requested_at > entry.event.at
    if wish.requested_at is not None or (is_ahead and not anew):
        return Over(end)  # the date is the user's, or our clock is wrong: it would be ignored again
    timeout = timedelta(seconds=seen.spec.settings.snapshot_request_timeout_seconds)
    return None if anew or seen.observed_at - entry.event.at >= timeout else Pending(before)


def _is_unheard(seen: Observation, command: object) -> bool:
    """Whether nobody has taken a command up for so long that it is to be asked again."""
    timeout = timedelta(seconds=seen.spec.settings.snapshot_request_timeout_seconds)
    return isinstance(command, SnapshotRequest) and seen.observed_at - command.requested_at >= timeout
