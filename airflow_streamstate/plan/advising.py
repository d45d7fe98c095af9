"""Advice on a plan, independent of the plan before it: unbounded state, code that no plan shows."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_streamstate.plan.codes import advice
from airflow_streamstate.plan.differences import Advice
from airflow_streamstate.plan.model import QueryPlan, StateOperator
from airflow_streamstate.plan.rules_operators import named
from airflow_streamstate.plan.terms import USER_FUNCTION

_USER_CODE = frozenset({"transform_with_state", "apply_in_pandas_with_state", "flat_map_groups_with_state"})
_SINK_FUNCTIONS = frozenset({"foreachbatch", "foreach"})


def advice_on(plan: QueryPlan) -> Iterator[Advice]:
    for source in plan.sources:
        if source.sends_once:
            text = (
                f"The source {source.identity or source.format} cannot be read again ({source.sends_once}): what was"
                " read and not committed when a driver ends is lost, and restore, rollback and seed need"
                f" --accept-lost-input {plan.query_name}."
            )
            yield advice("source-sends-once", source.path, text)
    for operator in plan.operators:
        yield from _bound(plan, operator)
        if operator.kind in _USER_CODE:
            text = (
                f"The body of {operator.function or 'its function'} is not in a plan: where it counts otherwise than"
                " before, results mix without a difference here."
            )
            yield advice("function-unseen", operator.path, text)
    if plan.operators and any(
        USER_FUNCTION in node.text for node in plan.nodes if node.operator_id is None or node.kind == "Aggregate"
    ):
        text = (
            "The plan calls functions of the script by their names; what they do is not in it. Where one before state"
            " computes otherwise than before, drain and seed."
        )
        yield advice("function-unseen", plan.operators[0].path, text)
    if plan.sink.format in _SINK_FUNCTIONS or plan.sink.kind.lower() in _SINK_FUNCTIONS:
        text = "What the function of the sink does is not in a plan: its own changes are yours to judge."
        yield advice("sink-function-unseen", "", text)


def _bound(plan: QueryPlan, operator: StateOperator) -> Iterator[Advice]:
    has_time = any(key.is_event_time for key in operator.keys) or bool(operator.windows)
    if operator.kind == "aggregate" and plan.output_mode != "complete" and not (plan.watermarks and has_time):
        yield _unbounded(
            operator, "Group by a window of an event time with a watermark, or count on keys that are few."
        )
    elif operator.kind == "session_window" and not plan.watermarks:
        text = f"Nothing ever removes state of the {named(operator)}: give its event time a watermark."
        yield advice("session-without-bound", operator.path, text)
    elif operator.kind == "deduplicate" and not (plan.watermarks and has_time):
        text = (
            f"The {named(operator)} keeps every key for ever: use dropDuplicatesWithinWatermark, or add the event"
            " time to its columns."
        )
        yield advice("duplicates-forever", operator.path, text)
    elif operator.kind == "stream_join" and not plan.watermarks:
        yield _unbounded(operator, "Give both sides watermarks, and the condition a bound of time.")
    elif operator.kind == "transform_with_state":
        yield from _variables(operator)
    elif operator.kind in _USER_CODE and operator.timeout == "NoTimeout":
        text = f"The {named(operator)} has no timeout: what a key leaves stays unless the function removes it."
        yield advice("timeout-missing", operator.path, text)


def _variables(operator: StateOperator) -> Iterator[Advice]:
    bare = [each.name for each in operator.variables or () if each.kind != "timer" and not each.has_ttl]
    if operator.time_mode in ("None", "NoTime", ""):
        text = f"The {named(operator)} has neither timers nor time to live: what a key leaves stays."
        yield advice("variables-without-ttl", operator.path, text)
    elif bare:
        text = f"Variables without time to live: {', '.join(bare)}. See that timers remove what they hold."
        yield advice("variables-without-ttl", operator.path, text)


def _unbounded(operator: StateOperator, cure: str) -> Advice:
    return advice("state-without-bound", operator.path, f"Nothing ever removes state of the {named(operator)}. {cure}")
