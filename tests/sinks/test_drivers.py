"""Sinks with real drivers: a fresh start into a folder that was written to; a table between queries; a takeover."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.protocol.events import Failed, QueryStarted, Stopped
from airflow_streamstate.protocol.records import StartPlan
from support.chained import PER_MINUTE, drain_in_order, feed_minutes
from support.delta_folder import DeltaFolder
from support.drivers import WINDOWED_COUNTS, Deployments, wait_until
from support.sink_runs import QUICK, jars_of
from support.sparks import IN_FULL
from support.warm_life import Life

pytestmark = [pytest.mark.sinks, pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

SCRIPT = """
import sys
from pyspark.sql import SparkSession

base, out = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.schema("v int").option("maxFilesPerTrigger", 1).json(base + "/in")
rows.writeStream.queryName("rows").format("json").start(base + "/" + out).awaitTermination()
"""

CHAIN = (
    WINDOWED_COUNTS
    + """
spark.createDataFrame([], "start timestamp, k string, n long, s long").write.format("delta").save(base + "/windows")
landed = spark.readStream.format("delta").load(base + "/windows")
"""
    + PER_MINUTE
    + """
counts.writeStream.queryName("per_window").format("delta").start(base + "/windows")
spark.streams.awaitAnyTermination()
"""
)


PER_WINDOW = (
    WINDOWED_COUNTS
    + """
counts.writeStream.queryName("counts").format("delta").start(base + "/out").awaitTermination()
"""
)

WAITS = "waits at its first start()"


def _files(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_a_fresh_start_over_held_ids_is_refused_and_a_restore_into_a_new_folder_is_made_ready(tmp_path: Path) -> None:
    """Nothing is touched, one sentence names the ids and what to do; the restored query's new folder can be read."""
    with Deployments(tmp_path) as stream:
        first = stream.deploy(SCRIPT, str(tmp_path), "out")
        stream.feed({"v": 1})
        stream.wait_committed("rows", 0, first)
        stream.feed({"v": 2})
        stream.wait_committed("rows", 1, first)
        stream.stop()
        assert first.exit_status() == 0, first.log
        snapshot_id = stream.events(Stopped)[0].snapshot_id
        before = _files(tmp_path / "out")

        second = stream.deploy(SCRIPT, str(tmp_path), "out")
        assert second.exit_status() == 1, second.log
        failed = stream.events(Failed)[0]
        assert "the sink holds batch ids that this start would use again" in failed.error
        assert "0 to 1" in failed.error + second.log
        assert "Write to a new output" in second.log
        assert stream.events(QueryStarted) == []
        assert _files(tmp_path / "out") == before

        restore = StartPlan("restore", snapshot_id, "d-0001", accept_hazards=True)  # the old rows stay where they are
        third = stream.deploy(SCRIPT, str(tmp_path), "new", start=restore)
        stream.feed({"v": 3})
        stream.wait_committed("rows", 2, third)
        stream.stop()
        assert third.exit_status() == 0, third.log
        assert any("empty entries" in word for word in stream.events(QueryStarted)[0].repairs)
        assert stream.output("new") == [{"v": 3}]
        log = tmp_path / "new" / "_spark_metadata"
        assert [(log / name).read_text() for name in ("0", "1")] == ["v1", "v1"]


def test_what_a_drain_flushes_into_a_delta_table_is_read_by_the_query_behind_it(tmp_path: Path) -> None:
    """Although that one sleeps for an hour: it reads the table to its end, and is flushed then."""
    (delta,) = (run for run in QUICK if run.name == f"delta-{IN_FULL}")
    conf = {**delta.conf, "spark.jars": ",".join(jars_of(delta))}
    with Deployments(tmp_path) as stream:
        feed_minutes(stream)
        drain_in_order(stream, stream.deploy(CHAIN, str(tmp_path), conf=conf))


@pytest.mark.named
def test_a_driver_that_waits_has_asked_the_table_before_the_barrier_and_has_left_no_trace_in_it(tmp_path: Path) -> None:
    """Not a file of the table or of the input is touched while it comes up and waits, and the table's history holds the
    old version's batches alone. After the takeover every window is there once."""
    (delta,) = (run for run in QUICK if run.name == f"delta-{IN_FULL}")
    life = Life(tmp_path, {**delta.conf, "spark.jars": ",".join(jars_of(delta))})
    table = DeltaFolder(tmp_path / "out")
    try:
        life.rows.feed()
        life.rows.feed()
        life.controller.deploy(life.wish(life.script("v1", PER_WINDOW), "deploy-v1"))
        commits = tmp_path / "home" / "orders" / "deployments" / "d-0001" / "checkpoints" / "counts" / "commits"
        wait_until(lambda: table.rows() == 2, life.log, 120)
        wait_until((commits / str(len(table.commits()) - 1)).exists, life.log, 30)  # and reads on only when it is fed
        fed, written = _files(tmp_path / "in"), _files(tmp_path / "out")
        view = life.waits("v2", PER_WINDOW)
        wait_until(lambda: WAITS in life.log_of(view), lambda: life.log_of(view), 30)
        log = life.log_of(view)
        before, _, _ = log.partition(WAITS)
        assert before.count("query counts is warm: its sink") == 2, log  # in each pass of the script
        life.stop()
        query_id = table.query_ids()[0]
        assert table.commits() == [{query_id: batch_id} for batch_id in range(len(table.commits()))]
        assert (_files(tmp_path / "in"), _files(tmp_path / "out")) == (fed, written)
        life.deploy("v2", view)
        assert life.deployer.drivers.is_warm
        life.rows.feed()
        wait_until(lambda: table.rows() == 4, life.log, 120)
        assert set(table.query_ids()) == {query_id}
        life.rehearsals.give_up("orders", view.rehearsal_id)
        assert not (life.folder_of(view) / "warming").exists()
    finally:
        life.end()
