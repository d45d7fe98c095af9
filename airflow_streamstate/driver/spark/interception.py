"""Patches the methods of pyspark's classes that start queries and wait for them.

A second pass of a script, in a fresh session, replaces the interception of the first.
"""

from __future__ import annotations

import functools
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar, Union

import pyspark
from pyspark import SparkContext
from pyspark.errors import PySparkValueError, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.context import SQLContext
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery, StreamingQueryManager
from pyspark.sql.streaming.listener import StreamingQueryProgress

from airflow_streamstate.checkpoint.guards import guard_start, line_of
from airflow_streamstate.clock import Clock
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.driver.attempt.ports import StartableQuery
from airflow_streamstate.driver.rehearsal.rehearsal_run import Rehearsing
from airflow_streamstate.driver.spark.jvm import jvm_answers, note_stop_of, session_class, settings_of
from airflow_streamstate.driver.spark.spark_query import (
    REHEARSAL_QUERY_NAME,
    SEED_QUERY_NAME,
    SparkQueryRun,
    SparkWriter,
)
from airflow_streamstate.driver.start.start_checks import launch_keys, notes_on_own_settings
from airflow_streamstate.errors import UnsupportedCheckpointError

_STOPPED = {"message": "Stopped", "isDataAvailable": False, "isTriggerActive": False}
_NO_PLAN = "No physical plan. Waiting for data."
_KEPT_PROGRESS = 100


class SupervisedQuery(StreamingQuery):  # type: ignore[misc]  # pyspark is not looked into
    """The script's handle of a query; it answers for the logical query (1a.11), not for one run of it in Spark.

    Args:
        writer: what it was started from, which has its runs; none where the latch was closed before.
    """

    def __init__(self, logical: LogicalQuery, writer: SparkWriter) -> None:
        # Not the parent's __init__: the JVM query behind this handle changes.
        self._logical = logical
        self._writer = writer

    @property
    def _runs(self) -> list[SparkQueryRun]:
        return self._writer.runs

    @property
    def _jsq(self) -> Any:
        return self._runs[-1].jquery

    @property
    def id(self) -> str:
        return self._logical.query_id or self.runId

    @property
    def runId(self) -> str:  # noqa: N802  Spark's name
        if self._runs:
            return self._runs[-1].query_run_id
        return str(uuid.uuid5(uuid.NAMESPACE_URL, self._logical.checkpoint.prefix))

    @property
    def name(self) -> str | None:
        return self._writer.settings.query_name

    @property
    def isActive(self) -> bool:  # noqa: N802
        return self._logical.is_active()

    @property
    def status(self) -> dict[str, Any]:
        return super().status if self._runs else dict(_STOPPED)

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:  # noqa: N802
        recent = self.recentProgress
        return recent[-1] if recent else None

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:  # noqa: N802
        reports = [StreamingQuery(run.jquery).recentProgress for run in self._runs]
        return [progress for reported in reports for progress in reported][-_KEPT_PROGRESS:]

    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802
        check_timeout(timeout, zero_is_allowed=False)
        is_over = self._logical.await_termination(timeout)
        if is_over:
            self.raise_failure()
        return None if timeout is None else is_over

    def exception(self) -> StreamingQueryException | None:
        text = self._logical.give_failure()
        if text is None:
            return None
        found = None if self._failed_run is None else StreamingQuery(self._failed_run.jquery).exception()
        return found or StreamingQueryException(text)

    def stop(self) -> None:
        self._logical.stop()

    def processAllAvailable(self) -> None:  # noqa: N802
        if self._logical.ended:
            self.raise_failure()
            self._logical.wait_in_vain()
            return
        while self._runs:
            run = self._logical.run
            try:
                super().processAllAvailable()
                return
            except StreamingQueryException:
                # Its own failure, or our barrier.
                if not self._logical.await_another_run(run):
                    self.raise_failure()
                    return

    def explain(self, extended: bool = False) -> None:
        if self._runs:
            super().explain(extended)
        else:
            print(_NO_PLAN)

    # for the manager

    @property
    def is_over(self) -> bool:
        """Whether it has ended for the script; does not call the JVM."""
        return self._logical.ended

    @property
    def is_held_back(self) -> bool:
        """Whether its failure is not raised yet, because other queries run on."""
        return self._logical.is_held_back

    def wait_in_vain(self) -> None:
        """As ``LogicalQuery.wait_in_vain``."""
        self._logical.wait_in_vain()

    @property
    def has_failed(self) -> bool:
        """Whether it failed by itself."""
        return self._logical.failure() is not None

    @property
    def run_ids(self) -> set[str]:
        """Spark's ids of all its runs."""
        return {run.query_run_id for run in self._runs}

    def raise_failure(self) -> None:
        """Raise the StreamingQueryException of the run that failed, if one did."""
        text = self._logical.failure_to_raise()
        if text is None:
            return
        if self._failed_run is not None and self._failed_run.has_ended():
            self._failed_run.jquery.awaitTermination()
        raise StreamingQueryException(text)

    @property
    def _failed_run(self) -> SparkQueryRun | None:
        failed = self._logical.failed_run
        return failed if isinstance(failed, SparkQueryRun) else None


class RehearsalQuery(SupervisedQuery):
    """The handle in a rehearsal: its progress is that of the batches that its ``start()`` has run."""

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:  # noqa: N802
        own = {"name": self.name, "id": self.id, "runId": self.runId}
        return [_as_sparks_own({**report, **own}) for report in self._writer.trial_reports]


def _as_sparks_own(report: dict[str, Any]) -> Any:
    """A progress report as this Spark gives it to a script: 3.5 gives a ``dict``."""
    is_dict = (line_of(pyspark.__version__) or (4, 0)) < (4, 0)
    return report if is_dict else StreamingQueryProgress.fromJson(report)


def check_timeout(timeout: float | None, *, zero_is_allowed: bool) -> None:
    """Raise pyspark's own PySparkValueError for a timeout that is not a positive number."""
    if timeout is None:
        return
    if not isinstance(timeout, (int, float)) or timeout < 0 or (timeout == 0 and not zero_is_allowed):
        raise PySparkValueError(
            # By position: Spark 3.5 has other names for these two.
            None,
            "VALUE_NOT_POSITIVE",
            {"arg_name": "timeout", "arg_value": type(timeout).__name__},
        )


POLL_SECONDS = 0.1
PACE_SECONDS = 0.5
_GUARDED_TRIGGERS = {
    "default": "processingTime",
    "processing_time": "processingTime",
    "available_now": "availableNow",
    "real_time": "realTime",
}
"""By the trigger's name in the facts, pyspark's name, which a script has."""
_FOREACH_BATCH = "_streamstate_foreach_batch"
_SPARKS_FOREACH_BATCH = DataStreamWriter.foreachBatch
_SPARKS_STOP = SparkContext.stop
_SPARKS_GET = StreamingQueryManager.get
Start = Callable[[DataStreamWriter, Union[str, None], Union[str, None]], StreamingQuery]
AnyCallable = TypeVar("AnyCallable", bound=Callable[..., Any])


class DecidesOnStarts(Protocol):
    """Decides what a ``start()`` of the script becomes: ``agent.agent.AttemptLife``, or a rehearsal."""

    @property
    def attempt(self) -> Attempt:
        """Whose queries these are."""

    def session_started(self, spark_version: str, application_id: str, notes: Sequence[str] = ()) -> None:
        """The Spark session is there; ``notes``: on the settings that the script made in it."""

    def start_query(
        self, requested_name: str | None, own_checkpoint_location: str | None, startable: StartableQuery
    ) -> LogicalQuery:
        """The intercepted ``start()``; its errors are raised into the script."""


class Interception:
    """The queries of one script."""

    _handle_class: type[SupervisedQuery] = SupervisedQuery

    def __init__(self, decider: DecidesOnStarts, clock: Clock) -> None:
        self._decider = decider
        self._clock = clock
        self._guard = threading.Lock()
        self._has_session = False
        # Each with the JVM's query manager of its session.
        self._handles: list[tuple[Any, SupervisedQuery]] = []
        # As Spark, this remembers until `resetTerminated()` that a query ended, without keeping every handle.
        self._ended_since_reset: list[Any] = []
        self._ended_before: set[str] = set()

    def install(self) -> None:
        """Patch pyspark's classes, until another interception is installed."""
        _install_starts(self._start)
        _install_stop()
        _install_manager(self)

    # starting

    def _start(self, writer: DataStreamWriter, path: str | None, table_name: str | None) -> StreamingQuery:
        spark = writer._spark
        own = getattr(writer, _FOREACH_BATCH, None)
        startable = SparkWriter(spark, writer._df._jdf, writer._jwrite, path, table_name, own)
        self._guard_start(spark, startable)
        self._tell_of_session(spark)
        settings = startable.settings
        logical = self._decider.start_query(settings.query_name, settings.checkpoint_location, startable)
        handle = self._handle_class(logical, startable)
        self.remember(spark.streams._jsqm, handle)
        self._pace(logical.name, handle)
        return handle

    def _guard_start(self, spark: Any, startable: SparkWriter) -> None:
        trigger = startable.facts.trigger
        guard_start(settings_of(spark), startable.settings.options, _GUARDED_TRIGGERS.get(trigger, trigger))

    def remember(self, jmanager: Any, handle: SupervisedQuery) -> None:
        """Keep the handle; drop those that ended without a failure."""
        with self._guard:
            gone = [known for known in self._handles if known[1].is_over and not known[1].has_failed]
            self._handles = [known for known in self._handles if known not in gone] + [(jmanager, handle)]
            for its_manager, _ in gone:
                if its_manager not in self._ended_since_reset:
                    self._ended_since_reset.append(its_manager)

    def _tell_of_session(self, spark: Any) -> None:
        with self._guard:
            if self._has_session:
                return
            self._decider.session_started(spark.version, spark.sparkContext.applicationId, self._own_settings(spark))
            self._has_session = True

    def tell_of_failed_script(self) -> None:
        """Report the session of a script that fails before its first ``start()``, perhaps by what it set too late."""
        session = SparkSession._instantiatedSession
        if session is None or session._sc._jsc is None:
            return
        with suppress(Exception):  # the error of the script is what has to be reported
            self._tell_of_session(session)

    def _own_settings(self, spark: Any) -> tuple[str, ...]:
        """Sentences on what the script set in its own code, compared with what its deployment sets."""
        spec, properties = self._decider.attempt.spec, spark._jvm.java.lang.System
        launched = {key: properties.getProperty(key) for key in launch_keys(spec.version.conf)}
        at_launch = {key: value for key, value in launched.items() if value is not None}
        return tuple(notes_on_own_settings(spec.version.master, spec.version.conf, settings_of(spark), at_launch))

    def _pace(self, name: str, handle: SupervisedQuery) -> None:
        """Sleep where a script loops around ``start()`` after queries have stopped starting."""
        if handle.run_ids or not handle.is_over:
            return
        with self._guard:
            is_again = name in self._ended_before
            self._ended_before.add(name)
        if is_again:
            self._clock.sleep(PACE_SECONDS)

    # the manager of a session

    def active(self, jmanager: Any) -> list[StreamingQuery]:
        """Spark's ``streams.active``: the handles of the script's queries, and queries that are not ours."""
        ours = self._handles_of(jmanager)
        own_runs = {run_id for handle in ours for run_id in handle.run_ids}
        others = [
            query
            for query in (StreamingQuery(jquery) for jquery in jmanager.active())
            if query.name not in (SEED_QUERY_NAME, REHEARSAL_QUERY_NAME) and query.runId not in own_runs
        ]
        return [*(handle for handle in ours if not handle.is_over), *others]

    def await_any(self, jmanager: Any, timeout_seconds: float | None) -> bool | None:
        """Spark's ``streams.awaitAnyTermination``."""
        check_timeout(timeout_seconds, zero_is_allowed=True)
        end = None if timeout_seconds is None else self._clock.monotonic_seconds() + timeout_seconds
        was_over = self._any_is_over(jmanager)
        while not was_over and not self._any_is_over(jmanager):
            left = POLL_SECONDS if end is None else end - self._clock.monotonic_seconds()
            if left <= 0:
                return False
            self._clock.sleep(min(left, POLL_SECONDS))
        over = [handle for handle in self._handles_of(jmanager) if handle.is_over] if was_over else []
        if over:
            over[0].wait_in_vain()
        return None if timeout_seconds is None else True

    def _any_is_over(self, jmanager: Any) -> bool:
        """Raises the failure of the first that failed."""
        with self._guard:
            over = [known for known in self._handles if known[1].is_over and not known[1].is_held_back]
            ended = list(self._ended_since_reset)
        if not over and not ended:
            return False  # the usual case, without a call to the JVM
        ours = [handle for its_manager, handle in over if its_manager == jmanager]
        for handle in ours:
            handle.raise_failure()
        return bool(ours) or jmanager in ended

    def reset_terminated(self, jmanager: Any) -> None:
        """Spark's ``streams.resetTerminated``."""
        with self._guard:
            self._handles = [known for known in self._handles if not known[1].is_over or known[0] != jmanager]
            self._ended_since_reset = [ended for ended in self._ended_since_reset if ended != jmanager]
        jmanager.resetTerminated()

    def _handles_of(self, jmanager: Any) -> list[SupervisedQuery]:
        with self._guard:
            known = list(self._handles)
        return [handle for its_manager, handle in known if its_manager == jmanager]


class RehearsedInterception(Interception):
    """The queries of one script in its rehearsal; none runs when its ``start()`` returns."""

    _handle_class = RehearsalQuery

    def __init__(self, rehearsing: Rehearsing, clock: Clock) -> None:
        super().__init__(rehearsing, clock)
        self._rehearsing = rehearsing

    def _guard_start(self, spark: Any, startable: SparkWriter) -> None:
        try:
            super()._guard_start(spark, startable)
        except UnsupportedCheckpointError as error:
            self._rehearsing.refuse(startable, error)  # not raised, so that the next queries are tried, too


def forget_session() -> None:
    """Let the next ``getOrCreate()`` make a fresh session in the same, warm context.

    Raises:
        UnavailableError: the JVM does not answer.
    """
    session = SparkSession._instantiatedSession
    if session is None or session._sc._jsc is None:
        return
    with jvm_answers():
        session.catalog.clearCache()
        session.streams._jsqm.resetTerminated()
        sessions = session_class(session._jvm)
        sessions.clearDefaultSession()
        sessions.clearActiveSession()
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None
    SQLContext._instantiatedContext = None


def _install_starts(start: Start) -> None:
    @_instead_of(DataStreamWriter.start)
    def started(
        self: DataStreamWriter,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,  # noqa: N803  Spark's names
        partitionBy: str | list[str] | None = None,  # noqa: N803
        queryName: str | None = None,  # noqa: N803
        **options: Any,
    ) -> StreamingQuery:
        _apply(self, format, outputMode, partitionBy, queryName, options)
        return start(self, path, None)

    @_instead_of(DataStreamWriter.toTable)
    def started_to_table(
        self: DataStreamWriter,
        tableName: str,  # noqa: N803
        format: str | None = None,
        outputMode: str | None = None,  # noqa: N803
        partitionBy: str | list[str] | None = None,  # noqa: N803
        queryName: str | None = None,  # noqa: N803
        **options: Any,
    ) -> StreamingQuery:
        _apply(self, format, outputMode, partitionBy, queryName, options)
        return start(self, None, tableName)

    @_instead_of(_SPARKS_FOREACH_BATCH)
    def foreach_batch(self: DataStreamWriter, func: Callable[[DataFrame, int], None]) -> DataStreamWriter:
        setattr(self, _FOREACH_BATCH, func)  # the JVM's writer does not give it back
        found: DataStreamWriter = _SPARKS_FOREACH_BATCH(self, func)
        return found

    DataStreamWriter.foreachBatch = foreach_batch
    DataStreamWriter.start = started
    DataStreamWriter.toTable = started_to_table


def _apply(
    writer: DataStreamWriter,
    source: str | None,
    output_mode: str | None,
    partition_by: str | list[str] | None,
    query_name: str | None,
    options: dict[str, Any],
) -> None:
    """Apply the arguments of ``start`` and ``toTable``, in pyspark's own order."""
    writer.options(**options)
    if output_mode is not None:
        writer.outputMode(output_mode)
    if partition_by is not None:
        writer.partitionBy(partition_by)
    if source is not None:
        writer.format(source)
    if query_name is not None:
        writer.queryName(query_name)


def _install_stop() -> None:
    @_instead_of(_SPARKS_STOP)
    def stop(self: SparkContext) -> None:
        note_stop_of(self)
        _SPARKS_STOP(self)

    SparkContext.stop = stop


def _install_manager(interception: Interception) -> None:
    @_instead_of(_SPARKS_GET)
    def get(self: StreamingQueryManager, id: str) -> StreamingQuery | None:
        ours = [query for query in interception.active(self._jsqm) if query.id == id]
        found: StreamingQuery | None = ours[0] if ours else _SPARKS_GET(self, id)
        return found

    @_instead_of(StreamingQueryManager.awaitAnyTermination)
    def await_any(self: StreamingQueryManager, timeout: float | None = None) -> bool | None:
        return interception.await_any(self._jsqm, timeout)

    @_instead_of(StreamingQueryManager.resetTerminated)
    def reset_terminated(self: StreamingQueryManager) -> None:
        interception.reset_terminated(self._jsqm)

    StreamingQueryManager.active = property(lambda self: interception.active(self._jsqm))
    StreamingQueryManager.get = get
    StreamingQueryManager.awaitAnyTermination = await_any
    StreamingQueryManager.resetTerminated = reset_terminated


def _instead_of(original: Callable[..., Any]) -> Callable[[AnyCallable], AnyCallable]:
    """Copy the name and the documentation of the replaced function."""

    def decorate(replacement: AnyCallable) -> AnyCallable:
        for attribute in functools.WRAPPER_ASSIGNMENTS:
            setattr(replacement, attribute, getattr(original, attribute))
        return replacement

    return decorate
