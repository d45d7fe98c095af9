"""A story of the operators that every Spark from 3.5 on has, over the input of ``spark_story``.

Its inner join is one that Spark 3.5 refuses to continue over an empty batch, and that no Spark 4 continues as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from support import spark_story
from support.spark_story import CHAPTERS, rows_of_input

FIELDS = {
    **{name: spark_story.FIELDS[name] for name in ("windowed", "deduplicated", "joined")},
    "met": "kvw",
    "sessions": "kns",
    "totals": "kns",
}


def _met(spark: Any, base: Path) -> Any:
    left = rows_of_input(spark, base).where("v in (13, 31)").withWatermark("t", "10 seconds").selectExpr("t", "k", "v")
    right = rows_of_input(spark, base).where("v in (19, 37)").withWatermark("t", "10 seconds")
    right = right.selectExpr("t as u", "k as j", "v as w")
    near = (right.u >= left.t) & (right.u <= left.t + spark_story.seconds(20))
    return left.join(right, (left.k == right.j) & near).select("k", "v", "w")


def _sessions(spark: Any, base: Path) -> Any:
    from pyspark.sql import functions as fn

    rows = rows_of_input(spark, base).withWatermark("t", "10 seconds")
    grouped = rows.groupBy(fn.session_window("t", "5 seconds"), "k")
    return grouped.agg(fn.count("*").alias("n"), fn.sum("v").alias("s")).select("k", "n", "s")


def _totals(spark: Any, base: Path) -> Any:
    rows = rows_of_input(spark, base).withWatermark("t", "10 seconds")
    return rows.groupBy("k").applyInPandasWithState(
        _total, "k string, n long, s long", "n long, s long", "append", "EventTimeTimeout"
    )


def _total(key: Any, frames: Iterator[Any], state: Any) -> Iterator[Any]:
    """The rows of a key and their sum, once it has been silent for twenty seconds."""
    import pandas

    count, total = state.get if state.exists else (0, 0)
    if state.hasTimedOut:
        state.remove()
        yield pandas.DataFrame({"k": [key[0]], "n": [count], "s": [total]})
        return
    last_ms = 0
    for frame in frames:
        count, total = count + len(frame), total + int(frame["v"].sum())
        last_ms = max(last_ms, *(int(moment.timestamp() * 1000) for moment in frame["t"]))
    state.update((count, total))
    state.setTimeoutTimestamp(max(last_ms + 20_000, state.getCurrentWatermarkMs() + 1))


def queries(_provider: str) -> tuple[str, ...]:
    """The queries that live with a state store: all of them with each."""
    return tuple(PLANS)


PLANS: dict[str, Callable[[Any, Path], Any]] = {
    **{name: spark_story.PLANS[name] for name in ("windowed", "deduplicated", "joined")},
    "met": _met,
    "sessions": _sessions,
    "totals": _totals,
}
SETTINGS = {"spark.sql.ansi.enabled": "false"}
"""The default of Spark 3.5: a move to another Spark changes nothing else."""
STATES = {
    **{name: spark_story.STATES[name] for name in ("windowed", "deduplicated", "joined")},
    "met": "stream_join Inner",
    "sessions": "session_window",
    "totals": "apply_in_pandas_with_state EventTimeTimeout",
}
"""As ``spark_story`` has them."""


def check(rows_of: Callable[[str], list[tuple[Any, ...]]], lived: tuple[str, ...], chapters: int) -> None:
    """As ``spark_story.check``; of sessions and totals, what they hold together."""
    spark_story.check(rows_of, ("windowed", "deduplicated", "joined"), chapters)
    assert rows_of("met") == [("a", 13, 19)], ("met", rows_of("met"))
    fed = [entry for chapter in CHAPTERS[:chapters] for rows in chapter for entry in rows]
    wanted = _sums((str(entry["k"]), 1, int(str(entry["v"]))) for entry in fed)
    for name in ("sessions", "totals"):
        assert _sums(rows_of(name)) == wanted, (name, rows_of(name), wanted)
    assert set(lived) == set(PLANS)


def _sums(rows: Any) -> Counter[str]:
    found: Counter[str] = Counter()
    for key, count, total in rows:
        found[f"{key} rows"] += count
        found[f"{key} sum"] += total
    return found
