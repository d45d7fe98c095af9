"""``airflow_streamstate.plan.rules``: which operator is which."""

from __future__ import annotations

from dataclasses import replace

from airflow_streamstate.plan.model import Expression, OperatorInput
from airflow_streamstate.plan.rules import is_reordered, match_operators, match_sources, shape_of
from support.built_plans import TOPIC, operator, plan


def test_operators_are_matched_by_what_feeds_them() -> None:
    """Of one shape, in other places."""
    first, second = operator(0), operator(1)
    swapped = plan(replace(second, operator_id=0), replace(first, operator_id=1))
    assert match_operators(plan(first, second), swapped) == {0: 1, 1: 0}


def test_what_changed_a_little_is_matched_by_its_sources_then_by_its_place() -> None:
    """One that has changed in itself and in what feeds it, alongside one that moved and is the same."""
    first, second = operator(0), operator(1)
    changed = replace(first, operator_id=1, keys=(), windows=(), inputs=(OperatorInput("new", "new", sources=(0,)),))
    assert match_operators(plan(first, second), plan(replace(second, operator_id=0), changed)) == {0: 1, 1: 0}
    of_another_kind = operator(0, "deduplicate", inputs=(OperatorInput("x", "x"),))
    assert match_operators(plan(first), plan(of_another_kind)) == {0: 0}


def test_two_of_the_same_stay_in_their_places() -> None:
    """Equal in all: they cannot be distinguished, and need not be."""
    first = operator(0)
    twice = plan(first, replace(first, operator_id=1))
    assert match_operators(twice, twice) == {0: 0, 1: 1}


def test_names_of_results_are_no_part_of_a_shape() -> None:
    """Spark's state knows none of them."""
    assert shape_of(operator()) == shape_of(operator(aggregates=(Expression("Count(1)", "bigint", "other"),)))


def test_sources_are_matched_by_what_they_read() -> None:
    """Then by name, then by place."""
    other = replace(TOPIC, identity="subscribe:b")
    assert match_sources(plan(sources=(TOPIC, other)), plan(sources=(other, TOPIC))) == {0: 1, 1: 0}
    assert match_sources(plan(sources=(TOPIC,)), plan(sources=(other,))) == {}
    named = (replace(TOPIC, name="a"), replace(TOPIC, name="b"))
    assert match_sources(plan(sources=named), plan(sources=named[::-1])) == {0: 1, 1: 0}


def test_an_order_with_gaps_is_an_order() -> None:
    """Only an item that overtakes another has moved."""
    assert not is_reordered({0: 1, 2: 3})
    assert is_reordered({0: 1, 1: 0})
