"""Facts from a deployment."""

from __future__ import annotations

from dataclasses import fields

from airflow_streamstate.protocol import events
from airflow_streamstate.protocol.events import ALL_EVENTS, TERMINAL_EVENTS, Event
from support.messages import KINDS


def test_all_events_are_registered() -> None:
    """What a reader of a journal expects is every event that there is; ``test_golden.py`` has each by name."""
    assert set(ALL_EVENTS) == {cls for cls in KINDS.values() if issubclass(cls, Event)}


def test_every_event_says_whose_it_is_and_when() -> None:
    """Stream, deployment, attempt, time and an id per write (Law 8)."""
    for cls in ALL_EVENTS:
        head = [field.name for field in fields(cls)][:5]
        assert head == ["stream_id", "deployment_id", "attempt", "at", "write_id"]


def test_what_is_announced_and_what_is_done_say_the_same() -> None:
    """An undo that was cut short is recognised by comparing the two (Law 1)."""
    announced, done = events.Undoing, events.Undone
    assert [field.name for field in fields(announced)] == [field.name for field in fields(done)]
    assert events.SinkUndo not in ALL_EVENTS


def test_what_ends_a_command_names_it() -> None:
    """Every event that retires a command carries its id and number, so that the slot is not used again (1a.13)."""
    retiring = (
        events.Ignored, events.Rejected, events.Expired, events.Drained, events.DrainFailed, events.Stopped,
        events.SnapshotReady,
    )  # fmt: skip
    for cls in (*retiring, events.Accepted):
        assert {"command_id", "command_number"} <= {field.name for field in fields(cls)}


def test_terminal_events_end_an_attempt() -> None:
    """One of these five is the last of every attempt that ended by itself."""
    assert {cls.__name__ for cls in TERMINAL_EVENTS} == {"Drained", "Stopped", "Finished", "Failed", "Fenced"}
