"""Events as shown to people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.cli import look
from airflow_streamstate.protocol.codec import from_json
from airflow_streamstate.protocol.events import Event
from support.shell import printed

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "messages"
EVENTS = [
    raw
    for path in sorted(GOLDEN.glob("*.json"))
    if {"write_id", "attempt", "at", "deployment_id"} <= set(raw := json.loads(path.read_text()))
]


def shown(*rows: dict[str, Any]) -> str:
    """What a person reads of these events."""
    return printed(look.print_events, [{"number": 1, **row} for row in rows])


@pytest.mark.parametrize("raw", EVENTS, ids=lambda raw: str(raw["kind"]))
def test_no_event_is_shown_as_python_has_it(raw: dict[str, Any]) -> None:
    """Every kind that was ever written: no dict in Python's quotes, no True, no None."""
    assert isinstance(from_json(raw, key="golden", expected=Event), Event)
    page = shown(raw)
    assert raw["kind"] in page
    assert not any(sign in page for sign in ("{'", "['", "True", "None"))


def test_facts_are_words_where_words_are_known() -> None:
    """A note's facts are its own; positions are batches, moves are sentences; what has spaces is in quotes."""
    noted = {"kind": "Noted", "text": "it was slow", "facts": {"query_name": "raw", "since_seconds": 30.5}}
    assert shown(noted).endswith('text="it was slow" query_name=raw since_seconds=30.5\n')
    drained = {"kind": "Drained", "queries": {"a": {"batch_id": 41}, "b": {"batch_id": None}}}
    assert "queries=a:41,b:-" in shown(drained)
    move = {
        "source": "file /in",
        "from_offset": "1",
        "to_offset": "2",
        "passed_over": 3,
        "read_again": 0,
        "unit": "files",
    }
    assert "3 files" in shown({"kind": "Skipped", "moves": [move]})
    started = {"kind": "QueryStarted", "watermarks": [{"column": "event_time", "delay_ms": 300000}]}
    assert "watermarks=event_time:300s" in shown(started)


def test_a_deployment_that_has_said_nothing_is_told() -> None:
    """No empty table."""
    assert shown() == "no events yet\n"
