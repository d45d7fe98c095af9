"""The analyzed plan of a simulated query, in the JSON that Spark would write."""

from __future__ import annotations

import json
from typing import Any

_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical"
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"


def analyzed_json(descriptions: list[str], window_ms: int | None, delay_ms: int | None) -> str:
    """A union of sources, with a watermark and a count per window where it has them."""
    nodes: list[dict[str, Any]] = []
    if window_ms is not None:
        nodes.append(
            {
                "class": f"{_LOGICAL}.Aggregate",
                "num-children": 1,
                "groupingExpressions": [[_column("at", "long")]],
                "aggregateExpressions": [[_column("at", "long")], _count()],
            }
        )
    if delay_ms is not None:
        nodes.append(
            {"class": f"{_LOGICAL}.EventTimeWatermark", "num-children": 1, "eventTime": [_column("at", "long")]}
        )
    if len(descriptions) > 1:
        nodes.append({"class": f"{_LOGICAL}.Union", "num-children": len(descriptions)})
    nodes += [_relation(description) for description in descriptions]
    return json.dumps(nodes)


def _relation(description: str) -> dict[str, Any]:
    return {
        "class": "org.apache.spark.sql.execution.streaming.runtime.StreamingRelation",
        "num-children": 0,
        "sourceName": description,
        "output": [[_column("at", "long")]],
    }


def _column(name: str, data_type: str) -> dict[str, Any]:
    return {
        "class": f"{_EXPRESSIONS}.AttributeReference",
        "num-children": 0,
        "name": name,
        "dataType": data_type,
        "exprId": {"id": 0},
    }


def _count() -> list[dict[str, Any]]:
    return [
        {"class": f"{_EXPRESSIONS}.Alias", "num-children": 1, "name": "count", "exprId": {"id": 1}},
        {"class": f"{_EXPRESSIONS}.aggregate.AggregateExpression", "num-children": 1, "isDistinct": False},
        {"class": f"{_EXPRESSIONS}.aggregate.Count", "num-children": 1},
        {"class": f"{_EXPRESSIONS}.Literal", "num-children": 0, "value": "1", "dataType": "integer"},
    ]
