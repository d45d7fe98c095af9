"""The sign of life."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow_streamstate.protocol.codec import from_bytes, to_bytes
from airflow_streamstate.protocol.heartbeat import Heartbeat, QueryBeat

AT = datetime(2026, 3, 1, tzinfo=UTC)


def test_a_query_that_did_nothing_yet_has_a_beat() -> None:
    """Before the first batch and the first progress everything else is none."""
    beat = Heartbeat("orders", "d-0001", 1, AT, {"counts": QueryBeat(None, None, is_active=True)})
    again = from_bytes(to_bytes(beat), key="k", expected=Heartbeat)
    assert again.queries["counts"] == QueryBeat(None, None, is_active=True, idle_triggers=0, state_rows=None)


def test_a_deployment_without_queries_has_a_heartbeat() -> None:
    """A script that is still reading its configuration is alive."""
    beat = Heartbeat("orders", "d-0001", 1, AT, {})
    assert from_bytes(to_bytes(beat), key="k", expected=Heartbeat) == beat
