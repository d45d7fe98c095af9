"""Commands as objects: reading one back, also after its end, and deleting those that no driver will obey."""

from __future__ import annotations

from airflow_streamstate.control.command_status import fold
from airflow_streamstate.control.journal import CommandSlot, Journal
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.errors import VersionConflictError
from airflow_streamstate.protocol.codec import to_json
from airflow_streamstate.protocol.commands import CancelRequest, Command, DrainNotification
from airflow_streamstate.protocol.events import Ignored, Rejected

_REPLACED = "another deployment took the place of this one before it was begun"


class Notifications:
    """The orders to a deployment, for hooks. Raises StreamNotFoundError, DeploymentNotFoundError."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    def read(self, stream_id: str, command_id: str, deployment_id: str | None = None) -> Command | None:
        """The content of an order, also after it was obeyed and deleted; None where unknown."""
        seen = self._context.observer.observe(stream_id, deployment_id)
        return read_command(self._context.home.control(stream_id), seen, command_id)

    def clean_up(self, stream_id: str, deployment_id: str | None = None) -> list[str]:
        """Delete orders that are answered, or that no driver will obey; their keys. Events keep their content."""
        seen = self._context.observer.observe(stream_id, deployment_id)
        return clean_up(self._context.home.control(stream_id), seen)


def read_command(control: StreamControl, seen: Observation, command_id: str) -> Command | None:
    """The content of a command, by its object or by the event that took it up; None where unknown."""
    statuses = seen.commands_with(control.journal(seen.deployment_id).commands())
    return None if command_id not in statuses else statuses[command_id].command


def clean_up(control: StreamControl, seen: Observation) -> list[str]:
    """Delete the commands of a deployment that are answered, or that no driver will obey; their keys.

    A command that waits for the next attempt of the current deployment stays.
    """
    if not seen.is_current:
        return retire_commands(control, seen.deployment_id)
    rejected = {entry.event.key for entry in seen.events if isinstance(entry.event, Rejected)}
    journal = control.journal(seen.deployment_id)
    slots = [
        slot
        for slot in journal.commands()
        if (slot.key in rejected if slot.command is None else seen.command_status(slot.command.command_id).is_ended)
    ]
    return [slot.key for slot in slots if _delete(journal, slot)]


def retire_commands(control: StreamControl, deployment_id: str) -> list[str]:
    """Delete the commands of a deployment that is not current any more; their keys.

    A drain holds for the deployment, so one that no attempt had begun gets the event ``Ignored`` as its end.
    """
    journal = control.journal(deployment_id)
    slots = journal.commands()
    if slots:
        _tell_replaced(control, journal, slots)
    return [slot.key for slot in slots if _delete(journal, slot)]


def _tell_replaced(control: StreamControl, journal: Journal, slots: list[CommandSlot]) -> None:
    """Write the events before the commands are deleted (Law 1), each once (Law 2)."""
    entries = list(journal.events())
    events = [entry.event for entry in entries if entry.event is not None]
    number = max((entry.number for entry in entries), default=0)
    for status in fold(slots, events).values():
        command = status.command
        # Stops and snapshots end with their attempt; the end of a skip is written by the controller that repeats it.
        is_held = status.slot is not None and isinstance(command, DrainNotification | CancelRequest)
        if command is None or not is_held or status.is_ended or status.is_begun:
            continue
        ignored = Ignored(
            stream_id=control.stream_id,
            deployment_id=journal.deployment_id,
            attempt=max((event.attempt for event in events), default=1),
            at=control.clock.now(),
            write_id=control.clock.new_uuid(),
            command_id=command.command_id,
            command_number=status.number,
            command=to_json(command),
            reason=_REPLACED,
        )
        number = journal.append(ignored, after=number)


def _delete(journal: Journal, slot: CommandSlot) -> bool:
    try:
        journal.delete_command(slot)
    except VersionConflictError:
        return False  # the writer that changed it meanwhile deletes it
    return True
