"""Batches of an observed deployment that ran again after a kill, and those that its next attempt runs again first."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.lineage.repeats import Repeat, describe_repeats, repeats_of
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.event import Event
from airflow_streamstate.protocol.events import QueryStarted

if TYPE_CHECKING:  # what reads checkpoints is imported where one is read: the status of a stream that runs reads none
    from airflow_streamstate.checkpoint.log import Checkpoint


def repeated(seen: Observation) -> tuple[Repeat, ...]:
    """The batches of this deployment that ran again, oldest first."""
    return tuple(repeats_of(_events(seen)))


def describe_foreseen(home: Home, seen: Observation) -> str:
    """What the next attempt of an ended deployment runs again, as one sentence; "" for nothing or unreadable logs."""
    from airflow_streamstate.controller.lineage.repeats_to_come import repeats_to_come

    events = _events(seen)
    names = {event.query_name for event in events if isinstance(event, QueryStarted)}
    with suppress(StreamStateError):
        found = {name: checkpoint_of(home, seen, name) for name in names}
        there = {name: checkpoint for name, checkpoint in found.items() if checkpoint.exists()}
        control = home.control(seen.stream_id)
        coming = repeats_to_come(control, seen.deployment_id, seen.attempt + 1, events, there)
        return describe_repeats(seen.stream_id, coming)
    return ""


def checkpoint_of(home: Home, seen: Observation, query_name: str) -> Checkpoint:
    """The checkpoint of a query of the observed deployment, whether it exists or not."""
    from airflow_streamstate.checkpoint.log import Checkpoint

    return Checkpoint(home.checkpoints, layout.checkpoint_folder(seen.stream_id, seen.deployment_id, query_name))


def _events(seen: Observation) -> list[Event]:
    return [entry.event for entry in seen.events if entry.event is not None]
