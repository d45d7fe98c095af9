"""How many rows each query is behind its sources: asked of the sources, beside the sign of life and never before it."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime

from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.runtime.attempt.attempt import Attempt
from airflow_streamstate.runtime.attempt.logical_query import LogicalQuery

SHARE = 0.01
"""Of the time goes into asking: a topic of a thousand partitions is asked more seldom than one of ten."""
LONGEST_QUIET_SECONDS = 60.0


class LagLook:
    """The last answers of one attempt; a source that answers late or not at all delays nothing."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._found: dict[str, tuple[int, datetime]] = {}
        self._asking: set[str] = set()
        self._quiet_until_seconds: dict[str, float] = {}

    def of(self, query: LogicalQuery) -> tuple[int, datetime] | tuple[None, None]:
        """What was answered last, and when; asks again in the background where a query is running."""
        progress = query.last_progress()
        if progress is not None and self._may_ask(query):
            offsets = query.startable.facts.in_line_order(progress.end_offsets)
            self._asking.add(query.name)
            self._attempt.in_background(lambda: self._ask(query, progress.batch_id, offsets), gives_way=False)
        return self._found.get(query.name, (None, None))

    def _may_ask(self, query: LogicalQuery) -> bool:
        if query.name in self._asking or not query.is_active():
            return False
        if not any(identity.adapter for identity in self._attempt.sources.identities(query.name)):
            return False  # nobody knows what its sources are
        return self._attempt.clock.monotonic_seconds() >= self._quiet_until_seconds.get(query.name, 0.0)

    def _ask(self, query: LogicalQuery, batch_id: int, offsets: tuple[str, ...]) -> None:
        query_name, clock = query.name, self._attempt.clock
        began = clock.monotonic_seconds()
        try:
            lags = self._attempt.sources.lag(query_name, offsets)
            rows = [lag.behind for lag in lags.values() if lag.unit == "rows"]
            if rows:
                self._found[query_name] = (sum(rows), clock.now())
            else:
                self._found.pop(query_name, None)  # nobody can tell (any more)
            if query.plans_batch_by_batch:
                with suppress(StreamStateError):  # Spark's JVM is ending, and the query with it
                    # The batch behind the last one may be under way: its offsets may be older than the answer.
                    self._attempt.sources.sight(query_name, batch_id, lambda: query.newest_batch_id() + 1)
        finally:
            now = clock.monotonic_seconds()
            self._quiet_until_seconds[query_name] = now + min((now - began) / SHARE, LONGEST_QUIET_SECONDS)
            self._asking.discard(query_name)
