"""More state of ``transformWithState``: maps, time to live, processing-time timers. Used as ``spark_story``.

Two queries read it: ``mapped`` has a map and timers of event time; ``ticking`` has timers of the wall clock, a map and
a value that live for a month, and a map and a value that live for a second.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from support.spark_story import row, rows_of_input

FIELDS = {"mapped": ("k", "what", "total", "text"), "ticking": ("k", "what", "total", "text")}
PAUSE_SECONDS = 2.0
"""Before each chapter: what lives for a second is gone by then."""
MONTH_MS = 30 * 24 * 3600 * 1000
SOON_MS = 5_000
FAR = 1_000
"""A key whose batch has a value that high gets a timer a month away; the others one that rings soon."""

# Three chapters, each two files, of which each is one batch. By the wall clock: ``far`` and ``many`` have timers in the
# second chapter that were set a month ahead in the first; ``near`` rings about when the stream goes from one deployment
# to the next; ``gone`` loses its map and its timer in the first and must not have them in the second.
CHAPTERS: tuple[tuple[tuple[dict[str, object], ...], ...], ...] = (
    (
        (row(1, "far", 1001), row(1, "gone", 1007), row(2, "many", 1101), row(2, "many", 1102)),
        (row(3, "near", 5), row(4, "gone", 0), row(5, "many", 1101)),
    ),
    (
        (row(50, "far", 2), row(51, "gone", 17), row(52, "many", 103)),
        (row(90, "late", 29),),
    ),
    (
        (row(200, "far", 31),),
        (row(201, "late", 37),),
    ),
)
_REMOVED = ("gone", "rows", 0, "")


def queries(provider: str) -> tuple[str, ...]:
    """The queries that live with a state store."""
    return ("mapped", "ticking") if provider == "rocksdb" else ()


def _plan(spark: Any, base: Path, ticks: bool) -> Any:
    rows = rows_of_input(spark, base)
    return (
        (rows if ticks else rows.withWatermark("t", "10 seconds"))
        .groupBy("k")
        .transformWithStateInPandas(
            statefulProcessor=_processor(ticks),
            outputStructType="k string, what string, total long, text string",
            outputMode="append",
            timeMode="processingTime" if ticks else "eventTime",
        )
    )


def _processor(ticks: bool) -> Any:  # noqa: C901 - a whole class, whose base is pyspark's
    """Totals and a map of the values of each key: 0 removes them, and a timer reports and removes them."""
    import pandas
    from pyspark.sql.streaming import StatefulProcessor

    far, soon, month = FAR, SOON_MS, MONTH_MS if ticks else None

    class Maps(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.total = handle.getValueState("total", "total long", month)
            self.seen = handle.getMapState("seen", "v long", "n long", month)
            if ticks:
                self.brief = handle.getValueState("brief", "b long", 1_000)
                self.passing = handle.getMapState("passing", "v long", "n long", 1_000)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N803
            total = int(self.total.get()[0]) if self.total.exists() else 0
            last_ms, values = 0, []
            for frame in rows:
                values += [int(value) for value in frame["v"]]
                last_ms = max(last_ms, *(int(moment.timestamp() * 1000) for moment in frame["t"]))
            timers = [int(timer) for timer in self.handle.listTimers()]
            for timer in timers:
                self.handle.deleteTimer(timer)
            if 0 in values:
                self.forget()
                yield self.told(key, "rows", 0, "")
                return
            for value in values:
                seen = int(self.seen.getValue((value,))[0]) if self.seen.containsKey((value,)) else 0
                self.seen.updateValue((value,), (seen + 1,))
            self.total.update((total + sum(values),))
            text = f"timers {len(timers)}"
            if ticks:
                # Of what was set in an earlier chapter nothing is left; a batch of the same one may still see it.
                text += f", brief {self.brief.exists() or self.passing.exists()}" if max(values) < far else ""
                self.brief.update((1,))
                self.passing.updateValue((1,), (1,))
                now_ms = timerValues.getCurrentProcessingTimeInMs()
                self.handle.registerTimer(now_ms + (MONTH_MS if max(values) >= far else soon))
            else:
                self.handle.registerTimer(last_ms + 60_000)
            yield self.told(key, "rows", total + sum(values), text)

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N803
            seen = sorted((int(value[0]), int(count[0])) for value, count in self.seen.iterator())
            total = int(self.total.get()[0])
            self.forget()
            yield self.told(key, "rang", total, str(seen))

        def forget(self) -> None:
            self.total.clear()
            self.seen.clear()
            if ticks:
                self.brief.clear()
                self.passing.clear()

        def told(self, key: Any, what: str, total: int, text: str) -> Any:
            return pandas.DataFrame({"k": [key[0]], "what": [what], "total": [total], "text": [text]})

        def close(self) -> None:
            pass

    return Maps()


PLANS: dict[str, Callable[[Any, Path], Any]] = {
    "mapped": lambda spark, base: _plan(spark, base, False),
    "ticking": lambda spark, base: _plan(spark, base, True),
}
SETTINGS: dict[str, str] = {}
STATES = {
    "mapped": "transform_with_state EventTime map value",
    "ticking": "transform_with_state ProcessingTime map ttl value",
}
"""As ``spark_story`` has them."""


def is_settled(rows_of: Callable[[str], list[tuple[Any, ...]]], chapters: int) -> bool:
    """Whether every timer of the wall clock has rung that will: those of the first chapter are not waited for."""
    wanted = Counter(told for told in _wanted("ticking", chapters) if told[1] == "rang")
    return chapters == 1 or not wanted - Counter(rows_of("ticking"))


def check(rows_of: Callable[[str], list[tuple[Any, ...]]], lived: tuple[str, ...], chapters: int) -> None:
    """See that after a drain over this many chapters every row came out once, as it must."""
    for name in lived:
        found, wanted = rows_of(name), sorted(_wanted(name, chapters), key=repr)
        assert found == wanted, (name, found, wanted)


def _wanted(name: str, chapters: int) -> list[tuple[Any, ...]]:
    ticks = name == "ticking"
    told: list[tuple[Any, ...]] = []
    totals: dict[str, int] = defaultdict(int)
    seen: dict[str, Counter[int]] = defaultdict(Counter)
    for number, chapter in enumerate(CHAPTERS[:chapters]):
        for rows in chapter:
            batch: dict[str, list[int]] = defaultdict(list)
            for entry in rows:
                batch[str(entry["k"])].append(int(str(entry["v"])))
            for key, values in batch.items():
                if 0 in values:
                    del totals[key], seen[key]
                    told.append(_REMOVED)
                    continue
                timers = int(key in totals)
                totals[key] += sum(values)
                seen[key].update(values)
                brief = ", brief False" if ticks and max(values) < FAR else ""
                told.append((key, "rows", totals[key], f"timers {timers}{brief}"))
                if ticks and key == "near":
                    told.append(_rang(key, totals, seen))
        if number >= 1:  # drained, which rings what event time has; or waited for
            told += [_rang(key, totals, seen) for key in list(totals)]
    return told


def _rang(key: str, totals: dict[str, int], seen: dict[str, Counter[int]]) -> tuple[Any, ...]:
    return key, "rang", totals.pop(key), str(sorted(seen.pop(key).items()))
