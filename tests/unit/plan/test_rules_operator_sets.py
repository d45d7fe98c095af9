"""``airflow_streamstate.plan.rules_operator_sets``: operators that come, go, and change places."""

from __future__ import annotations

from dataclasses import replace

from airflow_streamstate.plan.comparison import compare
from airflow_streamstate.plan.model import OperatorInput, StateOperator
from airflow_streamstate.plan.rules_operator_sets import set_differences
from support.built_plans import operator, plan


def placed(each: StateOperator, operator_id: int) -> StateOperator:
    return replace(each, operator_id=operator_id)


def test_operators_of_one_shape_that_change_places_are_found() -> None:
    """Spark would give each the other's state, and say nothing: it goes by places."""
    first, second = operator(0), operator(1)
    found = compare(plan(first, second), plan(placed(second, 0), placed(first, 1)))
    assert (found.verdict, found.codes) == ("needs-drain", ("operators-swapped",))
    assert "fed by orders 1, was operator 1 and is operator 0" in found.differences[0].reason


def test_an_operator_before_others_is_new_and_moves_none() -> None:
    """Those behind it keep their order: they are not said to have changed places."""
    first, second, third = (operator(number) for number in range(3))
    found = compare(plan(first, second), plan(placed(third, 0), placed(first, 1), placed(second, 2)))
    assert found.codes == ("operator-added",)
    assert compare(plan(first, second, third), plan(placed(second, 0), placed(third, 1))).codes == ("operator-removed",)


def test_three_that_move_around_are_each_named() -> None:
    """Each with the place that it had."""
    each = [operator(number) for number in range(3)]
    found = set_differences(plan(*each), plan(*each), {0: 1, 1: 2, 2: 0})
    assert [difference.code for difference in found] == ["operators-swapped"] * 3


def test_an_operator_fed_by_another_source_of_the_plan_is_found() -> None:
    """The same sources and shapes, wired otherwise."""
    side = OperatorInput("other", "the other", sources=(1,))
    old = plan(operator(0), sources=(*plan().sources, replace(plan().sources[0], identity="subscribe:b")))
    assert compare(old, replace(old, operators=(operator(0, inputs=(side,)),))).codes == ("input-moved",)
