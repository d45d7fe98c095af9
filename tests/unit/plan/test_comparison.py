"""``airflow_streamstate.plan.comparison``: plans of real scripts, and versions of whole streams."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.plan.codes import VERDICTS
from airflow_streamstate.plan.comparison import advice_on, compare, compare_deployments
from airflow_streamstate.plan.model import PlanNode, QueryPlan
from airflow_streamstate.plan.segments import MOST_NODES
from support.built_plans import describe, operator, plan, processor, without_state
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
    """A count, distinguished from others by what is in its tree."""
    nodes = (PlanNode("Aggregate", text, 0, 0), PlanNode("StreamingRelation", "", 1, None, 0))
    return plan(operator(), query_name=name, nodes=nodes)


def test_queries_that_come_and_go_are_found() -> None:
    """One that is new needs a note on where it starts; one that goes leaves what its state holds, if it has any."""
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


def test_the_advice_is_of_the_new_plan() -> None:
    """Of a query that both versions have, and of one that is new; of one that is gone there is no advice."""
    old, new = named("a", "x"), replace(plan(processor(), watermarks=()), query_name="a")
    assert advice_on(new)
    assert compare(old, new).advice == tuple(advice_on(new))
    assert compare(new, old).advice == ()
    gone = replace(named("gone", "z"), watermarks=())
    assert advice_on(gone)
    found = compare_deployments({"a": old, "gone": gone}, {"a": new, "new": new})
    assert {name: bool(each.advice) for name, each in found.queries.items()} == {"a": True, "new": True, "gone": False}
    swapped = compare_deployments({"a": new, "b": old}, {"a": old, "b": new})
    assert swapped.queries["b"].advice == tuple(advice_on(new))


def long_plan(kind: str, count: int, name: str) -> QueryPlan:
    """A plan of the given number of nodes, one above the other, each with its own name."""
    return plan(nodes=tuple(PlanNode(kind, f"{name}{number}", number) for number in range(count)))


@pytest.mark.parametrize(
    ("kind", "count", "why"),
    [
        ("Filter", 3_000, "4516500 names are followed through it, of 2000000 at most"),
        ("Union", MOST_NODES + 1, f"it has {MOST_NODES + 1} nodes, of {MOST_NODES} at most"),
    ],
)
def test_a_plan_that_is_too_large_is_not_taken_for_one_that_fits(kind: str, count: int, why: str) -> None:
    """Whichever of the two it is, also where it keeps no state; one that has not changed is the same."""
    small, large, other = plan(), long_plan(kind, count, "a"), long_plan(kind, count, "b")
    for old, new, which in (
        (small, large, "the new plan"),
        (large, small, "the plan of before"),
        (large, other, "the plan of before"),
    ):
        found = compare(old, new)
        assert found.verdict == "needs-drain"
        assert [(each.code, each.reason) for each in found.differences if each.code == "plan-too-large"] == [
            ("plan-too-large", f"{which} is too large to compare: {why}")
        ]
    assert compare(large, long_plan(kind, count, "a")).differences == ()


def test_plans_written_down_in_two_ways_are_told() -> None:
    """With what differs all the same; either of them may keep state."""
    words = ("not-comparable", "", "the plans were written down in way 1 and in way 2")
    for old, new, verdict in (
        (plan(), plan(reading=2), "needs-drain"),
        (without_state(), plan(reading=2), "needs-drain"),
        (plan(), without_state(reading=2), "needs-drain"),
        (without_state(), without_state(reading=2), "state-compatible"),
    ):
        assert (describe(old, new), compare(old, new).verdict) == ([words], verdict)
    found = describe(plan(), plan(reading=2, trigger="once"))
    assert found == [words, ("trigger-changed", "", "the trigger processing_time became once")]


def test_each_difference_of_a_deployment_is_told() -> None:
    """Which query it is, and what becomes of its state and its position."""
    x, y = named("x", "x"), named("y", "y")
    found = compare_deployments({"a": x, "b": y, "c": x, "d": without_state()}, {"a": y, "b": x, "e": named("e", "z")})
    told = {
        name: [(each.code, each.path, each.reason) for each in one.differences] for name, one in found.queries.items()
    }
    assert list(told) == ["a", "b", "e", "c", "d"]
    reason = "{} does what {} did, and {} what {} did: each would continue with the other's state"
    assert told["a"][0] == ("queries-swapped", "", reason.format("a", "b", "b", "a"))
    assert told["b"][0] == ("queries-swapped", "", reason.format("b", "a", "a", "b"))
    assert told["e"] == [("query-added", "", "e was not there: no position states where it starts")]
    gone = "is not started any more"
    assert told["c"] == [("query-dropped", "", f"c {gone}, and what its state holds never comes out")]
    assert told["d"] == [("query-dropped", "", f"d {gone}; it held no state")]


def test_each_renamed_query_has_one_name_of_before() -> None:
    """Of two that do the same, each one; a third is new, and one that is left is gone."""
    x = named("x", "x")
    found = compare_deployments({"a": x, "b": x}, {"c": x, "d": x, "e": x})
    assert {name: one.codes for name, one in found.queries.items()} == {
        "c": ("query-renamed",),
        "d": ("query-renamed",),
        "e": ("query-added",),
    }
    words = "state and positions go by names, and it would start with nothing"
    assert [found.queries[name].differences[0].reason for name in "cd"] == [
        f"c does what a did: {words}",
        f"d does what b did: {words}",
    ]
    found = compare_deployments({"a": x, "b": x}, {"c": x})
    assert {name: one.codes for name, one in found.queries.items()} == {
        "c": ("query-renamed",),
        "b": ("query-dropped",),
    }


def test_one_query_is_another_where_its_nodes_its_sources_or_its_reading_differ() -> None:
    """Each by itself: then it is no renamed one."""
    x = named("x", "x")
    source = replace(x.sources[0], identity="subscribe:b")
    for other in (named("x", "y"), replace(x, reading=2), replace(x, sources=(source,))):
        assert compare_deployments({"a": x}, {"b": other}).queries["b"].codes == ("query-added",)
    written = replace(x, sink=replace(x.sink, target="/elsewhere"))
    assert compare_deployments({"a": x}, {"b": written}).queries["b"].codes == ("query-renamed",)


def test_three_queries_that_change_names_around_are_not_swapped() -> None:
    """None does what the other does now and the other way round: each is described by what differs."""
    x, y, z = (named(name, name) for name in "xyz")
    found = compare_deployments({"a": x, "b": y, "c": z}, {"a": y, "b": z, "c": x})
    assert all("queries-swapped" not in one.codes for one in found.queries.values())
    same = compare_deployments({"a": x, "b": x, "c": y}, {"a": x, "b": y, "c": x})
    assert ["queries-swapped" in same.queries[name].codes for name in "abc"] == [False, True, True]
