"""Aggregations held against the state that they would continue, where no plan of that state is recorded.

Only the functions that nearly all aggregations are made of are told; for any other one nothing is said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from airflow_streamstate.plan.codes import difference
from airflow_streamstate.plan.differences import Difference
from airflow_streamstate.plan.model import QueryPlan, StateOperator

_KEEPS = {
    "Sum": ("sum",),
    "Count": ("count",),
    "Max": ("max",),
    "Min": ("min",),
    "Average": ("count", "sum"),
}
_KNOWN = {name for names in _KEEPS.values() for name in names}
_BESIDE_DECIMALS = "isEmpty"
_FUNCTION = re.compile(r"(\w+)\(")


def kept_differences(plan: QueryPlan, columns_of: Callable[[int], tuple[str, ...] | None]) -> Iterator[Difference]:
    """The aggregations that keep other values than their state has.

    Args:
        columns_of: operator id -> names of the columns of its state's values; None where unknown.
    """
    for operator in plan.operators:
        wanted = _wanted(operator)
        if wanted is None:
            continue
        columns = columns_of(operator.operator_id)
        kept = None if columns is None else sorted(each for each in columns if each != _BESIDE_DECIMALS)
        if not kept or not _KNOWN.issuperset(kept) or kept == wanted:
            continue
        reason = (
            f"the state keeps {', '.join(kept)} of each key, and this plan keeps {', '.join(wanted)}: one result would"
            " mix rows of the old and the new rule"
        )
        yield difference("aggregate-changed", operator.path, reason, verdict="hazardous")


def _wanted(operator: StateOperator) -> list[str] | None:
    """What an aggregation keeps of each key, sorted; None where that is not known here."""
    if operator.kind != "aggregate" or not operator.aggregates:
        return None
    found: list[str] = []
    for aggregate in operator.aggregates:
        function = _FUNCTION.match(aggregate.text)
        names = None if function is None else _KEEPS.get(function[1])
        if names is None or "distinct" in aggregate.text.lower():
            return None
        found += names
    return sorted(found)
