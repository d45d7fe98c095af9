"""The status of every command of a deployment: one pure fold over the command objects and the events.

Driver and controller read the same fold. A command is known by its ``command_id`` over all events, so that neither a
crash between event and clean-up nor a reused number makes a driver obey it twice (Law 2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import TypeVar

from airflow_streamstate.clock import whole_milliseconds
from airflow_streamstate.control.journal import CommandSlot
from airflow_streamstate.errors import DataError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import from_json
from airflow_streamstate.protocol.commands import (
    BY_THE_DRIVER,
    CancelRequest,
    Command,
    DrainNotification,
    SkipRequest,
    SnapshotRequest,
)
from airflow_streamstate.protocol.events import (
    Accepted,
    Drained,
    DrainFailed,
    Draining,
    Event,
    Expired,
    Ignored,
    Rejected,
    Skipped,
    SnapshotReady,
    Stopped,
)

AnyCommand = TypeVar("AnyCommand", bound=Command)


@dataclass(frozen=True)
class CommandStatus:
    """The status of one command so far.

    Attributes:
        slot: its object; None where it was deleted, or the objects were not given to the fold.
        keeper: the first event that keeps its content.
        accepted: the event that started it.
        end: the last event that ended it.
        flush_batch_ids: of a drain: the flush batch of each query, as far as announced; None before its flush starts.
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
        """The content from its object, or from an event that keeps it; None where neither can be read (Law 7)."""
        if self.slot is not None and self.slot.command is not None:
            return self.slot.command
        return None if self.keeper is None else command_in(self.keeper)

    @property
    def kind(self) -> str:
        """The kind of the command, also where the content cannot be read; "" if unknown."""
        if self.slot is not None and self.slot.command is not None:
            return self.slot.command.kind
        return "" if self.keeper is None else str(self.keeper.command.get("kind", ""))

    @property
    def number(self) -> int:
        """The number of its object, or of the event that started it; 0 without either."""
        if self.slot is not None:
            return self.slot.number or 0
        return 0 if self.accepted is None else self.accepted.command_number

    @property
    def is_ended(self) -> bool:
        """Whether it has ended: such a command is never obeyed again."""
        return self.end is not None

    @property
    def is_begun(self) -> bool:
        """Whether a driver started it: such a command is finished, however late."""
        return self.accepted is not None

    @property
    def is_flushing(self) -> bool:
        """Whether it is a drain whose flush started: such a drain cannot be cancelled any more."""
        return self.flush_batch_ids is not None

    def holds(self, now: datetime) -> bool:
        """Whether a driver still has to obey it: not ended, and started or in time."""
        if self.is_ended or self.command is None:
            return False
        return self.is_begun or not is_late(self.command, now)


NEVER_SEEN = CommandStatus("")
"""The status of a command that neither an object nor an event names."""


def fold(slots: Iterable[CommandSlot], events: Iterable[Event | None]) -> dict[str, CommandStatus]:
    """The status of each command by its id: first those with an object, in their order, then those that only events
    name.

    Args:
        slots: the command objects; none where only the events matter. Unreadable ones are left out.
        events: every event of the deployment, in order; None for unreadable ones.
    """
    found: dict[str, CommandStatus] = {}
    for slot in slots:
        if slot.command is not None:
            command_id = slot.command.command_id
            found.setdefault(command_id, CommandStatus(command_id, slot))
    for event in events:
        named = {event.command_id} - {""} if isinstance(event, (Accepted, Draining)) else _ended_by(event)
        for command_id in named:
            status = found.get(command_id) or CommandStatus(command_id)
            found[command_id] = _after(status, event)
    return found


def _after(status: CommandStatus, event: Event | None) -> CommandStatus:
    """The status after one more event that names the command."""
    if isinstance(event, Draining):
        return replace(status, flush_batch_ids={**(status.flush_batch_ids or {}), **event.flush_batch_ids})
    if isinstance(event, Accepted):
        return replace(status, accepted=status.accepted or event, keeper=status.keeper or event)
    if isinstance(event, (Ignored, Expired)):
        return replace(status, end=event, keeper=status.keeper or event)
    if isinstance(event, DrainFailed) and event.command_id == status.command_id and event.query_name:
        return replace(status, end=event, failed_queries=(*status.failed_queries, event.query_name))
    return replace(status, end=event)


def _ended_by(event: Event | None) -> frozenset[str]:
    """The commands that this event ends."""
    if isinstance(event, (Drained, DrainFailed)):
        return frozenset({event.command_id, *event.also_answers}) - {""}
    if isinstance(event, (Ignored, Rejected, Expired, SnapshotReady, Stopped, Skipped)):
        return frozenset({event.command_id}) - {""}
    return frozenset()


def is_late(command: Command, now: datetime) -> bool:
    """Whether the deadline of a command has passed: a driver does not start it any more."""
    return command.deadline_at is not None and now > command.deadline_at


def out_of_date(request: SnapshotRequest, now: datetime, clock_skew_seconds: float) -> str | None:
    """Why a request for a snapshot is too old, or dated too far in the future, to be obeyed; None where it is not.

    Compared to the millisecond, as times are on the wire; the time to live and the allowed skew themselves are good.
    """
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
    statuses: Mapping[str, CommandStatus],
    *,
    stream_id: str,
    deployment_id: str,
    now: datetime,
    is_from_outside: bool = False,
) -> tuple[DrainNotification, int] | None:
    """The drain that the deployment has to obey (in time or started, not ended, not cancelled), with its number.

    ``is_from_outside``: leave out one that the driver has ordered itself.
    """
    cancelled = cancelled_drains(statuses, stream_id=stream_id, deployment_id=deployment_id, now=now)
    over = {drain.command_id for drain, _ in cancelled}
    for drain, status in of_kind(statuses, DrainNotification):
        is_ours = (drain.stream_id, drain.deployment_id) == (stream_id, deployment_id)
        is_ours = is_ours and not (is_from_outside and drain.requested_by == BY_THE_DRIVER)
        if is_ours and status.holds(now) and drain.command_id not in over:
            return drain, status.number
    return None


def cancel_requests(
    statuses: Mapping[str, CommandStatus], *, stream_id: str, deployment_id: str, now: datetime, above: int = 0
) -> list[tuple[CancelRequest, int]]:
    """The requests to cancel drains that are in time and not ended, with their numbers, which are above ``above``."""
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
    """The drains that a later request cancels: not ended, and their flush not started. With their numbers."""
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
    """The skip of a batch of this query that has not ended, with its number; one that was started comes first."""
    found = [
        (skip, status)
        for skip, status in of_kind(statuses, SkipRequest)
        if not status.is_ended and (skip.deployment_id, skip.query_name) == (deployment_id, query_name)
    ]
    found.sort(key=lambda one: not one[1].is_begun)  # stable: else in order of their objects
    return (found[0][0], found[0][1].number) if found else None


def begun_skips(statuses: Mapping[str, CommandStatus]) -> list[tuple[SkipRequest, int]]:
    """The skips that were started and not ended, with their numbers: their driver died in the middle, or is at work."""
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


def ordered_by(end: Event, events: Iterable[Event | None]) -> str:
    """Who ordered that an attempt ends, and why: ``by ada: the broker is moved``; "" where no command did.

    Args:
        events: of the deployment.
    """
    command_id = getattr(end, "command_id", "")
    for event in events if command_id else ():
        if isinstance(event, Accepted) and event.command_id == command_id:
            by, reason = event.command.get("requested_by"), event.command.get("reason")
            return ": ".join(str(part) for part in (f"by {by}" if by else "", reason) if part)
    return ""
