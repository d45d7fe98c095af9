from __future__ import annotations

from typing import Any

from airflow_streamstate.cli.state import print_diff, print_state
from support.shell import printed

SNAPSHOT = {
    "stream_id": "orders",
    "snapshot_id": "d-0001-live-000001",
    "kind": "live",
    "age_seconds": 300.0,
    "spark_version": "4.2.0",
}


def state(query: dict[str, Any], **more: Any) -> str:
    row = {**SNAPSHOT, "queries": {"counts": query}, "found": [], "key": None, "export": None, "limit": 20, **more}
    return printed(print_state, {"since_snapshot_id": None, **row})


def operator(**facts: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "operator_id": 0, "name": "stateStoreSave", "partitions": 2, "rows": 11, "bytes": 1234, "skew": None,
        "tables": [], "timers": [],
    }  # fmt: skip
    return {**usual, **facts}


def query(*operators: dict[str, Any], problems: Any = ()) -> dict[str, Any]:
    return {"batch_id": 4, "watermark_at": None, "operators": list(operators), "problems": list(problems)}


def test_skew_timers_and_time_to_live_are_seen_at_a_glance() -> None:
    """The fullest partition is named."""
    skew = {"most": 10, "median": 5.5, "fullest": 7, "ratio": 1.82}
    due = {"time": "event_time", "count": 1200, "next_at": "2026-03-01T10:00:00.000Z", "last_at": "…", "table": "t"}
    table = {"table": "0-x/brief", "kind": "value", "has_ttl": True, "rows": 11, "columns": {"key": "struct<k:string>"}}
    text = state(query(operator(skew=skew, timers=[due], tables=[table])))
    assert "10 (partition 7)" in text
    assert "1.82" in text
    assert "1,200 timers of event time: next 2026-03-01T10:00:00.000Z" in text
    assert "value, with time to live" in text
    assert "5 min ago" in text


def test_what_could_not_be_read_stands_out() -> None:
    """With Spark's words; what is not known is no zero."""
    text = state(query(operator(rows=None, name=""), problems=[{"table": "0-x/rows", "reason": "[CANNOT_LOAD…"}]))
    assert "0-x/rows cannot be read: [CANNOT_LOAD" in text
    assert " - " in text


def test_nothing_is_told_as_nothing() -> None:
    """A query without state, timers that are not set, an unknown key."""
    assert "it keeps no state" in state(query())
    none = {"time": "timeout", "count": 0, "next_at": None, "last_at": None, "table": "rows"}
    assert "0 timers of a timeout: none is set" in state(query(operator(timers=[none])))
    assert 'no row has the key {"k": "zz"}' in state(query(), key={"k": "zz"})


def test_an_export_that_is_not_whole_says_so() -> None:
    """Which tables are not there, and which queries have nothing to be compared with."""
    facts = {"uri": "out", "format": "parquet", "complete": False, "tables": []}
    problems = [{"path": "p", "reason": "r"}]
    text = state(query(), export={**facts, "problems": problems, "only_in": {"old": "before"}})
    assert "not complete" in text
    assert "not written: p cannot be read: r" in text
    assert "query old is only in the older snapshot: not written" in text


def test_a_query_of_one_side_is_told_in_a_comparison() -> None:
    """It has nothing to be compared with."""
    row = {
        "stream_id": "orders",
        "before": SNAPSHOT,
        "after": {**SNAPSHOT, "snapshot_id": "b"},
        "limit": 2,
        "queries": {},
    }
    assert "query old is only in d-0001-live-000001" in printed(print_diff, {**row, "only_in": {"old": "before"}})
