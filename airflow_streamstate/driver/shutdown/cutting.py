"""Batches that are cut: their queries stopped wherever they are, for the next start to run the batch again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.logical_query import POLL_SECONDS, LogicalQuery
from airflow_streamstate.driver.attempt.snapshotting import retry_until_fenced
from airflow_streamstate.driver.shutdown.stopping import cut


def cut_runs(attempt: Attempt, queries: Sequence[LogicalQuery]) -> list[str]:
    """Stop these in the middle of their batches; the names of those that have not ended ``exit_grace_seconds`` later.

    Spark's ``stop()`` waits for the batch to be interrupted, which user code may never be: so nobody waits for it.

    Raises:
        FencedError: this attempt was replaced.
    """
    for query in queries:
        attempt.in_background(partial(cut, attempt, query), gives_way=False)
    until = attempt.clock.monotonic_seconds() + attempt.spec.settings.exit_grace_seconds
    left = list(queries)
    while left and attempt.clock.monotonic_seconds() < until:
        left = [query for query in left if not retry_until_fenced(attempt, "Spark", query.has_stopped_running)]
        if left:
            attempt.clock.sleep(POLL_SECONDS)
    return [query.name for query in left]
