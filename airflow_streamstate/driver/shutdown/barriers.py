"""Brings every query of a drain to its barrier, within the limits of the drain."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass

from airflow_streamstate.checkpoint.repair import (
    DrainCommitted,
    DrainPending,
    Finding,
    Foreign,
    classify,
    repair_before_start,
)
from airflow_streamstate.driver.attempt.answers import clean_up, describe_cancelled, holding_requests
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.attempt_snapshots import (
    checkpoint_names,
    holders,
    need_current,
    retry_until_fenced,
)
from airflow_streamstate.driver.attempt.latch import Order
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.driver.shutdown.flush import refuse_carrying_on
from airflow_streamstate.driver.shutdown.stopping import end_at_barriers, position_of, wait_until_ended
from airflow_streamstate.driver.start.checkpoints import Builder, has_state, tell_repeated
from airflow_streamstate.driver.start.query_start import describe_repairs, give_up_skip
from airflow_streamstate.errors import FencedError, StreamStateError
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.commands import CancelRequest, DrainNotification
from airflow_streamstate.protocol.events import DrainFailure, Draining, QueryStarted, Rejected
from airflow_streamstate.protocol.terms.order import OnDrainDeadline


class QueryFailedError(Exception):
    """Internal: batches that had to run before the flush failed; ``failures`` has the errors by query."""

    def __init__(self, failures: dict[str, str]) -> None:
        super().__init__(failures)
        self.failures = failures


def are_all_started(attempt: Attempt) -> bool:
    """Whether the script has started every query with state, or will not start the rest; else the next poll asks again.

    If the script fails before it has started them, the drain holds for the next attempt.
    """
    missing = not_started(attempt)
    if not starts_no_more(attempt) and (missing or attempt.queries.last_start_at_seconds is None):
        return False
    if missing and attempt.script.has_failed:
        attempt.reporter.note(
            "the script failed before it had started these queries: they are not drained", queries=missing
        )
        attempt.latch.release("failed")
        return False
    if missing:
        refuse_carrying_on(attempt, missing)
    return True


def starts_no_more(attempt: Attempt) -> bool:
    """Whether the script will start no further query: it has ended, or ``exit_grace_seconds`` have passed since its
    last start."""
    started_at = attempt.queries.last_start_at_seconds
    grace = attempt.spec.version.settings.exit_grace_seconds
    is_late = started_at is not None and attempt.clock.monotonic_seconds() - started_at > grace
    return attempt.script.has_ended or is_late


def unstarted(attempt: Attempt, order: Order) -> list[str]:
    """The queries that a drain would leave unflushed, since the script does not start them; without those that it may
    leave."""
    command = order.command
    left = command.leave_queries if isinstance(command, DrainNotification) else ()
    return [name for name in not_started(attempt) if name not in left]


def describe_unstarted(names: list[str]) -> str:
    """Why these queries are no part of a drain."""
    which = f"query {names[0]}" if len(names) == 1 else f"queries {', '.join(names)}"
    return f"the script does not start {which}, so the drain cannot flush {'it' if len(names) == 1 else 'them'}"


def never_started(attempt: Attempt) -> list[str]:
    """The queries with state that no attempt of this deployment has started: this version leaves them out."""
    started = {event.query_name for event in attempt.reporter.events if isinstance(event, QueryStarted)}
    return [name for name in not_started(attempt) if name not in started]


def note_left(attempt: Attempt) -> None:
    """Note the queries that a drain has left as they were, as it was allowed to."""
    left = not_started(attempt)
    if left:
        attempt.reporter.note("queries that were not started are carried on unflushed", queries=left)


def not_started(attempt: Attempt) -> list[str]:
    """The queries with a checkpoint or state that the script has not started in this attempt. Waits for the store."""
    held = retry_until_fenced(attempt, "the start snapshot", lambda: holders(attempt))
    built = retry_until_fenced(attempt, "the list of checkpoints", lambda: checkpoint_names(attempt))
    with_state = {name for name, holder in held.items() if has_state(holder.queries[name])}
    return sorted({*built, *with_state} - set(attempt.queries.names()))


def has_committed(attempt: Attempt, query: LogicalQuery) -> bool:
    return position_of(attempt, query).batch_id is not None


def stands_at_barrier(attempt: Attempt, query: LogicalQuery) -> bool:
    """Whether the query is at its barrier: not so where the script stopped it in the middle of a batch."""
    position = position_of(attempt, query)
    return position.planned is None and bool(position.barriers)


def bring_to_barrier(
    attempt: Attempt, query: LogicalQuery, command_id: str, is_enough: Callable[[], bool] = lambda: False
) -> None:
    """Run the planned batch of a query that does not run, then put a stop entry above it (1a.7). Once ``is_enough``,
    the batch runs on without a barrier."""
    checkpoint = query.checkpoint
    found = _classified(attempt, query)
    if isinstance(found, (DrainCommitted, DrainPending)):
        return
    report = retry_until_fenced(
        attempt,
        "the repair",
        lambda: repair_before_start(
            checkpoint, attempt.deployment_id, stop_pending=True, partitions=query.session_partitions
        ),
    )
    for repair in describe_repairs(report):
        attempt.reporter.note(f"query {query.name}: {repair}")
    if isinstance(found, Foreign) and isinstance(found.beneath, DrainPending):
        return
    if report.run == "once" and not _run_planned(attempt, query, report.batch_id, is_enough):
        return
    failures = end_at_barriers(attempt, [query], command_id)
    if failures:
        raise QueryFailedError(failures)


def _run_planned(attempt: Attempt, query: LogicalQuery, batch_id: int | None, is_enough: Callable[[], bool]) -> bool:
    """Whether it ended before ``is_enough``."""
    attempt.reporter.say(f"query {query.name}: batch {batch_id} was planned, and is run before the flush")
    give_up_skip(attempt, query.name, batch_id)
    tell_repeated(attempt, query, batch_id)
    need_current(attempt)
    try:
        run = query.startable.start_once(attempt.uri_of(query.checkpoint))
    except FencedError:
        raise
    except Exception as error:
        raise QueryFailedError({query.name: f"{type(error).__name__}: {error}"}) from error
    query.add_run(run, once=True)
    if not wait_until_ended(attempt, run, is_enough):
        return False
    position = position_of(attempt, query)
    if position.planned is not None:
        raise QueryFailedError({query.name: run.failure() or f"batch {batch_id} did not commit"})
    return True


def catch_up(
    attempt: Attempt,
    queries: list[LogicalQuery],
    command_id: str,
    announced: dict[str, int],
    is_enough: Callable[[], bool] = lambda: False,
) -> bool:
    """Have queries read everything that is there now, and bring them back to their barriers; False once ``is_enough``.

    Each query is at its barrier, and the queries that feed it are flushed. Queries whose flush is announced at
    their position, or started, are left out: an earlier attempt has done this for them. Raises QueryFailedError.
    """
    behind = [query for query in queries if _is_behind(attempt, query, announced)]
    failures: dict[str, str] = {}
    for query in behind:
        attempt.reporter.say(f"query {query.name} reads what the queries before it flushed")
        failure = _start_reading(attempt, query)
        if failure is not None:
            failures[query.name] = failure
    for query in behind:
        if query.name not in failures and query.run is not None:
            if not wait_until_ended(attempt, query.run, is_enough):
                return False
            failure = query.run.failure()
            if failure is not None:
                failures[query.name] = failure
    failures |= end_at_barriers(attempt, [query for query in behind if query.name not in failures], command_id)
    if failures:
        raise QueryFailedError(failures)
    return True


def _start_reading(attempt: Attempt, query: LogicalQuery) -> str | None:
    """Why Spark refused to start it; None where it runs."""
    checkpoint = query.checkpoint

    def repair() -> None:
        repair_before_start(checkpoint, attempt.deployment_id, partitions=query.session_partitions)

    retry_until_fenced(attempt, "the repair", repair)
    need_current(attempt)
    try:
        if query.run is None:
            # As before any start: the checkpoint was built for a flush, which reads nothing.
            builder = Builder(attempt)
            retry_until_fenced(attempt, "the sources", lambda: builder.ensure(query.name, query.startable))
        query.add_run(query.startable.start_available(attempt.uri_of(checkpoint)), once=True)
    except FencedError:
        raise
    except Exception as error:
        attempt.reporter.say(traceback.format_exc())
        return f"{type(error).__name__}: {error}"
    return None


def _is_behind(attempt: Attempt, query: LogicalQuery, announced: dict[str, int]) -> bool:
    if isinstance(_classified(attempt, query), (DrainCommitted, DrainPending)):
        return False
    return announced.get(query.name) != position_of(attempt, query).barrier_id


def _classified(attempt: Attempt, query: LogicalQuery) -> Finding:
    return retry_until_fenced(attempt, "the log", lambda: classify(query.checkpoint, attempt.deployment_id))


# The limits of a drain: its deadlines, and requests to cancel it.
#
# Samza has a drain timeout for what is in flight; here the batches in flight and the flush have one each.


@dataclass(frozen=True)
class CallOff:
    """Why a drain is called off.

    Attributes:
        cause: as in ``DrainFailed``.
        on_deadline: the action that follows; ``fail`` where it was cancelled.
        why: the human-readable reason.
        answers: the ids of the requests that this answers.
    """

    cause: DrainFailure
    on_deadline: OnDrainDeadline
    why: str
    answers: tuple[str, ...] = ()


class CalledOffError(Exception):
    """Internal: the drain is called off."""

    def __init__(self, call_off: CallOff) -> None:
        super().__init__(call_off.why)
        self.call_off = call_off


class Limits:
    """The limits of one drain, none where its command's content is lost; ``reached`` states why it is called off."""

    def __init__(self, attempt: Attempt, order: Order) -> None:
        self._attempt = attempt
        self._number = order.command_number
        self._command_id = order.command_id
        self._drain = order.command if isinstance(order.command, DrainNotification) else None
        self._flush_began_at_seconds: float | None = None
        self._looked_at_seconds: float | None = None
        self.reached: CallOff | None = None

    def is_enough(self) -> bool:
        """Whether the drain must be called off before its flush; never turns back."""
        self.reached = self.reached or self._cancelled() or self._late_batches()
        return self.reached is not None

    def check(self) -> None:
        """Raise CalledOffError if the drain must be called off before its flush."""
        if self.is_enough() and self.reached is not None:
            raise CalledOffError(self.reached)

    def check_cancelled(self) -> None:
        """Raise CalledOffError if the drain was cancelled before its flush, after its batches were committed."""
        self.reached = self.reached or self._cancelled()
        if self.reached is not None:
            raise CalledOffError(self.reached)

    def begin_flush(self) -> None:
        """From now on the drain cannot be cancelled, and the deadline of its flush counts."""
        if self._flush_began_at_seconds is not None:
            return
        # Counted from this attempt's first announcement: a poll that was cut short gives no more time.
        attempt = self._attempt
        said_at = next(
            (
                event.at
                for event in attempt.reporter.events
                if isinstance(event, Draining)
                and (event.command_id, event.attempt) == (self._command_id, attempt.number)
            ),
            None,
        )
        past_seconds = 0.0 if said_at is None else max(0.0, (attempt.clock.now() - said_at).total_seconds())
        self._flush_began_at_seconds = attempt.clock.monotonic_seconds() - past_seconds

    def is_flush_late(self) -> bool:
        """Whether the flush has taken too long; rejects requests to cancel the drain."""
        for request, number in self._requests():
            self._refuse(request, number)
        drain, began = self._drain, self._flush_began_at_seconds
        if self.reached is None and drain is not None and began is not None and drain.flush_within_seconds is not None:
            taken_seconds = self._attempt.clock.monotonic_seconds() - began
            if taken_seconds > drain.flush_within_seconds:
                why = f"its flush was not committed within {drain.flush_within_seconds:g} s"
                self.reached = CallOff("flush_deadline", drain.on_flush_deadline, why)
        return self.reached is not None

    def flush_left_seconds(self) -> float | None:
        """The time until the flush is late, at least a second; None without a deadline."""
        drain, began = self._drain, self._flush_began_at_seconds
        if drain is None or began is None or drain.flush_within_seconds is None:
            return None
        return max(1.0, drain.flush_within_seconds - (self._attempt.clock.monotonic_seconds() - began))

    def _late_batches(self) -> CallOff | None:
        drain = self._drain
        if drain is None or drain.batches_by_at is None or self._attempt.clock.now() <= drain.batches_by_at:
            return None
        why = f"a batch in flight was not committed by {format_time(drain.batches_by_at)}"
        return CallOff("deadline", drain.on_deadline, why)

    def _cancelled(self) -> CallOff | None:
        requests = self._requests()
        if not requests:
            return None
        newest = requests[-1][0]
        return CallOff(
            "cancelled", "fail", describe_cancelled(newest), tuple(request.command_id for request, _ in requests)
        )

    def _requests(self) -> list[tuple[CancelRequest, int]]:
        """Requests to cancel the drain, read as often as commands are; empty while the store does not answer."""
        attempt, now = self._attempt, self._attempt.clock.monotonic_seconds()
        poll_seconds = attempt.spec.version.settings.command_poll_seconds
        if self._looked_at_seconds is not None and now - self._looked_at_seconds < poll_seconds:
            return []
        self._looked_at_seconds = now
        try:
            return holding_requests(attempt, above=self._number)
        except StreamStateError as error:
            attempt.reporter.outage("a poll of the commands", error)
            return []

    def _refuse(self, request: CancelRequest, number: int) -> None:
        self._attempt.reporter.write(
            Rejected,
            command_id=request.command_id,
            command_number=number,
            key="",
            reason="the flush of the drain has started, and cannot be withdrawn; `streamstate status` shows it",
        )
        clean_up(self._attempt)
