"""``airflow_streamstate.plan.windows``: the sizes of windows; how they are found is in ``test_reading``."""

from __future__ import annotations

import pytest

from airflow_streamstate.plan.windows import interval_ms


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5 minutes", 300_000),
        ("1 hour 30 seconds", 3_630_000),
        ("interval 2 days", 172_800_000),
        ("0.5 seconds", 500),
        ("1 month", None),
        ("soon", None),
        ("", None),
        ("5 minutes or so", None),
    ],
)
def test_an_interval_in_sparks_words(text: str, expected: int | None) -> None:
    """In milliseconds; months have no length."""
    assert interval_ms(text) == expected
