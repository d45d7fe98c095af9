"""Runs and writers on real Spark: what the deciding half learns about a query is true."""

from __future__ import annotations

import time
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_streamstate.connectors.sink import HeldBatches
from airflow_streamstate.protocol.positions import WatermarkSpec
from support.drivers import wait_until
from support.real_queries import PROVIDERS, SCHEMA, START_SECONDS, Feed, row_at

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_streamstate.driver.spark.spark_query import SparkQueryRun, SparkWriter

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def _writer(writer: Any, path: str | None = None, table_name: str | None = None) -> SparkWriter:
    from airflow_streamstate.driver.spark.spark_query import SparkWriter

    return SparkWriter(writer._spark, writer._df._jdf, writer._jwrite, path, table_name)


def _rows(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / "in"))


def _counts(spark: SparkSession, folder: Path) -> DataFrame:
    from pyspark.sql import functions as fn

    rows = _rows(spark, folder).withWatermark("ts", "10 seconds")
    return rows.groupBy(fn.window("ts", "1 minute"), "k").agg(fn.count("*").alias("n"))


def at_second(second: int) -> datetime:
    """That second of event time."""
    return datetime.fromtimestamp(START_SECONDS + second, timezone.utc)


def _ignore(batch: DataFrame, batch_id: int) -> None:
    """A sink that takes everything and keeps nothing."""


def _until(is_so: Any, run: SparkQueryRun) -> None:
    wait_until(is_so, lambda: f"run {run.query_run_id}: {run.failure()}", 60)


def test_facts_name_watermarks_sources_sink_and_trigger(spark: SparkSession, folder: Path) -> None:
    """What a writer reports about itself, read without starting or changing anything."""
    from pyspark.sql import functions as fn

    rows = _rows(spark, folder)
    late = rows.withWatermark("ts", "10 seconds")
    other = rows.withColumnRenamed("ts", "ts2").withColumnRenamed("k", "k2").withWatermark("ts2", "2 minutes")
    joined = late.join(other, fn.expr("k = k2 and ts2 between ts and ts + interval 5 seconds"))
    facts = _writer(joined.writeStream.format("noop").trigger(availableNow=True)).facts
    assert facts.watermarks == (WatermarkSpec("ts", 10_000), WatermarkSpec("ts2", 120_000))
    assert (facts.sources_count, facts.stateful, facts.sink, facts.trigger, facts.output_mode) == (
        2, True, "noop", "available_now", "append",
    )  # fmt: skip
    plain = _writer(rows.writeStream.format("JSON").trigger(processingTime="5 seconds")).facts
    assert (plain.sources_count, plain.stateful, plain.sink, plain.trigger) == (
        1,
        False,
        "file:json",
        "processing_time",
    )
    assert plain.watermarks == ()
    # A source that occurs twice in the plan has two lines in the offset log.
    assert _writer(rows.union(rows).writeStream).facts.sources_count == 2
    kinds = {
        "complete": _writer(rows.groupBy("k").count().writeStream.outputMode("complete")).facts.output_mode,
        "foreachBatch": _writer(rows.writeStream.foreachBatch(_ignore)).facts.sink,
        "table:t": _writer(rows.writeStream, table_name="t").facts.sink,
        "once": _writer(rows.writeStream.trigger(once=True)).facts.trigger,
        "continuous": _writer(rows.writeStream.trigger(continuous="1 second")).facts.trigger,
        "default": _writer(rows.writeStream).facts.trigger,
    }
    assert {name: name for name in kinds} == kinds
    stateful = {
        "limit": rows.limit(3),
        "distinct": rows.distinct(),
        "dedupe": late.dropDuplicatesWithinWatermark(["k"]),
    }
    assert all(_writer(frame.writeStream).facts.stateful for frame in stateful.values())
    static = spark.createDataFrame([("a", 1)], "k string, w int")
    assert not _writer(rows.join(static, "k").writeStream).facts.stateful


def test_the_same_plan_has_the_same_fingerprint(spark: SparkSession, folder: Path) -> None:
    """A loop that builds its query again is distinguished from a second query (1a.12)."""
    first = _writer(_counts(spark, folder).writeStream).facts.plan_fingerprint
    assert first == _writer(_counts(spark, folder).writeStream).facts.plan_fingerprint
    assert first != _writer(_rows(spark, folder).writeStream).facts.plan_fingerprint


def test_settings_are_those_of_the_script(spark: SparkSession, folder: Path) -> None:
    """Its query name, its own checkpointLocation in any case, and its options."""
    writer = _rows(spark, folder).writeStream.queryName("orders").option("CHECKPOINTlocation", "/data/ck/orders")
    settings = _writer(writer.option("asyncProgressTrackingEnabled", "true")).settings
    assert (settings.query_name, settings.checkpoint_location) == ("orders", "/data/ck/orders")
    assert settings.options["asyncProgressTrackingEnabled"] == "true"
    bare = _writer(_rows(spark, folder).writeStream).settings
    assert (bare.query_name, bare.checkpoint_location) == (None, None)


def test_settings_of_the_session_have_sparks_defaults(spark: SparkSession, folder: Path) -> None:
    """What a seed must pin is known although the script never set it; what Spark does not know is left out."""
    writer = _writer(_rows(spark, folder).writeStream)
    names = ("spark.sql.shuffle.partitions", "spark.sql.streaming.stateStore.compression.codec", "spark.sql.nonsense")
    assert writer.session_conf(names) == {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.compression.codec": "lz4",
    }


def test_a_writer_runs_again_and_the_scripts_own_is_left_alone(spark: SparkSession, folder: Path) -> None:
    """Trigger.Once whatever the script set, on our checkpoint; its own writer keeps its trigger and its options."""
    feed = Feed(folder / "in")
    feed.add(2)
    own = _counts(spark, folder).writeStream.format("json").option("checkpointLocation", str(folder / "its own"))
    writer = _writer(own.trigger(processingTime="1 hour"), str(folder / "out"))
    own.format("console").queryName("changed afterwards")
    uri = f"file://{folder}/ck"
    run = writer.start_once(uri)
    assert run.await_end(60)
    assert (run.failure(), run.has_ended(), run.is_active(), run.is_trigger_active()) == (None, True, False, False)
    progress = run.last_progress()
    assert progress is not None
    assert progress.batch_id == 0
    assert progress.input_rows == 8
    assert progress.end_offsets == ('{"logOffset":0}',)
    assert progress.output_rows == 0
    assert not (folder / "its own").exists()
    assert writer.settings.trigger == "ProcessingTimeTrigger(3600000)"
    assert _writer(own).settings.checkpoint_location == str(folder / "its own")
    hourly = writer.start(uri)
    _until(lambda: hourly.idle_triggers() > 0, hourly)
    assert hourly.is_active()
    assert hourly.query_id == run.query_id
    assert hourly.query_run_id != run.query_run_id
    hourly.stop()
    assert hourly.await_end(30)
    assert hourly.failure() is None
    assert writer.runs == [run, hourly]


def test_the_sink_says_what_it_holds_before_any_start_and_after(spark: SparkSession, folder: Path) -> None:
    """A file sink's log shows it, whoever wrote it; where nothing is kept nothing is held; a function cannot know."""
    Feed(folder / "in").add(1)
    writer = _writer(_rows(spark, folder).writeStream.format("json"), str(folder / "out"))
    assert writer.held_batches(None, 0) == HeldBatches()
    assert writer.start_once(f"file://{folder}/ck").await_end(60)
    assert list(writer.held_batches(None, 0).batch_ids) == [0]
    assert writer.held_batches(None, 1).lacks(1)
    progress = writer.runs[0].last_progress()
    assert progress is not None
    assert progress.output_rows == 4
    silent = _writer(_rows(spark, folder).writeStream.format("noop"))
    assert silent.held_batches("a query", 7).lacks(7)
    function = _writer(_rows(spark, folder).writeStream.foreachBatch(lambda _rows, _batch_id: None))
    assert not function.held_batches("a query", 7).lacks(7)
    assert "own function" in function.held_batches("a query", 7).unknown_reason


def test_a_memory_sink_is_known_not_to_flush(spark: SparkSession, folder: Path) -> None:
    """In append mode it refuses to start again from a checkpoint."""
    memory = _rows(spark, folder).writeStream.format("memory").queryName("m")
    assert _writer(memory).cannot_flush_reason() is not None
    assert _writer(_rows(spark, folder).writeStream.format("json")).cannot_flush_reason() is None
    complete = _rows(spark, folder).groupBy("k").count().writeStream.format("memory").outputMode("complete")
    assert _writer(complete.queryName("c")).cannot_flush_reason() is None


def test_a_failure_is_told_in_sparks_words(spark: SparkSession, folder: Path) -> None:
    """And an end by failure is an end."""

    def fails(batch: DataFrame, batch_id: int) -> None:
        raise ValueError("no such customer")

    Feed(folder / "in").add(1)
    run = _writer(_rows(spark, folder).writeStream.foreachBatch(fails)).start(f"file://{folder}/ck")
    assert run.await_end(60)
    assert "no such customer" in (run.failure() or "")
    assert not run.is_active()
    assert run.last_progress() is None


@pytest.mark.parametrize("name", sorted(PROVIDERS))
def test_state_rows_are_counted_as_spark_reports_them(spark: SparkSession, folder: Path, name: str) -> None:
    """Read from the checkpoint alone, per operator, both providers; for a join the rows of both sides."""
    from pyspark.sql import functions as fn

    spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDERS[name])
    Feed(folder / "in").add(2)
    late = _rows(spark, folder).withWatermark("ts", "10 seconds")
    windows = late.groupBy(fn.window("ts", "5 seconds"), "k").count()
    chained = windows.groupBy(fn.window(fn.window_time("window"), "1 hour")).agg(fn.sum("count").alias("n"))
    other = late.select(fn.col("ts").alias("ts2"), fn.col("k").alias("k2"))
    joined = late.join(other, fn.expr("k = k2 and ts2 between ts and ts + interval 5 seconds"))
    for number, frame in enumerate([chained, joined, _rows(spark, folder).dropDuplicates(["k"])]):
        writer = _writer(frame.writeStream.format("noop").trigger(availableNow=True))
        uri = f"file://{folder}/ck{number}"
        run = writer.start(uri)
        assert run.await_end(60)
        progress = run.last_progress()
        assert progress is not None
        assert any(operator.rows for operator in progress.state)
        assert writer.count_state_rows(uri) == progress.state


def test_late_rows_are_counted_over_all_batches(spark: SparkSession, folder: Path) -> None:
    """However seldom somebody looks; a query without state drops nothing.

    Late is what was behind the watermark before the last batch: the first row that comes too late is still taken.
    """
    feed = Feed(folder / "in")
    for second, value in ((1, 1), (600, 2), (2, 3), (3, 4), (601, 5), (4, 6)):
        feed.write([row_at(second, "a", value)])
    counts = _counts(spark, folder)
    run = _writer(counts.writeStream.format("noop").trigger(availableNow=True)).start(f"file://{folder}/ck")
    assert run.await_end(60)
    assert run.dropped_rows() == 2
    assert run.dropped_rows() == 2
    feed.write([row_at(5, "a", 7)])
    writer = _writer(counts.writeStream.format("noop"))
    again = writer.start(f"file://{folder}/ck")
    _until(lambda: again.last_progress() is not None, again)
    assert again.dropped_rows() == 1
    feed.write([row_at(6, "a", 8)])
    feed.write([row_at(7, "a", 9)])
    _until(lambda: again.dropped_rows() == 3, again)
    again.stop()
    plain = _writer(_rows(spark, folder).writeStream.format("noop")).start_once(f"file://{folder}/ck2")
    assert plain.await_end(60)
    assert plain.dropped_rows() == 0


@pytest.mark.parametrize("name", sorted(PROVIDERS))
def test_open_windows_are_read_from_the_state(spark: SparkSession, folder: Path, name: str) -> None:
    """From the start of the first to the end of the last that a flush would close early, in UTC."""
    from pyspark.sql import functions as fn

    spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDERS[name])
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    feed = Feed(folder / "in")
    feed.write([row_at(1, "a", 1)])
    feed.write([row_at(301, "a", 2), row_at(365, "b", 3)])
    rows = _rows(spark, folder).withWatermark("ts", "10 seconds")
    windowed = rows.groupBy(fn.window("ts", "1 minute").alias("slot"), "k").count()
    for number, (frame, expected) in enumerate(
        [
            (windowed, (at_second(300), at_second(420))),
            (rows.groupBy("k").count(), None),
        ]
    ):
        mode = "update" if expected is None else "append"
        writer = _writer(frame.writeStream.format("noop").outputMode(mode).trigger(availableNow=True))
        uri = f"file://{folder}/ck{number}"
        assert writer.start(uri).await_end(60)
        assert writer.open_windows(uri) == expected


def test_nothing_is_initialised_before_spark_has_read_its_log(spark: SparkSession, folder: Path) -> None:
    """A trigger is active only after the start offsets are known, on a fresh start and on every restart (1a.2)."""
    feed = Feed(folder / "in")
    writer = _writer(_counts(spark, folder).writeStream.format("noop"))
    for _ in range(4):
        feed.add(1)
        run = writer.start(f"file://{folder}/ck")
        seen_before = False
        while not run.has_initialised():
            seen_before = True
        execution = run.jquery.streamingQuery()
        active = 0
        while active < 20 and run.last_progress() is None:
            context = execution.getLatestExecutionContext()
            if context.currentStatus().isTriggerActive():
                active += 1
                assert context.batchId() >= 0  # Spark's -1 is "not read yet"
        _until(lambda run=run: run.last_progress() is not None, run)
        run.stop()
        assert run.await_end(30)
        assert run.has_initialised()
        assert seen_before or active >= 0


def test_a_run_that_is_being_stopped_has_not_ended(spark: SparkSession, folder: Path) -> None:
    """``isActive`` turns false while a batch is still being cut; only a thread that has ended writes nothing more."""
    from airflow_streamstate.driver.spark.spark_query import SparkQueryRun

    gate = folder / f"gate-{uuid.uuid4().hex}"  # noqa: TID251 - its own name

    def holds(batch: DataFrame, batch_id: int) -> None:
        (folder / "inside").touch()
        while not gate.exists():
            time.sleep(0.05)  # noqa: TID251 - a batch that takes its time

    Feed(folder / "in").add(1)
    run = _writer(_rows(spark, folder).writeStream.foreachBatch(holds)).start(f"file://{folder}/ck")
    _until(lambda: (folder / "inside").exists(), run)
    assert run.is_trigger_active()
    assert run.has_initialised()
    assert run.is_active()
    assert not run.has_ended()
    assert not run.await_end(0.1)
    second = SparkQueryRun(run.jquery)
    gate.touch()
    run.stop()
    assert run.await_end(30)
    assert second.await_end(30)


def test_a_seed_creates_empty_state_and_leaves_the_sink_alone(spark: SparkSession, folder: Path) -> None:
    """The planned batch 0 of a seed runs into nowhere, under the script's own plan and output mode."""
    feed = Feed(folder / "in")
    feed.write([row_at(1, "a", 1)])
    writer = _writer(
        _counts(spark, folder).writeStream.format("json").trigger(processingTime="1 hour"), str(folder / "out")
    )
    checkpoint = folder / "seed"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "metadata").write_text('{"id":"%s"}' % uuid.uuid4())  # noqa: TID251, UP031
    (checkpoint / "offsets" / "0").write_text('v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\n-')
    progress = writer.run_seed_batch(f"file://{checkpoint}")
    assert progress is not None
    assert (progress.batch_id, progress.input_rows) == (0, 0)
    assert [operator.rows for operator in progress.state] == [0]
    assert (checkpoint / "commits" / "0").exists()
    assert list((checkpoint / "state" / "0").iterdir())
    assert not (folder / "out").exists()
    assert writer.runs == []
