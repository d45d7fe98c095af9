"""A story of state that never ends, which each Spark from 3.5 on has: no drain empties it. Used as ``spark_story``.

The aggregates are in update mode, so their rows come by ``foreachBatch``: each time all keys of a batch, as they stand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.spark_story import row, rows_of_input

FIELDS = {"distinct": "kv", "summed": "knsm", "counted": "knsm"}
UPDATED = ("summed", "counted")
DRAINS = False
"""As ``spark_story`` has them."""

# Three chapters, each two files, of which each is one batch. Each repeats rows of all chapters before it, in another
# second; ``b`` is silent in the second; 7 is there with another key, which is another row.
CHAPTERS: tuple[tuple[tuple[dict[str, object], ...], ...], ...] = (
    (
        (row(1, "a", 1), row(2, "b", 7), row(3, "a", 1), *(row(4, f"many {n}", n) for n in range(40))),
        (row(5, "a", 13), row(6, "b", 7), row(7, "a", 7)),
    ),
    (
        (row(8, "a", 1), row(9, "a", 17), *(row(10, f"many {n}", n) for n in range(0, 40, 3))),
        (row(11, "c", 7), row(12, "a", 13), row(13, "c", -5)),
    ),
    (
        (row(14, "b", 7), row(15, "c", 7), row(16, "d", 23)),
        (row(17, "a", 17), row(18, "d", 29), *(row(19, f"many {n}", 100 - n) for n in range(40))),
    ),
)


def _distinct(spark: Any, base: Path) -> Any:
    return rows_of_input(spark, base).select("k", "v").dropDuplicates(["k", "v"])


def _totals(spark: Any, base: Path, key: str) -> Any:
    from pyspark.sql import functions as fn

    totals = (fn.count("*").alias("n"), fn.sum("v").alias("s"), fn.max("v").alias("m"))
    rows = rows_of_input(spark, base)
    return rows.groupBy("k").agg(*totals) if key else rows.agg(*totals).selectExpr("'all' AS k", "n", "s", "m")


def queries(_provider: str) -> tuple[str, ...]:
    """The queries that live with a state store: all of them with each."""
    return tuple(PLANS)


PLANS: dict[str, Callable[[Any, Path], Any]] = {
    "distinct": _distinct,
    "summed": lambda spark, base: _totals(spark, base, "k"),
    "counted": lambda spark, base: _totals(spark, base, ""),
}
SETTINGS = {"spark.sql.ansi.enabled": "false"}
"""As ``shared_story`` has it."""
STATES = {"distinct": "deduplicate", "summed": "aggregate unwindowed", "counted": "aggregate unwindowed"}
"""As ``spark_story`` has them."""


def check(rows_of: Callable[[str], list[tuple[Any, ...]]], lived: tuple[str, ...], chapters: int) -> None:
    """See that after a stop over this many chapters every row counts once.

    A batch without input may repeat the total of all keys: it is compared without repetitions.
    """
    batches = [rows for chapter in CHAPTERS[:chapters] for rows in chapter]
    once = sorted({(entry["k"], entry["v"]) for rows in batches for entry in rows}, key=repr)
    assert rows_of("distinct") == once, ("distinct", rows_of("distinct"), once)
    for name, key in (("summed", "k"), ("counted", "")):
        found, wanted = sorted(set(rows_of(name)), key=repr), _updates(batches, key)
        assert found == wanted, (name, found, wanted)
    assert set(lived) == set(PLANS)


def _updates(batches: list[tuple[dict[str, object], ...]], by: str) -> list[tuple[Any, ...]]:
    """What update mode tells: after each batch the totals of its keys."""
    values: dict[str, list[int]] = defaultdict(list)
    told = set()
    for rows in batches:
        keys = [str(entry["k"]) if by else "all" for entry in rows]
        for key, entry in zip(keys, rows, strict=True):
            values[key].append(int(str(entry["v"])))
        told |= {(key, len(values[key]), sum(values[key]), max(values[key])) for key in keys}
    return sorted(told, key=repr)
