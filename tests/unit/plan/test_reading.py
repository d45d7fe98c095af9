"""``airflow_streamstate.plan.spark_json``: what each Spark wrote, read by today's code (``tests/golden/plans``)."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace

import pytest

from airflow_streamstate.errors import DataError
from airflow_streamstate.plan.model import PlannedSink, PlannedSource
from airflow_streamstate.plan.spark_json import PlanFacts, read_plan
from airflow_streamstate.protocol.positions import WatermarkSpec
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
        assert set(kept(version)) == {name for name in QUERIES if NEEDS.get(name, (3, 5)) <= line}


@pytest.mark.parametrize("version", [version for version in versions() if version >= "4"])
def test_a_query_has_one_plan_on_every_spark_4(version: str) -> None:
    """What Spark names or writes otherwise from release to release makes no difference."""
    for name in kept(version):
        assert replace(golden(name, version), spark_version=NEWEST) == golden(name, NEWEST), name


def test_a_query_of_spark_3_differs_in_two_ways_of_writing() -> None:
    """A window has its own name as alias, and a BETWEEN is two comparisons; no comparison of plans minds either
    (``test_a_newer_spark_refuses_none``)."""

    def plain(version: str, name: str) -> str:
        text = re.sub(r"\b(\w+)(@1)? AS \1\b", r"\1\2", repr(replace(golden(name, version), spark_version="")))
        return re.sub(r"digest='\w+'", "", text)

    others = {name for name in kept("3.5.9") if plain("3.5.9", name) != plain(NEWEST, name)}
    assert others == {"joined_inner", "joined_left", "joined_full", "joined_semi"}
    condition = golden("joined_inner", "3.5.9").operators[0].condition
    assert "((ts@2 >= ts@1) AND (ts@2 <= " in condition
    assert "Between(ts@2, ts@1, " in golden("joined_inner", NEWEST).operators[0].condition


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
    """And with facts of a different number, too: which is which is unknown."""
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


def test_the_window_of_an_aggregation_is_no_part_of_what_feeds_it() -> None:
    """So another window is a change of the operator, and not of its input."""
    fed = {golden(name).operators[0].fed_by for name in ("sliding", "session", "session_by_row")}
    assert fed == {golden("deduplicated").operators[0].fed_by}
    assert golden("tumbling").operators[0].fed_by != golden("sliding").operators[0].fed_by


def test_aggregates_are_told_with_their_types() -> None:
    """Each function once, with the type of what it gives."""
    found = golden("unbounded").operators[0].aggregates
    assert [(each.text, each.type) for each in found] == [
        ("HyperLogLogPlusPlus(k, relativeSD=0.05)", "bigint"),
        ("CollectSet(v)", "array<bigint>"),
        ("Average(v) FILTER (WHERE (v > cast(1 as bigint)))", "double"),
    ]


def test_operators_have_the_numbers_that_spark_gives_them() -> None:
    """From the top down, left to right: of a chain the last one has 0 (spark/test_plans.py holds Spark to it)."""
    chained = golden("chained")
    assert [(each.operator_id, each.kind) for each in chained.operators] == [
        (0, "aggregate"), (1, "aggregate"), (2, "deduplicate"),
    ]  # fmt: skip
    assert [each.inputs[0].operators for each in chained.operators] == [(1,), (2,), ()]
    assert [node.operator_id for node in chained.nodes if node.operator_id is not None] == [0, 1, 2]
    union = golden("union")
    assert [(each.path, each.inputs[0].sources) for each in union.operators] == [
        ("Union[0] > Aggregate", (0,)), ("Union[1] > Aggregate", (1,)),
    ]  # fmt: skip
    assert union.operators[0].keys == union.operators[1].keys
    assert union.operators[0].fed_by != union.operators[1].fed_by


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("joined_inner", "Inner"), ("joined_left", "LeftOuter"), ("joined_full", "FullOuter"),
        ("joined_semi", "LeftSemi"),
    ],
)  # fmt: skip
def test_a_join_of_streams_has_two_sides(name: str, kind: str) -> None:
    """Its keys are those that must be equal, left before right; columns of the same name are distinguished."""
    (join,) = golden(name).operators
    assert (join.kind, join.join_type) == ("stream_join", kind)
    assert [key.text for key in join.keys] == ["k@1", "k@2"]
    assert "Between(ts@2, ts@1" in join.condition
    assert [[mark.delay_ms for mark in side.watermarks] for side in join.inputs] == [[10_000], [120_000]]
    assert [side.sources for side in join.inputs] == [(0,), (1,)]


def test_limits_on_each_other_are_one() -> None:
    """Spark's optimizer makes one of them, also with a projection between (spark/test_plans.py)."""
    (limit,) = golden("limited").operators
    assert (limit.kind, limit.limit) == ("global_limit", 20)


def test_a_limit_over_an_aggregation_keeps_state_in_append_mode_alone() -> None:
    """In the other modes Spark takes the first rows of each batch."""
    raw = kept(IN_FULL)["limited"]
    nodes = [raw["analyzed"][0], raw["analyzed"][1], *kept(IN_FULL)["unbounded"]["analyzed"]]
    for mode, kinds in (("append", ["global_limit", "aggregate"]), ("complete", ["aggregate"])):
        facts = replace(facts_of("both", IN_FULL, raw), output_mode=mode)
        assert [each.kind for each in read_plan(json.dumps(nodes), facts).operators] == kinds


def test_state_of_the_users_own_making() -> None:
    """What the plan reports of ``applyInPandasWithState`` and ``transformWithState``."""
    (pandas,) = golden("pandas_state").operators
    assert (pandas.function, pandas.timeout, pandas.state_schema, pandas.output_mode) == (
        "counted", "ProcessingTimeTimeout", "n bigint, last timestamp", "append",
    )  # fmt: skip
    (frames,) = golden("tws_pandas").operators
    assert (frames.kind, frames.time_mode, frames.has_initial_state) == ("transform_with_state", "EventTime", False)
    assert [key.text for key in frames.keys] == ["k"]
    assert frames.variables is None
    rows = golden("tws_rows").operators[1]
    assert (rows.time_mode, rows.has_initial_state, rows.spark_name) == (
        "ProcessingTime", True, "transformWithStateInPySparkExec",
    )  # fmt: skip
    assert golden("tws_rows").operators[0].keys[0].is_event_time


@pytest.mark.parametrize(
    ("kind", "own", "expected"),
    [
        (
            "FlatMapGroupsWithState",
            {"timeout": {"object": "org.apache.spark.sql.catalyst.plans.logical.EventTimeTimeout$"}},
            ("flat_map_groups_with_state", "flatMapGroupsWithState", "EventTimeTimeout", ""),
        ),
        (
            "TransformWithState",
            {"timeMode": {"object": "org.apache.spark.sql.catalyst.plans.logical.NoTime$"}},
            ("transform_with_state", "transformWithStateExec", "", "NoTime"),
        ),
    ],
)
def test_operators_of_scala_are_known_too(kind: str, own: dict[str, object], expected: tuple[str, ...]) -> None:
    """A script may get its frame from a jar; the empty initial state alongside it feeds nothing."""
    relation = kept(IN_FULL)["stateless"]["analyzed"][-1]
    key = relation["output"][1]
    empty = {"class": "x.LocalRelation", "num-children": 0, "output": [], "isStreaming": False}
    mode = {"object": "org.apache.spark.sql.catalyst.streaming.InternalOutputModes$Update$"}
    head = {"class": f"x.{kind}", "num-children": 2, "groupingAttributes": [key], "outputMode": mode}
    nodes = [{**head, "hasInitialState": False, **own}, relation, empty]
    facts = PlanFacts("jar", IN_FULL, "update", "once", PlannedSink("noop"))
    plan = read_plan(json.dumps(nodes), facts)
    (found,) = plan.operators
    assert (found.kind, found.spark_name, found.timeout, found.time_mode) == expected
    assert (found.output_mode, [each.text for each in found.keys]) == ("update", ["k"])
    assert [node.kind for node in plan.nodes] == [kind, "StreamingRelation"]


def test_a_join_with_what_does_not_stream_keeps_no_state() -> None:
    """It is part of what feeds the aggregation."""
    plan = golden("joined_static")
    assert [each.kind for each in plan.operators] == ["aggregate"]
    assert any(node.kind == "Join" and node.operator_id is None for node in plan.nodes)


def test_a_common_table_expression_is_read_where_it_is_named() -> None:
    """Its sources are numbered as Spark numbers them."""
    plan = golden("sql")
    assert [source.path for source in plan.sources] == [
        f"Aggregate > Union[{side}] > StreamingRelation" for side in (0, 1)
    ]
    assert plan.operators[0].inputs[0].sources == (0, 1)


def test_nothing_that_differs_each_time_is_left() -> None:
    """No expression ids, and no id of a JVM or of a watermark."""
    for name in kept(IN_FULL):
        body = json.dumps(asdict(golden(name)))
        assert "#" not in body
        assert all(word not in body for word in ("jvmId", "Lambda$", "nodeId"))


def test_a_plan_deeper_than_the_stack_is_read() -> None:
    """Nodes on nodes, five thousand of them."""
    raw = kept(IN_FULL)["deduplicated"]["analyzed"]
    text = json.dumps([*[raw[0]] * 5_000, *raw[1:]])
    facts = PlanFacts("deep", IN_FULL, "append", "once", PlannedSink("noop"), (WatermarkSpec("ts", 1),))
    assert len(read_plan(text, facts).operators) == 5_000
