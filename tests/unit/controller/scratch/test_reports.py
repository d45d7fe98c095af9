from __future__ import annotations

from typing import Any

from airflow_streamstate.controller.scratch.readings import NO_METADATA, loaded_state, query_report
from airflow_streamstate.protocol.manifest import FileEntry, QuerySnapshot
from airflow_streamstate.protocol.positions import QueryPosition
from support.built_plans import operator, plan

FILES = (FileEntry("state/0/0/5.zip", 100), FileEntry("state/0/1/5.zip", 20), FileEntry("metadata", 1))
QUERY = QuerySnapshot("id", QueryPosition(4), FILES)


def table(path: str, kind: str, *rows: int, timers: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "table": path, "name": path.partition("/")[2], "kind": kind, "has_ttl": False, "rows": sum(rows),
        "rows_by_partition": list(rows), "columns": {"key": "struct<k:string>"}, "timers": timers,
    }  # fmt: skip


def read(*tables: dict[str, Any], **problems: str) -> dict[str, Any]:
    found = [{"table": f"{number.removeprefix('n')}-x/rows", "reason": why} for number, why in problems.items()]
    return {"tables": list(tables), "rows": [], "problems": found}


def test_an_operator_is_told_with_rows_bytes_and_skew() -> None:
    """Rows of all its tables but timers, which are reported separately; bytes by the manifest."""
    due = {"time": "processing_time", "count": 2, "next_at": "…", "last_at": "…"}
    variables = (table("0-tws/total", "value", 5, 1), table("0-tws/seen", "list", 5, 1))
    tables = (*variables, table("0-tws/~timers", "timers", 1, 1, timers=due))
    (one,) = query_report(QUERY, read(*tables), None)["operators"]
    assert (one["name"], one["rows"], one["partitions"]) == ("tws", 12, 2)
    assert (one["bytes"], one["bytes_by_partition"]) == (120, [100, 20])
    assert one["skew"] == {"most": 10, "median": 6.0, "fullest": 0, "ratio": 1.67}
    assert [(timers["time"], timers["count"]) for timers in one["timers"]] == [("processing_time", 2)]


def test_the_plan_says_which_time_a_timeout_is_of() -> None:
    """Spark's state does not; without a plan it is a timeout."""
    due = {"time": "timeout", "count": 1, "next_at": "…", "last_at": "…"}
    found = read(table("0-applyInPandasWithState/rows", "rows", 1, 0, timers=due))
    known = plan(operator(operator_id=0, timeout="EventTimeTimeout"))
    for of, time in ((known, "event_time"), (None, "timeout")):
        assert query_report(QUERY, found, of)["operators"][0]["timers"][0]["time"] == time


def test_what_cannot_be_read_is_told_once() -> None:
    """By Spark's words; or that Spark kept nothing by which it could be."""
    broken = query_report(QUERY, read(n0="[CANNOT_LOAD_STATE_STORE] …"), None)
    assert [problem["reason"] for problem in broken["problems"]] == ["[CANNOT_LOAD_STATE_STORE] …"]
    (one,) = broken["operators"]
    assert (one["name"], one["rows"], one["bytes"]) == ("x", None, 120)
    unknown = query_report(QUERY, read(), None)
    assert unknown["problems"] == [{"table": "0", "reason": NO_METADATA}]


def test_a_query_without_state_has_no_operators() -> None:
    """Nothing was read of it."""
    found = query_report(QuerySnapshot("id", QueryPosition(4), ()), None, None)
    assert (found["batch_id"], found["operators"], found["problems"]) == (4, [], [])


def test_what_spark_cannot_load_is_a_problem_and_what_it_has_no_reader_for_is_none() -> None:
    """The first is named with Spark's words; of the second nothing is known, so its rows are not counted."""
    broken = query_report(QUERY, read(n0="[CANNOT_LOAD_STATE_STORE] …"), None)
    loaded = loaded_state({"a": broken, "b": query_report(QUERY, read(), None)})
    (problem,) = loaded.problems
    assert (problem.kind, problem.query, problem.path) == ("unreadable", "a", "state/0-x/rows")
    assert "[CANNOT_LOAD_STATE_STORE]" in problem.detail
    assert loaded.queries["b"] == {"operators": [{"operator_id": 0, "name": "", "rows": None}]}
