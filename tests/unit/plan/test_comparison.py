"""``airflow_streamstate.plan.comparison``: plans of real scripts, and versions of whole streams."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.plan.comparison import compare, compare_deployments
from airflow_streamstate.plan.differences import VERDICTS
from airflow_streamstate.plan.model import PlanNode, QueryPlan
from support.built_plans import operator, plan, without_state
from support.truth_record import Plans, recorded_plans
from support.truth_table import ROWS, Row


@pytest.fixture(scope="module")
def plans() -> dict[str, Plans]:
    """The plans of the truth table, as Spark 4.2 made them."""
    return recorded_plans()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_each_row_of_the_truth_table_has_its_verdict(plans: dict[str, Plans], row: Row) -> None:
    """By the differences that make it; what Spark shows of each is in ``tests/spark/test_truth_table.py``."""
    found = compare(*plans[row.name])
    gravest = [each.code for each in found.differences if each.verdict == found.verdict]
    assert (found.verdict, tuple(dict.fromkeys(gravest))) == (row.verdict, row.codes)
    assert all(each.reason and each.remedy for each in found.differences)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_plan_is_the_same_as_itself(plans: dict[str, Plans], row: Row) -> None:
    """Of every script, old and new."""
    assert [compare(each, each).differences for each in plans[row.name]] == [(), ()]


def test_the_table_has_every_verdict() -> None:
    """At least thirty changes, and each verdict among them."""
    assert {row.verdict for row in ROWS} == set(VERDICTS)
    assert len(ROWS) >= 30
    assert len({row.name for row in ROWS}) == len(ROWS)


def named(name: str, text: str = "") -> QueryPlan:
    """A count, told apart from others by what is in its tree."""
    nodes = (PlanNode("Aggregate", text, 0, 0), PlanNode("StreamingRelation", "", 1, None, 0))
    return plan(operator(), query_name=name, nodes=nodes)


def test_a_query_under_another_name_is_found() -> None:
    """State and positions go by names: it would begin with nothing."""
    found = compare_deployments(
        {"a": named("a", "x"), "b": named("b", "y")}, {"a": named("a", "x"), "c": named("c", "y")}
    )
    assert found.verdict == "hazardous"
    assert {name: each.codes for name, each in found.queries.items()} == {"a": (), "c": ("query-renamed",)}
    assert "c does what b did" in found.queries["c"].differences[0].reason


def test_queries_that_swap_names_are_found() -> None:
    """Both, before anything else that differs."""
    one, other = named("a", "x"), named("b", "y")
    found = compare_deployments({"a": one, "b": other}, {"a": other, "b": one})
    assert [found.queries[name].codes[0] for name in "ab"] == ["queries-swapped", "queries-swapped"]
    twins = compare_deployments({"a": one, "b": one}, {"a": one, "b": one})
    assert twins.verdict == "same"


def test_queries_that_come_and_go_are_found() -> None:
    """One that is new needs a word of where it begins; one that goes leaves what its state holds, if it has any."""
    found = compare_deployments({"a": named("a")}, {"a": named("a"), "b": named("b", "y")})
    assert (found.verdict, found.queries["b"].codes) == ("hazardous", ("query-added",))
    found = compare_deployments({"a": named("a"), "b": named("b", "y")}, {"a": named("a")})
    assert (found.verdict, found.queries["b"].codes) == ("needs-drain", ("query-dropped",))
    found = compare_deployments({"a": named("a"), "b": without_state()}, {"a": named("a")})
    assert (found.verdict, found.queries["b"].codes) == ("state-compatible", ("query-dropped",))
    assert compare_deployments({}, {}).verdict == "same"


def test_a_plan_of_two_hundred_operators_is_compared_operator_by_operator() -> None:
    """Each with its own; one that changed is named, and no other."""
    many = [operator(number) for number in range(200)]
    old = plan(*many)
    changed = replace(many[150], windows=(replace(many[150].windows[0], duration_ms=1),))
    found = compare(old, replace(old, operators=(*many[:150], changed, *many[151:])))
    assert [(each.code, each.path) for each in found.differences] == [("window-changed", "Aggregate 150")]
