"""Every query of a drain at its barrier: those that run, those that the script has not started, those that are over."""

from __future__ import annotations

from collections.abc import Callable

from airflow_streamstate.checkpoint.repair import DrainCommitted, DrainPending, Foreign, classify, repair_before_start
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.driver.attempt.snapshotting import checkpoint_names, holders, need_current, retry_until_fenced
from airflow_streamstate.driver.shutdown.begun_flushes import refuse_carrying_on
from airflow_streamstate.driver.shutdown.stopping import end_at_barriers, wait_until_ended
from airflow_streamstate.driver.start.building import has_state
from airflow_streamstate.driver.start.repeating import tell_repeated
from airflow_streamstate.driver.start.running import describe_repairs
from airflow_streamstate.driver.start.skipping import give_up_skip
from airflow_streamstate.errors import FencedError


class QueryFailedError(Exception):
    """Internal: batches that had to be run before the flush failed.

    Attributes:
        failures: why, by query.
    """

    def __init__(self, failures: dict[str, str]) -> None:
        super().__init__(failures)
        self.failures = failures


def are_all_started(attempt: Attempt) -> bool:
    """Whether every query with state was started by the script, or will not be; asked again at the next look.

    A script that starts its queries one after the other gets ``exit_grace_seconds`` after each; what it has not
    started then, or when it ends, is carried on unflushed. A script that fails has not come to say what it starts:
    the drain then holds for the next attempt.
    """
    missing = _not_started(attempt)
    started_at = attempt.queries.last_start_at_seconds
    grace = attempt.spec.settings.exit_grace_seconds
    is_late = started_at is not None and attempt.clock.monotonic_seconds() - started_at > grace
    if not attempt.script.has_ended and not is_late and (missing or started_at is None):
        return False
    if missing and attempt.script.has_failed:
        attempt.reporter.note("the script failed before it had started these queries: not drained", queries=missing)
        attempt.latch.release("failed")
        return False
    if missing:
        refuse_carrying_on(attempt, missing)
        attempt.reporter.note("queries that were not started are carried on unflushed", queries=missing)
    return True


def _not_started(attempt: Attempt) -> list[str]:
    held = retry_until_fenced(attempt, "the start snapshot", lambda: holders(attempt))
    built = retry_until_fenced(attempt, "the list of checkpoints", lambda: checkpoint_names(attempt))
    with_state = {name for name, holder in held.items() if has_state(holder.queries[name])}
    return sorted({*built, *with_state} - set(attempt.queries.names()))


def has_committed(attempt: Attempt, query: LogicalQuery) -> bool:
    return retry_until_fenced(attempt, "the log", query.checkpoint.position).batch_id is not None


def stands_at_barrier(attempt: Attempt, query: LogicalQuery) -> bool:
    """Not so where the script itself stopped it in the middle of a batch, under our barrier."""
    position = retry_until_fenced(attempt, "the log", query.checkpoint.position)
    return position.planned is None and bool(position.barriers)


def bring_to_barrier(
    attempt: Attempt, query: LogicalQuery, command_id: str, is_enough: Callable[[], bool] = lambda: False
) -> None:
    """A query that does not run: what Spark had planned is run first, then our entry is put above it (1a.7).

    Args:
        attempt: this attempt.
        query: it.
        command_id: goes into the mark.
        is_enough: whether to wait no longer for the batch that was planned: it runs on then, and has no barrier.
    """
    checkpoint = query.checkpoint
    found = retry_until_fenced(attempt, "the log", lambda: classify(checkpoint, attempt.deployment_id))
    if isinstance(found, DrainCommitted | DrainPending):
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
    """Whether it came to its end before it was enough."""
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
    position = retry_until_fenced(attempt, "the log", query.checkpoint.position)
    if position.planned is not None:
        raise QueryFailedError({query.name: run.failure() or f"batch {batch_id} did not commit"})
    return True
