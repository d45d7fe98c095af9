"""``airflow_streamstate.plan.segments``: what is done to rows between two operators."""

from __future__ import annotations

import pytest

from airflow_streamstate.plan.model import PlanNode, QueryPlan
from airflow_streamstate.plan.segments import changes, is_asked, stretches_of
from support.built_plans import operator, plan


def counted(*below: PlanNode, above: tuple[PlanNode, ...] = ()) -> QueryPlan:
    """A count per window and key over these nodes, under others."""
    nodes = [*above, PlanNode("Aggregate", "", 0, 0), *below, PlanNode("StreamingRelation", "", 0, None, 0)]
    placed = [PlanNode(each.kind, each.text, depth, each.operator_id, each.source) for depth, each in enumerate(nodes)]
    return plan(operator(), nodes=tuple(placed))


def node(kind: str, text: str = "") -> PlanNode:
    return PlanNode(kind, text, 0)


@pytest.mark.parametrize(
    ("below", "steps"),
    [
        ([node("Project", "ts, k, v")], ()),
        ([node("Project", "ts, k, (v * 2) AS unused")], ()),
        ([node("Project", "ts, Upper(k) AS k, v")], (("Project", "Upper(k) AS k"),)),
        ([node("Project", "ts, Concat(k, ', AS k') AS k")], (("Project", "Concat(k, ', AS k') AS k"),)),
        ([node("EventTimeWatermark", "ts, 1 ms"), node("SubqueryAlias", "x")], ()),
        ([node("Filter", "(v > 1)")], (("Filter", "(v > 1)"),)),
        (
            [node("Filter", "(v > 1)"), node("Project", "ts, k, (w * 2) AS v, (w * 3) AS u")],
            (("Filter", "(v > 1)"), ("Project", "(w * 2) AS v")),
        ),
        (
            [node("Generate", "Explode(vs)"), node("Project", "vs, (w * 2) AS u")],
            (("Generate", "Explode(vs)"), ("Project", "(w * 2) AS u")),
        ),
    ],
)
def test_only_what_is_asked_for_counts(below: list[PlanNode], steps: tuple[tuple[str, str], ...]) -> None:
    """A column that is not used changes no state; of what is not understood, all counts."""
    (found,) = stretches_of(counted(*below)).inputs[0]
    assert found == steps


def test_what_is_above_asks_for_aggregates() -> None:
    """Those that a projection leaves out are not asked for."""
    asked = stretches_of(counted(above=(node("Project", "k, (n * 2) AS n2"),))).asked[0]
    assert is_asked("n", asked)
    assert not is_asked("s", asked)
    assert is_asked("s", stretches_of(counted(above=(node("Filter", "(n > 1)"),))).asked[0])


def test_what_an_operator_above_counts_is_asked_of_the_one_below() -> None:
    """Rows pass through the one below: a column that it has no use for ends in the other's state."""
    upper = operator(0)
    lower = operator(1, "deduplicate", keys=())
    nodes = ("Aggregate", "Deduplicate", "Project", "StreamingRelation")
    texts = ("", "", "ts, Upper(k) AS k, (v * 2) AS unused", "")
    chained = plan(
        upper,
        lower,
        nodes=tuple(
            PlanNode(kind, text, depth, depth if depth < 2 else None, 0 if depth == 3 else None)
            for depth, (kind, text) in enumerate(zip(nodes, texts, strict=True))
        ),
    )
    assert stretches_of(chained).inputs[1][0] == (("Project", "Upper(k) AS k"),)


def test_changes_are_told_step_by_step() -> None:
    """What became what, what is new, what is gone."""
    old, new = counted(node("Filter", "(v > 1)")), counted(node("Filter", "(v > 2)"), node("Filter", "(w > 1)"))
    found = list(changes(stretches_of(old).inputs[0][0], stretches_of(new).inputs[0][0]))
    assert found == [
        ("Filter", "Filter (v > 1) became Filter (v > 2)"),
        ("Filter", "Filter (w > 1) is new"),
    ]
    assert list(changes(stretches_of(new).output, stretches_of(new).output)) == []


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            [node("Project", "Upper(k) AS k, Shift(ts, 2) AS ts")],
            [node("Project", "Upper(k) AS k, Shift(ts, 3) AS ts")],
            ["Project Shift(ts, 2) AS ts became Project Shift(ts, 3) AS ts"],
        ),
        ([node("Project", "Upper(k) AS k, Shift(ts, 2) AS ts")], [node("Project", "Upper(k) AS k, ts")],
         ["Project Shift(ts, 2) AS ts is gone"]),
        ([node("Project", "Upper(k) AS k, ts")], [node("Project", "Upper(k) AS k, Shift(ts, 2) AS ts")],
         ["Project Shift(ts, 2) AS ts is new"]),
        (
            [node("Filter", "(k > 1)"), node("Project", "k, Shift(ts, 2) AS ts")],
            [node("Project", "k, Shift(ts, 3) AS ts")],
            ["Project Shift(ts, 2) AS ts became Project Shift(ts, 3) AS ts", "Filter (k > 1) is gone"],
        ),
        (
            [node("Filter", "(k > 1)"), node("Generate", "Explode(k)")],
            [node("Generate", "Explode(k)"), node("Filter", "(k > 1)")],
            ["Generate Explode(k) is done at another place"],
        ),
        (
            [node("Generate", "Explode(k)")],
            [node("Generate", "Explode(k)"), node("Generate", "Explode(k)")],
            ["Generate Explode(k) is new"],
        ),
    ],
)  # fmt: skip
def test_what_is_as_before_is_not_told(old: list[PlanNode], new: list[PlanNode], words: list[str]) -> None:
    """Of a projection the columns that differ; a step next to another one that changed, or that was moved, is not
    gone. What is done twice is reported."""
    found = changes(stretches_of(counted(*old)).inputs[0][0], stretches_of(counted(*new)).inputs[0][0])
    assert sorted(said for _, said in found) == sorted(words)
