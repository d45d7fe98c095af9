"""The recorded plan of a query as a graph, beside that of the version before. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

from airflow_streamstate.plan.aligning import blocks_of
from airflow_streamstate.plan.comparison import compare_deployments
from airflow_streamstate.plan.model import PlanNode, QueryPlan

Change = Literal["same", "added", "removed", "changed"]
MAX_NODES = 400


def plan_graphs(old: Mapping[str, QueryPlan], new: Mapping[str, QueryPlan]) -> dict[str, Any]:
    """Each query of a version with its graph, and what differs from the version before.

    A plan of more than ``MAX_NODES`` nodes gets no verdict here: `plan` and each upgrade compare it.

    Args:
        old: the plans of the version before, by query; empty where there is none.
        new: the plans of this version.
    """
    is_small = all(len(plan.nodes) <= MAX_NODES for plan in (*old.values(), *new.values()))
    compared = compare_deployments(old, new) if old and new and is_small else None
    queries = []
    for name in sorted({*new, *(old if compared is not None else ())}):
        before, now = old.get(name), new.get(name)
        comparison = None if compared is None else compared.queries.get(name)
        queries.append(
            {
                "query": name,
                "is_gone": now is None,
                "output_mode": "" if now is None else now.output_mode,
                "trigger": "" if now is None else now.trigger,
                "sink": "" if now is None else f"{now.sink.kind} {now.sink.target}".strip(),
                "nodes": graph(None if before is None else before.nodes, () if now is None else now.nodes),
                "verdict": None if comparison is None else comparison.verdict,
                "differences": [] if comparison is None else [asdict(one) for one in comparison.differences],
            }
        )
    return {"verdict": None if compared is None else compared.verdict, "queries": queries}


def graph(before: Sequence[PlanNode] | None, now: Sequence[PlanNode]) -> list[dict[str, Any]]:
    """The nodes of a tree, each before its children, with how it differs from the tree before.

    A removed node stands where it was. ``parent``: the index of the node that it feeds; None for the top.
    """
    if before is None:
        marked: list[tuple[PlanNode, Change, str]] = [(node, "same", "") for node in now]
    else:
        # Cut before, not after: what is not shown is not compared.
        marked = _compared(before[:MAX_NODES], now[:MAX_NODES])
    found: list[dict[str, Any]] = []
    stack: list[tuple[int, int]] = []
    for node, change, was in marked[:MAX_NODES]:
        while change != "removed" and stack and stack[-1][0] >= node.depth:
            stack.pop()
        above = next((number for depth, number in reversed(stack) if depth < node.depth), None)
        found.append(
            {
                "kind": node.kind,
                "text": node.text,
                "was": was,
                "depth": node.depth,
                "parent": above,
                "operator_id": node.operator_id,
                "source": node.source,
                "change": change,
            }
        )
        if change != "removed":  # nothing of this version goes through it
            stack.append((node.depth, len(found) - 1))
    return found


def _compared(before: Sequence[PlanNode], now: Sequence[PlanNode]) -> list[tuple[PlanNode, Change, str]]:
    old, new = ([(node.kind, node.text) for node in nodes] for nodes in (before, now))
    marked: list[tuple[PlanNode, Change, str]] = []
    for is_same, of_old, of_new in blocks_of(old, new):
        gone, come = list(before[of_old]), list(now[of_new])
        if is_same:
            marked += [(node, "same", "") for node in come]
            continue
        for node in come:
            was = next((one for one in gone if one.kind == node.kind), None)
            if was is not None:
                gone.remove(was)
            marked.append((node, "added" if was is None else "changed", "" if was is None else was.text))
        marked += [(node, "removed", "") for node in gone]
    return marked
