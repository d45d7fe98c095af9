"""Cancelling drains that have not begun to flush."""

from __future__ import annotations

from airflow_streamstate.control.command_status import cancel_requests, cancelled_drains
from airflow_streamstate.driver.attempt.answering import clean_up
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.protocol.commands import CancelRequest
from airflow_streamstate.protocol.events import DrainFailed


def cancel_drains(attempt: Attempt, *, but: str = "") -> bool:
    """Write ``DrainFailed`` for drains that a request cancels before their flush begins; returns whether there was one.

    ``but`` is the id of the drain that is being obeyed: its own end answers the requests. Raises UnavailableError.
    """
    requests = holding_requests(attempt)
    if not requests:
        return False
    drains = cancelled_drains(
        attempt.commands(attempt.journal.commands()),
        stream_id=attempt.stream_id,
        deployment_id=attempt.deployment_id,
        now=attempt.clock.now(),
    )
    drains = [(drain, number) for drain, number in drains if drain.command_id != but]
    why = describe_cancelled(requests[-1][0])
    for place, (drain, number) in enumerate(drains, 1):
        is_last = place == len(drains) and not but
        attempt.reporter.write(
            DrainFailed,
            command_id=drain.command_id,
            command_number=number,
            query_name="",
            error=why,
            withdrawn=True,
            cause="cancelled",
            then="" if attempt.only_drains else "runs_on",
            # Only the last of these events answers the requests (Law 1).
            also_answers=tuple(request.command_id for request, _ in requests) if is_last else (),
        )
        attempt.reporter.say(f"drain {drain.command_id} is not begun: {why}")
    if drains:
        clean_up(attempt)
    return bool(drains)


def holding_requests(attempt: Attempt, above: int = 0) -> list[tuple[CancelRequest, int]]:
    """The valid requests to cancel a drain of this deployment; raises UnavailableError."""
    return cancel_requests(
        attempt.commands(attempt.journal.commands()),
        stream_id=attempt.stream_id,
        deployment_id=attempt.deployment_id,
        now=attempt.clock.now(),
        above=above,
    )


def describe_cancelled(request: CancelRequest) -> str:
    """The requester that cancelled a drain, and why."""
    return f"{request.requested_by} has taken it back" + (f": {request.reason}" if request.reason else "")
