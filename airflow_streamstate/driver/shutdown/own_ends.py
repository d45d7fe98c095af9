"""Whether queries had come to an end by themselves when their script ended with status 0.

A script that returns, stops its query or handles a signal ends a stream that has more to read: only a trigger that ends
each run, or a source that says that nothing follows, makes an end of it.
"""

from __future__ import annotations

from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.driver.attempt.query_failures import MAX_CAUSE_CHARACTERS
from airflow_streamstate.driver.attempt.snapshotting import retry_until_fenced
from airflow_streamstate.driver.shutdown.gathering import not_started
from airflow_streamstate.driver.shutdown.self_drains import finished_parts
from airflow_streamstate.driver.shutdown.stopping import position_of
from airflow_streamstate.protocol.causes import cause_in
from airflow_streamstate.protocol.events import QueryStarted


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
    """Whether its sources say that nothing follows."""
    if attempt.spec.version.settings.keep_running:
        return False
    return retry_until_fenced(attempt, "the log", lambda: finished_parts(attempt, query)) is not None
