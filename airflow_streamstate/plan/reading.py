"""Spark's own JSON of an analyzed plan, and what the runtime knows beside it, to the plan as it is kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from airflow_streamstate.errors import DataError
from airflow_streamstate.plan.model import PlannedSink, PlannedSource, QueryPlan
from airflow_streamstate.plan.nodes import RELATIONS, Describer, Node, after_children, plan_tree
from airflow_streamstate.plan.operators import walk
from airflow_streamstate.plan.settings import state_layout
from airflow_streamstate.protocol.positions import WatermarkSpec

_FREE_TEXTS = ("value", "name", "sourceName", "comment")


@dataclass(frozen=True)
class PlanFacts:
    """What the text of a plan does not say.

    Attributes:
        query_name, spark_version, output_mode, trigger, sink, settings, pinned: as in ``model.QueryPlan``.
        watermarks: in the order of the plan.
        sources: in the order of the offset lines, without columns and path; () where nobody can tell.
        places: of each of these, which source of the plan it is, counted from the top, left to right.
        hide: takes secrets out of a text.
    """

    query_name: str
    spark_version: str
    output_mode: str
    trigger: str
    sink: PlannedSink
    watermarks: tuple[WatermarkSpec, ...] = ()
    sources: tuple[PlannedSource, ...] = ()
    places: tuple[int, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    pinned: Mapping[str, str] = field(default_factory=dict)
    hide: Callable[[str], str] = str


def read_plan(analyzed: str, facts: PlanFacts) -> QueryPlan:
    """The plan of a query.

    Args:
        analyzed: ``queryExecution().analyzed().toJSON()`` of the frame that is written.
        facts: the rest.

    Raises:
        DataError: Spark wrote it in another way than is known here.
    """
    try:
        return _read(analyzed, facts)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DataError(
            "the plan of this query cannot be read",
            query_name=facts.query_name,
            spark_version=facts.spark_version,
            reason=f"{type(error).__name__}: {str(error)[:200]}",
            next_step="Nothing need be done for the query; changes of its plan cannot be told before an upgrade.",
        ) from None


def _read(analyzed: str, facts: PlanFacts) -> QueryPlan:
    root = plan_tree(json.loads(analyzed, object_hook=_hiding(facts.hide)))
    relations = sorted(
        (node for node in after_children(root) if node.kind in RELATIONS), key=lambda node: node.number or 0
    )
    sources, numbers = _sources(relations, facts)
    for node in relations:
        node.number = numbers[node.number or 0]
    watermarks = [f"{each.column}, {each.delay_ms} ms" for each in facts.watermarks]
    Describer([_source_text(source) for source in sources], watermarks).describe(root)
    walked = walk(root, facts.output_mode, facts.watermarks)
    columns = {node.number: node.expressions() for node in relations}
    return QueryPlan(
        query_name=facts.query_name,
        spark_version=facts.spark_version,
        output_mode=facts.output_mode,
        trigger=facts.trigger,
        sources=tuple(
            replace(source, columns=columns.get(number, ()), path=walked.source_paths.get(number, ""))
            for number, source in enumerate(sources)
        ),
        sink=facts.sink,
        watermarks=facts.watermarks,
        operators=walked.operators,
        state=state_layout(facts.settings),
        settings=dict(sorted(facts.settings.items())),
        nodes=walked.nodes,
        pinned=dict(sorted(facts.pinned.items())),
        columns=root.expressions(),
    )


def _hiding(hide: Callable[[str], str]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Takes secrets out of literals and names, before anything is made of them."""
    hidden = cache(hide)

    def hook(node: dict[str, Any]) -> dict[str, Any]:
        for field_name in _FREE_TEXTS:
            if isinstance(node.get(field_name), str):
                node[field_name] = hidden(node[field_name])
        return node

    return hook


def _sources(relations: list[Node], facts: PlanFacts) -> tuple[tuple[PlannedSource, ...], dict[int, int]]:
    """The sources in the order of the offset lines, and for each place in the plan the number of its source."""
    if facts.sources and len(facts.sources) == len(relations) and sorted(facts.places) == list(range(len(relations))):
        return facts.sources, {place: number for number, place in enumerate(facts.places)}
    stated = tuple(
        PlannedSource(
            str(node.fields.get("sourceName", "")).partition("[")[0].lower(),
            identity=str(node.fields.get("sourceName", "")),
        )
        for node in relations
    )
    return stated, {number: number for number in range(len(relations))}


def _source_text(source: PlannedSource) -> str:
    return " ".join(part for part in (source.format, source.identity, source.name) if part)
