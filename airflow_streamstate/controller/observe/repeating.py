"""Of an observed deployment: which batches ran again after a kill, and which the next attempt runs again first."""

from __future__ import annotations

from contextlib import suppress

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.lineage.repeats import Repeat, describe_repeats, repeats_of, repeats_to_come
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.event import Event
from airflow_streamstate.protocol.events import QueryStarted


def repeated(home: Home, seen: Observation) -> tuple[Repeat, ...]:
    """The batches of this deployment that ran again, oldest first."""
    control = home.control(seen.stream_id)
    found = repeats_of(control, seen.deployment_id, _events(seen), lambda name: _checkpoint(home, seen, name))
    return tuple(found)


def describe_foreseen(home: Home, seen: Observation) -> str:
    """What the next attempt of an ended deployment runs again, as one sentence; "" for nothing, or where the logs
    cannot be read."""
    events = _events(seen)
    names = {event.query_name for event in events if isinstance(event, QueryStarted)}
    with suppress(StreamStateError):
        found = {name: _checkpoint(home, seen, name) for name in names}
        there = {name: checkpoint for name, checkpoint in found.items() if checkpoint.exists()}
        control = home.control(seen.stream_id)
        coming = repeats_to_come(control, seen.deployment_id, seen.attempt + 1, events, there)
        return describe_repeats(seen.stream_id, coming)
    return ""


def _events(seen: Observation) -> list[Event]:
    return [entry.event for entry in seen.events if entry.event is not None]


def _checkpoint(home: Home, seen: Observation, name: str) -> Checkpoint:
    return Checkpoint(home.checkpoints, layout.checkpoint_folder(seen.stream_id, seen.deployment_id, name))
