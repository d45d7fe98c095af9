"""Queries that fail while others run: the driver writes one event for each failure, whatever the script does about
it."""

from __future__ import annotations

from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.errors import OutcomeUnknownError, StreamStateError, UnavailableError
from airflow_streamstate.protocol.causes import cause_in
from airflow_streamstate.protocol.events import AfterQueryFailure, QueryFailed

MAX_CAUSE_CHARACTERS = 1_000
MAX_REPORT_CHARACTERS = 8_000


def tell_failed_queries(attempt: Attempt, *, is_last_look: bool = False) -> None:
    """Write ``QueryFailed`` for each query that failed by itself, once per run.

    If the store does not say which batch is planned, the next look writes it, unless this is the last.
    """
    for query in attempt.queries.all():
        if not query.ended or not query.has_failed_itself or not attempt.queries.begin_to_tell(query):
            continue
        try:
            position = query.checkpoint.position()
            batch_ids = position.batch_id, position.planned_id
        except StreamStateError as error:
            if isinstance(error, UnavailableError | OutcomeUnknownError) and not is_last_look:
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
