"""Waits: each has a timeout, and its error reports what was last observed (Law 6); commands read back."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, TypeVar

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.command_status import fold
from airflow_streamstate.control.journal import CommandSlot, Journal
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.observe.health import decide_caught_up
from airflow_streamstate.controller.observe.observation import ENDED, Observation, pending_drain
from airflow_streamstate.controller.observe.pending_orders import OutcomeKind
from airflow_streamstate.controller.observe.views import Outcome, StreamStatus
from airflow_streamstate.controller.wait.condition import (
    UNANSWERED,
    WaitCondition,
    WaitResult,
    Wanted,
    end_result,
    ended_by_somebody,
    error_of_other_end,
    mark_known_good,
    may_be_continued,
    skip_result,
    snapshot_result,
)
from airflow_streamstate.controller.wait.watching import Watching, redacted
from airflow_streamstate.errors import (
    ConflictError,
    DeadlineExceededError,
    DeploymentFailedError,
    ExpiredError,
    ObjectExistsError,
    OutcomeUnknownError,
    StreamStateError,
    UnavailableError,
    VersionConflictError,
)
from airflow_streamstate.protocol.codec import to_json
from airflow_streamstate.protocol.commands import CancelRequest, Command, DrainNotification
from airflow_streamstate.protocol.events import (
    Drained,
    DrainFailed,
    Event,
    Finished,
    Ignored,
    QueryStarted,
    Rejected,
    SnapshotReady,
    Stopped,
)
from airflow_streamstate.protocol.positions import QueryBeat

# Commands as objects: reading one back, also after its end, and deleting those that no driver will obey.

_REPLACED = "another deployment took the place of this one before it was started"


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

    A drain holds for the deployment, so one that no attempt had started gets the event ``Ignored`` as its end.
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
        return False  # the writer that changed it in the meantime deletes it
    return True


log = logging.getLogger(__name__)

PASSING = (UnavailableError, OutcomeUnknownError, ObjectExistsError, VersionConflictError)
"""Errors of a step that are no evidence about the stream: the next step may succeed."""
Report = Callable[[str], None]
Look = Callable[[WaitCondition], WaitResult]
LookName = Literal[Wanted, "snapshot request"]
Result = TypeVar("Result")
MIN_POLL_SECONDS = 0.1
MAX_POLL_SECONDS = 2.0


def poll(
    clock: Clock,
    look: Callable[[], Result | None],
    *,
    timeout_seconds: float,
    pause_seconds: Callable[[], float],
    pause: Callable[[float], None] | None = None,
) -> Result | None:
    """Look until there is a result; None where the time was up first. The one loop under every wait (Law 6).

    It looks at least once, and once more when the time is up. ``pause_seconds`` is called before each pause. ``pause``
    pauses for that time, or less if it knows that there is something to see; None for the clock's sleep.
    """
    end = clock.monotonic_seconds() + timeout_seconds
    while True:
        result = look()
        if result is not None:
            return result
        left = end - clock.monotonic_seconds()
        if left <= 0:
            return None
        (pause or clock.sleep)(min(pause_seconds(), left))


class Waits:
    """Looks at wait conditions, and waits for them: ``looks`` is the one table of what can be waited for.

    Args:
        looks: of modules above this one, by what is wanted. A look only reads.
    """

    def __init__(self, context: ControllerContext, watching: Watching, looks: Mapping[LookName, Look]) -> None:
        self._context = context
        self._marked: set[tuple[str, str]] = set()
        self._home = context.home
        self._observer = context.observer
        self._clock = context.clock
        self._watching = watching
        self.looks: Mapping[LookName, Look] = {
            "drained": self._look_for_end,
            "cancelled": self._look_for_end,
            "stopped": self._look_for_end,
            "finished": self._look_for_own_end,
            "skipped": self._look_for_end,
            "snapshot": self._look_for_snapshot,
            "healthy": self._look_for_health,
            "caught_up": self._look_for_health,
            **looks,
        }

    def look(self, condition: WaitCondition) -> WaitResult:
        """One look at what is waited for; writes nothing.

        Raises:
            StreamNotFoundError, DeploymentNotFoundError: it does not exist.
            InvalidRequestError: no snapshot was requested under this request id.
            UnavailableError: the home did not answer, which is no evidence about the stream.
        """
        is_request = condition.wanted == "snapshot" and condition.request_id is not None
        return self.looks["snapshot request" if is_request else condition.wanted](condition)

    def advance(self, condition: WaitCondition) -> WaitResult:
        """One step of a wait: a poll, and the write that is due after it. Raises as ``look``.

        Such a write repeats a snapshot request that no driver took up in time, deletes a command that has ended, or
        marks a healthy version as known good.
        """
        result = self.look(condition)
        result.due()
        return result

    def wait(
        self,
        condition: WaitCondition,
        timeout_seconds: float,
        on_progress: Report | None = None,
        *,
        poll_interval_seconds: float | None = None,
    ) -> WaitResult:
        """Wait until the condition holds. The work continues, however the wait ends.

        Args:
            condition: what is waited for.
            timeout_seconds: how long to wait.
            on_progress: called after each poll with what was seen.
            poll_interval_seconds: None: by the settings of the deployment.

        Raises:
            DeploymentFailedError: the deployment or its flush failed; with the script's traceback and its log.
            ConflictError: it cannot come any more.
            DeadlineExceededError: not within the timeout; the error states what was last seen (Law 6).
            ExpiredError: the order had expired when the driver read it.
            StreamNotFoundError, DeploymentNotFoundError, InvalidRequestError: as ``look``.
        """
        pause_seconds = MIN_POLL_SECONDS

        def look_once() -> WaitResult | None:
            nonlocal pause_seconds
            try:
                result = self.advance(condition)
            except PASSING as error:
                log.info("a poll failed, which shows nothing about the stream: %s", error)
                result = WaitResult("pending", last_seen=str(error), pause_seconds=pause_seconds)
            if result.pause_seconds is not None:
                pause_seconds = min(max(result.pause_seconds, MIN_POLL_SECONDS), MAX_POLL_SECONDS)
            if result.outcome != "pending":
                return result
            if on_progress is not None:
                on_progress(result.last_seen)
            return None

        found = poll(
            self._clock,
            look_once,
            timeout_seconds=timeout_seconds,
            pause_seconds=lambda: pause_seconds if poll_interval_seconds is None else poll_interval_seconds,
        )
        if found is None:
            raise self.out_of_time(condition, timeout_seconds=timeout_seconds)
        if found.error is not None:
            raise found.error
        return found

    def out_of_time(self, condition: WaitCondition, **limit: object) -> DeadlineExceededError:
        """The error of a wait that timed out, with what was last seen (Law 6).

        ``limit``: ``timeout_seconds`` or ``deadline_at``.
        """
        wanted = condition.wanted.replace("_", " ")
        return self._ended_by_time(
            condition,
            limit,
            f"what was waited for ({wanted}) did not happen in time; the work continues",
            f"the home did not answer in time, so whether it happened ({wanted}) is not known",
            f"`streamstate status {condition.stream_id}` shows its state; wait again, or longer.",
        )

    def time_to_look(self, condition: WaitCondition, looks_until: str) -> DeadlineExceededError:
        """As ``out_of_time``, of the part of a wait that a triggerer has: a worker continues with it."""
        goes_on = "a worker polls now, and the wait continues"
        return self._ended_by_time(
            condition,
            {"looked_until": looks_until},
            f"nothing was due so far; {goes_on}",
            f"the home did not answer, so whether anything is due is not known; {goes_on}",
            "Nothing needs to be done.",
        )

    def _ended_by_time(
        self, condition: WaitCondition, limit: Mapping[str, object], message: str, unanswered: str, next_step: str
    ) -> DeadlineExceededError:
        facts: dict[str, object] = {"stream_id": condition.stream_id, "deployment_id": condition.deployment_id, **limit}
        try:
            facts["last_seen"] = self.look(condition).last_seen
        except StreamStateError as error:
            message = unanswered
            facts[UNANSWERED] = str(error)
        return DeadlineExceededError(message, **facts, next_step=next_step)

    # looks

    def _look_for_end(self, condition: WaitCondition) -> WaitResult:
        seen = self._observe(condition)
        if condition.command_id is not None:
            end = self._watching.command_end(seen, condition.command_id, condition.command_kind)
        elif condition.wanted == "drained":
            end = self._watching.drain_end(seen)
        else:
            end = self._watching.end_of(seen)
        return self.result_of(condition, seen, end)

    def _look_for_own_end(self, condition: WaitCondition) -> WaitResult:
        seen = self._observe(condition)
        end = self._watching.end_of(seen)
        if condition.if_stopped == "wait" and not seen.is_current and not (end is not None and end.is_of_itself):
            seen = self._observer.observe(condition.stream_id)
            end = self._watching.end_of(seen)
        if end is None or end.is_of_itself:
            return self.result_of(condition, seen, end)
        how = ended_by_somebody(seen, end)
        if condition.if_stopped == "wait" and may_be_continued(seen, end):
            return self._pending(seen, f"; the run {how or 'failed'}, and this waits for what continues it")
        if not how:
            return self.result_of(condition, seen, end)
        found = self._watching.outcome(seen, end, "")
        error = error_of_other_end(seen, end, how)
        return WaitResult("over", error=error, found=found, last_seen=self._described(seen))

    def _look_for_snapshot(self, condition: WaitCondition) -> WaitResult:
        if condition.command_id is not None:
            return self._look_for_end(condition)
        seen, control = self._observe(condition), self._home.control(condition.stream_id)
        snapshot_id = condition.snapshot_id or _newest_snapshot(seen)
        manifest = None if snapshot_id is None else control.manifest(snapshot_id)
        if manifest is not None:
            return WaitResult("done", snapshot_result(manifest), last_seen=self._described(seen))
        end = self._watching.end_of(seen)
        if end is None or end.outcome == "lost":
            return self._pending(seen)
        return self._over(condition, seen, end)

    def _look_for_health(self, condition: WaitCondition) -> WaitResult:
        seen = self._observe(condition)
        caught_up = decide_caught_up(seen, condition.max_lag) if condition.wanted == "caught_up" else None
        more = "" if caught_up is None else f"; {caught_up.why}"
        try:
            status = self.status_if_healthy(seen)
        except (DeploymentFailedError, ConflictError) as error:
            return WaitResult("over", error=error, last_seen=self._described(seen) + more)
        if status is None:
            return self._pending(seen, more)
        due = partial(self._mark_known_good, seen)
        if caught_up is not None and not caught_up.is_so:
            return dataclasses.replace(self._pending(seen, more), due=due)
        return WaitResult("done", status.to_json(), found=status, last_seen=self._described(seen) + more, due=due)

    def result_of(
        self, condition: WaitCondition, seen: Observation, end: Outcome | None, outcome: Outcome | None = None
    ) -> WaitResult:
        """The result of a wait whose order, or deployment, ended like this; ``end`` None: it has not ended.

        ``outcome``: the end as a view, where it is that of a different deployment.
        """
        if end is None or end.outcome == "lost":  # a lost driver may come back
            return self._pending(seen)
        if not condition.is_fulfilled_by(end):
            return self._over(condition, seen, end)
        found = outcome or self._watching.outcome(seen, end, condition.command_id or "")
        return WaitResult(
            "done",
            self._result(condition, seen, found),
            found=found,
            last_seen=self._described(seen),
            due=self._clean_up_after(condition, seen, end),
        )

    def _result(self, condition: WaitCondition, seen: Observation, outcome: Outcome) -> dict[str, Any]:
        if condition.wanted == "skipped":
            return skip_result(outcome)
        if condition.wanted == "finished":
            return self._watching.status(seen).to_json()
        if condition.wanted == "snapshot" and outcome.snapshot_id is not None:
            return snapshot_result(self._home.control(seen.stream_id).need_manifest(outcome.snapshot_id))
        return end_result(outcome)

    def _pending(self, seen: Observation, more: str = "") -> WaitResult:
        return WaitResult(
            "pending",
            last_seen=self._described(seen) + more,
            pause_seconds=seen.spec.version.settings.command_poll_seconds,
        )

    def _over(self, condition: WaitCondition, seen: Observation, end: Outcome) -> WaitResult:
        return WaitResult(
            "over",
            error=self.error_of(seen, end),
            found=self._watching.outcome(seen, end, condition.command_id or ""),
            last_seen=self._described(seen),
            due=self._clean_up_after(condition, seen, end),
        )

    def _clean_up_after(self, condition: WaitCondition, seen: Observation, end: Outcome) -> Callable[[], None]:
        """For an agent that died between its event and its clean-up."""

        def clean() -> None:
            if condition.command_id is not None and end.state in ENDED:
                with contextlib.suppress(StreamStateError):
                    clean_up(self._home.control(seen.stream_id), seen)

        return clean

    def _observe(self, condition: WaitCondition) -> Observation:
        return self._observer.observe(condition.stream_id, condition.deployment_id)

    def _described(self, seen: Observation) -> str:
        return redacted(seen, describe(seen))

    def status_if_healthy(self, seen: Observation) -> StreamStatus | None:
        """The status, if each query has committed a batch or found no input; None while that may still come.

        Raises DeploymentFailedError, ConflictError where it cannot come any more.
        """
        if is_healthy(seen) and not self._awaits_another_start(seen):
            return dataclasses.replace(self._watching.status(seen), proofs=proofs_of(seen))
        end = self._watching.end_of(seen)
        if end is None and seen.state == "degraded":
            raise self._watching.query_failure(seen)
        if end is None or end.outcome == "lost":
            return None
        raise self.error_of(seen, end)

    def _mark_known_good(self, seen: Observation) -> None:
        """Once for each version, unless an upgrade still decides about it."""
        one = (seen.stream_id, seen.deployment_id)
        if one not in self._marked and seen.register.upgrade_id is None:
            mark_known_good(self._context, *one)
            self._marked.add(one)

    def _awaits_another_start(self, seen: Observation) -> bool:
        """Whether the script may still start a query of the snapshot that the deployment started from.

        It has ``exit_grace_seconds`` after each start, as in a drain. Both times are of the driver's clock.
        """
        snapshot_id, beat = seen.spec.start.snapshot_id, seen.heartbeat
        newest = next(seen.of_kind(QueryStarted), None)
        if snapshot_id is None or beat is None or newest is None or seen.terminal is not None:
            return False
        if (beat.at - newest.at).total_seconds() > seen.spec.version.settings.exit_grace_seconds:
            return False
        manifest = self._home.control(seen.stream_id).readable_manifest(snapshot_id)
        known = set() if manifest is None else set(manifest.queries)
        return bool(known - {event.query_name for event in seen.of_kind(QueryStarted)})

    def error_of(self, seen: Observation, end: Outcome) -> StreamStateError:
        """The error of an end that is not what was waited for."""
        is_late = isinstance(end.event, DrainFailed) and end.event.is_late
        if end.outcome in ("failed", "drain_failed") and not is_late:
            return self._watching.failure(seen, end)
        facts: dict[str, object] = {
            "stream_id": seen.stream_id,
            "deployment_id": seen.deployment_id,
            "attempt": seen.attempt,
            "state": end.state,
            "reason": end.reason,
            "snapshot_id": end.snapshot_id,
        }
        if is_late:
            return late_drain(facts)
        if end.outcome in _UNOBEYED:
            error, message, next_step = _UNOBEYED[end.outcome]
            return error(message, **facts, next_step=next_step)
        if end.outcome == "fenced":
            facts["current_deployment_id"] = seen.register.deployment_id
        if end.command_kind == DrainNotification.kind and self._holds_drain(seen):
            return ConflictError(
                f"the deployment is {end.state}, and the drain was not started: the next attempt obeys it",
                **facts,
                next_step=f"`streamstate drain {seen.stream_id}` starts one for the flush alone, and so does a resume;"
                " `streamstate cancel` takes the drain back.",
            )
        return ConflictError(
            f"the deployment is {end.state}, so what was waited for cannot happen",
            **facts,
            next_step=f"`streamstate status {seen.stream_id}` shows the stream's state.",
        )

    def _holds_drain(self, seen: Observation) -> bool:
        slots = self._home.control(seen.stream_id).journal(seen.deployment_id).commands()
        return seen.is_current and pending_drain(seen, slots) is not None


_UNOBEYED: Mapping[OutcomeKind, tuple[type[StreamStateError], str, str]] = {
    "expired": (
        ExpiredError,
        "the order had expired when it was read, and was not started",
        "Give it again with a longer --expires-in.",
    ),
    "cancelled": (ConflictError, "the drain was withdrawn", "Drain again, if it is wanted after all."),
    "rejected": (
        ConflictError,
        "the job cannot obey this order, and runs on",
        "Change what the reason names, or wait for it, and give the order again.",
    ),
    "ignored": (
        ConflictError,
        "the order was meant for another attempt or deployment, arrived too late, or was out of date",
        "Look again.",
    ),
}
"""The errors of orders that no driver obeyed: class, message and next step."""


def _newest_snapshot(seen: Observation) -> str | None:
    for event in seen.of_kind(Event, any_attempt=True):
        if isinstance(event, SnapshotReady | Drained | Stopped | Finished) and event.snapshot_id:
            return event.snapshot_id
    return None


def late_drain(facts: Mapping[str, object]) -> DeadlineExceededError:
    """The error of a drain that reached its own deadline; ``facts``: its context, with ``stream_id``."""
    return DeadlineExceededError(
        "the drain reached its deadline and was called off",
        **facts,
        next_step=f"`streamstate logs {facts['stream_id']}` shows what took so long; drain again with a later one.",
    )


def is_healthy(seen: Observation) -> bool:
    """Whether each query of the current attempt has a proof, or the stream has come to its end by itself."""
    state = seen.state
    if seen.has_come_to_its_end:
        return True
    if state not in ("running", "draining", "stopping") or not seen.is_current:
        return False
    proofs = proofs_of(seen)
    return bool(proofs) and all(proofs.values())


def proofs_of(seen: Observation) -> dict[str, str]:
    """By query of this attempt, what shows that it runs: a batch, or that none was due; "" for nothing."""
    beat = seen.heartbeat
    if beat is None or beat.attempt != seen.attempt:
        return {}
    starts = {event.query_name: event for event in seen.of_kind(QueryStarted)}  # the first start of each
    return {name: _proof(event, beat.queries.get(name)) for name, event in starts.items()}


def _proof(event: QueryStarted, query: QueryBeat | None) -> str:
    """A batch that was planned before the start proves nothing: every start runs it, whatever the code can do."""
    if query is None:
        return ""
    done = -1 if query.batch_id is None else query.batch_id
    planned = -1 if event.planned_batch_id is None else event.planned_batch_id
    if done > max(planned, -1 if event.batch_id is None else event.batch_id):
        return f"it has committed batch {done}"
    if done < planned:
        return ""
    if query.idle_triggers > 0:
        return "no batch was due: it found no input"
    if planned >= 0 and not query.is_active and event.ends_by_itself:
        return f"no batch was due: it has ended by itself behind batch {planned}, which was planned before its start"
    return "no batch was due: it has ended by itself, and found no input" if query.run_has_ended else ""


def describe(seen: Observation) -> str:
    """The state of a deployment, in one human-readable line."""
    state = seen.state
    parts = [f"{state} ({seen.why})"]
    last = seen.last_event
    if last is not None and last.event is not None:
        parts.append(f"last event {last.event.kind}")
    beat = seen.heartbeat
    if beat is not None and beat.attempt == seen.attempt:
        age_seconds = max(0.0, (seen.observed_at - beat.at).total_seconds())
        batches = ", ".join(
            f"{name} {'before its first batch' if query.batch_id is None else f'at batch {query.batch_id}'}"
            for name, query in sorted(beat.queries.items())
        )
        parts.append(f"heartbeat {age_seconds:.0f} s ago{': ' + batches if batches else ''}")
    return "; ".join(parts)
