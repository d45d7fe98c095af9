"""State without a recorded plan: its schema names the functions that made it."""

from __future__ import annotations

import pytest

from airflow_streamstate.checkpoint.state_files import column_names
from airflow_streamstate.plan.model import Expression
from airflow_streamstate.plan.record import kept_differences, reordered_keys
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
    found = list(kept_differences(new, lambda _: None if kept is None else (("k",), kept)))
    assert [each.verdict for each in found] == (["hazardous"] if is_told else [])


@pytest.mark.parametrize(
    ("kept", "is_told"),
    [
        ("abcde", False),
        ("edcba", True),
        ("abcdf", True),
        (None, True),
        ("ab", False),
        ("ba", True),
        ("af", False),
    ],
)
def test_keys_in_another_order_than_the_state_are_told(kept: str | None, is_told: bool) -> None:
    """Law 17: Scala 2.12 and 2.13 put five columns in orders of their own, a script may put two in another; where the
    state shows nothing, or other names, five are not trusted."""
    names = "abcde" if kept is None else sorted(kept.replace("f", "e"))
    new = plan(operator(kind="deduplicate", keys=tuple(Expression(name, "string", name) for name in names)))
    found = list(reordered_keys(new, lambda _: None if kept is None else (tuple(kept), ())))
    assert [(each.code, each.verdict) for each in found] == ([("keys-reordered", "needs-drain")] if is_told else [])


def framed(text: str) -> bytes:
    return len(text.encode()).to_bytes(2, "big") + text.encode()


def test_the_columns_of_a_value_are_read() -> None:
    """The key comes first; what is cut, or no such file, shows nothing."""
    whole = framed("v2") + b"".join(b"\0\0\0\1" + framed(text) for text in (KEY, VALUE))
    assert column_names(whole) == (("k",), ("sum",))
    assert column_names(whole[:-3]) is None
    assert column_names(framed("v2") + b"\0\0\0\1" + framed(KEY)) is None
    assert column_names(b"") is None
