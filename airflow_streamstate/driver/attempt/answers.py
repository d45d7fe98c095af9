"""Answers to commands (1a.13), audits for what no lock can prevent, and queries that fail while others run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from airflow_streamstate.checkpoint.log import batches_passed_over, listed_batches
from airflow_streamstate.control.command_status import cancel_requests, cancelled_drains
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.latch import Order
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.errors import OutcomeUnknownError, StreamStateError, UnavailableError
from airflow_streamstate.protocol.codec import to_json
from airflow_streamstate.protocol.commands import CancelRequest, Command
from airflow_streamstate.protocol.events import (
    Accepted,
    AfterQueryFailure,
    BatchesSkipped,
    DrainFailed,
    Ignored,
    Noted,
    QueryFailed,
    Rejected,
)
from airflow_streamstate.protocol.redaction import cause_in
from airflow_streamstate.retry import Retry
from airflow_streamstate.snapshot.location import OUTRUN, batches_after

CLEAN_UP = Retry(tries=3, pause_seconds=0.2)


def accept(attempt: Attempt, order: Order) -> None:
    """Write ``Accepted`` with the command's content, once per command."""
    command = order.command
    if command is not None and not attempt.command_status(command.command_id).is_begun:
        attempt.reporter.write(
            Accepted, command_id=command.command_id, command_number=order.command_number, command=to_json(command)
        )
        attempt.reporter.say(f"{command.kind} {command.command_id} of {command.requested_by} is accepted")


def ignore(attempt: Attempt, command: Command, number: int, reason: str) -> None:
    """Write ``Ignored``; the job runs on."""
    attempt.reporter.write(
        Ignored, command_id=command.command_id, command_number=number, command=to_json(command), reason=reason
    )
    attempt.reporter.say(f"{command.kind} {command.command_id} is ignored: {reason}")
    clean_up(attempt)


def clean_up(attempt: Attempt) -> None:
    """Delete the commands that have ended; the agent's next poll retries what the store did not delete."""
    for _ in CLEAN_UP.begin(attempt.clock):
        try:
            _delete_answered(attempt)
            return
        except StreamStateError as error:
            attempt.reporter.outage("clean-up of commands", error)


def _delete_answered(attempt: Attempt) -> None:
    for status in attempt.commands(attempt.journal.commands()).values():
        if status.slot is not None and status.is_ended:
            attempt.journal.delete_command(status.slot)


def call_off_drain(attempt: Attempt, reason: str) -> None:
    """Reject a drain that waited for the first query and cannot work; the queries run after all."""
    order = attempt.latch.order
    attempt.reporter.write(
        Rejected, command_id=order.command_id, command_number=order.command_number, key="", reason=reason
    )
    attempt.reporter.say(f"the drain is rejected: {reason}")
    clean_up(attempt)
    if attempt.only_drains:
        attempt.latch.release("superfluous")
    else:
        attempt.latch.reopen()


# Cancelling drains that have not started to flush.


def cancel_drains(attempt: Attempt, *, but: str = "") -> bool:
    """Write ``DrainFailed`` for drains that a request cancels before their flush starts; returns whether there was one.

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
        attempt.reporter.say(f"drain {drain.command_id} is not started: {why}")
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


# Audits for what no lock can prevent; the driver notes each finding once.
#
# A commit log that skips a batch: its rows were read and never written (Law 12). A predecessor that was taken for
# dead and continued: its last batches are in the sink twice (1a.8). Batches that advanced offsets and read no row: the
# sink may have skipped them (Law 14).

GAP = "the commit log of this query passes over batches: their rows may be lost; compare the sink with the source"


class Audit:
    """The audits of one attempt while its queries run."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._suspected: dict[str, set[int]] = {}
        self._looks = 0

    def follow(self, query_name: str, commit_ids: Sequence[int]) -> None:
        """Check the commits that a heartbeat has just listed.

        A batch counts as missing after two polls: a listing may show a file and not the one before it, and Spark may be
        removing the oldest one.
        """
        passed_over = set(batches_passed_over(commit_ids))
        certain = passed_over & self._suspected.get(query_name, set())
        self._suspected[query_name] = passed_over
        if certain:
            note_once(self._attempt, GAP, query=query_name, batches=listed_batches(certain))

    def look_back(self) -> None:
        """Check the predecessor at the 1st, 2nd, 4th, 8th … call."""
        self._looks += 1
        if self._looks & (self._looks - 1) == 0:
            look_back(self._attempt)


def audit_at_end(attempt: Attempt) -> None:
    """Check once more before the terminal event, when no query runs any more."""
    note_gaps(attempt, sorted(attempt.queries.names()))
    look_back(attempt)
    for query in attempt.queries.all():
        tell_skipped(attempt, query, at_end=True)


def tell_skipped(attempt: Attempt, query: LogicalQuery, *, at_end: bool = False) -> int:
    """Write ``BatchesSkipped`` at the first such batch, whenever their number has doubled, and at the end.

    Returns the number of such batches in this attempt.
    """
    try:
        skipped = query.skipped()
    except StreamStateError:
        return 0
    told = max(
        (
            event.count
            for event in attempt.reporter.events
            if isinstance(event, BatchesSkipped) and (event.attempt, event.query_name) == (attempt.number, query.name)
        ),
        default=0,
    )
    if skipped.count > told and (at_end or skipped.count >= 2 * told):
        attempt.reporter.say(
            f"query {query.name}: batches {listed_batches(skipped.newest)} advanced their offsets and read no row: a"
            " sink that already holds these batch ids skips them in this way, and so does a filter that leaves nothing"
            " for Delta; compare the sink with the source"
        )
        attempt.reporter.write_soon(
            BatchesSkipped, query_name=query.name, batch_ids=skipped.newest, count=skipped.count
        )
    return skipped.count


def note_gaps(attempt: Attempt, query_names: Sequence[str]) -> None:
    """Check the logs of queries that are not running."""
    for name in query_names:
        with suppress(StreamStateError):  # the part that needs the log reports it
            passed_over = batches_passed_over(attempt.checkpoint_of(name).commit_ids())
            if passed_over:
                note_once(attempt, GAP, query=name, batches=listed_batches(passed_over))


def look_back(attempt: Attempt) -> None:
    """Check whether the previous deployment committed batches after its end was taken."""
    with suppress(StreamStateError):
        manifest = attempt.start.manifest()
        if manifest is None or attempt.spec.start.undoes is not None:
            return  # a rollback to an older snapshot expects later batches
        for name, later in batches_after(attempt.checkpoints, manifest).items():
            note_once(attempt, OUTRUN, deployment_id=manifest.deployment_id, query=name, batches=listed_batches(later))


def note_once(attempt: Attempt, text: str, **facts: str) -> None:
    """Write a note, unless this deployment has an equal one."""
    for event in attempt.reporter.events:
        if isinstance(event, Noted) and event.text == text and dict(event.facts) == facts:
            return
    attempt.reporter.note(text, **facts)


# Queries that fail while others run: the driver writes one event for each failure, whatever the script does about it.

MAX_CAUSE_CHARACTERS = 1_000
MAX_REPORT_CHARACTERS = 8_000


def tell_failed_queries(attempt: Attempt, *, is_last_look: bool = False) -> None:
    """Write ``QueryFailed`` for each query that failed by itself, once per run.

    If the store does not report which batch is planned, the next poll writes it, unless this is the last.
    """
    for query in attempt.queries.all():
        if not query.ended or not query.has_failed_itself or not attempt.queries.begin_to_tell(query):
            continue
        try:
            position = query.checkpoint.position()
            batch_ids = position.batch_id, position.planned_id
        except StreamStateError as error:
            if isinstance(error, (UnavailableError, OutcomeUnknownError)) and not is_last_look:
                query.is_failure_told = False
                attempt.reporter.outage(f"the log of query {query.name}", error)
                continue
            batch_ids = None, None
        _tell(attempt, query, *batch_ids)


def _tell(attempt: Attempt, query: LogicalQuery, batch_id: int | None, planned_id: int | None) -> None:
    text = query.failure() or ""
    cause = attempt.reporter.shortened(cause_in(text), MAX_CAUSE_CHARACTERS, in_a_line=True)
    then: AfterQueryFailure = "fail" if attempt.spec.version.on_query_failure == "fail" else "degrade"
    where = "" if planned_id is None else f" in batch {planned_id}"
    attempt.reporter.say(f"query {query.name} has failed{where}: {cause}")
    attempt.reporter.write_soon(
        QueryFailed,
        query_name=query.name,
        query_id=query.query_id or "",
        query_run_id="" if query.failed_run is None else query.failed_run.query_run_id,
        batch_id=batch_id,
        planned_batch_id=planned_id,
        error=cause,
        traceback=attempt.reporter.shortened(text, MAX_REPORT_CHARACTERS, from_end=True),
        explanation=attempt.sources.explain(attempt.reporter.redacted(text)),
        then=then,
    )
    attempt.queries.note_failed(query)


def failed_queries(attempt: Attempt) -> list[LogicalQuery]:
    """The queries that failed by themselves and were not started again."""
    return [query for query in attempt.queries.all() if query.is_over and query.has_failed_itself]
