"""Queries whose trigger ends each run by itself (``availableNow``, ``once``): each attempt is one run. Pure."""

from __future__ import annotations

from collections import Counter

from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.protocol.events import Accepted, QueryFailed, QueryStarted


def bounded_queries(seen: Observation) -> frozenset[str]:
    """The queries of this attempt whose last start had such a trigger."""
    starts = {event.query_name: event for event in reversed(list(seen.of_kind(QueryStarted)))}
    return frozenset(name for name, start in starts.items() if start.ends_by_itself)


def is_between_runs(seen: Observation) -> bool:
    """Whether the last run of a deployment whose queries all have such a trigger has ended by itself."""
    names = {event.query_name for event in seen.of_kind(QueryStarted)}
    return seen.state == "finished" and bool(names) and names == bounded_queries(seen)


def ended_runs(seen: Observation) -> frozenset[str]:
    """The queries of this attempt whose trigger has ended a run of them, without a failure."""
    beat = seen.heartbeat
    beats = {} if beat is None or beat.attempt != seen.attempt else beat.queries
    over = {name for name in bounded_queries(seen) if name in beats and beats[name].run_has_ended}
    return frozenset(over | repeated_runs(seen))


def repeated_runs(seen: Observation) -> frozenset[str]:
    """Queries with such a trigger that the script has started again in this attempt, after a run that did not fail."""
    if next(seen.of_kind(Accepted), None) is not None:
        return frozenset()  # the driver starts a query again, too: after a drain that was called off, or a skip
    starts = Counter(event.query_name for event in seen.of_kind(QueryStarted))
    starts.subtract(event.query_name for event in seen.of_kind(QueryFailed))
    return frozenset(name for name in bounded_queries(seen) if starts[name] > 1)
