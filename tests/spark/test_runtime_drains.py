"""Drains on real Spark: several queries, state that cannot be flushed, and a flush that dies or fails (1a.5)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_streamstate.protocol.events import (
    Drained,
    DrainFailed,
    Draining,
    QueryStarted,
    Rejected,
    SnapshotReady,
    Stopped,
)
from support.drivers import WINDOWED_COUNTS, Deployments, seconds_of, wait_until
from support.progress import files_read

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

SEVERAL = (
    WINDOWED_COUNTS
    + """
import json, time
def keep(batch, batch_id):
    rows = [row.asDict() for row in batch.select("k", "n", "s").collect()]
    with open(f"{base}/kept-{batch_id}.json", "w") as target:
        json.dump(rows, target)
counts.writeStream.queryName("files").format("json").start(base + "/out")
counts.writeStream.queryName("kept").foreachBatch(keep).start()
counts.writeStream.queryName("table").format("json").toTable("landed", path=base + "/table")
rows.groupBy("k").count().writeStream.queryName("totals").outputMode("update").format("noop").start()
spark.streams.awaitAnyTermination()
print("sums", sorted(tuple(row) for row in spark.table("landed").select("k", "n", "s").collect()))
"""
)


def test_several_queries_are_flushed_and_what_cannot_be_is_named(tmp_path: Path) -> None:
    """Files, foreachBatch, a table: whole. A total without a watermark keeps its rows, and is named (Law 16): tried on
    a fork before anything is stopped, so that the drain is rejected and all continues, and then done by name."""
    with Deployments(tmp_path) as stream:
        stream.feed({"t": seconds_of(0, 1), "k": "a", "v": 1}, {"t": seconds_of(0, 2), "k": "b", "v": 2})
        stream.feed({"t": seconds_of(0, 3), "k": "a", "v": 3})
        driver = stream.deploy(SEVERAL, str(tmp_path), conf={"spark.sql.warehouse.dir": str(tmp_path / "warehouse")})
        for query in ("files", "kept", "table", "totals"):
            stream.wait_committed(query, 1, driver)
        stream.drain(rehearse=True)
        rejected = stream.wait_event(Rejected, driver)
        assert rejected.reason.startswith("query totals: a flush would leave state")
        assert "2 rows of stateStoreSave: " in rejected.reason
        kept = {int(path.stem.partition("-")[2]) for path in tmp_path.glob("kept-*.json")}
        assert kept <= {*stream.committed("kept"), max(stream.committed("kept")) + 1}  # no batch of a trial
        assert [path for path in tmp_path.glob("**/trials/**/*") if path.is_file()] == []
        before = {query: max(stream.committed(query)) for query in ("files", "kept", "table", "totals")}
        stream.feed({"t": seconds_of(0, 4), "k": "b", "v": 4})
        for query, last in before.items():
            stream.wait_committed(query, last + 1, driver)
        stream.drain(rehearse=True, allow_state_loss=True)
        assert driver.exit_status() == 0, driver.log
        assert "Traceback" not in driver.log, driver.log
        drained = stream.events(Drained)[0]
        assert {name: query.state_rows_left for name, query in drained.queries.items()} == {
            "files": 0, "kept": 0, "table": 0, "totals": 2,
        }  # fmt: skip
        left = drained.queries["totals"].state_left
        assert [(state.operator, state.rows) for state in left] == [("stateStoreSave", 2)]
        assert drained.queries["files"].rows_written_early == 2
        expected = [("a", 2, 4), ("b", 2, 6)]
        assert sorted((row["k"], row["n"], row["s"]) for row in stream.output()) == expected
        flushed = drained.queries["kept"].batch_id
        kept = json.loads((tmp_path / f"kept-{flushed}.json").read_text())
        assert sorted((row["k"], row["n"], row["s"]) for row in kept) == expected
        assert f"sums {expected}" in driver.log
        assert stream.events(Draining)[0].flush_batch_ids.keys() >= {"files", "kept", "table"}


FRAGILE = (
    WINDOWED_COUNTS
    + """
import os, time
@F.udf("long")
def checked(n):
    if os.path.exists(base + "/bad"):
        raise ValueError("the shelf is full")
    open(base + "/inside", "a").close()
    while os.path.exists(base + "/hold"):
        time.sleep(0.05)
    return n
query = counts.withColumn("n", checked("n")).writeStream.queryName("counts").format("json").start(base + "/out")
query.awaitTermination()
"""
)


@pytest.mark.named
def test_a_flush_that_fails_dies_and_is_done_at_last(tmp_path: Path) -> None:
    """Tried first: refused, and it runs on. Failed: withdrawn, stopped with its state. Ordered before a start: nothing
    is read. Killed: done by the next."""
    with Deployments(tmp_path) as stream:
        stream.feed({"t": seconds_of(0, 1), "k": "a", "v": 1}, {"t": seconds_of(0, 2), "k": "b", "v": 2})
        first = stream.deploy(FRAGILE, str(tmp_path))
        stream.wait_committed("counts", 0, first)
        (tmp_path / "bad").touch()
        stream.drain(rehearse=True)
        refused = stream.wait_event(Rejected, first)
        assert "query counts: its flush fails" in refused.reason
        assert "the shelf is full" in refused.reason
        stream.feed({"t": seconds_of(0, 3), "k": "b", "v": 2})
        counts = stream.checkpoint_folder("counts")
        wait_until(lambda: files_read(counts) == 2, lambda: first.log, 60)
        stream.drain()
        assert first.exit_status() is not None
        failed = stream.events(DrainFailed)[0]
        assert "the shelf is full" in failed.error
        assert failed.withdrawn
        stopped = stream.events(Stopped)[0]
        assert stopped.queries["counts"].batch_id == max(stream.committed("counts"))
        assert stream.output() == []
        (tmp_path / "bad").unlink()

        (tmp_path / "inside").unlink(missing_ok=True)
        (tmp_path / "hold").touch()
        stream.feed({"t": seconds_of(0, 9), "k": "unread", "v": 1})
        second = stream.resume(to_drain=True)
        wait_until(lambda: (tmp_path / "inside").exists(), lambda: second.log, 90)
        second.kill()
        (tmp_path / "hold").unlink()
        third = stream.resume(to_drain=True)
        assert third.exit_status() == 0, third.log
        drained = stream.events(Drained)[0]
        assert drained.queries["counts"].state_rows_left == 0
        assert sorted((row["k"], row["n"], row["s"]) for row in stream.output()) == [("a", 1, 1), ("b", 2, 4)]
        fourth = stream.resume(to_drain=True)
        assert fourth.exit_status() == 0, fourth.log
        assert len(stream.events(QueryStarted)) <= 3
        assert sorted((row["k"], row["n"], row["s"]) for row in stream.output()) == [("a", 1, 1), ("b", 2, 4)]


REMEMBERED = (
    WINDOWED_COUNTS
    + """
query = counts.writeStream.queryName("counts").format("memory").start()
query.awaitTermination()
"""
)


def test_what_is_known_not_to_flush_is_refused_before_the_barrier(tmp_path: Path) -> None:
    """The job runs on; a snapshot and a stop still work."""
    with Deployments(tmp_path) as stream:
        stream.feed({"t": seconds_of(0, 1), "k": "a", "v": 1})
        driver = stream.deploy(REMEMBERED, str(tmp_path))
        stream.wait_committed("counts", 0, driver)
        stream.drain()
        assert "memory sink" in stream.wait_event(Rejected, driver).reason
        stream.feed({"t": seconds_of(0, 5), "k": "a", "v": 1})
        stream.wait_committed("counts", 1, driver)
        stream.snapshot()
        assert stream.wait_event(SnapshotReady, driver).queries["counts"].batch_id == 1
        stream.stop()
        assert driver.exit_status() == 0, driver.log
        assert stream.events(Stopped)


ODD = (
    WINDOWED_COUNTS
    + """
import json, time
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StreamingQueryListener

heard = []
class Listener(StreamingQueryListener):
    def onQueryStarted(self, event):
        heard.append((event.name, sorted(str(q.name) for q in spark.streams.active)))
    def onQueryProgress(self, event):
        pass
    def onQueryIdle(self, event):
        pass
    def onQueryTerminated(self, event):
        pass

class Totals(StatefulProcessor):
    '''Adds up what a key brings, and tells it once the watermark has passed its last row.'''
    def init(self, handle):
        self.handle = handle
        self.total = handle.getValueState("total", "n int")
    def handleInputRows(self, key, rows, timerValues):
        known = self.total.get() if self.total.exists() else (0,)
        newest, n = 0, known[0]
        for row in rows:
            n += row.v
            newest = max(newest, int(row.t.timestamp() * 1000))
        self.total.update((n,))
        self.handle.registerTimer(newest + 5000)
        return iter(())
    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        if self.total.exists():
            n = self.total.get()[0]
            self.total.clear()
            yield Row(k=key[0], n=n)
    def close(self):
        pass

spark.streams.addListener(Listener())
late = rows.withWatermark("t", "10 seconds")
timed = late.groupBy("k").transformWithState(
    Totals(), outputStructType="k string, n int", outputMode="append", timeMode="eventTime"
)
timed.writeStream.queryName("timed").format("json").start(base + "/timed")
hourly = counts.writeStream.queryName("hourly").format("json").trigger(processingTime="1 hour").start(base + "/out")
nothing = spark.newSession().readStream.schema("a int").json(base + "/nothing")
silent = nothing.writeStream.queryName("silent").format("noop").start()
assert [q.name for q in nothing.sparkSession.streams.active] == ["silent"]
while hourly.isActive:
    time.sleep(0.1)
again = counts.writeStream.queryName("too late").format("json").start(base + "/late")
print("too late:", again.isActive, again.awaitTermination(), again.lastProgress, again.status["message"])
print("heard", sorted({name for name, _ in heard}))
spark.stop()
"""
)


def test_timers_sleepers_and_those_that_never_began_are_drained_too(tmp_path: Path) -> None:
    """Event-time timers fire, a query asleep until its next trigger is flushed at once, a late start reads nothing."""
    (tmp_path / "nothing").mkdir()
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    with Deployments(tmp_path) as stream:
        stream.feed({"t": seconds_of(0, 1), "k": "a", "v": 1}, {"t": seconds_of(0, 2), "k": "b", "v": 2})
        stream.feed({"t": seconds_of(0, 3), "k": "a", "v": 3})
        driver = stream.deploy(ODD, str(tmp_path), conf={"spark.sql.streaming.stateStore.providerClass": provider})
        stream.wait_committed("timed", 1, driver)
        stream.wait_committed("hourly", 0, driver)
        wait_until(lambda: len(stream.events(QueryStarted)) == 3, lambda: driver.log, 60)
        stream.drain()
        assert driver.exit_status() == 0, driver.log
        assert "Traceback" not in driver.log, driver.log
        drained = stream.events(Drained)[0]
        assert drained.queries["silent"].batch_id is None
        assert (drained.queries["timed"].state_rows_left, drained.queries["hourly"].state_rows_left) == (0, 0)
        assert sorted((row["k"], row["n"]) for row in stream.output("timed")) == [("a", 4), ("b", 2)]
        assert sorted((row["k"], row["n"], row["s"]) for row in stream.output()) == [("a", 1, 1), ("b", 1, 2)]
        assert "too late: False None None Stopped" in driver.log
        assert not (tmp_path / "late").exists()
        assert "heard ['hourly', 'timed']" in driver.log  # a listener hears its own session
