"""The columns of the rows in a plan, and what each is made of."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_streamstate.plan.model import Window
from airflow_streamstate.plan.terms import (
    Term,
    expr_id_of,
    plain_name,
    read_term,
    short_type,
    terms_below,
    without_alias,
)

LONGEST_ORIGIN = 200
NOT_NUMBERED = -1


@dataclass(slots=True, eq=False)
class Column:
    """A column of a node's output."""

    expr_id: int
    name: str
    type: str
    is_event_time: bool = False
    origin: str = ""
    window: Window | None = None


def number_of(expr_id: int | None) -> int:
    """Spark's number of a column; ``NOT_NUMBERED`` for none."""
    return NOT_NUMBERED if expr_id is None else expr_id


def attributes(raw: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[Column, ...]:
    """The columns that a node declares as its output."""
    return tuple(
        Column(
            number_of(expr_id_of(nodes[0].get("exprId"))),
            plain_name(nodes[0]["name"]),
            short_type(nodes[0].get("dataType")),
            origin=plain_name(nodes[0]["name"]),
        )
        for nodes in raw
    )


def defined(expr_id: int, name: str, term: Term, known: Mapping[int, Column]) -> Column:
    """A column that is computed here.

    Args:
        expr_id, name: of it.
        term: its expression.
        known: the columns from below, by Spark's numbers of them.
    """
    inner = without_alias(term)
    same = known.get(number_of(inner.expr_id))
    if same is not None:
        return replace(same, expr_id=expr_id, name=name)
    return Column(expr_id, name, inner.type, _is_marked(inner, known), origin_of(inner, known), inner.window)


def origin_of(term: Term, known: Mapping[int, Column]) -> str:
    """An expression in terms of the sources' columns and the stateful operators below; a digest where it is long."""

    def name_of(attribute: Mapping[str, Any]) -> str:
        column = known.get(number_of(expr_id_of(attribute.get("exprId"))))
        return plain_name(attribute["name"]) if column is None else column.origin or column.name

    text = read_term([one.fields for one in terms_below(term)], name_of).text
    if len(text) <= LONGEST_ORIGIN:
        return text
    return f"sha256:{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:16]}"


def _is_marked(term: Term, known: Mapping[int, Column]) -> bool:
    """Whether Spark treats the result as event time: a window over it, or the time of such a window."""
    if term.window is None and term.kind != "PreciseTimestampConversion":
        return False
    attributes = terms_below(term, "AttributeReference")
    of = (known.get(number_of(one.expr_id)) for one in attributes)
    return any(column is not None and column.is_event_time for column in of)
