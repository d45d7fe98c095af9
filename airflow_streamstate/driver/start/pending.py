"""What an attempt finds to be done at its claim: a drain that was ordered before it, or cut short in another attempt.

A drain closes the latch before the script's first line, so that no query reads anything (1a.11).
"""

from __future__ import annotations

from airflow_streamstate.checkpoint.repair import DrainCommitted, DrainPending, Foreign, classify
from airflow_streamstate.control.command_status import command_in, pending_drain
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.cancelling import cancel_drains
from airflow_streamstate.driver.attempt.latch import Order, order_of
from airflow_streamstate.driver.attempt.snapshotting import checkpoint_names
from airflow_streamstate.driver.start.skipping import tell_committed_skips
from airflow_streamstate.errors import DataError
from airflow_streamstate.protocol.events import Accepted, Drained


def take_up_pending(attempt: Attempt) -> None:
    """Close the latch where a drain is pending, or where this attempt was to drain and there is nothing to; before it,
    tell what an earlier attempt had no time to.

    Raises:
        UnavailableError: the store does not answer.
    """
    begun = _in_the_logs(attempt)
    if begun is None:  # what was begun only goes forward: whoever takes it back is refused in time
        cancel_drains(attempt)
    tell_committed_skips(attempt)
    order = _ordered(attempt) or begun
    if order is not None:
        attempt.reporter.say("a drain is pending: the queries of this attempt read no input")
        attempt.latch.close("drain", order)
    elif _is_drained(attempt):
        attempt.reporter.say("this deployment is drained already: its queries are not started")
        attempt.latch.close("drain", Order())
        attempt.latch.release("drained")
    elif attempt.only_drains:
        attempt.latch.close("stop", Order())
        attempt.reporter.note("this attempt was to drain the deployment, but no notification holds any more")
        attempt.latch.release("superfluous")


def _ordered(attempt: Attempt) -> Order | None:
    drain = pending_drain(
        attempt.journal.commands(),
        attempt.reporter.events,
        stream_id=attempt.stream_id,
        deployment_id=attempt.deployment_id,
        now=attempt.clock.now(),
    )
    return None if drain is None else order_of(drain.command, drain.number)


def _in_the_logs(attempt: Attempt) -> Order | None:
    """A drain entry in a log: its flush runs to its end, whatever became of the command (1a.7)."""
    for name in checkpoint_names(attempt):
        checkpoint = attempt.checkpoint_of(name)
        try:
            found = classify(checkpoint, attempt.deployment_id) if checkpoint.exists() else None
        except DataError as error:
            attempt.reporter.say(f"the log of query {name} cannot be judged yet: {error}")
            continue
        beneath = found.beneath if isinstance(found, Foreign) else found
        if isinstance(beneath, DrainPending | DrainCommitted) and beneath.mark.deployment_id == attempt.deployment_id:
            if _is_drained(attempt):
                return None
            return _order_named(attempt, beneath.mark.command_id)
    return None


def _order_named(attempt: Attempt, command_id: str) -> Order:
    for event in attempt.reporter.events:
        if isinstance(event, Accepted) and event.command_id == command_id:
            command = command_in(event)
            return Order(command_id, event.command_number, command)
    return Order(command_id)


def _is_drained(attempt: Attempt) -> bool:
    return any(isinstance(event, Drained) for event in attempt.reporter.events)
