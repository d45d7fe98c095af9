"""A drain that is called off before it flushed anything: its queries run on, stop, or are cut, as was asked for."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.latch import Order
from airflow_streamstate.driver.attempt.snapshotting import persist
from airflow_streamstate.driver.shutdown.carrying_on import carry_on
from airflow_streamstate.driver.shutdown.cutting import cut_runs
from airflow_streamstate.driver.shutdown.drain_ends import DrainEnds
from airflow_streamstate.driver.shutdown.stopping import (
    Ending,
    end_at_barriers,
    fail_queries,
    finish_stopped,
    running_queries,
    wait_until_ended,
)
from airflow_streamstate.protocol.events import AfterDrain


def call_off(attempt: Attempt, ends: DrainEnds, order: Order, then: AfterDrain, endings: Sequence[Ending] = ()) -> None:
    """Do what follows on a drain that is called off; where this is interrupted, the next look begins it again.

    Args:
        attempt: this attempt, whose latch is closed.
        ends: of the drain.
        order: the drain.
        then: what was said that follows; "" where the attempt was there for the drain alone, and is over.
        endings: the queries that were on their way to their barriers.

    Raises:
        FencedError: this attempt was replaced.
    """
    if then == "runs_on":
        carry_on(attempt, endings, order.command_id)
        attempt.reporter.say("the queries run on, as if no drain had been asked for")
        return
    if then == "kill":
        running = running_queries(attempt)
        not_cut = cut_runs(attempt, running)
        if not_cut:
            ends.not_cut(not_cut)
            return
        end_at_barriers(attempt, running, order.command_id)  # takes our entries back from above what was cut
        finish_stopped(attempt, Order())
        return
    failures = _failures_of_planned(attempt)
    if then != "stop" and not failures:
        attempt.latch.release("superfluous")
        return
    failures |= end_at_barriers(attempt, running_queries(attempt), order.command_id)
    if failures:
        fail_queries(attempt, failures)
        return
    finish_stopped(attempt, Order())


def _failures_of_planned(attempt: Attempt) -> dict[str, str]:
    """Wait for what runs a batch that was planned before; why batches failed, by query."""
    failures = {}
    for query in list(attempt.queries.values()):
        run = query.run
        if query.runs_once and run is not None:
            wait_until_ended(attempt, run)
            failure = run.failure()
            if failure is not None and persist(attempt, "the log", query.checkpoint.position).planned is not None:
                failures[query.name] = failure
    return failures
