"""``airflow_streamstate.plan.expressions``: columns, and what they are made of."""

from __future__ import annotations

import pytest

from airflow_streamstate.plan.expressions import origin_of, read_term
from support.plan_golden import golden


def test_keys_tell_whether_state_can_end_and_what_they_are_made_of() -> None:
    """By a window or a column with a watermark; a projection below is seen through."""
    window, shop = golden("sliding").operators[0].keys
    assert (window.text, window.is_event_time, window.origin) == (
        "window", True, "window(ts, 600000 ms, 240000 ms, 60000 ms)",
    )  # fmt: skip
    assert (shop.type, shop.is_event_time) == ("string", False)
    assert "shop(k)" in shop.text
    (size,) = golden("unbounded").operators[0].keys
    assert (size.text, size.origin) == ("size", "CaseWhen((v > cast(10 as bigint)), 'big', v IS NULL, '?')")
    assert [key.is_event_time for key in golden("deduplicated").operators[0].keys] == [False, True]


def test_an_origin_goes_through_the_operators_below() -> None:
    """What is made of what is made."""
    last = golden("chained").operators[0]
    assert last.aggregates[0].origin == "Sum(Count(1))"
    assert last.keys[0].origin == "window((window(ts, 60000 ms).end - 1), 600000 ms)"


def test_an_origin_that_is_long_is_a_digest() -> None:
    """It distinguishes the two all the same, and fills no record."""
    nodes = [
        {"class": "x.Literal", "num-children": 0, "value": letter * 300, "dataType": "string"} for letter in ("a", "b")
    ]
    terms = [read_term([node], lambda _: "") for node in nodes]
    first, second = (origin_of(term, {}) for term in terms)
    assert first != second
    assert first.startswith("sha256:")
    assert len(first) == len("sha256:") + 16


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("tumbling", ("start", "k")),
        ("sql", ("k", "end")),
        ("chained", ("window",)),
        ("sliding", ("window", "shop(k)")),
        ("deduplicated_within", ("k",)),
        ("joined_semi", ("k",)),
        ("pandas_state", ("k",)),
        ("tws_rows", ("window",)),
        ("unbounded", ("size",)),
        ("stateless", ()),
        ("limited", ()),
    ],
)
def test_the_columns_of_the_key_of_a_written_row(name: str, keys: tuple[str, ...]) -> None:
    """Those of the operators that are written, under the names that they are written by."""
    assert golden(name).key_columns == keys
