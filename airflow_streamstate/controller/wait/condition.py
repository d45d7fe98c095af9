"""What can be waited for, and the result of one poll: the same for shell, operators, sensors and trigger."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import field
from typing import Any, Literal, get_args

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.registers import Retention
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.observe.health import (
    QUIET_SECONDS,
    Healthy,
    beats_of,
    decide_health,
    has_some_left,
    keeps_level,
)
from airflow_streamstate.controller.observe.observation import Observation, gave_up_of
from airflow_streamstate.controller.observe.pending_orders import ORDER_FOR, ORDERS, fulfils
from airflow_streamstate.controller.observe.views import CommandView, Outcome, StreamStatus
from airflow_streamstate.errors import ConflictError, StreamStateError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import FieldError, read_fields
from airflow_streamstate.protocol.commands import DrainNotification, StopRequest
from airflow_streamstate.protocol.events import Drained, Skipped, Stopped
from airflow_streamstate.protocol.forms import View, selected
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.terms.order import UpgradeTerms

Wanted = Literal[
    "drained", "cancelled", "stopped", "snapshot", "healthy", "caught_up", "finished", "skipped", "rehearsed",
    "upgrade", "free", "complete", "unwell",
]  # fmt: skip
IfStopped = Literal["fail", "wait"]
IF_STOPPED: tuple[IfStopped, ...] = get_args(IfStopped)
UNANSWERED = "unanswered"
"""The key of a ``DeadlineExceededError`` that states why the home gave no answer at the deadline."""


@dataclass(frozen=True)
class WaitCondition(View):
    """What is waited for. Plain JSON, so that a trigger can carry it through a database.

    Attributes:
        wanted: the deployment drained, its drain cancelled, the deployment stopped, healthy or caught up, the run come
            to its own end (``finished``), a snapshot complete, a batch skipped, a rehearsal over, an action due in an
            upgrade, the stream free of upgrades, its results complete up to a moment of event time, or the stream
            neither running nor finished.
        deployment_id: for ``rehearsed`` the rehearsal, for ``upgrade`` the upgrade, for ``free`` the upgrade that held
            the stream when the wait started.
        command_id: the order, whose own ends count too; None for an order of any client.
        snapshot_id: for ``snapshot``; None for any.
        request_id: for ``snapshot``: the request, answered by any deployment; None for no request.
        max_lag: for ``caught_up``: the lag that each source may have.
        complete_at: for ``complete``: the moment, RFC 3339.
        query_name: for ``complete``: the query whose results are meant; None for all queries.
        ended_for_seconds: for ``complete``: for how long a stream that has ended may stay so before it counts as
            ended for good.
        if_stopped: for ``finished``: what follows where somebody stopped, drained, killed or replaced the deployment:
            ``fail``, or ``wait`` for the end of what continues it.
    """

    wanted: Wanted
    stream_id: str
    deployment_id: str
    command_id: str | None = None
    snapshot_id: str | None = None
    request_id: str | None = None
    max_lag: int = 0
    complete_at: str | None = None
    query_name: str | None = None
    ended_for_seconds: float = 0.0
    if_stopped: IfStopped = "fail"

    @classmethod
    def of(cls, order: CommandView) -> WaitCondition:
        """The condition that an order is fulfilled."""
        return cls(
            ORDERS[order.verb].wanted,
            order.stream_id,
            order.deployment_id,
            command_id=order.command_id,
            request_id=order.request_id or None,
        )

    @property
    def command_kind(self) -> str:
        """The kind of command that leads to it, or ""."""
        return ORDER_FOR[self.wanted].kind if self.wanted in ORDER_FOR else ""

    def is_fulfilled_by(self, end: Outcome) -> bool:
        """Whether an end is what is waited for."""
        if self.wanted == "finished":
            return end.is_of_itself
        is_missing = self.wanted == "snapshot" and end.snapshot_id is None
        return not is_missing and fulfils(end.outcome, self.command_kind)

    @classmethod
    def from_json(cls, raw: Any) -> WaitCondition:
        """The condition in this object; unknown fields are ignored (Law 7). Raises ValueError for another object."""
        try:
            return read_fields(cls, raw)
        except FieldError as problem:
            raise ValueError(f"no known wait condition: {problem}") from None


@dataclass(frozen=True)
class WaitResult:
    """What a poll saw.

    Attributes:
        outcome: ``pending``: it may still come; ``done``: it came; ``over``: it cannot come any more.
        result: for ``done``; plain JSON, the same in every process that looks.
        error: for ``over``: why.
        last_seen: its state, in one human-readable line.
        found: for ``done`` and ``over``: the status of the deployment, or the end of the order or the deployment.
        pause_seconds: how long to wait before the next poll, by the settings of the deployment; None for no preference.
        due: the write that is due after this poll; the poll itself writes nothing.
    """

    outcome: Literal["pending", "done", "over"]
    result: dict[str, Any] | None = None
    error: StreamStateError | None = None
    last_seen: str = field(default="", compare=False)
    found: StreamStatus | Outcome | None = field(default=None, compare=False)
    pause_seconds: float | None = field(default=None, compare=False)
    due: Callable[[], None] = field(default=lambda: None, compare=False, repr=False)

    @property
    def status(self) -> StreamStatus:
        """The status of the deployment, for ``healthy`` and ``caught_up``; raises TypeError for others."""
        if not isinstance(self.found, StreamStatus):
            raise TypeError("this look saw no status")
        return self.found

    @property
    def end(self) -> Outcome:
        """The end of the order or the deployment; raises TypeError if it does not exist."""
        if not isinstance(self.found, Outcome):
            raise TypeError("this look saw no end")
        return self.found

    def need_result(self) -> dict[str, Any]:
        """The result; raises the error of ``over``."""
        if self.error is not None:
            raise self.error
        return dict(self.result or {})


PENDING = WaitResult("pending")


def end_result(outcome: Outcome) -> dict[str, Any]:
    """The result of an ended deployment."""
    return selected(outcome, "deployment_id snapshot_id end_offsets watermark_at state_rows_left")


def snapshot_result(manifest: SnapshotManifest) -> dict[str, Any]:
    """The result of a complete snapshot."""
    return selected(manifest, "deployment_id snapshot_id kind=snapshot_kind files=files_count bytes=size_bytes") | {
        "queries": {name: {"batch_id": query.position.batch_id} for name, query in sorted(manifest.queries.items())}
    }


def skip_result(outcome: Outcome) -> dict[str, Any]:
    """The result of a skipped batch."""
    skipped = outcome.event
    if not isinstance(skipped, Skipped):
        raise TypeError("the end of a skip has no event Skipped")
    return selected(skipped, "deployment_id query=query_name batch_id moves")


# The last known good version: marked by the first controller that sees it healthy.

log = logging.getLogger(__name__)


def mark_known_good(context: ControllerContext, stream_id: str, deployment_id: str) -> None:
    """Record that a version has been healthy. A failed write is only logged: the next prune marks it."""
    try:
        Retention(context.home.control(stream_id), context.requested_by).mark_good(deployment_id)
    except StreamStateError as error:
        log.info("%s %s is healthy, and is not marked as known good: %s", stream_id, deployment_id, error)


def has_proven_itself(context: ControllerContext, seen: Observation) -> bool:
    """Whether a deployment is healthy by an upgrade's defaults, without waiting for anything."""
    # A deployment that still catches up is not known good yet. One whose input never pauses always has some left: it is
    # known good if that is no more than a batch or two. A source that cannot report its lag does not count against it:
    # otherwise a stream of such sources would keep everything.
    is_over = seen.has_come_to_its_end
    if not is_over and any(has_some_left(query) and not keeps_level(query) for query in beats_of(seen).values()):
        return False
    snapshot_id = seen.spec.start.snapshot_id
    control = context.home.control(seen.stream_id)
    handover = None if snapshot_id is None else control.readable_manifest(snapshot_id)
    return isinstance(decide_health(seen, handover, UpgradeTerms(), None, QUIET_SECONDS), Healthy)


# The wait for the end of a run: only a stream that has read all there was has come to it.
#
# A run that somebody stopped, drained, killed or replaced has read a part of its input. The wait then ends with an
# error, or follows the stream, by ``WaitCondition.if_stopped``; docs/how-to/deploy.md has the table.


def ended_by_somebody(seen: Observation, end: Outcome) -> str:
    """Who or what ended a run before its input did, as text; "" for a run that failed, or came to its end."""
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
    """Whether a run that ended before its input may continue: somebody ended it, or watchers restart it."""
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
        f"the run {how} before it had ended, so a part of its input may be unread",
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
    """What the order that ended the run gave as its reason, or ""."""
    order = seen.accepted(DrainNotification.kind if seen.drained is not None else StopRequest.kind)
    return "" if order is None else str(order.command.get("reason") or "")


# Progress of a wait for a log: a line for each change, not for each poll.

_AGES = re.compile(r"\d+(\.\d+)? s( ago)?")
_COUNTS = re.compile(r"[\d,]+ of ")
_SECONDS_BETWEEN_COUNTS = 5.0


def only_news(tell: Callable[[str], None], clock: Clock) -> Callable[[str], None]:
    """Reports a text unless it is the last one with other ages; one with only other counts at most every 5 seconds."""
    last, told_at_seconds = "", 0.0

    def report(text: str) -> None:
        nonlocal last, told_at_seconds
        news = _AGES.sub("", text)  # a growing age is no news
        uncounted = _COUNTS.sub("", news) != _COUNTS.sub("", last)
        if uncounted or (news != last and clock.monotonic_seconds() - told_at_seconds >= _SECONDS_BETWEEN_COUNTS):
            tell(text)
            last, told_at_seconds = news, clock.monotonic_seconds()

    return report
