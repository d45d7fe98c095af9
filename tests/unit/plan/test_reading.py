"""``airflow_streamstate.plan.reading``: what each Spark wrote, read by today's code (``tests/golden/plans``)."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from airflow_streamstate.errors import DataError
from airflow_streamstate.plan.model import PlannedSink, PlannedSource
from airflow_streamstate.plan.reading import PlanFacts, read_plan
from support.plan_golden import facts_of, golden, kept, versions
from support.plan_queries import NEEDS, QUERIES
from support.sparks import IN_FULL, VERSIONS

NEWEST = versions()[-1]


def texts(name: str) -> list[str]:
    """Its tree, a line per node."""
    return [f"{'  ' * node.depth}{node.kind} {node.text}".rstrip() for node in golden(name).nodes]


def test_each_spark_of_the_tests_has_its_golden_plans() -> None:
    """A Spark that is added without them is seen here; every query is there, but where a Spark does not have it."""
    assert versions() == sorted(VERSIONS)
    for version in versions():
        line = tuple(int(part) for part in version.split(".")[:2])
        assert set(kept(version)) == {name for name in QUERIES if NEEDS.get(name, (4, 0)) <= line}


@pytest.mark.parametrize("version", versions())
def test_a_query_has_one_plan_on_every_spark(version: str) -> None:
    """What Spark names or writes otherwise from release to release makes no difference."""
    for name in kept(version):
        assert replace(golden(name, version), spark_version=NEWEST) == golden(name, NEWEST), name


def test_a_window_is_found_again_in_what_the_analyzer_makes_of_it() -> None:
    """Tumbling, sliding with an offset, sessions of a fixed gap and of one by the row."""
    (tumbling,), (sliding,) = golden("tumbling").operators[0].windows, golden("sliding").operators[0].windows
    assert (tumbling.kind, tumbling.column, tumbling.duration_ms, tumbling.offset_ms) == ("tumbling", "ts", 300_000, 0)
    assert (sliding.kind, sliding.duration_ms, sliding.slide_ms, sliding.offset_ms) == (
        "sliding", 600_000, 240_000, 60_000,
    )  # fmt: skip
    session, by_row = golden("session").operators[0], golden("session_by_row").operators[0]
    assert (session.kind, session.windows[0].duration_ms, session.windows[0].gap) == ("session_window", 300_000, "")
    assert by_row.windows[0].duration_ms is None
    assert "'5 seconds', '20 seconds'" in by_row.windows[0].gap
    assert texts("tumbling") == [
        "Project window.start AS start, k, n, total",
        "  Aggregate by [window, k]: window, k, Count(1) AS n, Sum(v) AS total",
        "    Window window(ts, 300000 ms)",
        "      Filter (v > cast(3 as bigint))",
        "        EventTimeWatermark ts, 10000 ms",
        "          StreamingRelation json /tmp/streamstate-plans/in",
    ]


def test_named_sources_stand_in_the_order_of_the_offset_lines() -> None:
    """By their names, and not by their places in the plan."""
    plan = golden("named_sources", NEWEST)
    assert [source.name for source in plan.sources] == ["first", "second"]
    assert [node.source for node in plan.nodes if node.source is not None] == [1, 0]


def test_secrets_are_hidden_wherever_they_stand() -> None:
    """In a filter's literal, and in what follows from it."""
    text = json.dumps(kept(IN_FULL)["unbounded"]["analyzed"]).replace('"big"', '"hunter2"')
    facts = replace(
        facts_of("unbounded", IN_FULL, kept(IN_FULL)["unbounded"]), hide=lambda text: text.replace("hunter2", "***")
    )
    plan = read_plan(text, facts)
    assert "hunter2" not in json.dumps(asdict(plan))
    assert "'***'" in json.dumps(asdict(plan))


def test_without_facts_of_its_sources_a_plan_says_what_spark_calls_them() -> None:
    """And with facts of another number, too: which is which is unknown."""
    raw = kept(IN_FULL)["union"]
    facts = replace(facts_of("union", IN_FULL, raw), sources=(PlannedSource("json"),), places=(0, 1))
    sources = read_plan(json.dumps(raw["analyzed"]), facts).sources
    assert [source.identity for source in sources] == [
        "FileSource[/tmp/streamstate-plans/a]", "FileSource[/tmp/streamstate-plans/b]",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "[]", "{}", "[{}]", '[{"class": "A"}]', '[{"class": "A", "num-children": 1}]'])
def test_what_is_no_plan_is_refused_by_name(text: str) -> None:
    """The runtime makes a remark of it."""
    with pytest.raises(DataError, match="cannot be read"):
        read_plan(text, PlanFacts("counts", "9.0.0", "append", "once", PlannedSink("noop")))
