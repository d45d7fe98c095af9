"""The status of every command of a deployment: one fold over the command objects and the events (pure).

Driver and controller read the same fold. A command is known by its ``command_id`` over all events, so that neither a
crash between event and clean-up, nor a number that is used again, has a command obeyed twice (Law 2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import TypeVar

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

AnyCommand = TypeVar("AnyCommand", bound=Command)


@dataclass(frozen=True)
class CommandStatus:
    """What became of one command so far.

    Attributes:
        command_id: the command.
        slot: its object; None where it was deleted, or the objects were not given to the fold.
        keeper: the first event that keeps its content; None where none does.
        accepted: the event that began it; None where no driver has.
        end: the last event that ended it; None while it has no end.
        flush_batch_ids: of a drain: the flush batch of each query, as far as announced; None before its flush begins.
        failed_queries: of a drain: the queries whose flush failed.
    """

    command_id: str
    slot: CommandSlot | None = None
    keeper: Accepted | Ignored | Expired | None = None
    accepted: Accepted | None = None
    end: Event | None = None
    flush_batch_ids: Mapping[str, int] | None = None
    failed_queries: tuple[str, ...] = ()

    @cached_property
    def command(self) -> Command | None:
        """The content, as it lies there or as an event keeps it; None where neither does (Law 7)."""
        if self.slot is not None and self.slot.command is not None:
            return self.slot.command
        return None if self.keeper is None else command_in(self.keeper)

    @property
    def kind(self) -> str:
        """The kind of the command; "" where it is not known. Also of a content that cannot be read."""
        if self.slot is not None and self.slot.command is not None:
            return self.slot.command.kind
        return "" if self.keeper is None else str(self.keeper.command.get("kind", ""))

    @property
    def number(self) -> int:
        """Of its object, as it lies there or as the event that began it had it; 0 where it has none."""
        if self.slot is not None:
            return self.slot.number or 0
        return 0 if self.accepted is None else self.accepted.command_number

    @property
    def is_ended(self) -> bool:
        """Whether it had its end: such a command is never obeyed again."""
        return self.end is not None

    @property
    def is_begun(self) -> bool:
        """Whether a driver began it: such a command is finished, however late."""
        return self.accepted is not None

    @property
    def is_flushing(self) -> bool:
        """Whether it is a drain whose flush began: such a drain is not cancelled any more."""
        return self.flush_batch_ids is not None

    def holds(self, now: datetime) -> bool:
        """Whether it is still to be obeyed: without an end, and begun or in time."""
        if self.is_ended or self.command is None:
            return False
        return self.is_begun or not is_late(self.command, now)


NEVER_SEEN = CommandStatus("")
"""The status of a command that neither an object nor an event names."""


def fold(slots: Iterable[CommandSlot], events: Iterable[Event | None]) -> dict[str, CommandStatus]:
    """The status of each command by its id: those that lie there, in their order, then those that only events name.

    Args:
        slots: the command objects that lie there; none where only the events matter. Unreadable ones are left out.
        events: every event of the deployment, in order; None for those that could not be read.
    """
    found: dict[str, CommandStatus] = {}
    for slot in slots:
        if slot.command is not None:
            command_id = slot.command.command_id
            found.setdefault(command_id, CommandStatus(command_id, slot))
    for event in events:
        for command_id in _ids_of(event):
            status = found.get(command_id) or CommandStatus(command_id)
            found[command_id] = _after(status, event)
    return found


def _ids_of(event: Event | None) -> frozenset[str]:
    if isinstance(event, Accepted | Draining):
        return frozenset({event.command_id}) - {""}
    return _ended_by(event)


def _after(status: CommandStatus, event: Event | None) -> CommandStatus:
    """The status after one more event that names the command."""
    if isinstance(event, Draining):
        return replace(status, flush_batch_ids={**(status.flush_batch_ids or {}), **event.flush_batch_ids})
    if isinstance(event, Accepted):
        return replace(status, accepted=status.accepted or event, keeper=status.keeper or event)
    if isinstance(event, Ignored | Expired):
        return replace(status, end=event, keeper=status.keeper or event)
    if isinstance(event, DrainFailed) and event.command_id == status.command_id and event.query_name:
        return replace(status, end=event, failed_queries=(*status.failed_queries, event.query_name))
    return replace(status, end=event)


def _ended_by(event: Event | None) -> frozenset[str]:
    """The commands that have their end with this event; none with most."""
    if isinstance(event, Drained | DrainFailed):
        return frozenset({event.command_id, *event.also_answers}) - {""}
    if isinstance(event, Ignored | Rejected | Expired | SnapshotReady | Stopped | Skipped):
        return frozenset({event.command_id}) - {""}
    return frozenset()


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


def of_kind(
    statuses: Mapping[str, CommandStatus], kind: type[AnyCommand]
) -> Iterator[tuple[AnyCommand, CommandStatus]]:
    """The commands of a kind whose content is known, each with its status."""
    for status in statuses.values():
        if isinstance(status.command, kind):
            yield status.command, status


def pending_drain(
    statuses: Mapping[str, CommandStatus], *, stream_id: str, deployment_id: str, now: datetime
) -> tuple[DrainNotification, int] | None:
    """The drain of a deployment that holds, with its number: ordered in time, or begun, without its end, and not
    cancelled; None where there is none.

    Args:
        statuses: of all its commands.
        stream_id, deployment_id: whose drain; another's is never obeyed.
        now: what deadlines are held against.
    """
    cancelled = cancelled_drains(statuses, stream_id=stream_id, deployment_id=deployment_id, now=now)
    over = {drain.command_id for drain, _ in cancelled}
    for drain, status in of_kind(statuses, DrainNotification):
        is_ours = (drain.stream_id, drain.deployment_id) == (stream_id, deployment_id)
        if is_ours and status.holds(now) and drain.command_id not in over:
            return drain, status.number
    return None


def cancel_requests(
    statuses: Mapping[str, CommandStatus], *, stream_id: str, deployment_id: str, now: datetime, above: int = 0
) -> list[tuple[CancelRequest, int]]:
    """The requests to cancel drains that hold and have no end, with their numbers.

    Args:
        statuses, stream_id, deployment_id, now: as in ``pending_drain``.
        above: those with a higher number only.
    """
    return [
        (request, status.number)
        for request, status in of_kind(statuses, CancelRequest)
        if status.slot is not None
        and status.number > above
        and (request.stream_id, request.deployment_id) == (stream_id, deployment_id)
        and not status.is_ended
        and not is_late(request, now)
    ]


def cancelled_drains(
    statuses: Mapping[str, CommandStatus], *, stream_id: str, deployment_id: str, now: datetime
) -> list[tuple[DrainNotification, int]]:
    """The drains that a request cancels: ordered before it, without their end, and not begun to flush. Arguments as in
    ``pending_drain``."""
    requests = cancel_requests(statuses, stream_id=stream_id, deployment_id=deployment_id, now=now)
    newest = max((number for _, number in requests), default=0)
    return [
        (drain, status.number)
        for drain, status in of_kind(statuses, DrainNotification)
        if status.number < newest and not status.is_ended and not status.is_flushing
    ]


def pending_skip(
    statuses: Mapping[str, CommandStatus], deployment_id: str, query_name: str
) -> tuple[SkipRequest, int] | None:
    """The skip of a batch of this query that has no end yet, with its number; None for none.

    One that was begun comes first.
    """
    found = [
        (skip, status)
        for skip, status in of_kind(statuses, SkipRequest)
        if not status.is_ended and (skip.deployment_id, skip.query_name) == (deployment_id, query_name)
    ]
    found.sort(key=lambda one: not one[1].is_begun)  # stable: else as they lie there
    return (found[0][0], found[0][1].number) if found else None


def begun_skips(statuses: Mapping[str, CommandStatus]) -> list[tuple[SkipRequest, int]]:
    """The skips that were begun and have no end, with their numbers: their driver died in the middle, or is at it."""
    return [
        (skip, status.number)
        for skip, status in of_kind(statuses, SkipRequest)
        if status.is_begun and not status.is_ended
    ]


def command_in(event: Accepted | Ignored | Expired) -> Command | None:
    """The command whose content an event keeps; None where it cannot be read (Law 7)."""
    try:
        return from_json(event.command, key=f"event {event.kind}", expected=Command)
    except DataError:
        return None
