"""One drain over every kind of state: no rows left, or named with the reason; rows out as a batch computes them."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

from airflow_streamstate.driver.shutdown.flush import NOT_FIRED
from airflow_streamstate.protocol.events import Drained
from support.drivers import WINDOWED_COUNTS, Deployments, seconds_of, wait_until
from support.progress import files_read

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]
PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SCRIPT = (
    WINDOWED_COUNTS.replace("import sys\n", "import sys\nimport pandas as pd\n", 1)
    + """
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.stateful_processor import TTLConfig

other = spark.readStream.schema("t timestamp, k string, v int").option("maxFilesPerTrigger", 1).json(base + "/other")
late = rows.withWatermark("t", "10 seconds")
small = late.groupBy(F.window("t", "10 seconds"), "k").agg(F.sum("v").alias("s"))
chained = (small.groupBy(F.window(F.window_time("window"), "1 minute"), "k")
    .agg(F.count("*").alias("n"), F.sum("s").alias("s")).select("k", "n", "s"))
sessions = (late.groupBy(F.session_window("t", "5 seconds"), "k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))
    .select("k", "n", "s"))
left = late.selectExpr("t", "k", "v")
right = other.withWatermark("t", "10 seconds").selectExpr("t as u", "k as j", "v as w")
joined = left.join(right, F.expr("k = j and u between t and t + interval 5 seconds"), "leftOuter").select("k", "v", "w")
union = rows.union(other).withWatermark("t", "1 minute").dropDuplicatesWithinWatermark(["v"]).select("k", "v")
summed = (rows.union(other).withWatermark("t", "10 seconds").groupBy(F.window("t", "1 minute"))
    .agg(F.count("*").alias("n"), F.sum("v").alias("s")).select("n", "s"))

def forget(key, frames, state):
    if state.hasTimedOut:
        n = state.get[0]
        state.remove()
        yield pd.DataFrame({"k": [key[0]], "s": [n]})
        return
    s = state.get[0] if state.exists else 0
    for frame in frames:
        s += int(frame.v.sum())
        newest = int(frame.t.max().timestamp() * 1000)
    state.update((s,))
    state.setTimeoutTimestamp(max(newest, state.getCurrentWatermarkMs()) + 60_000)

silent = late.groupBy("k").applyInPandasWithState(forget, "k string, s long", "s long", "append", "EventTimeTimeout")

class Seen(StatefulProcessor):
    '''Remembers each key for a month, and tells it once.'''
    def init(self, handle):
        self.seen = handle.getValueState("seen", "n int", 2_592_000_000)
    def handleInputRows(self, key, rows, timerValues):
        count = len(list(rows))
        if not self.seen.exists():
            yield Row(k=key[0])
        self.seen.update((count,))
    def close(self):
        pass

seen = rows.groupBy("k").transformWithState(
    Seen(), outputStructType="k string", outputMode="append", timeMode="processingTime"
)
for name, frame in {"chained": chained, "sessions": sessions, "joined": joined, "union": union, "summed": summed,
                    "silent": silent, "seen": seen}.items():
    frame.writeStream.queryName(name).format("json").start(f"{base}/{name}")
spark.streams.awaitAnyTermination()
"""
).replace("from pyspark.sql.streaming.stateful_processor import TTLConfig\n", "")

ROWS = (
    (0, 1, "a", 1), (0, 3, "a", 2), (0, 12, "b", 3), (0, 14, "a", 4), (0, 31, "a", 5), (0, 33, "b", 6), (0, 59, "b", 7),
    (1, 1, "a", 8), (1, 2, "c", 9),
)  # fmt: skip
OTHER = ((0, 4, "a", 102), (0, 15, "b", 103), (0, 36, "b", 6), (1, 3, "x", 109))


def at(minute: int, second: int) -> float:
    return datetime.fromisoformat(seconds_of(minute, second)).timestamp()


def wanted() -> dict[str, Counter[tuple[object, ...]]]:
    """What each query has to write, computed over all rows at once."""
    minutes: dict[tuple[float, str], list[tuple[float, int]]] = {}
    for minute, second, key, value in ROWS:
        minutes.setdefault((at(minute, second) // 60, key), []).append((at(minute, second), value))
    chained = Counter(
        (key, len({moment // 10 for moment, _ in rows}), sum(value for _, value in rows))
        for (_, key), rows in minutes.items()
    )
    sessions: Counter[tuple[object, ...]] = Counter()
    for key in "abc":
        moments = sorted((at(minute, second), value) for minute, second, name, value in ROWS if name == key)
        group: list[tuple[float, int]] = []
        for one in moments:
            if group and one[0] >= group[-1][0] + 5:
                sessions[key, len(group), sum(value for _, value in group)] += 1
                group = []
            group.append(one)
        sessions[key, len(group), sum(value for _, value in group)] += 1
    joined: Counter[tuple[object, ...]] = Counter()
    for minute, second, key, value in ROWS:
        met = [w for m, s, j, w in OTHER if j == key and 0 <= at(m, s) - at(minute, second) <= 5]
        joined.update((key, value, w) for w in met or [None])
    both = [*ROWS, *OTHER]
    union = Counter({value for _, _, _, value in both})
    per_minute: dict[float, list[int]] = {}
    for minute, second, _, value in both:
        per_minute.setdefault(at(minute, second) // 60, []).append(value)
    return {
        "chained": chained,
        "sessions": sessions,
        "joined": joined,
        "union": Counter((value,) for value in union),
        "summed": Counter((len(values), sum(values)) for values in per_minute.values()),
        "silent": Counter((key, sum(row[3] for row in ROWS if row[2] == key)) for key in "abc"),
        "seen": Counter((key,) for key in "abc"),
    }


COLUMNS = {
    "chained": ("k", "n", "s"), "sessions": ("k", "n", "s"), "joined": ("k", "v", "w"), "union": ("v",),
    "summed": ("n", "s"), "silent": ("k", "s"), "seen": ("k",),
}  # fmt: skip


def test_every_stage_and_every_source_is_drained(tmp_path: Path) -> None:
    """Chained aggregations, sessions, an outer join and unions of two sources, deduplication, a timeout of event time:
    zero rows. What has a time to live is left, and named (1a.5, Law 16)."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "1.json").write_text(
        "".join(json.dumps({"t": seconds_of(m, s), "k": k, "v": v}) + "\n" for m, s, k, v in OTHER)
    )
    with Deployments(tmp_path) as stream:
        stream.feed(*({"t": seconds_of(m, s), "k": k, "v": v} for m, s, k, v in ROWS))
        driver = stream.deploy(SCRIPT, str(tmp_path), conf={"spark.sql.streaming.stateStore.providerClass": PROVIDER})
        for name in COLUMNS:
            folder = stream.checkpoint_folder(name)
            wait_until(lambda folder=folder: files_read(folder) == 1, lambda: driver.log, 120)  # type: ignore[misc]
        stream.drain(allow_state_loss=True)
        assert driver.exit_status(240) == 0, driver.log
        queries = stream.events(Drained)[0].queries
        left = {name: query.state_rows_left for name, query in queries.items() if query.state_rows_left}
        assert left == {"seen": 3}
        assert {each.reason for each in queries["seen"].state_left} == {NOT_FIRED}
        for name, expected in wanted().items():
            found = Counter(tuple(row.get(column) for column in COLUMNS[name]) for row in stream.output(name))
            assert found == expected, (name, found, expected)
