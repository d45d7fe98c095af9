"""Timers and timeouts of processing time in a drain: fired at the time of the last of them, or left by name (1a.5).

``airflow_streamstate.driver.spark.spark_query`` reads them.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from airflow_streamstate.driver.shutdown.flush import NOT_ASKED
from airflow_streamstate.protocol.events import Drained
from support.drivers import WINDOWED_COUNTS, Deployments, Driver, seconds_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]
PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SCRIPT = (
    WINDOWED_COUNTS
    + """
import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

class Reminder(StatefulProcessor):
    '''Tells each key's total ten minutes after its last row.'''
    def init(self, handle):
        self.handle = handle
        self.total = handle.getValueState("total", "n int")
    def handleInputRows(self, key, rows, timerValues):
        n = (self.total.get() if self.total.exists() else (0,))[0] + sum(row.v for row in rows)
        self.total.update((n,))
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 600_000)
        return iter(())
    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        n = self.total.get()[0]
        self.total.clear()
        yield Row(k=key[0], n=n)
    def close(self):
        pass

def forget(key, frames, state):
    if state.hasTimedOut:
        n = state.get[0]
        state.remove()
        yield pd.DataFrame({"k": [key[0]], "n": [n]})
        return
    n = (state.get[0] if state.exists else 0) + int(sum(frame.v.sum() for frame in frames))
    state.update((n,))
    state.setTimeoutDuration(1_800_000)

timed = rows.groupBy("k").transformWithState(
    Reminder(), outputStructType="k string, n int", outputMode="append", timeMode="processingTime"
)
timed.withColumn("at", F.current_timestamp()).writeStream.queryName("timed").format("json").start(base + "/timed")
silent = rows.groupBy("k").applyInPandasWithState(
    forget, "k string, n long", "n long", "append", "ProcessingTimeTimeout"
)
silent.withColumn("at", F.current_timestamp()).writeStream.queryName("silent").format("json").start(base + "/silent")
counts.writeStream.queryName("hourly").format("json").start(base + "/out")
spark.streams.awaitAnyTermination()
"""
)


def fed(stream: Deployments, folder: Path) -> tuple[Driver, datetime]:
    stream.feed({"t": seconds_of(0, 1), "k": "a", "v": 1}, {"t": seconds_of(0, 2), "k": "b", "v": 2})
    driver = stream.deploy(SCRIPT, str(folder), conf={"spark.sql.streaming.stateStore.providerClass": PROVIDER})
    for query in ("timed", "silent", "hourly"):
        stream.wait_committed(query, 0, driver, 120)
    return driver, datetime.now(timezone.utc)  # noqa: TID251 - a real process


def test_a_drain_fires_them_at_the_time_of_the_last_one(tmp_path: Path) -> None:
    """Ten and thirty minutes ahead: all of them fire, and the times in the output stay real; a window is flushed by its
    watermark as ever, at the time of day."""
    with Deployments(tmp_path) as stream:
        driver, began_at = fed(stream, tmp_path)
        stream.drain()
        assert driver.exit_status() == 0, driver.log
        drained = stream.events(Drained)[0]
        assert {name: query.state_rows_left for name, query in drained.queries.items()} == {
            "timed": 0, "silent": 0, "hourly": 0,
        }  # fmt: skip
        for name, ahead in (("timed", timedelta(minutes=10)), ("silent", timedelta(minutes=30))):
            rows = stream.output(name)
            assert sorted((row["k"], row["n"]) for row in rows) == [("a", 1), ("b", 2)]
            for row in rows:
                late = datetime.fromisoformat(row["at"]) - began_at - ahead
                assert timedelta(minutes=-5) < late < timedelta(minutes=5), row
        assert driver.log.count("when its last timer is due") == 2


@pytest.mark.named
def test_a_drain_of_event_time_leaves_them_and_names_them(tmp_path: Path) -> None:
    """As was asked for: what is left is counted per operator, with the reason (Law 16)."""
    with Deployments(tmp_path) as stream:
        driver, _ = fed(stream, tmp_path)
        stream.drain(mode="event_time")
        assert driver.exit_status() == 0, driver.log
        queries = stream.events(Drained)[0].queries
        assert queries["hourly"].state_rows_left == 0
        for name in ("timed", "silent"):
            assert stream.output(name) == []
            assert {left.reason for left in queries[name].state_left} == {NOT_ASKED}
            assert sum(left.rows for left in queries[name].state_left) >= 2
