"""``airflow_streamstate.plan.nodes``: the tree."""

from __future__ import annotations

import json
from dataclasses import asdict

from airflow_streamstate.plan.model import PlannedSink
from airflow_streamstate.plan.reading import PlanFacts, read_plan
from airflow_streamstate.protocol.positions import WatermarkSpec
from support.plan_golden import golden, kept
from support.sparks import IN_FULL


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
