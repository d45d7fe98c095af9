"""What every fact from a deployment has."""

from __future__ import annotations

from dataclasses import fields

from airflow_streamstate.protocol.event import Event
from airflow_streamstate.protocol.events import ALL_EVENTS


def test_no_fact_is_without_it() -> None:
    """Whose it is, which attempt says it, when, and an id per write (Law 8)."""
    assert [field.name for field in fields(Event)] == ["stream_id", "deployment_id", "attempt", "at", "write_id"]
    assert all(issubclass(kind, Event) for kind in ALL_EVENTS)
