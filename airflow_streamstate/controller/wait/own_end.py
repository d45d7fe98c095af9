"""The wait for the end of a run: only a stream that has read all there was has come to it.

A run that somebody stopped, drained, killed or replaced has read a part of its input. The wait then ends with an error,
or follows the stream, by ``WaitCondition.if_stopped``; docs/how-to/deploy.md has the table.
"""

from __future__ import annotations

from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.controller.observe.restarting import gave_up_of
from airflow_streamstate.controller.observe.views import Outcome
from airflow_streamstate.errors import ConflictError, StreamStateError
from airflow_streamstate.protocol.commands import DrainNotification, StopRequest
from airflow_streamstate.protocol.events import Drained, Stopped


def ended_by_somebody(seen: Observation, end: Outcome) -> str:
    """Who or what ended a run before its input did, in words; "" for a run that failed, or came to its end."""
    if end.is_of_itself:
        return ""
    terminal = seen.drained or seen.terminal
    if isinstance(terminal, Drained):
        return f"was drained{_by(seen, DrainNotification.kind)}"
    if seen.was_ended_by_machine:
        return "was stopped, since its machine asked the driver to end"
    if isinstance(terminal, Stopped):
        return f"was stopped{_by(seen, StopRequest.kind)}"
    if end.outcome == "fenced" or not seen.is_current:
        return f"was replaced by {seen.register.deployment_id or 'no deployment'}"
    record = seen.register.restarts
    is_of_this = record is not None and (record.deployment_id, record.attempt) == (seen.deployment_id, seen.attempt)
    return f"was {record.reason}" if record is not None and is_of_this and record.is_of_somebody else ""


def may_be_continued(seen: Observation, end: Outcome) -> bool:
    """Whether a run that ended before its input may go on: somebody ended it, or watchers restart it."""
    if seen.register.retirement is not None:
        return False
    is_restarted = seen.register.restart_policy.on_failure == "restart" and not gave_up_of(seen)
    return bool(ended_by_somebody(seen, end)) or (end.state == "failed" and is_restarted)


def error_of_other_end(seen: Observation, end: Outcome, how: str) -> StreamStateError:
    """The error of a run that somebody ended; ``how``: ``ended_by_somebody``."""
    verb = "deploy" if seen.drained is not None else "resume"
    is_replaced = not seen.is_current
    next_step = (
        f"`streamstate status {seen.stream_id}` shows what runs now; if_stopped='wait' waits for the end of that."
        if is_replaced
        else f"`streamstate {verb} {seen.stream_id}` continues it; if_stopped='wait' waits for that."
    )
    reason = reason_of_end(seen)
    return ConflictError(
        f"the run {how} before it had come to its end, so a part of its input may be unread",
        stream_id=seen.stream_id,
        deployment_id=seen.deployment_id,
        attempt=seen.attempt,
        state=end.state,
        **({"reason": reason} if reason else {}),
        snapshot_id=end.snapshot_id,
        next_step=next_step,
    )


def _by(seen: Observation, kind: str) -> str:
    order = seen.accepted(kind)
    by = "" if order is None else str(order.command.get("requested_by") or "")
    return f" by {by}" if by else ""


def reason_of_end(seen: Observation) -> str:
    """What the order that ended the run gave as its reason; "" for none."""
    order = seen.accepted(DrainNotification.kind if seen.drained is not None else StopRequest.kind)
    return "" if order is None else str(order.command.get("reason") or "")
