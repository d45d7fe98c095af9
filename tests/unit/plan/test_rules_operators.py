"""``airflow_streamstate.plan.rules_operators``: what a change of one operator does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.plan.comparison import compare
from airflow_streamstate.plan.model import Expression, OperatorInput, StateVariable
from airflow_streamstate.plan.rules_operators import named, operator_differences
from support.built_plans import WINDOW, operator, plan, processor

TOTAL = StateVariable("total", "value", value_schema="n bigint")
SEEN = StateVariable("seen", "list", value_schema="v bigint")


@pytest.mark.parametrize(
    ("was", "now", "codes"),
    [
        ((TOTAL,), (TOTAL, SEEN), ["variable-added"]),
        ((TOTAL, SEEN), (TOTAL,), ["variable-removed"]),
        ((TOTAL,), (StateVariable("total", "value", value_schema="n double"),), ["variable-changed"]),
        ((TOTAL,), (StateVariable("total", "list", value_schema="n bigint"),), ["variable-changed"]),
        ((TOTAL,), (StateVariable("total", "value", True, value_schema="n bigint"),), ["variable-ttl-changed"]),
        ((TOTAL,), (TOTAL,), []),
    ],
)
def test_variables_are_compared_by_name(
    was: tuple[StateVariable, ...], now: tuple[StateVariable, ...], codes: list[str]
) -> None:
    """A variable that comes or goes harms nothing; one that is kept otherwise does."""
    found = list(operator_differences(processor(*was), processor(*now)))
    assert [each.code for each in found] == codes


def test_variables_that_nobody_knows_are_not_compared() -> None:
    """Those of a new plan are known only when it ran on real state."""
    assert compare(plan(processor(TOTAL)), plan(processor(known=False))).verdict == "same"


@pytest.mark.parametrize(
    ("fact", "was", "now", "code"),
    [
        ("time_mode", "EventTime", "ProcessingTime", "time-mode-changed"),
        ("timeout", "NoTimeout", "EventTimeTimeout", "timeout-changed"),
        ("function", "Totals", "Sums", "function-renamed"),
        ("output_mode", "append", "update", "operator-mode-changed"),
        ("state_schema", "n bigint", "n bigint, m bigint", "state-schema-changed"),
        ("has_initial_state", False, True, "initial-state-changed"),
    ],
)
def test_what_a_function_is_given_is_compared(fact: str, was: object, now: object, code: str) -> None:
    """Each of these decides what the state of an operator means."""
    found = compare(plan(processor(**{fact: was})), plan(processor(**{fact: now})))
    assert (found.verdict, found.codes) == ("needs-drain", (code,))


def test_an_aggregate_that_nobody_asks_for_is_not_kept() -> None:
    """Spark leaves it out of the state, so that it comes and goes with what stands above."""
    both = operator(aggregates=(Expression("Count(1)", "bigint", "n"), Expression("Sum(v)", "bigint", "s")))
    found = list(operator_differences(both, both, None, frozenset({"n", "k"})))
    assert [each.code for each in found] == ["aggregate-removed"]
    assert list(operator_differences(both, both, frozenset({"n"}), frozenset({"n", "window"}))) == []


def test_a_limit_counts_over_a_whole_life() -> None:
    """What was let through counts, and a drain is an empty batch, which Spark refuses there."""
    limits = [plan(operator(kind="global_limit", keys=(), limit=limit)) for limit in (5, 10)]
    found = compare(*limits)
    assert (found.verdict, found.codes) == ("hazardous", ("limit-changed",))


def test_a_type_that_nobody_knows_is_not_judged_by() -> None:
    """Spark may refuse, or take it in silence: both are said."""
    unknown = operator(keys=(Expression("Upper(k)", "", "k"),), windows=())
    found = list(operator_differences(operator(keys=(Expression("k", "string", "k"),), windows=()), unknown))
    assert "in silence" in found[0].reason
    typed = operator(keys=(Expression("j", "bigint", "k"),), windows=())
    found = list(operator_differences(operator(keys=(Expression("k", "string", "k"),), windows=()), typed))
    assert "in silence" not in found[0].reason


def test_a_window_under_another_name_is_a_window() -> None:
    """It is told once, as a window; a key that is only called like one is a key."""
    other = replace(WINDOW, duration_ms=1)
    was = Expression("w", "struct", "w", True, "window(ts, 60000 ms)")
    now = Expression("w2", "struct", "w2", True, "window(ts, 1 ms)")
    old, new = operator(keys=(was,)), operator(keys=(now,), windows=(other,))
    assert [each.code for each in operator_differences(old, new)] == ["window-changed"]
    size = Expression("window_size", "int", "window_size")
    old, new = operator(keys=(was, size)), operator(keys=(now, Expression("k", "int")), windows=(other,))
    assert [each.code for each in operator_differences(old, new)] == ["window-changed", "key-changed"]


def test_an_operator_is_told_by_kind_and_keys() -> None:
    """In words, for people."""
    assert named(operator()) == "aggregate by window, k"
    assert named(operator(kind="global_limit", keys=(), inputs=(OperatorInput("d", "t"),))) == "global limit"
