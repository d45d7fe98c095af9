"""``airflow_streamstate.plan.comparison``: what is worth knowing of a plan."""

from __future__ import annotations

import pytest

from airflow_streamstate.plan.comparison import advice_on
from airflow_streamstate.plan.model import Expression, PlannedSink, PlannedSource, PlanNode, QueryPlan, StateVariable
from support.built_plans import operator, plan, processor, without_state

KEY = (Expression("k", "string", "k"),)
TIMED = (*KEY, Expression("ts", "timestamp", "ts", True))


@pytest.mark.parametrize(
    ("of", "codes"),
    [
        (plan(), []),
        (plan(watermarks=()), ["state-without-bound"]),
        (plan(operator(keys=KEY, windows=())), ["state-without-bound"]),
        (plan(operator(keys=KEY, windows=()), output_mode="complete"), []),
        (plan(operator(kind="session_window"), watermarks=()), ["session-without-bound"]),
        (plan(operator(kind="deduplicate", keys=KEY)), ["duplicates-forever"]),
        (plan(operator(kind="deduplicate", keys=TIMED)), []),
        (plan(operator(kind="deduplicate_within_watermark", keys=KEY)), []),
        (plan(operator(kind="stream_join"), watermarks=()), ["state-without-bound"]),
        (plan(processor(StateVariable("a", "value", True))), ["function-unseen"]),
        (plan(processor(StateVariable("a", "value"))), ["variables-without-ttl", "function-unseen"]),
        (plan(processor(time_mode="None")), ["variables-without-ttl", "function-unseen"]),
        (
            plan(operator(kind="apply_in_pandas_with_state", timeout="NoTimeout")),
            ["timeout-missing", "function-unseen"],
        ),
        (without_state(nodes=(PlanNode("Filter", "udf:is_big(v)", 0),)), []),
        (plan(nodes=(PlanNode("Aggregate", "", 0, 0), PlanNode("Filter", "udf:is_big(v)", 1))), ["function-unseen"]),
        (without_state(sink=PlannedSink("foreachBatch", "foreachbatch")), ["sink-function-unseen"]),
        (without_state(sources=(PlannedSource("socket", sends_once="it counts again"),)), ["source-sends-once"]),
    ],
)
def test_state_without_a_bound_is_told(of: QueryPlan, codes: list[str]) -> None:
    """And code that a plan does not show."""
    assert [each.code for each in advice_on(of)] == codes
