"""Healthy is defined, not hoped: batches past the handover, no restart, and nothing left behind that grows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_streamstate.lifecycle.observing.caught_up import (
    asked_at,
    behind_in_words,
    decide_caught_up,
    has_some_left,
    lags_of,
    what_grew,
)
from airflow_streamstate.lifecycle.observing.observation import Observation
from airflow_streamstate.lifecycle.observing.state import ALIVE, decide_state, explain_state
from airflow_streamstate.protocol.events import Failed, QueryStarted
from airflow_streamstate.protocol.heartbeat import QueryBeat
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.positions import QueryPosition
from airflow_streamstate.protocol.upgrades import HealthyWhen

Beats = Mapping[str, QueryBeat]
"""By query, what its last sign of life said."""


@dataclass(frozen=True)
class Healthy:
    """It has proven itself."""


@dataclass(frozen=True)
class NotYet:
    """It may still; ``text``: what is missing."""

    text: str


@dataclass(frozen=True)
class Unhealthy:
    """It cannot any more."""

    reason: str


Health = Healthy | NotYet | Unhealthy


def decide_health(
    seen: Observation,
    handover: SnapshotManifest | None,
    wanted: HealthyWhen,
    first_beats: Beats | None,
    waited_seconds: float,
) -> Health:
    """Whether a new deployment has proven itself.

    Args:
        seen: the deployment.
        handover: what it started from; None for nothing.
        wanted: when it has.
        first_beats: how its queries stood when it had begun; None while it had not.
        waited_seconds: since it was launched.
    """
    state = decide_state(seen, seen.observed_at)
    if state == "finished":
        return Healthy()  # by itself: a script that reads what there is, and ends
    failed = next(seen.of_kind(Failed), None)
    if state in ("failed", "fenced", "stopped", "drained", "degraded"):
        why = failed.in_words if failed is not None else explain_state(seen, seen.observed_at)
        return Unhealthy(f"it is {state}: {why}")
    missing = _missing(seen, handover, wanted.batches) if state in ALIVE else f"it is {state}"
    if not missing and wanted.caught_up:
        caught_up = decide_caught_up(seen)
        missing = "" if caught_up.is_so else f"it has not caught up: {caught_up.why}"
    elif not missing:
        missing = _falls_behind(beats_of(seen), first_beats or {})
    return _late(missing, wanted, waited_seconds) if missing else Healthy()


def has_begun(seen: Observation, handover: SnapshotManifest | None) -> bool:
    """Whether every query has committed a batch past the handover, or found no input."""
    return decide_state(seen, seen.observed_at) in ALIVE and not _missing(seen, handover, 1)


def _falls_behind(beats: Beats, first_beats: Beats) -> str:
    """Why it is not certain to keep up; "" where nothing speaks against it."""
    for name, query in sorted(beats.items()):
        if not has_some_left(query):
            continue
        first = first_beats.get(name)
        grown = "" if first is None else what_grew(lags_of(first), lags_of(query))
        if grown:
            return f"it falls behind: query {name} was {grown}"
        if first is not None and asked_at(query) == asked_at(first):
            return f"query {name} is {behind_in_words(lags_of(query))}, and was asked only once"
    return ""


def _late(missing: str, wanted: HealthyWhen, waited_seconds: float) -> NotYet | Unhealthy:
    if waited_seconds < wanted.within_seconds:
        return NotYet(missing)
    return Unhealthy(f"{missing}, {wanted.within_seconds:g} s after its launch")


def _missing(seen: Observation, handover: SnapshotManifest | None, batches: int) -> str:
    """What it has not done yet; "" for nothing."""
    started = {event.query_name for event in seen.of_kind(QueryStarted)}
    known = set() if handover is None else set(handover.queries)
    beat = seen.heartbeat
    if not started or beat is None or beat.attempt != seen.attempt:
        return "no query of it has run yet"
    for name in sorted(started):
        query = beat.queries.get(name)
        if query is None:
            return f"query {name} has not run yet"
        before = handover.queries.get(name) if handover is not None else None
        committed = _committed(query, None if before is None else _first_start_runs_to(before.position))
        if committed < batches and not _is_idle(query):
            return f"query {name} has committed {committed} of {batches} batches"
    unstarted = sorted(known - started)
    newest = max(event.at for event in seen.of_kind(QueryStarted))
    if unstarted and (beat.at - newest).total_seconds() <= seen.spec.settings.exit_grace_seconds:
        return f"query {unstarted[0]} is not started yet"
    return ""


def _first_start_runs_to(position: QueryPosition) -> int | None:
    """The planned batch is none of the new version's own: its start runs that, whatever the code can do."""
    return position.batch_id if position.planned_batch_id is None else position.planned_batch_id


def _committed(query: QueryBeat, handover_batch_id: int | None) -> int:
    if query.batch_id is None:
        return 0
    return query.batch_id - (-1 if handover_batch_id is None else handover_batch_id)


def _is_idle(query: QueryBeat) -> bool:
    """It looked for input and found none."""
    return query.idle_triggers > 0 and not has_some_left(query)


def beats_of(seen: Observation) -> Beats:
    """How its queries stand now."""
    return {} if seen.heartbeat is None else dict(seen.heartbeat.queries)
