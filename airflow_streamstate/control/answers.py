"""Which commands have had their end, and the drain that holds: by the events of a deployment, for agent and controller.

A command is known by its ``command_id`` over all events, so that neither a crash between event and clean-up, nor a
number that is used again, makes anybody obey twice (Law 2).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from airflow_streamstate.control.journal import CommandSlot
from airflow_streamstate.errors import DataError
from airflow_streamstate.protocol.codec import from_json
from airflow_streamstate.protocol.commands import Command, DrainNotification, SkipRequest
from airflow_streamstate.protocol.events import (
    Accepted,
    Drained,
    DrainFailed,
    Event,
    Expired,
    Ignored,
    Rejected,
    Skipped,
    SnapshotReady,
    Stopped,
)


def answered_by(event: Event | None) -> frozenset[str]:
    """The commands that have their end with this event; none with most."""
    if isinstance(event, Drained):
        return frozenset({event.command_id, *event.also_answers}) - {""}
    if isinstance(event, Ignored | Rejected | Expired | SnapshotReady | DrainFailed | Stopped | Skipped):
        return frozenset({event.command_id}) - {""}
    return frozenset()


def answered_ids(events: Iterable[Event | None]) -> frozenset[str]:
    """The commands that have had their end."""
    return frozenset().union(*(answered_by(event) for event in events))


def is_accepted(events: Iterable[Event | None], command_id: str) -> bool:
    """Whether a command was begun."""
    return any(isinstance(event, Accepted) and event.command_id == command_id for event in events)


def is_late(command: Command, now: datetime) -> bool:
    """Whether the deadline of a command has passed: what was not begun by then is not begun at all."""
    return command.deadline_at is not None and now > command.deadline_at


@dataclass(frozen=True)
class PendingDrain:
    """A drain that holds.

    Attributes:
        command: the notification.
        number: of its object, as it lies there or as the event that took it up had it; 0 where it has none.
    """

    command: DrainNotification
    number: int


def pending_drain(
    slots: Iterable[CommandSlot],
    events: Collection[Event | None],
    *,
    stream_id: str,
    deployment_id: str,
    now: datetime,
) -> PendingDrain | None:
    """The drain of a deployment that holds: ordered in time, or begun, and without its end; None where there is none.

    Args:
        slots: the commands that lie there.
        events: every event of the deployment, in order; None for those that could not be read.
        stream_id, deployment_id: whose drain; another's is never obeyed.
        now: what deadlines are held against.
    """
    answered = answered_ids(events)
    for slot in slots:
        command = slot.command
        if not isinstance(command, DrainNotification) or command.command_id in answered:
            continue
        is_ours = (command.stream_id, command.deployment_id) == (stream_id, deployment_id)
        if is_ours and (not is_late(command, now) or is_accepted(events, command.command_id)):
            return PendingDrain(command, slot.number or 0)
    for event in events:
        # One whose object somebody deleted after it was begun: the event keeps its content.
        if isinstance(event, Accepted) and event.command_id not in answered:
            command = command_in(event)
            if isinstance(command, DrainNotification):
                return PendingDrain(command, event.command_number)
    return None


def pending_skip(
    slots: Iterable[CommandSlot], events: Collection[Event | None], deployment_id: str, query_name: str
) -> tuple[SkipRequest, int] | None:
    """The skip of a batch of this query that nobody has answered yet, with the number of its object; None for none."""
    answered = answered_ids(events)
    for slot in slots:
        command = slot.command
        if not isinstance(command, SkipRequest) or command.command_id in answered:
            continue
        if (command.deployment_id, command.query_name) == (deployment_id, query_name):
            return command, slot.number or 0
    return None


def command_in(event: Accepted | Ignored | Expired) -> Command | None:
    """The command whose content an event keeps; None where it cannot be read (Law 7)."""
    try:
        return from_json(event.command, key=f"event {event.kind}", expected=Command)
    except DataError:
        return None
