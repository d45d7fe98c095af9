"""A plan as a tree of text."""

from __future__ import annotations

import pytest

from airflow_streamstate.cli.upgrade import duration_text, plan_tree_text
from support.example_plan import EXAMPLE_PLAN
from support.plan_golden import golden


def test_a_plan_is_a_tree_that_says_what_counts() -> None:
    """Sink, state, operators with their numbers, sources; every line short."""
    lines = plan_tree_text(EXAMPLE_PLAN).splitlines()
    assert lines == [
        "counts per minute: append, processing_time, Spark 4.2.0",
        "to file:parquet /data/counts partitioned by day (skips what it holds, by batch id)",
        "state: 8 partitions, RocksDBStateStoreProvider, checkpoint format 2, changelogs",
        "Aggregate by [shop]: shop, Count(1) AS n  [state 1: aggregate:shop]",
        "  · keys: shop string",
        "  · window: sliding over event_time, 10 minutes, every 5 minutes",
        "  source 0: kafka kafka orders at broker:9092 named orders (event_time timestamp, shop string)"
        " subscribe=orders",
    ]


def test_a_node_stands_below_what_it_feeds() -> None:
    """Two blanks to the right."""
    assert "      Filter (v > cast(3 as bigint))" in plan_tree_text(golden("tumbling")).splitlines()


@pytest.mark.parametrize(
    ("milliseconds", "expected"),
    [(86_400_000, "1 day"), (300_000, "5 minutes"), (90_000, "90 seconds"), (1_500, "1500 ms"), (0, "0 ms")],
)
def test_a_duration_is_told_in_its_largest_unit(milliseconds: int, expected: str) -> None:
    """Of which it is a whole number."""
    assert duration_text(milliseconds) == expected
