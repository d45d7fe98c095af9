"""Queries of an observed deployment that cannot resume in their own checkpoints: a source of them sends rows once."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.controller.observe.repeating import checkpoint_of
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.protocol.events import QueryStarted

OneTimeSources = Mapping[str, Mapping[str, str]]
"""By query, the sources that it cannot resume from: what each is -> why."""


def one_time_sources(home: Home, seen: Observation) -> OneTimeSources:
    """The queries that no attempt of this deployment can start again.

    They have committed an offset that means nothing to the next connection, and a resume never changes a checkpoint.
    Sources are those of the newest start of each query. A query whose log cannot be read is left out: its driver
    decides.
    """
    from airflow_streamstate.connectors.measuring import known_sources
    from airflow_streamstate.connectors.replaying import sending_once

    starts: dict[str, QueryStarted] = {}
    for event in seen.of_kind(QueryStarted, any_attempt=True):  # newest first
        starts.setdefault(event.query_name, event)
    found = {}
    for name, start in sorted(starts.items()):
        with suppress(StreamStateError):
            sources = sending_once(start.identities, _lines(home, seen, name), known_sources().connectors)
            if sources:
                found[name] = sources
    return found


def _lines(home: Home, seen: Observation, name: str) -> tuple[str, ...]:
    """The offsets of the last committed batch; none before the first."""
    checkpoint = checkpoint_of(home, seen, name)
    batch_id = checkpoint.position().batch_id if checkpoint.exists() else None
    entry = None if batch_id is None else checkpoint.read_offset(batch_id)
    return () if entry is None else entry.source_lines


def describe_why(found: OneTimeSources) -> str:
    """Why they cannot resume, as one clause."""
    return "; ".join(f"query {name} reads {what}: {why}" for name in found for what, why in found[name].items())


def consent(found: OneTimeSources) -> str:
    """The options with which a deploy starts them, with lost input."""
    return " ".join(f"--accept-lost-input {name}" for name in found)
