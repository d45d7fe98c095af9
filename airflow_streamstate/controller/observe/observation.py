"""What was seen of one deployment at one moment, and what follows from it alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TypeVar

from airflow_streamstate.control import command_status
from airflow_streamstate.control.command_status import NEVER_SEEN, CommandStatus, fold
from airflow_streamstate.control.journal import CommandSlot, NumberedEvent
from airflow_streamstate.launch.interface import LaunchHandle, LaunchStatus
from airflow_streamstate.protocol.commands import DrainNotification
from airflow_streamstate.protocol.event import Event
from airflow_streamstate.protocol.events import (
    TERMINAL_EVENTS,
    Accepted,
    Drained,
    DrainFailed,
    Draining,
    QueryFailed,
    QueryStarted,
    Started,
)
from airflow_streamstate.protocol.heartbeat import Heartbeat
from airflow_streamstate.protocol.records import Claim, DeploymentSpec
from airflow_streamstate.protocol.register import StreamRegister

AnyEvent = TypeVar("AnyEvent", bound=Event)


@dataclass(frozen=True)
class Observation:
    """One deployment as it was looked at; the launcher was asked before the events were read, so that the last word of
    a driver that has ended is among them.

    Attributes:
        register, register_version: the stream's register; the version is what a compare-and-swap must name.
        spec: the deployment.
        attempt: the current attempt of the current deployment; the last one that is known of another.
        events: every event of the deployment, in order.
        handle: the launch of the attempt; None where none is known.
        launch_status: how its driver is; None where no launch is known.
        claim: who is the attempt; None for nobody yet.
        heartbeat: the last sign of life of any attempt.
        observed_at: when.
    """

    register: StreamRegister
    register_version: str
    spec: DeploymentSpec
    attempt: int
    events: tuple[NumberedEvent, ...]
    handle: LaunchHandle | None
    launch_status: LaunchStatus | None
    claim: Claim | None
    heartbeat: Heartbeat | None
    observed_at: datetime

    @property
    def stream_id(self) -> str:
        """The stream."""
        return self.spec.stream_id

    @property
    def deployment_id(self) -> str:
        """The deployment."""
        return self.spec.deployment_id

    @property
    def is_current(self) -> bool:
        """Whether the register names this deployment."""
        return self.register.deployment_id == self.deployment_id

    @property
    def last_event(self) -> NumberedEvent | None:
        """The last event that could be read."""
        return next((entry for entry in reversed(self.events) if entry.event is not None), None)

    def of_kind(self, kind: type[AnyEvent], *, any_attempt: bool = False) -> Iterator[AnyEvent]:
        """The events of a kind, newest first; of this attempt only unless said otherwise."""
        for entry in reversed(self.events):
            event = entry.event
            if isinstance(event, kind) and (any_attempt or event.attempt == self.attempt):
                yield event

    @cached_property
    def commands(self) -> dict[str, CommandStatus]:
        """The status of each command of the deployment that an event names."""
        return self.commands_with(())

    def commands_with(self, slots: Iterable[CommandSlot]) -> dict[str, CommandStatus]:
        """The status of each command of the deployment that an event names, or that lies in one of these objects."""
        return fold(slots, (entry.event for entry in self.events))

    def command_status(self, command_id: str) -> CommandStatus:
        """The status of one command, as far as events tell."""
        return self.commands.get(command_id, NEVER_SEEN)

    def number_of(self, event: Event | None) -> int:
        """The number of an event of this observation; 0 for none."""
        return next((entry.number for entry in self.events if event is not None and entry.event is event), 0)

    @property
    def terminal(self) -> Event | None:
        """The event that ended this attempt; None while there is none."""
        return next((event for event in self.of_kind(Event) if isinstance(event, TERMINAL_EVENTS)), None)

    @property
    def failed_queries(self) -> dict[str, QueryFailed]:
        """The queries of this attempt that have failed and were not started again, each with its last failure."""
        found: dict[str, QueryFailed] = {}
        for entry in self.events:
            event = entry.event
            if event is None or event.attempt != self.attempt:
                continue
            if isinstance(event, QueryFailed):
                found[event.query_name] = event
            elif isinstance(event, QueryStarted):
                found.pop(event.query_name, None)
        return found

    @property
    def drained(self) -> Drained | None:
        """The drain of this deployment, by whichever attempt: the first, since a deployment is drained once."""
        *_, first = (None, *self.of_kind(Drained, any_attempt=True))  # they come newest first
        return first

    @property
    def is_closed(self) -> bool:
        """Whether a controller took the place of the driver, so that none can ever be this attempt."""
        return self.claim is not None and is_tombstone(self.claim)

    @property
    def is_claimed(self) -> bool:
        """Whether a driver is this attempt."""
        return self.claim is not None and not is_tombstone(self.claim)

    @property
    def is_unlaunched(self) -> bool:
        """Whether no driver was started for this attempt as far as anyone knows; a launch by its key is safe."""
        never = self.launch_status is None or self.launch_status.state == "pending"
        return never and self.claim is None and self.terminal is None

    @property
    def has_started(self) -> bool:
        """Whether the Spark session of this attempt is there."""
        return any(True for _ in self.of_kind(Started)) or any(True for _ in self.of_kind(QueryStarted))

    def accepted(self, kind: str) -> Accepted | None:
        """The last command of this kind that this attempt obeys."""
        return next((event for event in self.of_kind(Accepted) if event.command.get("kind") == kind), None)

    @property
    def is_draining(self) -> bool:
        """Whether this attempt has begun to drain, and was not made to run on after all."""
        called_off = {event.command_id for event in self.of_kind(DrainFailed) if event.then == "runs_on"}
        obeyed = {event.command_id for event in self.of_kind(Draining)} | {
            event.command_id for event in self.of_kind(Accepted) if event.command.get("kind") == DrainNotification.kind
        }
        if obeyed - called_off:
            return True
        return self.is_current and self.register.attempt_mode == "drain" and self.is_claimed

    @property
    def silent_since_at(self) -> datetime:
        """The last sign of life of this attempt; the launch or the register's move where it never gave one."""
        signs = [event.at for event in self.of_kind(Event)][:1]
        if self.heartbeat is not None and self.heartbeat.attempt == self.attempt:
            signs.append(self.heartbeat.at)
        if self.claim is not None:
            signs.append(self.claim.claimed_at)
        return max(signs, default=self.register.updated_at if self.is_current else self.spec.created_at)


def is_tombstone(claim: Claim) -> bool:
    """Whether this claim was written by a controller to close an attempt that no driver had claimed."""
    return claim.pid == 0


def pending_drain(observation: Observation, slots: Iterable[CommandSlot]) -> DrainNotification | None:
    """The drain of this deployment that holds; None where there is none.

    Args:
        observation: the deployment.
        slots: the commands that lie there.
    """
    found = command_status.pending_drain(
        observation.commands_with(slots),
        stream_id=observation.stream_id,
        deployment_id=observation.deployment_id,
        now=observation.observed_at,
    )
    return None if found is None else found[0]
