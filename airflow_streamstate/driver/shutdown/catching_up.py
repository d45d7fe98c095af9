"""A query that reads what another one writes: it is flushed after that one, with all of its flush read."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from airflow_streamstate.checkpoint.repair import DrainCommitted, DrainPending, classify, repair_before_start
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.driver.attempt.snapshotting import need_current, persist
from airflow_streamstate.driver.shutdown.gathering import QueryFailedError
from airflow_streamstate.driver.shutdown.stopping import end_at_barriers, wait_until_ended
from airflow_streamstate.driver.start.building import Builder
from airflow_streamstate.errors import FencedError
from airflow_streamstate.plan.feeding import in_stages
from airflow_streamstate.plan.model import QueryPlan


def stages_of(queries: list[LogicalQuery], plans: dict[str, QueryPlan]) -> list[list[LogicalQuery]]:
    """Queries in the order of their data; one without a known plan is fed by nobody."""
    named = {query.name: query for query in queries}
    stages = in_stages({name: plan for name, plan in plans.items() if name in named})
    placed = {name for stage in stages for name in stage}
    unknown = [query for query in queries if query.name not in placed]
    found = [[named[name] for name in stage] for stage in stages] or [[]]
    found[0] += unknown
    return [stage for stage in found if stage]


def catch_up(
    attempt: Attempt,
    queries: list[LogicalQuery],
    command_id: str,
    announced: dict[str, int],
    is_enough: Callable[[], bool] = lambda: False,
) -> bool:
    """Have queries read all that there is for them now, and bring them back to their barriers.

    Not those whose flush was announced for the very place where they stand, or was begun: an earlier attempt has had
    them read everything.

    Args:
        attempt: this attempt, whose latch is closed for a drain.
        queries: each stands at its barrier; what feeds them is flushed.
        command_id: the drain.
        announced: the batch that flushes, by query, as announced so far.
        is_enough: asked again and again; whether to wait no longer.

    Returns:
        Whether they have; where not, some may be reading still.

    Raises:
        QueryFailedError: a batch failed.
        FencedError: this attempt was replaced.
    """
    behind = [query for query in queries if _is_behind(attempt, query, announced)]
    failures: dict[str, str] = {}
    for query in behind:
        attempt.reporter.say(f"query {query.name} reads what was flushed before it")
        checkpoint, partitions = query.checkpoint, query.session_partitions
        persist(
            attempt,
            "the repair",
            lambda checkpoint=checkpoint, partitions=partitions: repair_before_start(  # type: ignore[misc]
                checkpoint, attempt.deployment_id, partitions=partitions()
            ),
        )
        need_current(attempt)
        try:
            if query.run is None:
                _look_at_sources(attempt, query)
            query.add_run(query.startable.start_available(attempt.uri_of(checkpoint)), once=True)
        except FencedError:
            raise
        except Exception as error:
            attempt.reporter.say(traceback.format_exc())
            failures[query.name] = f"{type(error).__name__}: {error}"
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


def _look_at_sources(attempt: Attempt, query: LogicalQuery) -> None:
    """Its checkpoint was built for a flush, which reads nothing; as before any start, now that it reads after all."""
    builder = Builder(attempt)
    persist(attempt, "the sources", lambda: builder.ensure(query.name, query.startable))


def _is_behind(attempt: Attempt, query: LogicalQuery, announced: dict[str, int]) -> bool:
    checkpoint = query.checkpoint
    found = persist(attempt, "the log", lambda: classify(checkpoint, attempt.deployment_id))
    if isinstance(found, DrainCommitted | DrainPending):
        return False
    return announced.get(query.name) != persist(attempt, "the log", checkpoint.position).barrier_id
