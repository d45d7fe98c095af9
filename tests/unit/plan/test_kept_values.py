"""State without a recorded plan: its schema names the functions that made it."""

from __future__ import annotations

import pytest

from airflow_streamstate.checkpoint.state_files import value_columns
from airflow_streamstate.plan.model import Expression
from airflow_streamstate.plan.record import kept_differences
from support.built_plans import operator, plan

KEY = '{"type":"struct","fields":[{"name":"k","type":"string","nullable":true,"metadata":{}}]}'
VALUE = '{"type":"struct","fields":[{"name":"sum","type":"long","nullable":true,"metadata":{}}]}'


@pytest.mark.parametrize(
    ("aggregates", "kept", "is_told"),
    [
        (("Sum(v)",), ("sum",), False),
        (("Max(v)",), ("sum",), True),
        (("Sum(v)", "Count(1)"), ("sum", "count"), False),
        (("Count(1)", "Sum(v)"), ("sum", "count"), False),
        (("Average(v)",), ("sum", "count"), False),
        (("Sum(v)",), ("sum", "isEmpty"), False),
        (("Sum(v)",), ("sum", "count"), True),
        (("CollectSet(v)",), ("sum",), False),
        (("Max(v)",), ("buf",), False),
        (("Count(distinct v)",), ("sum",), False),
        (("Max(v)",), None, False),
        ((), ("sum",), False),
    ],
)
def test_only_what_is_surely_another_function_is_told(
    aggregates: tuple[str, ...], kept: tuple[str, ...] | None, is_told: bool
) -> None:
    """Law 17: as far as the state shows it; Spark compares the types alone."""
    new = plan(operator(aggregates=tuple(Expression(text, "bigint") for text in aggregates)))
    found = list(kept_differences(new, lambda _: kept))
    assert [each.verdict for each in found] == (["hazardous"] if is_told else [])


def framed(text: str) -> bytes:
    return len(text.encode()).to_bytes(2, "big") + text.encode()


def test_the_columns_of_a_value_are_read() -> None:
    """The key comes first; what is cut, or no such file, shows nothing."""
    whole = framed("v2") + b"".join(b"\0\0\0\1" + framed(text) for text in (KEY, VALUE))
    assert value_columns(whole) == ("sum",)
    assert value_columns(whole[:-3]) is None
    assert value_columns(framed("v2") + b"\0\0\0\1" + framed(KEY)) is None
    assert value_columns(b"") is None
