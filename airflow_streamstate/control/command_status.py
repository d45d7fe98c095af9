"""Which commands have had their end, and the drain that holds: by the events of a deployment, for agent and controller.

A command is known by its ``command_id`` over all events, so that neither a crash between event and clean-up, nor a
number that is used again, makes anybody obey twice (Law 2).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from airflow_streamstate.clock import whole_milliseconds
from airflow_streamstate.control.journal import CommandSlot
from airflow_streamstate.errors import DataError
from airflow_streamstate.protocol.codec import from_json
from airflow_streamstate.protocol.commands import (
    CancelRequest,
    Command,
    DrainNotification,
    SkipRequest,
    SnapshotRequest,
)
from airflow_streamstate.protocol.data_events import Skipped
from airflow_streamstate.protocol.event import Event
from airflow_streamstate.protocol.events import (
    Accepted,
    Drained,
    DrainFailed,
    Draining,
    Expired,
    Ignored,
    Rejected,
    SnapshotReady,
    Stopped,
)


def answered_by(event: Event | None) -> frozenset[str]:
    """The commands that have their end with this event; none with most."""
    if isinstance(event, Drained | DrainFailed):
        return frozenset({event.command_id, *event.also_answers}) - {""}
    if isinstance(event, Ignored | Rejected | Expired | SnapshotReady | Stopped | Skipped):
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


def out_of_date(request: SnapshotRequest, now: datetime, clock_skew_seconds: float) -> str | None:
    """Why the date of a request for a snapshot says that it is not to be obeyed; None where it is.

    An age that is the time to live, or a date that is the allowed skew ahead, is good. To the millisecond, as times
    are on the wire.

    Args:
        request: it.
        now: when it is read.
        clock_skew_seconds: how far in the future it may be dated.
    """
    if request.ttl_seconds is None:
        return None
    age_seconds = (whole_milliseconds(now) - whole_milliseconds(request.requested_at)).total_seconds()
    if age_seconds > request.ttl_seconds:
        return f"it was asked {age_seconds:.3f} s ago, and its time to live is {request.ttl_seconds:g} s"
    if -age_seconds > clock_skew_seconds:
        return f"it is dated {-age_seconds:.3f} s in the future, and clocks may differ by {clock_skew_seconds:g} s"
    return None


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
    slots = list(slots)
    cancelled = cancelled_drains(slots, events, stream_id=stream_id, deployment_id=deployment_id, now=now)
    over = answered_ids(events) | {drain.command.command_id for drain in cancelled}
    for slot in slots:
        command = slot.command
        if not isinstance(command, DrainNotification) or command.command_id in over:
            continue
        is_ours = (command.stream_id, command.deployment_id) == (stream_id, deployment_id)
        if is_ours and (not is_late(command, now) or is_accepted(events, command.command_id)):
            return PendingDrain(command, slot.number or 0)
    for event in events:
        # One whose object somebody deleted after it was begun: the event keeps its content.
        if isinstance(event, Accepted) and event.command_id not in over:
            command = command_in(event)
            if isinstance(command, DrainNotification):
                return PendingDrain(command, event.command_number)
    return None


def cancel_requests(
    slots: Iterable[CommandSlot],
    events: Iterable[Event | None],
    *,
    stream_id: str,
    deployment_id: str,
    now: datetime,
    above: int = 0,
) -> list[tuple[int, CancelRequest]]:
    """The requests to take drains back that hold and that nobody has answered, with their numbers.

    Args:
        slots, events, stream_id, deployment_id, now: as in ``pending_drain``.
        above: those with a higher number only.
    """
    answered = answered_ids(events)
    found = []
    for slot in slots:
        command, number = slot.command, slot.number or 0
        if not isinstance(command, CancelRequest) or command.command_id in answered or number <= above:
            continue
        if (command.stream_id, command.deployment_id) == (stream_id, deployment_id) and not is_late(command, now):
            found.append((number, command))
    return found


def cancelled_drains(
    slots: Collection[CommandSlot],
    events: Collection[Event | None],
    *,
    stream_id: str,
    deployment_id: str,
    now: datetime,
) -> list[PendingDrain]:
    """The drains that a request takes back: ordered before it, without their end, and not begun to flush. Arguments as
    in ``pending_drain``."""
    requests = cancel_requests(slots, events, stream_id=stream_id, deployment_id=deployment_id, now=now)
    newest = max((number for number, _ in requests), default=0)
    answered = answered_ids(events)
    flushing = {event.command_id for event in events if isinstance(event, Draining)}
    found: dict[str, PendingDrain] = {}
    for command, number in (
        *((slot.command, slot.number or 0) for slot in slots),
        *((command_in(event), event.command_number) for event in events if isinstance(event, Accepted)),
    ):
        if isinstance(command, DrainNotification) and number < newest:
            found.setdefault(command.command_id, PendingDrain(command, number))
    return [drain for each, drain in found.items() if each not in answered and each not in flushing]


def pending_skip(
    slots: Iterable[CommandSlot], events: Collection[Event | None], deployment_id: str, query_name: str
) -> tuple[SkipRequest, int] | None:
    """The skip of a batch of this query that nobody has answered yet, with the number of its object; None for none.

    One that was begun comes first, and holds although somebody deleted its object since: the event keeps its content.
    """
    for begun, number in begun_skips(events):
        if (begun.deployment_id, begun.query_name) == (deployment_id, query_name):
            return begun, number
    answered = answered_ids(events)
    for slot in slots:
        command = slot.command
        if not isinstance(command, SkipRequest) or command.command_id in answered:
            continue
        if (command.deployment_id, command.query_name) == (deployment_id, query_name):
            return command, slot.number or 0
    return None


def begun_skips(events: Collection[Event | None]) -> list[tuple[SkipRequest, int]]:
    """The skips that were accepted and have no end, with their numbers: their driver died in the middle, or is at it.

    Args:
        events: of a deployment, all attempts; None for those that could not be read.
    """
    answered = answered_ids(events)
    accepted = [event for event in events if isinstance(event, Accepted) and event.command_id not in answered]
    found = [(command_in(event), event.command_number) for event in accepted]
    return [(command, number) for command, number in found if isinstance(command, SkipRequest)]


def command_in(event: Accepted | Ignored | Expired) -> Command | None:
    """The command whose content an event keeps; None where it cannot be read (Law 7)."""
    try:
        return from_json(event.command, key=f"event {event.kind}", expected=Command)
    except DataError:
        return None
