"""``airflow_streamstate.plan.reading``: which operators keep state, and under which numbers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_streamstate.plan.model import PlannedSink
from airflow_streamstate.plan.reading import PlanFacts, read_plan
from support.plan_golden import facts_of, golden, kept
from support.sparks import IN_FULL


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
    """Its keys are those that must be equal, left before right; columns of one name are told apart."""
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
    """What the plan says of ``applyInPandasWithState`` and ``transformWithState``."""
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
    """A script may get its frame from a jar; the empty initial state beside it feeds nothing."""
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
