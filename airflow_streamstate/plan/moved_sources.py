"""A recorded plan with its file sources where they are now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from airflow_streamstate.plan.model import PlannedSource, PlanNode, QueryPlan
from airflow_streamstate.protocol.moved_sources import FILE, Moves, moved_place


def places_of(plan: QueryPlan) -> list[str]:
    """The paths and patterns that its file sources read."""
    words = (source.identity.partition(" ") for source in plan.sources if source.adapter == FILE)
    return [place for kind, _, place in words if kind == FILE]


def moved_plan(plan: QueryPlan, moves: Moves) -> QueryPlan:
    """The plan of the same script, if it had read the same files at their new places."""
    sources = tuple(_moved(source, moves) for source in plan.sources)
    if sources == plan.sources:
        return plan
    before = {number: source.identity for number, source in enumerate(plan.sources)}
    nodes = tuple(_in_node(node, before, sources) for node in plan.nodes)
    return replace(plan, sources=sources, nodes=nodes)


def moved_plans(plans: Mapping[str, QueryPlan], moves: Moves) -> dict[str, QueryPlan]:
    """As ``moved_plan``, of each query."""
    return {name: moved_plan(plan, moves) for name, plan in plans.items()}


def _moved(source: PlannedSource, moves: Moves) -> PlannedSource:
    kind, _, place = source.identity.partition(" ")
    if source.adapter != FILE or kind != FILE:
        return source
    moved = moved_place(place, moves)
    return source if moved == place else replace(source, identity=f"{FILE} {moved}")


def _in_node(node: PlanNode, before: Mapping[int, str], sources: tuple[PlannedSource, ...]) -> PlanNode:
    if node.source is None or node.source not in before:
        return node
    return replace(node, text=node.text.replace(before[node.source], sources[node.source].identity))
