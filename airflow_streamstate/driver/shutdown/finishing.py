"""The end of the script: what it leaves running is stopped, and what became of it is said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.latch import Order
from airflow_streamstate.driver.attempt.logical_query import POLL_SECONDS, LogicalQuery
from airflow_streamstate.driver.attempt.query_failures import failed_queries
from airflow_streamstate.driver.attempt.snapshotting import (
    has_queries,
    need_current,
    positions_in,
    retry_until_fenced,
    take_final_snapshot,
)
from airflow_streamstate.driver.shutdown.begun_flushes import refuse_pending_flush
from airflow_streamstate.driver.shutdown.overtaken import note_overtaken_drain
from airflow_streamstate.driver.shutdown.stopping import (
    NotWaitedForError,
    close_latch,
    cut,
    end_at_barriers,
    end_failed,
    ends_of,
    fail_without_snapshot,
    note_at_end,
    running_queries,
)
from airflow_streamstate.errors import (
    FencedError,
    HomeNotFoundError,
    InputLostError,
    InvalidRequestError,
    OutcomeUnknownError,
    StoreRefusedError,
    StreamStateError,
    UnavailableError,
    UnsupportedCheckpointError,
)
from airflow_streamstate.protocol.causes import cause_of
from airflow_streamstate.protocol.events import TERMINAL_EVENTS, Failed, Finished

FENCED_STATUS = 4
MAX_TRACEBACK_CHARACTERS = 8_000
MAX_ERROR_CHARACTERS = 1_000
_MENDED_OUTSIDE = (StoreRefusedError, HomeNotFoundError, InputLostError)
"""What the same script does not meet again once access is given, or the home or the input brought back."""


@dataclass(frozen=True)
class ScriptFailure:
    """How a script failed.

    Attributes:
        error: type and message of what ended it.
        traceback: its own, as Python prints it.
        exit_status: what the process ends with.
        query_name: the query whose failure it was; "" where it was none.
        is_refusal: the runtime refused what the script asks for: the same script is refused again, whatever is done.
    """

    error: str
    traceback: str
    exit_status: int
    query_name: str = ""
    is_refusal: bool = False


def refusal_in(error: BaseException, redacted: Callable[[str], str] = lambda text: text) -> ScriptFailure | None:
    """How a script failed that was refused what it asked the runtime for, or that met a store or a source which does
    not give what it needs: the sentence, without a traceback.

    Args:
        error: what ended the script.
        redacted: gives a text without secrets.

    Returns:
        None where the runtime did not refuse it.
    """
    if not isinstance(error, InvalidRequestError | UnsupportedCheckpointError):
        return None
    return ScriptFailure(redacted(str(error)), "", 1, is_refusal=not isinstance(error, _MENDED_OUTSIDE))


def end_script(attempt: Attempt, failure: ScriptFailure | None) -> int:
    """See the attempt to its end after the script's; the exit status of the process."""
    attempt.script.note_ended(has_failed=failure is not None)
    try:
        while not retry_until_fenced(attempt, "Spark", lambda: close_latch(attempt, "stop", Order())):
            if attempt.latch.is_released:
                return _after_an_ending(attempt, failure)
            if attempt.fence.is_fenced:
                return FENCED_STATUS
            attempt.clock.sleep(POLL_SECONDS)  # the agent is about it; what is called off opens the latch again
        return _end_by_itself(attempt, failure, running_queries(attempt))
    except FencedError:
        return FENCED_STATUS


def fail_with_query(attempt: Attempt, failed: LogicalQuery) -> None:
    """End the deployment because a query of it has failed: the others are stopped, and ``Failed`` names that query.

    Called again where it was interrupted, it goes on. Does nothing where another ending has begun.

    Args:
        attempt: an attempt with ``on_query_failure`` ``fail``.
        failed: the query.

    Raises:
        FencedError: this attempt was replaced.
        UnavailableError, OutcomeUnknownError: the store does not answer; the next call goes on.
    """
    if attempt.latch.is_released or (not attempt.latch.is_failing and not close_latch(attempt, "stop", Order())):
        return
    attempt.latch.note_failing()
    _end_by_itself(
        attempt,
        _failure_of(failed),
        running_queries(attempt),
        f"query {failed.name} has failed; the other queries are stopped",
    )


def _end_by_itself(
    attempt: Attempt,
    failure: ScriptFailure | None,
    running: list[LogicalQuery],
    text: str = "the script ended while queries were running; they are stopped",
) -> int:
    if running:
        attempt.reporter.note(text, queries=[query.name for query in running])
    # A script that failed does not wait for its batches for ever; what is cut is run again by the next start.
    clock, began = attempt.clock, attempt.clock.monotonic_seconds()
    grace = attempt.spec.settings.exit_grace_seconds

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
    if not is_over and not _has_terminal_event(attempt):
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
    """Of a script that ended with status 0: the failure of a query for which that status cannot speak. With
    ``on_query_failure`` ``script`` it speaks for those that the script was given."""
    failed = failed_queries(attempt)
    if attempt.spec.on_query_failure == "script":
        failed = [query for query in failed if not query.is_failure_given]
    return _failure_of(failed[0]) if failed else None


def _failure_of(query: LogicalQuery) -> ScriptFailure:
    text = query.failure() or ""
    return ScriptFailure(error=text, traceback=text, exit_status=1, query_name=query.name)


def write_finished(attempt: Attempt) -> int:
    """The script ended by itself with status 0: the final snapshot, and the event; the exit status."""
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
    need_current(attempt)
    attempt.reporter.write(
        Finished,
        snapshot_id=manifest.snapshot_id if manifest is not None else None,
        queries=positions_in(manifest) if manifest is not None else {},
        ends=ends_of(attempt),
    )
    attempt.reporter.say(f"finished; snapshot {manifest.snapshot_id}" if manifest else "finished without a query")
    attempt.latch.release("finished")
    return 0


def write_failed(attempt: Attempt, failure: ScriptFailure) -> None:
    """The script or a query failed; the next attempt repairs the log and goes on."""
    note_overtaken_drain(attempt)
    need_current(attempt)
    attempt.reporter.write(
        Failed,
        error=attempt.reporter.shortened(failure.error, MAX_ERROR_CHARACTERS),
        traceback=attempt.reporter.shortened(failure.traceback, MAX_TRACEBACK_CHARACTERS, from_end=True),
        query_name=failure.query_name,
        explanation=_explained(attempt, failure),
        cause=_cause_of(attempt, failure),
        is_refusal=failure.is_refusal,
    )
    attempt.latch.release("failed")


def _cause_of(attempt: Attempt, failure: ScriptFailure) -> str:
    cause = cause_of(failure.error, failure.traceback)
    return attempt.reporter.shortened(cause, MAX_ERROR_CHARACTERS, in_a_line=True)


def _explained(attempt: Attempt, failure: ScriptFailure) -> str:
    sentence = attempt.sources.explain(attempt.reporter.redacted(f"{failure.error}\n{failure.traceback}"))
    if sentence:
        attempt.reporter.say(f"the query failed: {sentence}")
    return sentence


def _has_terminal_event(attempt: Attempt) -> bool:
    return any(
        isinstance(event, TERMINAL_EVENTS) and event.attempt == attempt.number for event in attempt.reporter.events
    )


def end_overdue_script(attempt: Attempt) -> int | None:
    """The status to end the process with, once a script has run on for too long after its ending; None before."""
    released_at = attempt.latch.released_at_seconds
    if released_at is None or attempt.script.has_ended:
        return None
    grace = attempt.spec.settings.exit_grace_seconds
    if attempt.clock.monotonic_seconds() - released_at < grace:
        return None
    attempt.script.note_ended(has_failed=attempt.script.has_failed)
    attempt.reporter.note(
        f"the script ran on for {grace:g} s after the deployment was {attempt.latch.outcome}; it is ended"
    )
    if _has_terminal_event(attempt) or attempt.latch.outcome == "drained":
        return 0 if attempt.latch.outcome != "failed" else 1
    failed = [query for query in attempt.queries.all() if query.failure() is not None]
    if failed:
        write_failed(attempt, _failure_of(failed[0]))
        return 1
    return write_finished(attempt)
