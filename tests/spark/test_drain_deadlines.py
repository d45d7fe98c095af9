"""A drain that is called off on real Spark: the queries run on in the same driver."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.protocol.commands import CancelRequest, SnapshotRequest
from airflow_streamstate.protocol.events import Accepted, Drained, DrainFailed, QueryStarted, SnapshotReady, Stopped
from support.drivers import WINDOWED_COUNTS, Deployments, seconds_of, wait_until
from support.progress import files_read

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

HOLDING = (
    WINDOWED_COUNTS
    + """
import os, time
@F.udf("string")
def held(k):
    while os.path.exists(base + "/hold"):
        open(base + "/inside", "a").close()
        time.sleep(0.05)
    return k
"""
)
HELD = (
    HOLDING
    + """
slow = rows.withColumn("k", held("k")).withWatermark("t", "10 seconds").groupBy(F.window("t", "10 seconds"), "k")
slow = slow.agg(F.count("*").alias("n"), F.sum("v").alias("s")).select("window.start", "k", "n", "s")
counts.writeStream.queryName("quick").format("json").start(base + "/quick")
query = slow.writeStream.queryName("slow").format("json").start(base + "/slow")
query.awaitTermination()
print("the script continues after", query.id)
"""
)

HELD_FLUSH = (
    HOLDING
    + """
query = counts.withColumn("k", held("k")).writeStream.queryName("counts").format("json").start(base + "/out")
query.awaitTermination()
"""
)
"""Held where a window comes out, so in the flush alone: no row comes late enough before it."""


@pytest.mark.named
def test_the_batch_in_flight_is_waited_for_and_the_stream_runs_on_after_all(tmp_path: Path) -> None:
    """At one barrier for a snapshot first, from which both continue. Then the quick query stood at its barrier and is
    started again; the slow one is in its batch and loses the barrier from under it; then both drain, every row once
    (1a.3, Law 12)."""
    with Deployments(tmp_path) as stream:
        stream.feed({"t": seconds_of(0, 1), "k": "a", "v": 1})
        driver = stream.deploy(HELD, str(tmp_path))
        for name in ("quick", "slow"):
            stream.wait_committed(name, 0, driver)
        stream.order(SnapshotRequest, consistent=True)
        ready = stream.wait_event(SnapshotReady, driver)
        stood = {event.query_name: event.batch_id for event in stream.events(QueryStarted)[2:]}
        assert stood == {name: position.batch_id for name, position in ready.queries.items()}
        (tmp_path / "hold").touch()
        stream.feed({"t": seconds_of(0, 2), "k": "b", "v": 2})
        wait_until((tmp_path / "inside").exists, lambda: driver.log, 60)
        by_at = SYSTEM_CLOCK.now() + timedelta(seconds=2)
        stream.drain(rehearse=False, batches_by_at=by_at)
        failed = stream.wait_event(DrainFailed, driver)
        assert (failed.cause, failed.then) == ("deadline", "runs_on")
        assert stream.wait_event(QueryStarted, driver, 5).query_name == "quick"
        stream.feed({"t": seconds_of(0, 3), "k": "a", "v": 3})
        quick = stream.checkpoint_folder("quick")
        wait_until(lambda: files_read(quick) == 3, lambda: driver.log, 60)
        assert (tmp_path / "hold").exists(), "the slow batch was never cut"

        stream.drain(rehearse=False)
        wait_until(lambda: len(stream.events(Accepted)) == 2, lambda: driver.log, 60)
        stream.order(CancelRequest)
        cancelled = stream.wait_event(DrainFailed, driver, 2)
        assert (cancelled.cause, cancelled.then, len(cancelled.also_answers)) == ("cancelled", "runs_on", 1)
        (tmp_path / "hold").unlink()
        slow = stream.checkpoint_folder("slow")
        wait_until(lambda: files_read(slow) == 3, lambda: driver.log, 60)

        stream.drain(rehearse=False)
        assert driver.exit_status() == 0, driver.log
        assert "the script continues after" in driver.log
        assert "Traceback" not in driver.log, driver.log
        assert len(stream.events(Drained)) == 1
        expected = [("a", 2, 4), ("b", 1, 2)]
        for name in ("quick", "slow"):
            assert sorted((row["k"], row["n"], row["s"]) for row in stream.output(name)) == expected


@pytest.mark.named
def test_a_batch_that_is_cut_is_kept_and_run_again(tmp_path: Path) -> None:
    """``kill``: the end of the cut batch is in the snapshot, and the next attempt runs it over the same rows (1a.6)."""
    with Deployments(tmp_path) as stream:
        stream.feed({"t": seconds_of(0, 1), "k": "a", "v": 1})
        driver = stream.deploy(HELD, str(tmp_path))
        for name in ("quick", "slow"):
            stream.wait_committed(name, 0, driver)
        (tmp_path / "hold").touch()
        stream.feed({"t": seconds_of(0, 2), "k": "b", "v": 2})
        wait_until((tmp_path / "inside").exists, lambda: driver.log, 60)
        stream.drain(rehearse=False, batches_by_at=SYSTEM_CLOCK.now() + timedelta(seconds=1), on_deadline="kill")
        stopped = stream.wait_event(Stopped, driver)
        position = stopped.queries["slow"]
        assert position.batch_id is not None
        assert position.planned_batch_id == position.batch_id + 1
        (tmp_path / "hold").unlink()
        assert driver.exit_status() is not None
        second = stream.resume(to_drain=True)
        assert second.exit_status() == 0, second.log
        for name in ("quick", "slow"):
            rows = sorted((row["k"], row["n"], row["s"]) for row in stream.output(name))
            assert rows == [("a", 1, 1), ("b", 1, 2)]


def test_a_flush_that_takes_too_long_is_taken_back_and_the_stream_runs_on(tmp_path: Path) -> None:
    """``fail``: it is cut before the sink has any of it; what it would have flushed stays, is added to, and comes out
    once, in the flush of the next drain."""
    with Deployments(tmp_path) as stream:
        stream.feed({"t": seconds_of(0, 1), "k": "a", "v": 1})
        driver = stream.deploy(HELD_FLUSH, str(tmp_path))
        stream.wait_committed("counts", 0, driver)
        (tmp_path / "hold").touch()
        stream.drain(rehearse=False, flush_within_seconds=10.0, on_flush_deadline="fail")
        failed = stream.wait_event(DrainFailed, driver)
        assert (tmp_path / "inside").exists(), driver.log
        assert (failed.cause, failed.then) == ("flush_deadline", "runs_on")
        (tmp_path / "hold").unlink()
        assert stream.output() == []
        stream.feed({"t": seconds_of(0, 2), "k": "a", "v": 2}, {"t": seconds_of(0, 31), "k": "b", "v": 3})
        counts = stream.checkpoint_folder("counts")
        wait_until(lambda: files_read(counts) == 2, lambda: driver.log, 60)

        stream.drain()
        assert driver.exit_status() == 0, driver.log
        assert len(stream.events(Drained)) == 1
        assert sorted((row["k"], row["n"], row["s"]) for row in stream.output()) == [("a", 2, 3), ("b", 1, 3)]
