"""Facts about rows."""

from __future__ import annotations

from dataclasses import fields

from airflow_streamstate.protocol import data_events
from airflow_streamstate.protocol.data_events import BatchesSkipped, Repositioned, Skipped, Undoing, Undone
from airflow_streamstate.protocol.events import ALL_EVENTS


def test_each_is_an_event_that_readers_know() -> None:
    """What is not listed there is written and never read."""
    assert {BatchesSkipped, Undoing, Undone, Skipped, Repositioned} <= set(ALL_EVENTS)


def test_what_is_announced_and_what_is_done_say_the_same() -> None:
    """An undo that was cut short is known by comparing the two (Law 1)."""
    assert [field.name for field in fields(Undoing)] == [field.name for field in fields(Undone)]
    assert data_events.SinkUndo not in ALL_EVENTS
