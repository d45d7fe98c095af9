"""A query's run, and a script's writer, on pyspark: what ``ports`` asks for.

Two facts of Spark carry this file. ``isActive`` turns false while ``stop()`` still waits for the batch to be cut, so an
end is only what ``awaitTermination`` returned from; a thread of our own waits there, and everybody else waits for it
in Python. And Spark reads its log once, before the first trigger (1a.2): a trigger or a progress seen means it is read.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import SparkNoSuchElementException, StreamingQueryException
from pyspark.sql import DataFrame, functions

from airflow_streamstate.connectors.sink import REPEAT_SETTINGS, HeldBatches
from airflow_streamstate.connectors.undoing import FoundUndo, UndoMeans, UndoOrder
from airflow_streamstate.driver.attempt.ports import (
    AnalyzedPlan,
    NotWatchedError,
    OperatorRows,
    Progress,
    Skipped,
    WriterFacts,
)
from airflow_streamstate.driver.spark.jvm import (
    active_session,
    is_stopped_by_script,
    jvm_answers,
    jvm_is_ending,
    jvm_is_gone,
    read_field,
    scala_option,
    scala_sequence,
)
from airflow_streamstate.driver.spark.progress import parse_progress, ran_a_batch
from airflow_streamstate.driver.spark.reports import Reports
from airflow_streamstate.driver.spark.sinks import AskedSink
from airflow_streamstate.driver.spark.sources import DriverDoor
from airflow_streamstate.driver.spark.state_rows import count_state_rows, open_windows, stores_of
from airflow_streamstate.driver.spark.writer_facts import CHECKPOINT_OPTION, WriterSettings, read_facts, read_settings
from airflow_streamstate.protocol.data_events import RepeatMeans

# How many rows a batch gave to a file sink, of which Spark's progress does not tell.
#
# The executed plan counts: from its root down, past what gives on each row as it comes, the first operator that has a
# counter has counted just the rows that were written.

_COUNTER = "numOutputRows"
_GIVES_ON_EACH_ROW = frozenset({"ProjectExec", "WholeStageCodegenExec", "InputAdapter"})


def rows_given_to_file_sink(execution: Any, batch_id: int) -> int | None:
    """The rows of the last batch that this JVM ``StreamExecution`` ran.

    Args:
        execution: of a query that has ended, so that nothing changes meanwhile.
        batch_id: the batch that is meant.

    Returns:
        None where the sink is another, the last batch was another, or the plan does not tell.
    """
    # Other sinks either report by themselves, or may run the plan more than once.
    if execution.sink().getClass().getSimpleName() != "FileStreamSink":
        return None
    last = execution.lastExecution()
    if last is None or last.currentBatchId() != batch_id:
        return None
    node = last.executedPlan()
    while True:
        counter = scala_option(node.metrics().get(_COUNTER))
        if counter is not None:
            return int(counter.value())
        children = scala_sequence(node.children())
        if len(children) != 1 or node.getClass().getSimpleName() not in _GIVES_ON_EACH_ROW:
            return None
        node = children[0]


# A seed's empty batch writes its state as a whole, never as a changelog, whatever the script's session says.

CHANGELOG_SETTING = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"


@contextlib.contextmanager
def whole_state(jsession: Any) -> Iterator[None]:
    """While a query is being started, this session has changelog checkpointing switched off.

    A changelog of version 1 cannot be moved to version N + 1: Spark would want those of all versions below. A query
    copies its session's settings when it starts, so that only this one sees it; others start under the same lock.

    Args:
        jsession: the JVM session of the data frame that is started.
    """
    conf = jsession.conf()
    # Spark's RocksDB takes its settings in any case of letters, and of two spellings either may win.
    spelled = [str(key) for key in conf.getAll().keys().toSeq().mkString("\n").split("\n")]
    before = {key: str(conf.get(key)) for key in spelled if key.lower() == CHANGELOG_SETTING.lower()}
    for key in before:
        conf.set(key, "false")
    try:
        yield
    finally:
        for key, value in before.items():
            conf.set(key, value)


# Timers of processing time in the state of a checkpoint, read with Spark's own state reader.

_PROCESSING_TIME = "ProcessingTime"
_MODE = "timeMode"


def last_timer_ms(spark: Any, checkpoint_uri: str, timed_out_ids: Collection[int]) -> int | None:
    """When the last timer or timeout of processing time is due, at the last committed batch.

    Args:
        spark: the session.
        checkpoint_uri: the query's checkpoint.
        timed_out_ids: the operators whose state carries a timeout of processing time; those with timers of their own
            say so themselves.

    Returns:
        Milliseconds since 1970; None where no such timer is set.
    """
    found = []
    for row in stores_of(spark, checkpoint_uri):
        operator_id = int(row["operatorId"])
        reader = spark.read.format("statestore").option("operatorId", operator_id)
        if _has_timers(row):
            timers = reader.option("readRegisteredTimers", "true").load(checkpoint_uri)
            found.append(timers.selectExpr("max(expiration_timestamp_ms)").first()[0])
        elif operator_id in timed_out_ids:
            # -1 stands for none.
            state = reader.load(checkpoint_uri).where("value.timeoutTimestamp > 0")
            found.append(state.selectExpr("max(value.timeoutTimestamp)").first()[0])
    return max((int(due_ms) for due_ms in found if due_ms is not None), default=None)


def _has_timers(row: Any) -> bool:
    described = row.asDict().get("operatorProperties") or "{}"
    return bool(json.loads(described).get(_MODE) == _PROCESSING_TIME)


# What Spark has run of a query, by its own records: the plan of a batch, and tasks that are at work still.
#
# Whether it ran a plan is told by its record of SQL executions (what its page "SQL" shows).
#
# A sink that skips a batch never touches its plan: the execution ends without a counter that moved. Input of which a
# filter, pushed down into Parquet, ORC or JSON, left nothing has ``numInputRows`` 0, too, and yet its plan ran.

LOOKED_AT = 200
NOTED_WITHIN_MS = 2_000
_BATCH = re.compile(r"\bbatch = (\d+)\b")


def plans_that_ran(jquery: Any, batch_ids: Collection[int], *, is_last: bool = False) -> dict[int, bool]:
    """Of each of these batches of a run, whether its plan ran; those of which Spark has no record are left out.

    Args:
        jquery: the JVM's ``StreamingQuery``.
        batch_ids: batches that were executed.
        is_last: nobody will ask again: what Spark has not noted down yet is waited for, a moment.
    """
    found: dict[int, bool] = {}
    try:
        if is_last:
            _let_spark_note(jquery)
        store = jquery.sparkSession().sharedState().statusStore()
        run_id = str(jquery.runId().toString())
        first = max(0, int(store.executionsCount()) - LOOKED_AT)
        executions = store.executionsList(first, LOOKED_AT)
        for index in range(executions.size() - 1, -1, -1):
            if len(found) == len(batch_ids):
                break
            execution = executions.apply(index)
            batch = _BATCH.search(str(execution.description())) if run_id in str(execution.description()) else None
            if batch is None or int(batch[1]) not in batch_ids or int(batch[1]) in found:
                continue
            # What a sink runs for itself hangs below the batch's own; what has not ended may count yet.
            if execution.rootExecutionId() == execution.executionId() and execution.completionTime().isDefined():
                found[int(batch[1])] = store.executionMetrics(execution.executionId()).size() > 0
    except (Py4JError, AttributeError, TypeError) as error:
        if jvm_is_gone(error):
            raise
    return found


def _let_spark_note(jquery: Any) -> None:
    with contextlib.suppress(Py4JJavaError):  # it is busy for longer
        jquery.sparkSession().sparkContext().listenerBus().waitUntilEmpty(NOTED_WITHIN_MS)


def has_running_tasks(jquery: Any, query_run_id: str) -> bool:
    """Whether a task of a run is at work, by Spark's own status of its jobs; True also where Spark does not tell.

    Args:
        jquery: the JVM's ``StreamingQuery``.
        query_run_id: its run, which is the name of the group of its jobs.
    """
    try:
        tracker = jquery.sparkSession().sparkContext().statusTracker()
        for job_id in tracker.getJobIdsForGroup(query_run_id):
            job = tracker.getJobInfo(job_id)
            for stage_id in job.get().stageIds() if job.isDefined() else ():
                stage = tracker.getStageInfo(stage_id)
                if stage.isDefined() and int(stage.get().numActiveTasks()) > 0:
                    return True
    except (Py4JError, AttributeError, TypeError) as error:
        if jvm_is_gone(error):
            raise
        return True
    return False


_NOT_COPIED = "ds"  # the data frame of a JVM writer: the copy is made from the same one
_WAITING = ("Waiting for data to arrive", "Waiting for next trigger")
_UNDEFINED = "<undefined>"  # Spark's word for a setting that it knows, that has no default, and that nobody set
_SLICE_SECONDS = 1.0
SEED_QUERY_NAME = "streamstate-seed"
REHEARSAL_QUERY_NAME = "streamstate-rehearsal"


class SparkQueryRun:
    """One run of a query in Spark. Implements ``ports.QueryRun`` and ``checkpoint.barrier.QueryView``.

    Args:
        jquery: the JVM's ``StreamingQuery``.
    """

    def __init__(self, jquery: Any) -> None:
        self.jquery = jquery
        self.query_id: str = jquery.id().toString()
        self.query_run_id: str = jquery.runId().toString()
        self._ended = threading.Event()
        self._failure: str | None = None
        self._context = SparkContext._active_spark_context
        self._was_ended_by_script = False
        self._initialised = False
        self._idle_triggers = 0
        self._last_seen: str | None = None
        self._executed: dict[str, Any] | None = None
        self._newest: dict[str, Any] | None = None
        self._reports = Reports(jquery, self._plans_that_ran)
        self._guard = threading.Lock()
        threading.Thread(
            target=self._await_termination, name=f"streamstate-await-{self.query_run_id[:8]}", daemon=True
        ).start()

    def _await_termination(self) -> None:
        try:
            self.jquery.awaitTermination()
        except StreamingQueryException as error:
            self._failure = str(error)
        except Exception as error:
            # The JVM is gone, or this thread was interrupted in it: no news of the query. Never reported as an end.
            if jvm_is_gone(error) or self._thread_lives():
                return
            self._failure = str(error)
        self._was_ended_by_script = is_stopped_by_script(self._context)
        if self._failure is not None and jvm_is_ending():
            return  # killed, not failed: the next attempt reads what became of it from the log
        self._ended.set()

    def _thread_lives(self) -> bool:
        try:
            return bool(self.jquery.streamingQuery().queryExecutionThread().isAlive())
        except (Py4JError, OSError):
            return True

    def is_active(self) -> bool:
        with jvm_answers():
            return not self._ended.is_set() and bool(self.jquery.isActive())

    def has_ended(self) -> bool:
        """Whether its thread has ended, so that it writes nothing more."""
        return self._ended.is_set()

    def is_trigger_active(self) -> bool:
        if self._ended.is_set():
            return False
        with jvm_answers():
            active = bool(self.jquery.status().isTriggerActive())
        self._initialised = self._initialised or active
        return active

    def has_initialised(self) -> bool:
        if not self._initialised:
            with jvm_answers():
                status = self.jquery.status()
                # Between two triggers Spark shows its very first message again; a progress stays.
                self._initialised = (
                    bool(status.isTriggerActive())
                    or str(status.message()) in _WAITING
                    or self.jquery.lastProgress() is not None
                )
        return self._initialised

    def has_running_tasks(self) -> bool:
        with jvm_answers():
            return has_running_tasks(self.jquery, self.query_run_id)

    def was_ended_by_script(self) -> bool:
        return self._was_ended_by_script

    def stop(self) -> None:
        with jvm_answers():
            self.jquery.stop()
        self._ended.wait(_SLICE_SECONDS)

    def await_end(self, timeout_seconds: float) -> bool:
        return self._ended.wait(timeout_seconds) if timeout_seconds > 0 else self._ended.is_set()

    def failure(self) -> str | None:
        return self._failure

    def last_progress(self) -> Progress | None:
        with self._guard:
            self._look()
            if self._executed is None:
                return None
            progress = parse_progress(self._executed, self._newest or self._executed)
        if progress.output_rows is None and self._ended.is_set():
            with jvm_answers():
                rows = rows_given_to_file_sink(self.jquery.streamingQuery(), progress.batch_id)
            progress = replace(progress, output_rows=rows)
        return progress

    def progress_of(self, batch_id: int) -> Progress | None:
        with self._guard:
            # Newest first: the last of them is the oldest that Spark has at or above it.
            reports = self._reports.after(batch_id - 1)
        found = next((one for one in reversed(reports) if int(one["batchId"]) == batch_id), None)
        return None if found is None else parse_progress(found, found)

    def idle_triggers(self) -> int:
        with self._guard:
            self._look()
            return self._idle_triggers

    def dropped_rows(self) -> int | None:
        with self._guard:
            self._look()
            if self._executed is None:
                return None
            self._reports.count(self._executed)
            return None if self._reports.has_missed_batches else self._reports.dropped_rows

    def skipped(self) -> Skipped:
        with self._guard:
            self._look()
            if self._executed is not None:
                self._reports.count(self._executed, is_last=self._ended.is_set())
            return self._reports.skipped

    def _plans_that_ran(self, batch_ids: Collection[int], is_last: bool) -> Mapping[int, bool]:
        with jvm_answers():
            return plans_that_ran(self.jquery, batch_ids, is_last=is_last)

    def _look(self) -> None:
        with jvm_answers():
            found = self.jquery.lastProgress()
            text = None if found is None else str(found.json())
        if text is None or text == self._last_seen:
            return
        self._last_seen = text
        self._newest = json.loads(text)
        if ran_a_batch(self._newest):
            self._executed = self._newest
            return
        self._idle_triggers += 1
        if self._executed is None:
            self._executed = next(iter(self._reports.after(-1)), None)


class SparkWriter:
    """A script's writer as it was at its ``start()``. Implements ``ports.StartableQuery``.

    It works on a copy of the JVM writer: what the script does with its own afterwards changes nothing here, and
    nothing of ours is ever left in it.

    Args:
        spark: the script's session.
        jdf: the JVM data frame that is written.
        jwriter: the script's JVM writer, with everything that ``start()`` was given applied.
        path: what ``start()`` was given; None for none.
        table_name: what ``toTable()`` was given; None for ``start()``.
    """

    def __init__(self, spark: Any, jdf: Any, jwriter: Any, path: str | None, table_name: str | None) -> None:
        self._spark = spark
        self._jvm = spark._jvm
        self.door = DriverDoor(spark)
        self._jdf = jdf
        self._path = path
        self._table_name = table_name
        self.runs: list[SparkQueryRun] = []
        with jvm_answers():
            self._jwriter = _copy_writer(jdf, jwriter)
            self.settings: WriterSettings = read_settings(self._jvm, self._jwriter)
            self.facts: WriterFacts = read_facts(self._jvm, jdf, self._jwriter, table_name)
        self._sink = AskedSink(spark, self._jwriter, path, table_name)

    def analyzed_plan(self) -> AnalyzedPlan:
        with jvm_answers():
            partitioned = scala_option(read_field(self._jwriter, "partitioningColumns"))
            return AnalyzedPlan(
                text=str(self._jdf.queryExecution().analyzed().toJSON()),
                sink=self._sink.found(),
                partitioned_by=() if partitioned is None else tuple(map(str, scala_sequence(partitioned))),
            )

    def start(self, checkpoint_uri: str) -> SparkQueryRun:
        with jvm_answers():
            return self._start(_copy_writer(self._jdf, self._jwriter), checkpoint_uri)

    def start_once(self, checkpoint_uri: str) -> SparkQueryRun:
        with jvm_answers():
            return self._start(_copy_writer(self._jdf, self._jwriter).trigger(self._once()), checkpoint_uri)

    def start_available(self, checkpoint_uri: str) -> SparkQueryRun:
        with jvm_answers():
            trigger = self._jvm.org.apache.spark.sql.streaming.Trigger.AvailableNow()
            return self._start(_copy_writer(self._jdf, self._jwriter).trigger(trigger), checkpoint_uri)

    def _start(self, jwriter: Any, checkpoint_uri: str) -> SparkQueryRun:
        jwriter = jwriter.option(CHECKPOINT_OPTION, checkpoint_uri)
        if self._table_name is not None:
            jquery = jwriter.toTable(self._table_name)
        else:
            jquery = jwriter.start() if self._path is None else jwriter.start(self._path)
        try:
            run = SparkQueryRun(jquery)
        except Exception as error:
            jquery.stop()
            raise NotWatchedError(f"{type(error).__name__}: {error}") from error
        self.runs.append(run)
        return run

    def run_seed_batch(self, checkpoint_uri: str) -> Progress | None:
        with jvm_answers():
            jwriter = self._into_nothing(SEED_QUERY_NAME, checkpoint_uri)
            with whole_state(self._jdf.sparkSession()):
                jquery = jwriter.start()
            jquery.awaitTermination()
        return SparkQueryRun(jquery).last_progress()

    def run_trial_batch(self, checkpoint_uri: str, within_seconds: float | None = None) -> Progress | None:
        with jvm_answers():
            jquery = self._into_nothing(REHEARSAL_QUERY_NAME, checkpoint_uri).start()
            if within_seconds is None:
                jquery.awaitTermination()
            elif not jquery.awaitTermination(int(within_seconds * 1000)):
                jquery.stop()
        return SparkQueryRun(jquery).last_progress()

    def _into_nothing(self, query_name: str, checkpoint_uri: str) -> Any:
        """A writer of one batch of the same plan into no sink at all."""
        jwriter = self._jdf.writeStream().outputMode(read_field(self._jwriter, "outputMode"))
        jwriter = jwriter.queryName(query_name).format("noop").trigger(self._once())
        return jwriter.option(CHECKPOINT_OPTION, checkpoint_uri)

    def _once(self) -> Any:
        return self._jvm.org.apache.spark.sql.streaming.Trigger.Once()

    def held_batches(self, query_id: str | None, from_batch_id: int) -> HeldBatches:
        with jvm_answers(), active_session(self._spark):
            return self._sink.held_batches(query_id, from_batch_id)

    def prepare_sink(self, next_batch_id: int) -> tuple[str, ...]:
        with jvm_answers():
            return self._sink.prepare(next_batch_id)

    def warm_sink(self, query_id: str, scratch_uri: str) -> tuple[str, ...]:
        with jvm_answers(), active_session(self._spark):
            return self._sink.warm(query_id, self._row_of_nulls, scratch_uri)

    def _row_of_nulls(self) -> DataFrame:
        columns = DataFrame(self._jdf, self._spark).schema.fields
        nulls = [functions.lit(None).cast(column.dataType).alias(column.name) for column in columns]
        return self._spark.range(0, 1, 1, 1).select(nulls)

    def undo_means(self) -> UndoMeans:
        with jvm_answers():
            return self._sink.undo_means()

    def repeat_means(self) -> RepeatMeans:
        with jvm_answers():
            return self._sink.repeat_means(self.session_conf(REPEAT_SETTINGS))

    def undo_needs_query_id(self) -> bool:
        with jvm_answers():
            return self._sink.undo_needs_query_id()

    def find_undo(self, wish: UndoOrder) -> FoundUndo:
        with jvm_answers():
            return self._sink.find_undo(wish)

    def undo_batches(self, wish: UndoOrder, found: FoundUndo) -> None:
        with jvm_answers():
            self._sink.undo_batches(wish, found)

    def sink_place(self) -> str:
        with jvm_answers():
            return self._sink.place()

    def count_state_rows(self, checkpoint_uri: str) -> tuple[OperatorRows, ...]:
        with jvm_answers():
            return count_state_rows(self._spark, checkpoint_uri)

    def open_windows(self, checkpoint_uri: str) -> tuple[datetime, datetime] | None:
        with jvm_answers():
            return open_windows(self._spark, checkpoint_uri)

    def last_timer_ms(self, checkpoint_uri: str, timed_out_ids: Collection[int]) -> int | None:
        with jvm_answers():
            return last_timer_ms(self._spark, checkpoint_uri, timed_out_ids)

    def session_conf(self, names: Sequence[str]) -> Mapping[str, str]:
        with jvm_answers():
            found = {name: self._setting(name) for name in names}
        return {name: value for name, value in found.items() if value is not None and value != _UNDEFINED}

    def _setting(self, name: str) -> str | None:
        try:
            return str(self._spark.conf.get(name))
        except SparkNoSuchElementException:
            return None

    def cannot_flush_reason(self) -> str | None:
        if self.facts.sink == "memory" and self.facts.output_mode != "complete":
            return "the memory sink cannot start again from a checkpoint in output mode " + self.facts.output_mode
        return None


def _copy_writer(jdf: Any, jwriter: Any) -> Any:
    """A JVM writer like this one. Spark has no such method, so its fields are copied; all they hold is immutable."""
    copy = jdf.writeStream()
    for field in jwriter.getClass().getDeclaredFields():
        if field.getName() != _NOT_COPIED and not field.isSynthetic():
            field.setAccessible(True)
            field.set(copy, field.get(jwriter))
    return copy
