"""The names of operators for migrations, and what a rewrite of the state settles of a comparison."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.plan.differences import Comparison, Difference, compared
from airflow_streamstate.plan.model import QueryPlan, StateOperator
from airflow_streamstate.plan.rules_state import NEVER_CHANGES, STAYS
from airflow_streamstate.protocol.records import StateRewrite

OF_STATE_FORM = frozenset(
    {
        "aggregate-added",
        "aggregate-removed",
        "aggregate-changed",
        "aggregates-reordered",
        "state-schema-changed",
        "variable-changed",
        "join-columns-changed",
    }
)
"""Differences in the form of an operator's state, which a migration can settle. Not those of keys, windows and
watermarks: the old rows cannot be told apart by the new ones."""


def operator_name(operator: StateOperator) -> str:
    """The name of an operator for people: its kind and the names of its keys, ``aggregate:window,origin``."""
    keys = ",".join(key.name or key.text for key in operator.keys)
    return f"{operator.kind}:{keys}" if keys else operator.kind


def find_operator(plan: QueryPlan, name: str) -> StateOperator:
    """The operator of this name, or of this kind where it is the only one, or of Spark's number.

    Raises:
        InvalidRequestError: there is none, or more than one.
    """
    for matches in (
        [each for each in plan.operators if operator_name(each) == name],
        [each for each in plan.operators if each.kind == name],
        [each for each in plan.operators if str(each.operator_id) == name],
    ):
        if len(matches) == 1:
            return matches[0]
    raise InvalidRequestError(
        "the plan has no such operator, or more than one",
        query_name=plan.query_name,
        operator=name,
        operators=[f"{operator_name(each)} (number {each.operator_id})" for each in plan.operators],
        next_step="Use one of these names, or the number.",
    )


def settled(found: Comparison, new: QueryPlan, rewrite: StateRewrite | None, migrated: Collection[int]) -> Comparison:
    """A comparison in which what the rewrite of the state settles needs nothing more.

    Args:
        new: the new plan.
        migrated: the operators whose state goes through a migration.
    """
    if rewrite is None:
        return found
    asked = {
        "partitions-changed": rewrite.partitions is not None,
        "provider-changed": rewrite.state_store is not None,
        "checkpoint-format-changed": rewrite.checkpoint_format is not None,
    }
    paths = {operator.path for operator in new.operators if operator.operator_id in migrated}
    others = {operator.path for operator in new.operators if operator.operator_id not in migrated}

    def settle(each: Difference) -> Difference:
        if asked.get(each.code):
            reason = each.reason.removesuffix(STAYS).removesuffix(NEVER_CHANGES)
            return replace(each, verdict="state-compatible", reason=reason, remedy="The state is written anew.")
        if each.code in OF_STATE_FORM and each.path in paths - others:
            return replace(each, verdict="state-compatible", remedy="The migration brings the state into this form.")
        return each

    return compared(map(settle, found.differences), found.advice)


# Migrations without code: what a changed list of aggregates makes of the fields that Spark keeps of them.

Neutral = Literal["null", "zero", "true", "false"]
_BUFFERS: Mapping[str, tuple[tuple[tuple[str, Neutral], ...], ...]] = {
    "Count": ((("count", "zero"),),),
    "Sum": ((("sum", "null"), ("isEmpty", "true")), (("sum", "null"),)),
    "Max": ((("max", "null"),),),
    "Min": ((("min", "null"),),),
    "Average": ((("sum", "zero"), ("count", "zero")),),
    "First": ((("first", "null"), ("valueSet", "false")),),
    "Last": ((("last", "null"), ("valueSet", "false")),),
    "StddevSamp": ((("n", "zero"), ("avg", "zero"), ("m2", "zero")),),
    "StddevPop": ((("n", "zero"), ("avg", "zero"), ("m2", "zero")),),
    "VarianceSamp": ((("n", "zero"), ("avg", "zero"), ("m2", "zero")),),
    "VariancePop": ((("n", "zero"), ("avg", "zero"), ("m2", "zero")),),
}
"""By Spark's function: the names of the fields that it keeps, and what each holds before the first row. A sum of
decimals has a field more."""


@dataclass(frozen=True)
class FieldSource:
    """Where the new value of a field of state comes from.

    Attributes:
        index: of the old field; None for none.
        neutral: without an old field, what it holds before the first row.
    """

    index: int | None
    neutral: Neutral = "null"


def match_buffers(
    old: Sequence[str], old_fields: Sequence[str], new: Sequence[str], new_fields: Sequence[str]
) -> tuple[FieldSource, ...] | None:
    """The source of each new field of an aggregation's state; None where that is not certain.

    Args:
        old, new: the aggregates of each plan, normalised, each once, in their order.
        old_fields, new_fields: the names of the fields of each state, in their order.
    """
    before, now = _buffers(old, old_fields), _buffers(new, new_fields)
    if before is None or now is None:
        return None
    found: list[FieldSource] = []
    for text, (_, fields) in now.items():
        known = before.get(text)
        if known is not None and len(known[1]) != len(fields):
            return None
        for offset, (_, neutral) in enumerate(fields):
            found.append(FieldSource(None, neutral) if known is None else FieldSource(known[0] + offset))
    return tuple(found)


def _buffers(
    aggregates: Sequence[str], fields: Sequence[str]
) -> dict[str, tuple[int, tuple[tuple[str, Neutral], ...]]] | None:
    """By aggregate, the place of its first field, and its fields; None where the fields are not those of these."""
    found: dict[str, tuple[int, tuple[tuple[str, Neutral], ...]]] = {}
    at = 0
    for text in aggregates:
        function = text.partition("(")[0]
        for shape in _BUFFERS.get(function, ()):
            if [name for name, _ in shape] == list(fields[at : at + len(shape)]):
                found[text] = (at, shape)
                at += len(shape)
                break
        else:
            return None
    return found if at == len(fields) else None
