"""Drains that another end overtook: they hold for the next attempt, and the events say so.

A drain is tried before it is begun, and whoever stops the stream meanwhile is not kept waiting for that.
"""

from __future__ import annotations

from airflow_streamstate.control.command_status import pending_drain
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.snapshotting import retry_until_fenced
from airflow_streamstate.protocol.events import Noted

_TEXT = "a drain was ordered and not begun before this end: it holds for the next attempt of this deployment"


def note_overtaken_drain(attempt: Attempt) -> None:
    """Say once, before the last word of an attempt, that a drain of the deployment was not begun by it.

    Raises:
        FencedError: this attempt was replaced.
    """
    slots = retry_until_fenced(attempt, "the commands", attempt.journal.commands)
    found = pending_drain(
        attempt.commands(slots),
        stream_id=attempt.stream_id,
        deployment_id=attempt.deployment_id,
        now=attempt.clock.now(),
    )
    if found is None:
        return
    drain, _number = found
    command_id = drain.command_id
    said = (
        event.facts for event in attempt.reporter.events if isinstance(event, Noted) and event.attempt == attempt.number
    )
    if not any(facts.get("overtaken_command_id") == command_id for facts in said):
        attempt.reporter.note(
            _TEXT,
            overtaken_command_id=command_id,
            requested_by=drain.requested_by,
            reason=drain.reason,
        )
