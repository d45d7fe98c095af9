"""An input, the queries that read it, and their expected output, for lives on every Spark.

Each query leans on its state from one chapter to the next: windows, rows seen before, rows that wait for another half,
totals, lists and timers of ``transformWithState``.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PAUSE_SECONDS = 0.0
"""Before each chapter."""
LONG_AGO = 1_700_000_000
UPDATED: tuple[str, ...] = ()
"""Queries in update mode, whose rows come by ``foreachBatch``; a file sink takes those of the others."""
DRAINS = True
"""Whether a drain leaves no state; without it the lives end with stops."""
FIELDS = {"windowed": "kns", "deduplicated": "kv", "joined": "kvw", "timed": ("k", "what", "total")}


def stamp(second: int) -> str:
    """An event time."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(LONG_AGO + second))


def row(second: int, key: str, value: int) -> dict[str, object]:
    """One row of the input."""
    return {"t": stamp(second), "k": key, "v": value}


# Three chapters of one story, each two files, of which each is one batch. ``gone`` loses its total in the first chapter
# and must not have it in the second; ``wait`` is set in the first, and rings in the second; 7 is repeated after a
# restore; what is joined meets its other half there. The list of ``many`` grows in every batch, by several.
CHAPTERS: tuple[tuple[tuple[dict[str, object], ...], ...], ...] = (
    (
        (row(1, "a", 1), row(2, "gone", 5), row(3, "b", 7), *(row(6, "many", 100 + n) for n in range(1, 6))),
        (row(4, "gone", 0), row(5, "wait", 11), row(41, "a", 13), row(42, "many", 106), row(42, "many", 107)),
    ),
    (
        (row(43, "gone", 17), row(44, "a", 19), row(45, "a", 7), row(46, "many", 108), row(46, "many", 109)),
        (row(81, "b", 23), row(82, "late", 29)),
    ),
    (
        (row(91, "a", 31), row(92, "c", 37)),
        (row(141, "c", 41),),
    ),
)


def rows_of_input(spark: Any, base: Path) -> Any:
    """The stream of what was fed, a file per batch."""
    reader = spark.readStream.schema("t timestamp, k string, v long").option("maxFilesPerTrigger", 1)
    return reader.json(str(base / "in"))


def _windowed(spark: Any, base: Path) -> Any:
    from pyspark.sql import functions as fn

    rows = rows_of_input(spark, base).withWatermark("t", "10 seconds")
    counts = rows.groupBy(fn.window("t", "10 seconds"), "k").agg(fn.count("*").alias("n"), fn.sum("v").alias("s"))
    return counts.select("k", "n", "s")


def _deduplicated(spark: Any, base: Path) -> Any:
    return (
        rows_of_input(spark, base).withWatermark("t", "2 minutes").dropDuplicatesWithinWatermark(["v"]).select("k", "v")
    )


def _joined(spark: Any, base: Path) -> Any:
    left = rows_of_input(spark, base).where("v in (13, 31)").withWatermark("t", "10 seconds").selectExpr("t", "k", "v")
    right = rows_of_input(spark, base).where("v in (19, 37)").withWatermark("t", "10 seconds")
    right = right.selectExpr("t as u", "k as j", "v as w")
    met = (left.k == right.j) & (right.u >= left.t) & (right.u <= left.t.cast("timestamp") + seconds(20))
    return left.join(right, met, "leftOuter").select("k", "v", "w")


def seconds(count: int) -> Any:
    """An interval, for an event time."""
    from pyspark.sql import functions as fn

    return fn.expr(f"interval {count} seconds")


def _timed(spark: Any, base: Path) -> Any:
    rows = rows_of_input(spark, base).withWatermark("t", "10 seconds")
    return rows.groupBy("k").transformWithStateInPandas(
        statefulProcessor=_timer_processor(),
        outputStructType="k string, what string, total long",
        outputMode="append",
        timeMode="eventTime",
    )


def _timer_processor() -> Any:  # noqa: C901 - a whole class, whose base is pyspark's
    """Totals per key: 0 removes them, and each key that has one rings a minute after its last row, for an hour."""
    import pandas
    from pyspark.sql.streaming import StatefulProcessor

    class Totals(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.total = handle.getValueState("total", "total long")
            self.seen = handle.getListState("seen", "v long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N803
            total = int(self.total.get()[0]) if self.total.exists() else 0
            last_ms = 0
            for frame in rows:
                for moment, value in zip(frame["t"], frame["v"], strict=True):
                    last_ms = max(last_ms, int(moment.timestamp() * 1000))
                    total = self._count(total, int(value))
            for timer in list(self.handle.listTimers()):
                self.handle.deleteTimer(timer)
            if total == 0:
                self.total.clear()
            else:
                self.total.update((total,))
                self.handle.registerTimer(last_ms + 60_000)
            yield pandas.DataFrame({"k": [key[0]], "what": ["rows"], "total": [total]})

        def _count(self, total: int, value: int) -> int:
            if value == 0:
                self.seen.clear()
                return 0
            if self.seen.exists():
                self.seen.appendValue((value,))
            else:
                self.seen.put([(value,)])
            return total + value

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N803
            total, seen = int(self.total.get()[0]), [int(value[0]) for value in self.seen.get()]
            self.total.clear()
            self.seen.clear()
            facts = {"rang": total, "seen": len(seen), "their sum": sum(seen)}
            yield pandas.DataFrame({"k": [key[0]] * 3, "what": list(facts), "total": list(facts.values())})

        def close(self) -> None:
            pass

    return Totals()


def queries(provider: str) -> tuple[str, ...]:
    """The queries that live with a state store; ``transformWithState`` wants RocksDB."""
    return ("windowed", "deduplicated", "joined", *(("timed",) if provider == "rocksdb" else ()))


def is_settled(_rows_of: Callable[[str], list[tuple[Any, ...]]], _chapters: int) -> bool:
    """Whether all has arrived that the wall clock brings: nothing."""
    return True


PLANS: dict[str, Callable[[Any, Path], Any]] = {
    "windowed": _windowed,
    "deduplicated": _deduplicated,
    "joined": _joined,
    "timed": _timed,
}

SETTINGS: dict[str, str] = {}
"""Of the session, on every Spark."""
STATES = {
    "windowed": "aggregate window",
    "deduplicated": "deduplicate_within_watermark",
    "joined": "stream_join LeftOuter",
    "timed": "transform_with_state EventTime list value",
}
"""The state of each, as ``plan.comparison`` has it."""


def check(rows_of: Callable[[str], list[tuple[Any, ...]]], lived: tuple[str, ...], chapters: int) -> None:
    """See that after a drain over this many chapters every row came out once, as it must.

    Args:
        rows_of: what a query has written, sorted.
        chapters: 2: the first two with state between them, drained; 3: the third on fresh state, drained too.
    """
    fed = [entry for chapter in CHAPTERS[:chapters] for rows in chapter for entry in rows]
    totals: Counter[str] = Counter()
    for key, count, total in rows_of("windowed"):
        totals[f"{key} rows"] += count
        totals[f"{key} sum"] += total
    wanted: Counter[str] = Counter()
    for entry in fed:
        wanted[f"{entry['k']} rows"] += 1
        wanted[f"{entry['k']} sum"] += int(str(entry["v"]))
    assert totals == wanted, ("windowed", totals, wanted)
    once = sorted(({entry["v"]: (entry["k"], entry["v"]) for entry in reversed(fed)}).values(), key=repr)
    assert rows_of("deduplicated") == once, ("deduplicated", rows_of("deduplicated"), once)
    met: list[tuple[Any, ...]] = [("a", 13, 19)] + ([("a", 31, None)] if chapters == 3 else [])
    assert rows_of("joined") == sorted(met, key=repr), ("joined", rows_of("joined"), met)
    if "timed" in lived:
        told = [
            *(("a", "rows", total) for total in (1, 14, 40)),
            *(("b", "rows", total) for total in (7, 30)),
            *(("gone", "rows", total) for total in (5, 0, 17)),
            *(("many", "rows", total) for total in (515, 728, 945)),
            ("wait", "rows", 11),
            ("late", "rows", 29),
            *_rang("a", 40, 4),
            *_rang("b", 30, 2),
            *_rang("gone", 17, 1),
            *_rang("many", 945, 9),
            *_rang("wait", 11, 1),
            *_rang("late", 29, 1),
        ]
        if chapters == 3:
            told += [("a", "rows", 31), ("c", "rows", 37), ("c", "rows", 78), *_rang("a", 31, 1), *_rang("c", 78, 2)]
        assert rows_of("timed") == sorted(told, key=repr), ("timed", rows_of("timed"), sorted(told, key=repr))


def _rang(key: str, total: int, seen: int) -> tuple[tuple[str, str, int], ...]:
    return (key, "rang", total), (key, "seen", seen), (key, "their sum", total)
