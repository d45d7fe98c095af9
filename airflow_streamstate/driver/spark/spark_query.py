"""A query's run and a script's writer on pyspark; implements ``attempt.ports``.

``isActive`` turns false while ``stop()`` still waits for the batch, so only a return of ``awaitTermination`` means the
end of a run; one thread per run waits for it. Spark reads its log before the first trigger (1a.2), so a trigger or a
progress means that the log was read.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, functions

from airflow_streamstate.connectors.sink import REPEAT_SETTINGS, FoundUndo, HeldBatches, UndoMeans, UndoOrder
from airflow_streamstate.driver.attempt.ports import (
    AnalyzedPlan,
    NotWatchedError,
    OperatorRows,
    OwnCheckpoint,
    QueryProgress,
    RewriteOrder,
    RewrittenState,
    SkippedBySink,
    WriterFacts,
    WrittenBatch,
    WrittenState,
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
from airflow_streamstate.driver.spark.progress import Reports, parse_progress, ran_a_batch
from airflow_streamstate.driver.spark.row_comparison import compare_folders
from airflow_streamstate.driver.spark.spark_sinks import AskedSink
from airflow_streamstate.driver.spark.state_reading import count_state_rows, open_windows, stores_of, write_tables
from airflow_streamstate.driver.spark.state_rewriting import rewrite_state
from airflow_streamstate.driver.spark.writer_facts import (
    CHECKPOINT_OPTION,
    WriterSettings,
    look_at_own_checkpoint,
    read_facts,
    read_settings,
)
from airflow_streamstate.protocol.events import RepeatMeans
from airflow_streamstate.protocol.scratch import RowComparison
from airflow_streamstate.snapshot.state_tables import StatePlace

_COUNTER = "numOutputRows"
_PASSES_ROWS_ON = frozenset({"ProjectExec", "WholeStageCodegenExec", "InputAdapter"})


def rows_given_to_file_sink(execution: Any, batch_id: int) -> int | None:
    """The rows that a batch gave to a file sink; Spark's progress does not report them, the executed plan does.

    Args:
        execution: JVM ``StreamExecution`` of a query that has ended.

    Returns:
        None where the sink is another, the last batch was another, or the plan does not report them.
    """
    # Other sinks either report by themselves, or may run the plan more than once.
    if execution.sink().getClass().getSimpleName() != "FileStreamSink":
        return None
    last = execution.lastExecution()
    if last is None or last.currentBatchId() != batch_id:
        return None
    node = last.executedPlan()
    while True:  # down to the first operator with a counter, which counts just the rows that were written
        counter = scala_option(node.metrics().get(_COUNTER))
        if counter is not None:
            return int(counter.value())
        children = scala_sequence(node.children())
        if len(children) != 1 or node.getClass().getSimpleName() not in _PASSES_ROWS_ON:
            return None
        node = children[0]


CHANGELOG_SETTING = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"


@contextlib.contextmanager
def whole_state(jsession: Any) -> Iterator[None]:
    """Switch changelog checkpointing off in this JVM session while a seed's query starts.

    The changelog of a seed's version 1 cannot be moved to version N + 1, since Spark would need all versions below. A
    query copies its session's settings at its start, and others start under the same lock.
    """
    conf = jsession.conf()
    # Spark's RocksDB takes its settings in any case, and of two spellings either may win.
    spelled = [str(key) for key in conf.getAll().keys().toSeq().mkString("\n").split("\n")]
    before = {key: str(conf.get(key)) for key in spelled if key.lower() == CHANGELOG_SETTING.lower()}
    for key in before:
        conf.set(key, "false")
    try:
        yield
    finally:
        for key, value in before.items():
            conf.set(key, value)


_PROCESSING_TIME = "ProcessingTime"
_MODE = "timeMode"


def last_timer_ms(spark: Any, checkpoint_uri: str, timed_out_ids: Collection[int]) -> int | None:
    """The time of the last processing-time timer or timeout in the state of the last committed batch.

    Args:
        timed_out_ids: the operators whose state has a processing-time timeout; timers are found without this.

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
            state = reader.load(checkpoint_uri).where("value.timeoutTimestamp > 0")
            found.append(state.selectExpr("max(value.timeoutTimestamp)").first()[0])
    return max((int(due_ms) for due_ms in found if due_ms is not None), default=None)


def _has_timers(row: Any) -> bool:
    described = row.asDict().get("operatorProperties") or "{}"
    return bool(json.loads(described).get(_MODE) == _PROCESSING_TIME)


LOOKED_AT = 200
NOTED_WITHIN_MS = 2_000
_BATCH = re.compile(r"\bbatch = (\d+)\b")


def plans_that_ran(jquery: Any, batch_ids: Collection[int], *, is_last: bool = False) -> dict[int, bool]:
    """Of each of these executed batches, whether its plan ran; batches without a record in Spark are left out.

    Read from Spark's record of SQL executions. If a sink skips a batch, no counter of its execution moves. If a
    pushed-down filter leaves no rows, ``numInputRows`` is 0 as well, but the plan ran.

    Args:
        is_last: this is the last question: wait up to ``NOTED_WITHIN_MS`` for records that Spark is still writing.
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
            # An execution of the sink itself is below the batch's own; one that has not ended may still count.
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
    """Whether a task of a run is running, by Spark's job status; True also where Spark does not report it."""
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


_NOT_COPIED = "ds"  # the data frame of a JVM writer: a copy has it from its making
_WAITING = ("Waiting for data to arrive", "Waiting for next trigger")
_UNDEFINED = "<undefined>"  # Spark's value of a setting that has no default and is not set
_SLICE_SECONDS = 1.0
_KEPT_TRIALS = 10
SEED_QUERY_NAME = "streamstate-seed"
REHEARSAL_QUERY_NAME = "streamstate-rehearsal"


class SparkQueryRun:
    """One run of a query in Spark. Implements ``ports.QueryRun`` and ``checkpoint.barrier.QueryView``."""

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
            # The JVM is gone, or this thread was interrupted in it: that is not the end of the query.
            if jvm_is_gone(error) or self._thread_lives():
                return
            self._failure = str(error)
        self._was_ended_by_script = is_stopped_by_script(self._context)
        if self._failure is not None and jvm_is_ending():
            return  # killed, not failed: the next attempt reads the log
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
        """Whether its thread has ended, after which it writes nothing more."""
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

    def last_progress(self) -> QueryProgress | None:
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

    def executed_report(self) -> dict[str, Any] | None:
        """Spark's own report of the last executed batch; None if no batch was executed."""
        with self._guard:
            self._look()
            return self._executed

    def progress_of(self, batch_id: int) -> QueryProgress | None:
        with self._guard:
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

    def read_rows(self) -> int:
        with self._guard:
            self._look()
            if self._executed is not None:
                self._reports.count(self._executed)
            return self._reports.read_rows

    def skipped(self) -> SkippedBySink:
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


class DriverDoor:
    """This driver's Spark for connectors. Implements ``connectors.source.SparkDoor``."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.jvm = session._jvm


ForeachBatch = Callable[[DataFrame, int], None]


class SparkWriter:
    """A copy of a script's writer, made at its ``start()``. Implements ``ports.StartableQuery``.

    Args:
        jwriter: the script's JVM writer, with the arguments of ``start()`` applied.
        foreach_batch: the script's own function, if its sink is one.

    Attributes:
        runs: the runs with the script's sink.
        trial_reports: Spark's reports of the newest batches that ran without it, oldest first.
    """

    def __init__(
        self,
        spark: Any,
        jdf: Any,
        jwriter: Any,
        path: str | None,
        table_name: str | None,
        foreach_batch: ForeachBatch | None = None,
    ) -> None:
        self._spark = spark
        self._foreach_batch = foreach_batch
        self._jvm = spark._jvm
        self.door = DriverDoor(spark)
        self._jdf = jdf
        self._path = path
        self._table_name = table_name
        self.runs: list[SparkQueryRun] = []
        self.trial_reports: deque[dict[str, Any]] = deque(maxlen=_KEPT_TRIALS)
        with jvm_answers():
            self._jwriter = _copy_writer(jdf, jwriter)
            self.settings: WriterSettings = read_settings(self._jvm, self._jwriter)
            self.facts: WriterFacts = read_facts(self._jvm, jdf, self._jwriter, table_name)
        self._sink = AskedSink(spark, self._jwriter, path, table_name)

    def own_checkpoint(self) -> OwnCheckpoint | None:
        return look_at_own_checkpoint(self._spark, self.settings)

    def analyzed_plan(self) -> AnalyzedPlan:
        with jvm_answers():
            partitioned = scala_option(read_field(self._jwriter, "partitioningColumns"))
            return AnalyzedPlan(
                text=self._plan_text,
                sink=self._sink.found(),
                partitioned_by=() if partitioned is None else tuple(map(str, scala_sequence(partitioned))),
            )

    @cached_property
    def _plan_text(self) -> str:
        # It never changes, and making it takes long: a waiting driver has it before its start.
        return str(self._jdf.queryExecution().analyzed().toJSON())

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

    def run_seed_batch(self, checkpoint_uri: str) -> QueryProgress | None:
        with jvm_answers():
            jwriter = self._into_nothing(SEED_QUERY_NAME, checkpoint_uri)
            with whole_state(self._jdf.sparkSession()):
                jquery = jwriter.start()
            jquery.awaitTermination()
        return self._reported(jquery)

    def run_trial_batch(self, checkpoint_uri: str, within_seconds: float | None = None) -> QueryProgress | None:
        with jvm_answers():
            jquery = self._into_nothing(REHEARSAL_QUERY_NAME, checkpoint_uri).start()
            if within_seconds is None:
                jquery.awaitTermination()
            elif not jquery.awaitTermination(int(within_seconds * 1000)):
                jquery.stop()
        return self._reported(jquery)

    def _reported(self, jquery: Any) -> QueryProgress | None:
        """The progress of a trial, whose report is kept."""
        run = SparkQueryRun(jquery)
        report = run.executed_report()
        if report is not None:
            self.trial_reports.append(report)
        return run.last_progress()

    def write_trial_batch(
        self,
        checkpoint_uri: str,
        folder: str,
        within_seconds: float,
        *,
        calls_foreach_batch: bool = False,
        on_failure: Callable[[Exception], None] = lambda _: None,
    ) -> WrittenBatch:
        own = self._foreach_batch if calls_foreach_batch else None
        place = Path(folder)
        partial = place.with_name(f".{place.name}.partial")  # Spark's readers pass hidden names over
        uri = f"file://{partial}"  # Hadoop's paths are not percent-encoded
        written: list[int] = []
        failed: list[Exception] = []

        def call(own: ForeachBatch, rows: DataFrame, batch_id: int) -> None:
            try:
                own(rows, batch_id)
            except Exception as error:
                on_failure(error)
                raise

        def write(frame: DataFrame, batch_id: int) -> None:
            try:
                frame.write.mode("errorifexists").parquet(uri)
                reader = frame.sparkSession.read.option("__globPaths__", "false")  # the path is no pattern
                rows = reader.schema(frame.schema).parquet(uri)
                count = rows.count()
                if own is not None:  # the frame itself would run the batch once more, and read its state again
                    call(own, rows, batch_id)
                written.append(count)
            except Exception as error:
                failed.append(error)  # Spark's own report of it starts with the report of the callback
                raise

        try:
            with jvm_answers():
                writer = DataFrame(self._jdf, self._spark).writeStream.foreachBatch(write)
                jwriter = writer._jwrite.outputMode(read_field(self._jwriter, "outputMode"))
                jwriter = jwriter.queryName(REHEARSAL_QUERY_NAME).trigger(self._once())
                jquery = jwriter.option(CHECKPOINT_OPTION, checkpoint_uri).start()
                is_over = jquery.awaitTermination(max(int(within_seconds * 1000), 1))
                if not is_over:
                    jquery.stop()
            progress = self._reported(jquery)
            if not is_over or not written:
                return WrittenBatch(progress)
            partial.rename(place)
            return WrittenBatch(progress, written[-1], tuple(sorted(file.name for file in place.glob("*.parquet"))))
        except StreamingQueryException:
            if failed:
                raise failed[0] from None
            raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def compare_rows(self, old_folder: str, new_folder: str, keys: Sequence[str], samples: int) -> RowComparison:
        with jvm_answers():
            return compare_folders(self._spark, old_folder, new_folder, keys, samples)

    def write_state(self, checkpoint_uri: str, batch_id: int, state_format: int, folder: str) -> WrittenState:
        with jvm_answers():
            session = self._spark.newSession()
            session.conf.set("spark.sql.session.timeZone", "UTC")
            return write_tables(session, StatePlace(checkpoint_uri, batch_id, state_format), folder)

    def rewrite_state(self, order: RewriteOrder) -> RewrittenState:
        with jvm_answers():
            return rewrite_state(self._spark, order)

    def missing_file(self, paths: Sequence[str]) -> str:
        if not paths:
            return ""
        # Spark looks for all of them at once, and raises for a path that is no pattern and is not there.
        reader = self._spark.read.format("text").option("__globPaths__", "false")
        try:
            with jvm_answers():
                reader.load([unquote(path) for path in paths])
        except AnalysisException as error:
            # Spark 3.5 has the older of the two names alone.
            if "PATH_NOT_FOUND" not in str(getattr(error, "getCondition", error.getErrorClass)()):
                return ""
            return str((error.getMessageParameters() or {}).get("path") or error)
        return ""

    def _into_nothing(self, query_name: str, checkpoint_uri: str) -> Any:
        """A writer of one batch of the same plan, without a sink."""
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

    def need_table(self) -> tuple[str, ...]:
        with jvm_answers(), active_session(self._spark):
            return self._sink.need_table()

    def try_sink(self, next_batch_id: int, scratch_uri: str) -> tuple[str, ...]:
        with jvm_answers(), active_session(self._spark):
            return self._sink.try_it(next_batch_id, self._row_of_nulls, scratch_uri)

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

    def find_undo(self, order: UndoOrder) -> FoundUndo:
        with jvm_answers():
            return self._sink.find_undo(order)

    def undo_batches(self, order: UndoOrder, found: FoundUndo) -> None:
        with jvm_answers():
            self._sink.undo_batches(order, found)

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
        # Not pyspark's own ``get``: each Spark raises another error for a name that it does not know.
        value = scala_option(self._spark._jsparkSession.conf().getOption(name))
        return None if value is None else str(value)

    def cannot_flush_reason(self) -> str | None:
        if self.facts.sink == "memory" and self.facts.output_mode != "complete":
            return "the memory sink cannot start again from a checkpoint in output mode " + self.facts.output_mode
        return None


def _copy_writer(jdf: Any, jwriter: Any) -> Any:
    """Copy a JVM writer field by field; the values are immutable."""
    copy = jdf.writeStream()
    for field in jwriter.getClass().getDeclaredFields():
        if field.getName() != _NOT_COPIED and not field.isSynthetic():
            field.setAccessible(True)
            field.set(copy, field.get(jwriter))
    return copy
