"""Accept, ignore and reject commands; delete the command objects whose terminal event is written (1a.13)."""

from __future__ import annotations

from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.latch import Order
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.protocol.codec import to_json
from airflow_streamstate.protocol.commands import Command
from airflow_streamstate.protocol.events import Accepted, Ignored, Rejected
from airflow_streamstate.retry import Retry

CLEAN_UP = Retry(tries=3, pause_seconds=0.2)


def accept(attempt: Attempt, order: Order) -> None:
    """Write ``Accepted`` with the command's content, once per command."""
    command = order.command
    if command is not None and not attempt.command_status(command.command_id).is_begun:
        attempt.reporter.write(
            Accepted, command_id=command.command_id, command_number=order.command_number, command=to_json(command)
        )
        attempt.reporter.say(f"{command.kind} {command.command_id} of {command.requested_by} is accepted")


def ignore(attempt: Attempt, command: Command, number: int, reason: str) -> None:
    """Write ``Ignored``; the job runs on."""
    attempt.reporter.write(
        Ignored, command_id=command.command_id, command_number=number, command=to_json(command), reason=reason
    )
    attempt.reporter.say(f"{command.kind} {command.command_id} is ignored: {reason}")
    clean_up(attempt)


def clean_up(attempt: Attempt) -> None:
    """Delete the commands that have ended; the agent's next look retries what the store did not delete."""
    for _ in CLEAN_UP.begin(attempt.clock):
        try:
            _delete_answered(attempt)
            return
        except StreamStateError as error:
            attempt.reporter.outage("clean-up of commands", error)


def _delete_answered(attempt: Attempt) -> None:
    for status in attempt.commands(attempt.journal.commands()).values():
        if status.slot is not None and status.is_ended:
            attempt.journal.delete_command(status.slot)


def call_off_drain(attempt: Attempt, reason: str) -> None:
    """Reject a drain that waited for the first query and cannot work; the queries run after all."""
    order = attempt.latch.order
    attempt.reporter.write(
        Rejected, command_id=order.command_id, command_number=order.command_number, key="", reason=reason
    )
    attempt.reporter.say(f"the drain is rejected: {reason}")
    clean_up(attempt)
    if attempt.only_drains:
        attempt.latch.release("superfluous")
    else:
        attempt.latch.reopen()
