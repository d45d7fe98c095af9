"""The end of the script: the driver stops the queries that still run, and writes the attempt's last event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_streamstate.driver.attempt.answers import MAX_CAUSE_CHARACTERS, failed_queries
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.attempt_snapshots import (
    has_queries,
    need_current,
    positions_in,
    retry_until_fenced,
    take_final_snapshot,
)
from airflow_streamstate.driver.attempt.latch import Order
from airflow_streamstate.driver.attempt.logical_query import POLL_SECONDS, LogicalQuery
from airflow_streamstate.driver.shutdown.barriers import not_started
from airflow_streamstate.driver.shutdown.drain import finished_parts
from airflow_streamstate.driver.shutdown.flush import refuse_pending_flush
from airflow_streamstate.driver.shutdown.stopping import (
    NotWaitedForError,
    close_latch,
    cut,
    end_at_barriers,
    end_failed,
    ends_of,
    fail_without_snapshot,
    note_at_end,
    note_overtaken_drain,
    position_of,
    running_queries,
)
from airflow_streamstate.errors import (
    FencedError,
    HomeNotFoundError,
    InputLostError,
    InvalidRequestError,
    OutcomeUnknownError,
    StartRefusedError,
    StoreRefusedError,
    StreamStateError,
    UnavailableError,
    UnsupportedCheckpointError,
)
from airflow_streamstate.protocol.events import Failed, Finished, QueryStarted, Stopped
from airflow_streamstate.protocol.redaction import cause_in, cause_of

# Whether queries had come to an end by themselves when their script ended with status 0.
#
# A script that returns, stops its query or handles a signal ends a stream that has more to read: only a trigger that
# ends each run, or a source that reports that nothing follows, makes an end of it.


def unfinished_queries(attempt: Attempt) -> dict[str, str]:
    """The queries of this attempt that had not come to their end, each with what it did instead.

    Call it when none of them runs any more.
    """
    found = {query.name: _instead(attempt, query) for query in attempt.queries.all()}
    found |= dict.fromkeys(_left_standing(attempt), "was not started")
    return {name: what for name, what in found.items() if what}


def _left_standing(attempt: Attempt) -> list[str]:
    """The queries of this version that the script ended without having started in this attempt; not those whose trigger
    ends each run, nor what this version leaves out while it runs others."""
    starts = {event.query_name: event for event in attempt.reporter.events if isinstance(event, QueryStarted)}
    missing = not_started(attempt)
    return [name for name in missing if not starts or (name in starts and not starts[name].ends_by_itself)]


def _instead(attempt: Attempt, query: LogicalQuery) -> str:
    """What a query did instead of coming to its end; "" for one that came to it."""
    failure = query.failure()
    if failure is not None:
        cause = attempt.reporter.shortened(cause_in(failure), MAX_CAUSE_CHARACTERS, in_a_line=True)
        return f"had failed: {cause}" if query.has_failed_itself else "ended when the script stopped Spark"
    if _is_read_to_its_end(attempt, query):
        return ""
    if query.run is None:
        return "was not run"
    if query.was_stopped_by_script:
        return "was stopped by the script"
    if query.met_barrier:
        return "ran when the script ended"
    planned_id = position_of(attempt, query).planned_id
    if planned_id is not None:
        return f"has planned batch {planned_id}, and has not committed it"
    if query.plans_batch_by_batch:
        return f"ended without a failure, and its trigger ({query.startable.facts.trigger}) never ends a run"
    return ""


def _is_read_to_its_end(attempt: Attempt, query: LogicalQuery) -> bool:
    """Whether its sources report that nothing follows."""
    if attempt.spec.version.settings.keep_running:
        return False
    return retry_until_fenced(attempt, "the log", lambda: finished_parts(attempt, query)) is not None


FENCED_STATUS = 4
MAX_TRACEBACK_CHARACTERS = 8_000
MAX_ERROR_CHARACTERS = 1_000
_MENDED_OUTSIDE = (StoreRefusedError, HomeNotFoundError, InputLostError)
"""Errors that the same script no longer meets once access, home or input are restored."""


@dataclass(frozen=True)
class ScriptFailure:
    """How a script failed.

    Attributes:
        error: type and message of the exception.
        traceback: as Python prints it.
        exit_status: of the process.
        query_name: the query whose failure it was; "" where it was none.
        is_refusal: the driver refused what the script asks for, and would refuse the same script again.
        next_step: what to do about a ``StartRefusedError``, which ``error`` then does not state; "" for any other.
    """

    error: str
    traceback: str
    exit_status: int
    query_name: str = ""
    is_refusal: bool = False
    next_step: str = ""


def refusal_in(error: BaseException, redacted: Callable[[str], str] = lambda text: text) -> ScriptFailure | None:
    """A failure without a traceback where the driver refused the script, or a store or source does not give what it
    needs; None for any other error. ``redacted`` removes secrets from a text."""
    if not isinstance(error, (InvalidRequestError, UnsupportedCheckpointError)):
        return None
    if isinstance(error, StartRefusedError):
        words, next_step = redacted(error.statement), redacted(error.next_step)
        return ScriptFailure(words, "", 1, is_refusal=True, next_step=next_step)
    return ScriptFailure(redacted(str(error)), "", 1, is_refusal=not isinstance(error, _MENDED_OUTSIDE))


def end_script(attempt: Attempt, failure: ScriptFailure | None) -> int:
    """End the attempt after its script; returns the exit status of the process."""
    attempt.script.note_ended(has_failed=failure is not None)
    try:
        while not retry_until_fenced(attempt, "Spark", lambda: close_latch(attempt, "stop", Order())):
            if attempt.latch.is_released:
                return _after_an_ending(attempt, failure)
            if attempt.fence.is_fenced:
                return FENCED_STATUS
            attempt.clock.sleep(POLL_SECONDS)  # the agent ends it, or calls that off and opens the latch
        return _end_by_itself(attempt, failure)
    except FencedError:
        return FENCED_STATUS


def fail_with_query(attempt: Attempt, failed: LogicalQuery) -> None:
    """Stop the other queries and write ``Failed`` with this query, for an attempt with ``on_query_failure`` ``fail``.

    Called again after an interruption, or an outage of the store, it continues. Does nothing where another shutdown has
    started.
    """
    if attempt.latch.is_released or (not attempt.latch.is_failing and not close_latch(attempt, "stop", Order())):
        return
    attempt.latch.note_failing()
    text = f"query {failed.name} has failed; the driver stops the other queries"
    _end_by_itself(attempt, _failure_of(failed), text)


def _end_by_itself(
    attempt: Attempt,
    failure: ScriptFailure | None,
    text: str = "the script ended while queries were running; the driver stops them",
) -> int:
    running = running_queries(attempt)
    if running:
        attempt.reporter.note(text, queries=[query.name for query in running])
    # A failed script waits for its batches only this long; the next start runs again what is cut.
    clock, began = attempt.clock, attempt.clock.monotonic_seconds()
    grace = attempt.spec.version.settings.exit_grace_seconds

    def is_enough() -> bool:
        return failure is not None and clock.monotonic_seconds() - began > grace

    try:
        failures = end_at_barriers(attempt, running, "", is_enough=is_enough)
    except NotWaitedForError as late:
        for ending in late.waiting:
            cut(attempt, ending.query)
        failures = late.failures
    end_failed(attempt, failures)
    return _conclude(attempt, failure)


def _after_an_ending(attempt: Attempt, failure: ScriptFailure | None) -> int:
    status = 0 if failure is None else failure.exit_status
    is_over = attempt.latch.outcome in ("stopped", "drained")
    if not is_over and not attempt.is_over:
        return _conclude(attempt, failure)  # a query failed while it was being ended
    if failure is None and attempt.latch.outcome == "failed":
        return 1
    if failure is not None and is_over:
        attempt.reporter.note(f"the script failed after the deployment was {attempt.latch.outcome}: {failure.error}")
    return status


def _conclude(attempt: Attempt, failure: ScriptFailure | None) -> int:
    failure = failure or _unanswered_failure(attempt)
    if failure is None:
        return write_finished(attempt)
    write_failed(attempt, failure)
    return failure.exit_status


def _unanswered_failure(attempt: Attempt) -> ScriptFailure | None:
    """The failure of a query for which status 0 of the script cannot speak; with ``on_query_failure`` ``script`` it
    speaks for failures that the script was given."""
    failed = failed_queries(attempt)
    if attempt.spec.version.on_query_failure == "script":
        failed = [query for query in failed if not query.is_failure_given]
    return _failure_of(failed[0]) if failed else None


def _failure_of(query: LogicalQuery) -> ScriptFailure:
    text = query.failure() or ""
    return ScriptFailure(error=text, traceback=text, exit_status=1, query_name=query.name)


def write_finished(attempt: Attempt) -> int:
    """The script ended with status 0: take the final snapshot and write the event; returns the exit status.

    An attempt that was to drain, and has nothing to drain, is stopped: it was never to read anything.
    """
    try:
        refuse_pending_flush(attempt)
        manifest = take_final_snapshot(attempt, "stopped", "") if has_queries(attempt) else None
    except (FencedError, UnavailableError, OutcomeUnknownError):
        raise
    except StreamStateError as error:
        fail_without_snapshot(attempt, error)
        return 1
    if manifest is not None:
        note_at_end(attempt, manifest)
    if attempt.only_drains and manifest is not None:
        need_current(attempt)
        attempt.reporter.write(Stopped, snapshot_id=manifest.snapshot_id, queries=positions_in(manifest))
        attempt.latch.release("stopped")
        return 0
    unfinished = unfinished_queries(attempt)
    need_current(attempt)
    attempt.reporter.write(
        Finished,
        snapshot_id=manifest.snapshot_id if manifest is not None else None,
        queries=positions_in(manifest) if manifest is not None else {},
        ends=ends_of(attempt),
        unfinished=unfinished,
    )
    word = "ended by its script" if unfinished else "finished"
    attempt.reporter.say(f"{word}; snapshot {manifest.snapshot_id}" if manifest else "finished without a query")
    attempt.latch.release("finished")
    return 0


def write_failed(attempt: Attempt, failure: ScriptFailure) -> None:
    """The script or a query failed; the next attempt repairs the log and continues."""
    note_overtaken_drain(attempt)
    need_current(attempt)
    reporter = attempt.reporter
    explanation = attempt.sources.explain(reporter.redacted(f"{failure.error}\n{failure.traceback}"))
    if explanation:
        reporter.say(f"the query failed: {explanation}")
    cause = cause_of(failure.error, failure.traceback)
    reporter.write(
        Failed,
        error=reporter.shortened(failure.error, MAX_ERROR_CHARACTERS),
        traceback=reporter.shortened(failure.traceback, MAX_TRACEBACK_CHARACTERS, from_end=True),
        query_name=failure.query_name,
        explanation=explanation,
        cause=reporter.shortened(cause, MAX_ERROR_CHARACTERS, in_a_line=True),
        is_refusal=failure.is_refusal,
        refuses_start=bool(failure.next_step),
        next_step=reporter.shortened(failure.next_step, MAX_TRACEBACK_CHARACTERS),
    )
    attempt.latch.release("failed")


def end_overdue_script(attempt: Attempt) -> int | None:
    """The exit status for a script that runs on for too long after the shutdown; None before that."""
    released_at = attempt.latch.released_at_seconds
    if released_at is None or attempt.script.has_ended:
        return None
    grace = attempt.spec.version.settings.exit_grace_seconds
    if attempt.clock.monotonic_seconds() - released_at < grace:
        return None
    attempt.script.note_ended(has_failed=attempt.script.has_failed)
    attempt.reporter.note(
        f"the script ran on for {grace:g} s after the deployment was {attempt.latch.outcome}; the driver ends it"
    )
    if attempt.is_over or attempt.latch.outcome == "drained":
        return 0 if attempt.latch.outcome != "failed" else 1
    failed = [query for query in attempt.queries.all() if query.failure() is not None]
    if failed:
        write_failed(attempt, _failure_of(failed[0]))
        return 1
    return write_finished(attempt)
