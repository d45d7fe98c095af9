"""A shutdown that is called off: the queries run on in the same driver.

A query that is still in its batch loses the barrier and notices nothing. A query that has ended at its barrier is
started again there, as a resume would start it.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable

from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.logical_query import POLL_SECONDS, LogicalQuery
from airflow_streamstate.driver.attempt.query_failures import tell_failed_queries
from airflow_streamstate.driver.attempt.snapshotting import retry_until_fenced
from airflow_streamstate.driver.shutdown.stopping import Ending, position_of, running_queries, wait_until_ended
from airflow_streamstate.driver.start.running import Runs
from airflow_streamstate.errors import FencedError, OutcomeUnknownError, UnavailableError


def carry_on(attempt: Attempt, endings: Iterable[Ending] = (), command_id: str = "") -> None:
    """Take the barriers back, start the queries that ended at one, and open the latch.

    The logs hold no drain entry; ``endings`` were on their way to their barriers.
    """
    known = {ending.query.name: ending for ending in endings}
    live = []
    for query in running_queries(attempt):
        if query.runs_once and query.run is not None:
            wait_until_ended(attempt, query.run)  # a planned batch, which belongs to the query
        else:
            live.append(known.get(query.name) or Ending(attempt, query, command_id))
    while live:
        attempt.fence.check()
        live = [ending for ending in live if _is_undecided(attempt, ending)]
        if live:
            attempt.clock.sleep(POLL_SECONDS)
    with attempt.latch.held():
        runs = Runs(attempt)
        for query in attempt.queries.all():
            if query.is_over:
                continue
            if query.has_ended_itself:
                _end(query)
            elif query.has_stopped_running():
                _begin_again(attempt, runs, query)
        attempt.latch.reopen()
    tell_failed_queries(attempt)


def _is_undecided(attempt: Attempt, ending: Ending) -> bool:
    try:
        return ending.goes_on() is None
    except (UnavailableError, OutcomeUnknownError) as error:
        attempt.reporter.outage(f"barrier of {ending.query.name}", error)
        return True


def _end(query: LogicalQuery) -> None:
    """End a query that the script stopped, or that came to its own end, during the shutdown."""
    if query.run is not None and not query.run.has_ended():
        query.run.stop()
    query.end()


def _begin_again(attempt: Attempt, runs: Runs, query: LogicalQuery) -> None:
    """Start a query again; an error is the query's failure, as at any other start."""
    run = query.run
    failure = run.failure() if run is not None else None
    try:
        if failure is not None and position_of(attempt, query).planned is not None:
            query.fail(failure, run)  # its batch failed, not its claim (Law 13)
            return
        retry_until_fenced(attempt, "the start of a query", lambda: runs.begin(query))
    except FencedError:
        raise
    except Exception as error:
        attempt.reporter.say(traceback.format_exc())
        query.fail(f"{type(error).__name__}: {error}")
