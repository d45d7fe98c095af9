"""What scripts do, and may continue to do: every behaviour is the one without us, until a stop or a drain."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from airflow_streamstate.protocol.events import (
    Claimed,
    Drained,
    Failed,
    Fenced,
    Finished,
    Noted,
    QueryFailed,
    QueryStarted,
    Stopped,
)
from airflow_streamstate.protocol.records import StartPlan
from airflow_streamstate.protocol.settings import AgentSettings
from support.drivers import WINDOWED_COUNTS, Deployments, seconds_of, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

HEAD = """
import sys, threading, time
from pyspark.sql import SparkSession, functions as F
from pyspark.sql.streaming import StreamingQuery

base = sys.argv[1]
spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.schema("t timestamp, k string, v int").option("maxFilesPerTrigger", 1).json(base + "/in")

def until(is_so, seconds=180):
    end = time.time() + seconds
    while not is_so():
        assert time.time() < end, "waited too long"
        time.sleep(0.05)
"""

MANY_QUERIES = (
    HEAD
    + """
class Money:
    def __init__(self, cents):
        self.cents = cents

@F.udf("int")
def doubled(v):
    return Money(v).cents * 2

# named; foreachBatch with a UDF and a class of __main__
seen = []
def keep(batch, batch_id):
    seen.extend((batch_id, row.d) for row in batch.collect())
writer = rows.select(doubled("v").alias("d")).writeStream.queryName("kept").foreachBatch(keep)
kept = writer.start()
until(lambda: seen)
assert isinstance(kept, StreamingQuery) and kept.isActive and kept.exception() is None
assert kept.name == "kept" and spark.streams.get(kept.id).runId == kept.runId
assert kept.awaitTermination(0.2) is False
until(lambda: kept.lastProgress is not None)
assert kept.lastProgress.id and str(kept.lastProgress["id"]) == kept.id and kept.status["message"]
kept.processAllAvailable()
kept.explain()

# its own checkpointLocation, by a keyword of start in any case; a table; a path and a format as arguments
own = rows.writeStream.start(base + "/own", "json", "append", checkpointlocation=base + "/ck/own-place")
table = rows.writeStream.toTable("landed", queryName="table")
assert {q.name for q in spark.streams.active} == {"kept", None, "table"}, spark.streams.active
until(lambda: spark.table("landed").count() == 2)

# ends by itself
once = rows.writeStream.queryName("once").format("json").trigger(availableNow=True).start(base + "/once")
assert spark.streams.awaitAnyTermination(60) is True
assert once.awaitTermination() is None and not once.isActive and once.exception() is None
spark.streams.resetTerminated()
assert spark.streams.awaitAnyTermination(0.3) is False

# stopped by the script, and started again
own.stop()
assert not own.isActive and own.awaitTermination(5) is True
spark.streams.awaitAnyTermination()
spark.streams.resetTerminated()
started_in_thread = []
def start():
    writer = rows.writeStream.option("checkpointLocation", base + "/ck/own-place").format("json")
    started_in_thread.append(writer.start(base + "/own"))
thread = threading.Thread(target=start)
thread.start()
thread.join()
assert started_in_thread[0].isActive and started_in_thread[0].id == own.id

# refused by name, and the script can go on
for refused in ("continuous", "realTime"):
    try:
        rows.writeStream.queryName("refused").format("noop").trigger(**{refused: "1 second"}).start()
        raise SystemExit("was not refused")
    except Exception as error:
        print("refused:", type(error).__name__, error)
from pyspark.sql.connect.streaming.readwriter import DataStreamWriter as ConnectWriter
try:
    ConnectWriter.start(None)
    raise SystemExit("was not refused")
except Exception as error:
    print("refused:", type(error).__name__, error)
import os
assert not os.path.exists(base + "/ck")

print("everything is as without you", flush=True)
assert spark.streams.awaitAnyTermination() is None
assert spark.streams.active == [] and not kept.isActive and kept.awaitTermination(1) is True
print("kept", sorted(seen), [p["batchId"] for p in kept.recentProgress][-1] >= 0)
"""
)


def test_queries_of_every_kind_behave_as_without_us(tmp_path: Path) -> None:
    """Names, threads, foreachBatch, tables, UDFs of __main__, own stops and timeouts, then one stop for all (1a.11)."""
    with Deployments(tmp_path) as stream:
        stream.feed({"t": seconds_of(0, 1), "k": "a", "v": 21}, {"t": seconds_of(0, 2), "k": "a", "v": 4})
        driver = stream.deploy(
            MANY_QUERIES, str(tmp_path), conf={"spark.sql.warehouse.dir": str(tmp_path / "warehouse")}
        )
        wait_until(
            lambda: "as without you" in driver.log or driver.launcher.status(driver.handle).has_ended,
            lambda: driver.log,
            120,
        )
        assert "as without you" in driver.log, driver.log
        stream.stop()
        assert driver.exit_status() == 0, driver.log
        assert "kept [(0, 8), (0, 42)] True" in driver.log
        assert driver.log.count("refused: UnsupportedCheckpointError") == 2
        assert driver.log.count("refused: InvalidRequestError Spark Connect") or "Spark Connect is not" in driver.log
        assert "Traceback" not in driver.log, driver.log
        stopped = stream.events(Stopped)[0]
        assert set(stopped.queries) == {"kept", "own-place", "table", "once"}
        assert [event.how for event in stream.events(QueryStarted) if event.query_name == "own-place"] == [
            "fresh",
            "continued",
        ]


LOOPS = (
    HEAD
    + """
runs = []
def again_and_again():
    while True:
        query = rows.writeStream.queryName("again").format("json").trigger(availableNow=True).start(base + "/again")
        query.awaitTermination()
        runs.append(query.runId)
threading.Thread(target=again_and_again, daemon=True).start()
counts = rows.withWatermark("t", "10 seconds").groupBy(F.window("t", "10 seconds"), "k").count()
polled = counts.select("window.start", "k", "count").writeStream.queryName("polled").format("json").start(base + "/out")
until(lambda: len(set(runs)) >= 2)
print("looping", flush=True)
while polled.isActive:
    time.sleep(0.1)
before = len(runs)
print("no more active", polled.exception(), polled.lastProgress["batchId"], flush=True)
time.sleep(3)
print("rounds after the end:", len(runs) - before, flush=True)
while True:
    time.sleep(1)
"""
)


def test_loops_end_with_a_drain_and_do_not_spin(tmp_path: Path) -> None:
    """``while q.isActive`` sees the end once all is flushed; ``while True: start()`` is paced, then ended (1a.11)."""
    settings = AgentSettings(command_poll_seconds=0.1, heartbeat_seconds=1.0, exit_grace_seconds=6.0)
    with Deployments(tmp_path) as stream:
        stream.feed({"t": seconds_of(0, 1), "k": "a", "v": 1}, {"t": seconds_of(0, 2), "k": "a", "v": 2})
        driver = stream.deploy(LOOPS, str(tmp_path), settings=settings)
        wait_until(lambda: "looping" in driver.log or "Traceback" in driver.log, lambda: driver.log, 120)
        stream.wait_committed("polled", 0, driver)
        stream.drain()
        assert driver.exit_status() == 0, driver.log
        drained = stream.events(Drained)[0]
        assert drained.queries["polled"].state_rows_left == 0
        assert f"no more active None {drained.queries['polled'].batch_id}" in driver.log, driver.log
        assert [(row["k"], row["count"]) for row in stream.output()] == [("a", 2)]
        rounds = int(driver.log.partition("rounds after the end: ")[2].split()[0])
        assert rounds <= 20
        assert any("the driver ends it" in event.text for event in stream.events(Noted))


FAILING = (
    HEAD
    + """
class Unlucky(Exception):
    pass

def fails(batch, batch_id):
    if batch_id == 1:
        raise Unlucky("batch of bad luck")

other = rows.writeStream.queryName("other").format("noop").start()
query = rows.writeStream.queryName("failing").foreachBatch(fails).start()
def wait():
    query.awaitTermination()
try:
    spark.streams.awaitAnyTermination()
except Exception as error:
    print("any:", type(error).__name__, type(query.exception()).__name__, query.isActive, other.isActive)
wait()
"""
)


def test_a_failing_query_fails_the_script_with_sparks_own_words(tmp_path: Path) -> None:
    """Its traceback without our frames, its exit status, and the event; the other query is stopped cleanly."""
    with Deployments(tmp_path) as stream:
        stream.feed({"t": seconds_of(0, 1), "k": "a", "v": 1})
        stream.feed({"t": seconds_of(0, 2), "k": "a", "v": 1})
        driver = stream.deploy(FAILING, str(tmp_path))
        assert driver.exit_status() == 1
        assert "any: StreamingQueryException StreamingQueryException False True" in driver.log, driver.log
        assert "in wait\n    query.awaitTermination()" in driver.log, driver.log
        assert "batch of bad luck" in driver.log
        assert "airflow_streamstate/" not in driver.log.partition("Traceback (most recent call last)")[2]
        failed = stream.events(Failed)[0]
        assert "STREAM_FAILED" in failed.error
        assert "batch of bad luck" in failed.traceback
        assert stream.committed("failing") == [0]


WAITS_FOR_THE_OTHER = (
    HEAD
    + """
class Unlucky(Exception):
    pass

def fails(batch, batch_id):
    if batch_id == 1 and not os.path.exists(base + "/mended"):
        raise Unlucky("batch of bad luck")

import os
other = rows.writeStream.queryName("other").format("json").start(base + "/out")
stopped = rows.writeStream.queryName("stopped").format("noop").start()
query = rows.writeStream.queryName("failing").foreachBatch(fails).start()
until(lambda: stopped.lastProgress is not None)
stopped.stop()
while other.isActive:
    other.awaitTermination(9)
while True:
    other.awaitTermination(9)
"""
)


def test_a_query_that_dies_while_the_script_waits_for_another_is_told_and_carried_on(tmp_path: Path) -> None:
    """Degraded, with its cause; the stop keeps its planned batch, and the next attempt runs it.

    The script's loop around the wait does not outlive the stop: its driver ends with status 0 and is never fenced.
    """
    settings = AgentSettings(command_poll_seconds=0.1, heartbeat_seconds=0.5, exit_grace_seconds=4.0)
    with Deployments(tmp_path) as stream:
        for second in (1, 2, 3):
            stream.feed({"t": seconds_of(0, second), "k": "a", "v": second})
        driver = stream.deploy(WAITS_FOR_THE_OTHER, str(tmp_path), settings=settings)
        wait_until(lambda: bool(stream.events(QueryFailed)), lambda: driver.log, 120)
        [failed] = stream.events(QueryFailed)
        assert (failed.query_name, failed.batch_id, failed.planned_batch_id) == ("failing", 0, 1)
        assert failed.error == "Unlucky: batch of bad luck"
        stream.wait_committed("other", 2, driver)
        stream.stop()
        assert driver.exit_status() == 0, driver.log
        position = stream.events(Stopped)[0].queries["failing"]
        assert (position.batch_id, position.planned_batch_id) == (0, 1)
        assert stream.events(Fenced) == []
        (tmp_path / "mended").touch()
        again = stream.resume()
        stream.wait_committed("failing", 2, again)
        stream.stop()
        assert again.exit_status() == 0, again.log
        assert [event.query_name for event in stream.events(QueryFailed)] == ["failing"]


ENDS = (
    HEAD
    + """
import atexit
atexit.register(lambda: print("at exit", flush=True))
print("cwd and arguments", sys.argv[1:], __name__, __file__.endswith("job.py"))
query = rows.writeStream.queryName("q").format("json").trigger(availableNow=True).start(base + "/out")
def late():
    query.awaitTermination()
    time.sleep(1)
    print("late thread", flush=True)
threading.Thread(target=late).start()
if sys.argv[2] == "fail":
    sys.exit(7)
"""
)


def test_a_script_that_ends_by_itself_is_finished_and_can_go_on(tmp_path: Path) -> None:
    """Its threads are waited for, atexit works, its status is kept; the next attempt continues after its batches."""
    with Deployments(tmp_path) as stream:
        stream.feed({"t": seconds_of(0, 1), "k": "a", "v": 1})
        first = stream.deploy(ENDS, str(tmp_path), "end")
        assert first.exit_status() == 0, first.log
        assert first.log.index("late thread") < first.log.index("at exit")
        finished = stream.events(Finished)[0]
        assert finished.snapshot_id is not None
        assert finished.queries["q"].batch_id == 0
        stream.feed({"t": seconds_of(0, 2), "k": "b", "v": 1})
        second = stream.resume()
        assert second.exit_status() == 0, second.log
        assert [row["k"] for row in stream.output()] == ["a", "b"]
        restore = StartPlan("restore", stream.events(Finished)[-1].snapshot_id, "d-0001")
        third = stream.deploy(ENDS, str(tmp_path), "fail", start=restore)
        assert third.exit_status() == 7, third.log
        assert "late thread" in third.log
        assert "SystemExit: 7" in stream.events(Failed)[0].error


SLOW = (
    WINDOWED_COUNTS
    + """
import os, time
from pyspark.sql import functions as F
@F.udf("int")
def slowly(v):
    open(base + "/inside", "a").close()
    while os.path.exists(base + "/hold"):
        time.sleep(0.05)
    return v
slow = rows.withColumn("v", slowly("v")).withWatermark("t", "10 seconds").groupBy(F.window("t", "10 seconds"), "k")
out = slow.agg(F.count("*").alias("n"), F.sum("v").alias("s")).select("window.start", "k", "n", "s")
query = out.writeStream.queryName("counts").format("json").start(base + "/out")
query.awaitTermination()
"""
)


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_jvm_that_is_told_to_end_makes_no_noise_and_no_failure(tmp_path: Path) -> None:
    """A driver that was killed has not failed: no word of the script's, no event; its log shows how far it came."""
    with Deployments(tmp_path) as stream:
        stream.feed({"t": seconds_of(0, 1), "k": "a", "v": 1})
        (tmp_path / "hold").touch()
        driver = stream.deploy(SLOW, str(tmp_path), conf={"spark.log.level": "OFF"})
        wait_until(lambda: (tmp_path / "inside").exists(), lambda: driver.log, 90)
        os.kill(_parent_of(stream.events(Claimed)[0].pid), signal.SIGTERM)
        assert driver.exit_status() == 128 + signal.SIGTERM
        assert "Traceback" not in driver.log, driver.log
        assert stream.events(Failed) == []
