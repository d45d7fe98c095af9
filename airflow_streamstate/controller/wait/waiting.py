"""Waits: every one has a timeout, and its end says what was last seen (Law 6)."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import TypeVar

from airflow_streamstate.clock import Clock
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.observe.caught_up import decide_caught_up
from airflow_streamstate.controller.observe.observation import Observation, pending_drain
from airflow_streamstate.controller.observe.outcomes import End
from airflow_streamstate.controller.observe.state import ENDED, decide_state, explain_state
from airflow_streamstate.controller.observe.views import Outcome, StreamStatus
from airflow_streamstate.controller.wait.known_good import mark_known_good
from airflow_streamstate.controller.wait.notifications import clean_up
from airflow_streamstate.controller.wait.watching import Watching, redacted
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    DeadlineExceededError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.protocol.commands import DrainNotification
from airflow_streamstate.protocol.events import DrainFailed, QueryStarted
from airflow_streamstate.protocol.heartbeat import QueryBeat

# The one loop under every wait: looks, pauses, and an end (Law 6).


def poll(
    clock: Clock, look: Callable[[], Result | None], *, timeout_seconds: float, pause_seconds: Callable[[], float]
) -> Result | None:
    """Look again and again until there is something to see; None where the time was up first.

    Args:
        clock: for the waiting.
        look: one look; None for nothing yet. It looks at least once, and once more when the time is up.
        timeout_seconds: how long.
        pause_seconds: asked for before each pause.

    Raises:
        whatever ``look`` raises.
    """
    end = clock.monotonic_seconds() + timeout_seconds
    while True:
        result = look()
        if result is not None:
            return result
        left = end - clock.monotonic_seconds()
        if left <= 0:
            return None
        clock.sleep(min(pause_seconds(), left))


Report = Callable[[str], None]
Result = TypeVar("Result")
MIN_POLL_SECONDS = 0.1
MAX_POLL_SECONDS = 2.0


class Waits:
    """Waits.

    Args:
        means: of the controller.
        watching: turns what was seen into views and errors.
    """

    def __init__(self, means: ControllerContext, watching: Watching) -> None:
        self._means = means
        self._marked: set[tuple[str, str]] = set()
        self._home = means.home
        self._observer = means.observer
        self._clock = means.clock
        self._watching = watching

    def healthy(
        self, stream_id: str, deployment_id: str, timeout_seconds: float, on_progress: Report | None
    ) -> StreamStatus:
        """As ``Controller.wait_healthy``."""

        def look(seen: Observation) -> StreamStatus | None:
            return self.status_if_healthy(seen)

        return self.until(stream_id, deployment_id, timeout_seconds, on_progress, look, "healthy")

    def status_if_healthy(self, seen: Observation) -> StreamStatus | None:
        """The status, if each query has committed a batch or found no input; None while that may still come.

        Raises:
            DeploymentFailedError, ConflictError: it cannot come any more.
        """
        if is_healthy(seen) and not self._awaits_another_start(seen):
            self._mark_known_good(seen)
            return dataclasses.replace(self._watching.status(seen), proofs=proofs_of(seen))
        end = self._watching.end_of(seen)
        if end is None and decide_state(seen, seen.observed_at) == "degraded":
            raise self._watching.query_failure(seen)
        if end is None or end.outcome == "lost":
            return None
        raise self.error_of(seen, end)

    def caught_up(
        self, stream_id: str, deployment_id: str, timeout_seconds: float, on_progress: Report | None, at_most: int
    ) -> StreamStatus:
        """As ``Starts.wait_caught_up``."""

        def look(seen: Observation) -> StreamStatus | None:
            return self.status_if_caught_up(seen, at_most)

        def described(seen: Observation) -> str:
            return f"{describe(seen)}; {decide_caught_up(seen, at_most).why}"

        return self.until(stream_id, deployment_id, timeout_seconds, on_progress, look, "caught up", described)

    def status_if_caught_up(self, seen: Observation, at_most: int) -> StreamStatus | None:
        """The status, if it is healthy and has read what there is; None while that may still come. Raises as
        ``status_if_healthy``."""
        status = self.status_if_healthy(seen)
        return status if status is not None and decide_caught_up(seen, at_most).is_so else None

    def _mark_known_good(self, seen: Observation) -> None:
        """Once for each version; of one that an upgrade still watches, that is for the upgrade to say."""
        one = (seen.stream_id, seen.deployment_id)
        if one not in self._marked and seen.register.upgrade_id in (None, self._means.upgrade_id):
            mark_known_good(self._means, *one)
            self._marked.add(one)

    def _awaits_another_start(self, seen: Observation) -> bool:
        """Whether a query of the snapshot that the deployment started from may still be started.

        A script that starts its queries one after the other has ``exit_grace_seconds`` after each, as in a drain. Both
        times are of the driver's clock.
        """
        snapshot_id, beat = seen.spec.start.snapshot_id, seen.heartbeat
        newest = next(seen.of_kind(QueryStarted), None)
        if snapshot_id is None or beat is None or newest is None or seen.terminal is not None:
            return False
        if (beat.at - newest.at).total_seconds() > seen.spec.settings.exit_grace_seconds:
            return False
        try:
            manifest = self._home.control(seen.stream_id).manifest(snapshot_id)
        except DataError:
            return False
        known = set() if manifest is None else set(manifest.queries)
        return bool(known - {event.query_name for event in seen.of_kind(QueryStarted)})

    def finished(
        self, stream_id: str, deployment_id: str, timeout_seconds: float, on_progress: Report | None
    ) -> Outcome:
        """As ``Controller.wait_finished``."""

        def look(seen: Observation) -> Outcome | None:
            end = self._watching.end_of(seen)
            if end is None or end.outcome == "lost":
                return None
            if end.outcome in ("failed", "fenced"):
                raise self.error_of(seen, end)
            return self._watching.outcome(seen, end)

        return self.until(stream_id, deployment_id, timeout_seconds, on_progress, look, "finished")

    def command(
        self, stream_id: str, deployment_id: str, command_id: str, timeout_seconds: float, on_progress: Report | None
    ) -> Outcome:
        """As ``Controller.wait_for_command``."""
        kind = ""

        def look(seen: Observation) -> Outcome | None:
            nonlocal kind
            kind = kind or self._watching.command_kind(seen, command_id)
            end = self._watching.command_end(seen, command_id, kind)
            if end is None or end.outcome == "lost":
                return None
            if end.state in ENDED:
                # The agent cleans up after itself; one that died between event and clean-up cannot.
                with contextlib.suppress(StreamStateError):
                    clean_up(self._home.control(stream_id), seen)
            if not end.is_what_was_ordered:
                raise self.error_of(seen, end)
            return self._watching.outcome(seen, end, command_id)

        return self.until(stream_id, deployment_id, timeout_seconds, on_progress, look, "done")

    def error_of(self, seen: Observation, end: End) -> StreamStateError:
        """The error of an end that is not the one that was waited for."""
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
        if end.outcome == "expired":
            return DeadlineExceededError(
                "the order had expired when it was read, and was not begun",
                **facts,
                next_step="Give it again with a longer --expires-in.",
            )
        if is_late:
            return late_drain(facts)
        if end.outcome == "cancelled":
            return ConflictError(
                "the drain was taken back", **facts, next_step="Drain again, if it is wanted after all."
            )
        if end.outcome == "rejected":
            return ConflictError(
                "the job cannot obey this order, and runs on",
                **facts,
                next_step="Change what the reason names, or wait for it, and give the order again.",
            )
        if end.outcome == "ignored":
            return ConflictError(
                "the order was meant for another attempt or deployment, came too late, or was out of date",
                **facts,
                next_step="Look again.",
            )
        if end.outcome == "fenced":
            facts["current_deployment_id"] = seen.register.deployment_id
        if end.command_kind == DrainNotification.kind and self._holds_drain(seen):
            return ConflictError(
                f"the deployment is {end.state}, and the drain was not begun: it holds for the next attempt",
                **facts,
                next_step=f"`streamstate drain {seen.stream_id}` starts one for the flush alone, and so does a resume;"
                " `streamstate cancel` takes the drain back.",
            )
        return ConflictError(
            f"the deployment is {end.state}, so what was waited for cannot come",
            **facts,
            next_step=f"`streamstate status {seen.stream_id}` shows where the stream stands.",
        )

    def _holds_drain(self, seen: Observation) -> bool:
        slots = self._home.control(seen.stream_id).journal(seen.deployment_id).commands()
        return seen.is_current and pending_drain(seen, slots) is not None

    def until(
        self,
        stream_id: str,
        deployment_id: str | None,
        timeout_seconds: float,
        on_progress: Report | None,
        look: Callable[[Observation], Result | None],
        goal: str,
        described: Callable[[Observation], str] | None = None,
    ) -> Result:
        """Look at a deployment, or at whichever is current, until ``look`` finds what it looks for.

        Args:
            stream_id: the stream.
            deployment_id: the deployment; None for the current one, at each look anew.
            timeout_seconds: how long.
            on_progress: told what was seen.
            look: None for nothing yet; raises where it cannot come any more.
            goal: what it is then, for the error.

        Raises:
            DeadlineExceededError: the time is up; says what was last seen (Law 6).
        """
        last_seen, poll_seconds = "nothing yet", MIN_POLL_SECONDS

        def look_once() -> Result | None:
            nonlocal last_seen, poll_seconds
            try:
                seen = self._observer.observe(stream_id, deployment_id)
                result = look(seen)
            except UnavailableError as error:
                last_seen, result = str(error), None  # says nothing about the stream
            else:
                last_seen = redacted(seen, (described or describe)(seen))
                poll_seconds = min(max(seen.spec.settings.command_poll_seconds, MIN_POLL_SECONDS), MAX_POLL_SECONDS)
            if result is None and on_progress is not None:
                on_progress(last_seen)
            return result

        found = poll(self._clock, look_once, timeout_seconds=timeout_seconds, pause_seconds=lambda: poll_seconds)
        if found is not None:
            return found
        raise DeadlineExceededError(
            f"it is not {goal} within the timeout; the work goes on",
            stream_id=stream_id,
            deployment_id=deployment_id,
            timeout_seconds=timeout_seconds,
            last_seen=last_seen,
            next_step=f"`streamstate status {stream_id}` shows it; wait again, or look at its log.",
        )


def late_drain(facts: Mapping[str, object]) -> DeadlineExceededError:
    """The error of a drain that came to a deadline of its own.

    Args:
        facts: what is known of it; ``stream_id`` is.
    """
    return DeadlineExceededError(
        "the drain came to a deadline of its own and was called off",
        **facts,
        next_step=f"`streamstate logs {facts['stream_id']}` shows what took so long; drain again with a later one.",
    )


def is_healthy(seen: Observation) -> bool:
    """Whether each query of the current attempt committed a batch of its own in it, behind the one that was planned
    before its start, or finished a trigger that found no input.

    A job that has finished by itself is healthy, too.
    """
    state = decide_state(seen, seen.observed_at)
    if state == "finished":
        return True
    if state not in ("running", "draining", "stopping") or not seen.is_current:
        return False
    started: dict[str, QueryStarted] = {}
    for event in seen.of_kind(QueryStarted):
        started[event.query_name] = event  # ends with the oldest of this attempt
    beat = seen.heartbeat
    if not started or beat is None or beat.attempt != seen.attempt:
        return False
    return all(_proof(event, beat.queries.get(name)) for name, event in started.items())


def proofs_of(seen: Observation) -> dict[str, str]:
    """By query, what shows that it runs: a batch of its own, or that none was due; "" for nothing yet."""
    beat = seen.heartbeat
    if beat is None or beat.attempt != seen.attempt:
        return {}
    return {
        event.query_name: _proof(event, beat.queries.get(event.query_name)) for event in seen.of_kind(QueryStarted)
    }  # ends with the oldest of this attempt


def _proof(event: QueryStarted, query: QueryBeat | None) -> str:
    """The batch that was planned before the start is none of its own: a start runs that whatever the code can do."""
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
    if planned >= 0 and not query.is_active and event.trigger in ("once", "available_now"):
        return f"no batch was due: it has ended by itself behind batch {planned}, which was planned before its start"
    return ""


def describe(seen: Observation) -> str:
    """Where a deployment stands, in a line for people who wait."""
    state = decide_state(seen, seen.observed_at)
    parts = [f"{state} ({explain_state(seen, seen.observed_at)})"]
    last = seen.last_event
    if last is not None and last.event is not None:
        parts.append(f"last event {last.event.kind}")
    beat = seen.heartbeat
    if beat is not None and beat.attempt == seen.attempt:
        age_seconds = max(0.0, (seen.observed_at - beat.at).total_seconds())
        batches = ", ".join(f"{name} {_at(query.batch_id)}" for name, query in sorted(beat.queries.items()))
        parts.append(f"heartbeat {age_seconds:.0f} s ago{': ' + batches if batches else ''}")
    return "; ".join(parts)


def _at(batch_id: int | None) -> str:
    return "before its first batch" if batch_id is None else f"at batch {batch_id}"
