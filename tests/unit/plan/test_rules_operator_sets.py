"""``airflow_streamstate.plan.comparison``: operators that come, go, and change places."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.plan.comparison import compare, is_swapped, set_differences
from airflow_streamstate.plan.model import OperatorInput, PlanNode, QueryPlan, StateOperator
from support.built_plans import describe, operator, plan


def placed(each: StateOperator, operator_id: int) -> StateOperator:
    return replace(each, operator_id=operator_id)


def test_operators_of_one_shape_that_change_places_are_found() -> None:
    """Spark would give each the other's state, without an error: it goes by places."""
    first, second = operator(0), operator(1)
    found = compare(plan(first, second), plan(placed(second, 0), placed(first, 1)))
    assert (found.verdict, found.codes) == ("needs-drain", ("operators-swapped",))
    assert "fed by orders 1, was operator 1 and is operator 0" in found.differences[0].reason


def test_an_operator_before_others_is_new_and_moves_none() -> None:
    """Those behind it keep their order: they are not reported as moved."""
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


def test_each_difference_of_a_set_of_operators_is_told() -> None:
    """Where it is, and what Spark makes of the state that is in its place."""
    first, second = operator(0), operator(1)
    one = "aggregate by window, k"
    assert describe(plan(first), plan(first, second)) == [
        (
            "operator-added",
            "Aggregate 1",
            f"{one} is new: Spark finds no state for it, and refuses, or gives it another's",
        )
    ]
    assert describe(plan(first, second), plan(first)) == [
        (
            "operator-removed",
            "Aggregate 1",
            f"{one} is gone: Spark refuses state that no operator asks for, or gives it to another",
        )
    ]
    goes = f"Spark goes by position, and would give it the state of {one}"
    assert describe(plan(first, second), plan(placed(second, 0), placed(first, 1))) == [
        (
            "operators-swapped",
            "Aggregate 1",
            f"{one}, fed by orders 1, was operator 1 and is operator 0: {goes}, fed by orders 0",
        ),
        (
            "operators-swapped",
            "Aggregate 0",
            f"{one}, fed by orders 0, was operator 0 and is operator 1: {goes}, fed by orders 1",
        ),
    ]


def test_an_operator_that_moved_beyond_the_last_one_finds_no_state() -> None:
    """No other stood there; and one that stays in its place among those that move is not named."""
    each = [operator(number) for number in range(3)]
    found = list(set_differences(plan(*each[:2]), plan(*each), {0: 1, 1: 0, 2: 2}))
    assert [difference.path for difference in found] == ["Aggregate 0", "Aggregate 1"]
    found = list(set_differences(plan(*each[:2]), plan(*each), {1: 1, 2: 0}))
    assert [(difference.code, difference.path) for difference in found] == [
        ("operator-added", "Aggregate 0"),
        ("operators-swapped", "Aggregate 2"),
    ]
    assert found[1].reason == "aggregate by window, k, fed by orders 2, was operator 0 and is operator 2"


def test_what_feeds_an_operator_is_told_up_to_a_line() -> None:
    """Of a join both sides; of nothing, that."""
    long = OperatorInput("l", "x" * 201)
    for inputs, text in (
        ((), "nothing"),
        ((replace(long, text="x" * 200),), "x" * 200),
        ((long,), "x" * 200 + "…"),
        ((OperatorInput("a", "one"), OperatorInput("b", "two")), "one and two"),
    ):
        new = [operator(0, inputs=inputs), operator(1)]
        found = list(set_differences(plan(*new), plan(*new), {0: 1, 1: 0}))
        assert f"k, fed by {text}, was operator 1" in found[0].reason


ABOVE = operator(1, inputs=(OperatorInput("above", "the first one", operators=(0,)),))


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ((OperatorInput("above", "the first one", operators=(0,)),), None),
        ((OperatorInput("another", "the first one", operators=(0,)),), None),
        ((OperatorInput("another", "the other one", operators=(1,)),), "the other one"),
        ((OperatorInput("another", "orders", sources=(0,)),), "orders"),
        ((OperatorInput("another", "orders", sources=(0,), operators=(0,)),), "orders"),
        (
            (OperatorInput("another", "two", operators=(0,)), OperatorInput("b", "three", operators=(0,))),
            "two and three",
        ),
    ],
)
def test_an_operator_fed_by_another_one_is_found(inputs: tuple[OperatorInput, ...], words: str | None) -> None:
    """By which operators and sources are below it, and not by the texts of what is between."""
    new = operator(1, inputs=inputs)
    moved = [each for each in describe(plan(operator(0), ABOVE), plan(operator(0), new)) if each[0] == "input-moved"]
    told = f"aggregate by window, k was fed by the first one, and is fed by {words}"
    assert moved == ([] if words is None else [("input-moved", "Aggregate 1", told)])


def test_where_operators_or_sources_come_and_go_none_is_said_to_be_wired_otherwise() -> None:
    """What feeds the others follows from that."""
    moved = operator(0, inputs=(OperatorInput("another", "the other", sources=(1,)),))
    topic = plan().sources[0]
    other, third = replace(topic, identity="subscribe:b"), replace(topic, identity="subscribe:c")
    old = plan(operator(0), sources=(topic, other))
    assert compare(old, plan(moved, sources=(topic, other))).codes == ("input-moved",)
    assert "input-moved" not in compare(old, plan(moved, sources=(topic, other, third))).codes
    assert "input-moved" not in compare(old, plan(moved, operator(1), sources=(topic, other))).codes


def test_sides_of_a_join_that_change_places_are_not_told_as_inputs() -> None:
    """They are reported by the rule of joins."""
    sides = OperatorInput("l", "left", sources=(0,)), OperatorInput("r", "right", sources=(0,))
    old, new = (operator(0, "stream_join", inputs=inputs, condition="(a = b)") for inputs in (sides, sides[::-1]))
    assert is_swapped(old, new)
    assert not is_swapped(operator(0, inputs=sides[:1]), operator(0, inputs=sides[:1]))
    assert compare(plan(old), plan(new)).codes == ("join-sides-swapped",)


def test_operators_whose_nodes_are_not_in_the_tree_are_compared_by_what_feeds_them() -> None:
    """What is done on the way to them is not known then."""
    side = OperatorInput("other", "the other", sources=(1,))
    topic = plan().sources[0]
    facts = {"sources": (topic, replace(topic, identity="subscribe:b"))}
    known, moved = plan(operator(0), **facts), plan(operator(0, inputs=(side,)), **facts)
    for old, new in ((replace(known, nodes=()), moved), (known, replace(moved, nodes=()))):
        found = [(code, path) for code, path, _ in describe(old, new) if code.startswith("input")]
        assert found == [("input-moved", "Aggregate 0")]


def of_join(left: str, right: str) -> QueryPlan:
    """A join of two sources, each of them filtered so."""
    sides = (OperatorInput(f"l {left}", "left", sources=(0,)), OperatorInput(f"r {right}", "right", sources=(0,)))
    nodes = (
        PlanNode("Join", "", 0, 0),
        PlanNode("Filter", left, 1),
        PlanNode("StreamingRelation", "", 2, None, 0),
        PlanNode("Filter", right, 1),
        PlanNode("StreamingRelation", "", 2, None, 0),
    )
    return plan(operator(0, "stream_join", inputs=sides, condition="(a = b)", path="Join"), nodes=nodes)


def test_what_is_done_otherwise_before_a_join_is_told_by_its_side() -> None:
    """Or by the operator alone, where that has one input."""
    old = of_join("(v > 1)", "(w > 1)")
    rule = "what the state holds was made by the old rule"
    for new, side, words in (
        (of_join("(v > 2)", "(w > 1)"), "left", "(v > 2)"),
        (of_join("(v > 1)", "(w > 2)"), "right", "(w > 2)"),
    ):
        ((code, path, reason),) = describe(old, new)
        assert (code, path) == ("input-changed", f"Join, {side}")
        assert reason.startswith("before stream join by window, k: ")
        assert words in reason
        assert reason.endswith(f"; {rule}")
