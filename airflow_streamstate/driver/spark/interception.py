"""The places where pyspark starts queries and waits for any of them, patched so that the deployment hears of it.

Only classes are patched: a script that imported them before or imports them later meets the same ones. A second pass of
a script puts its own interception in the place of the first.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from pyspark import SparkContext
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery, StreamingQueryManager

from airflow_streamstate.checkpoint.guards import guard_start
from airflow_streamstate.clock import Clock
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.driver.attempt.ports import StartableQuery
from airflow_streamstate.driver.spark.handles import SupervisedQuery, check_timeout
from airflow_streamstate.driver.spark.jvm import note_stop_of
from airflow_streamstate.driver.spark.spark_query import REHEARSAL_QUERY_NAME, SEED_QUERY_NAME, SparkWriter

POLL_SECONDS = 0.1
PACE_SECONDS = 0.5
_GUARDED_TRIGGERS = {"default": "processingTime", "processing_time": "processingTime", "available_now": "availableNow"}
_SPARKS_STOP = SparkContext.stop
_SPARKS_GET = StreamingQueryManager.get
Start = Callable[[DataStreamWriter, str | None, str | None], StreamingQuery]
AnyCallable = TypeVar("AnyCallable", bound=Callable[..., Any])


class DecidesOnStarts(Protocol):
    """Who decides what a ``start()`` of the script becomes: ``agent.supervisor.Supervisor``, or a rehearsal."""

    def session_started(self, spark_version: str, application_id: str) -> None:
        """The Spark session is there."""

    def start_query(
        self, requested_name: str | None, own_checkpoint_location: str | None, startable: StartableQuery
    ) -> LogicalQuery:
        """The intercepted ``start()``; raises whatever the script is to see."""


class Interception:
    """The queries of one script.

    Args:
        supervisor: what decides.
        clock: for waits.
    """

    def __init__(self, supervisor: DecidesOnStarts, clock: Clock) -> None:
        self._supervisor = supervisor
        self._clock = clock
        self._guard = threading.Lock()
        self._has_session = False
        # Each with the JVM's manager of its session: `newSession()` has one of its own.
        self._handles: list[tuple[Any, SupervisedQuery]] = []
        # Spark remembers that a query ended until `resetTerminated()`; so does this, without keeping every handle.
        self._ended_since_reset: list[Any] = []
        self._ended_before: set[str] = set()

    def install(self) -> None:
        """Patch pyspark's classes, for the life of this process, or until another one takes its place."""
        _install_starts(self._start)
        _install_stop()
        _install_manager(self)

    # starting

    def _start(self, writer: DataStreamWriter, path: str | None, table_name: str | None) -> StreamingQuery:
        spark = writer._spark
        startable = SparkWriter(spark, writer._df._jdf, writer._jwrite, path, table_name)
        self._guard_start(spark, startable)
        self._tell_of_session(spark)
        settings = startable.settings
        logical = self._supervisor.start_query(settings.query_name, settings.checkpoint_location, startable)
        handle = SupervisedQuery(logical, startable)
        self.remember(spark.streams._jsqm, handle)
        self._pace(logical.name, handle)
        return handle

    def _guard_start(self, spark: Any, startable: SparkWriter) -> None:
        trigger = startable.facts.trigger
        guard_start(dict(spark.conf.getAll), startable.settings.options, _GUARDED_TRIGGERS.get(trigger, trigger))

    def remember(self, jmanager: Any, handle: SupervisedQuery) -> None:
        """Keep the handle; let go of those before it that came to a good end."""
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
            self._supervisor.session_started(spark.version, spark.sparkContext.applicationId)
            self._has_session = True

    def _pace(self, name: str, handle: SupervisedQuery) -> None:
        """Once no query starts any more, a loop around ``start()`` must not spin."""
        if handle.run_ids or not handle.is_over:
            return
        with self._guard:
            is_again = name in self._ended_before
            self._ended_before.add(name)
        if is_again:
            self._clock.sleep(PACE_SECONDS)

    # the manager of a session

    def active(self, jmanager: Any) -> list[StreamingQuery]:
        """Spark's ``streams.active``: the script's queries as it knows them, and those that are not ours."""
        ours = self._handles_of(jmanager)
        own_runs = {run_id for handle in ours for run_id in handle.run_ids}
        others = [
            query
            for query in (StreamingQuery(jquery) for jquery in jmanager.active())
            if query.name not in (SEED_QUERY_NAME, REHEARSAL_QUERY_NAME) and query.runId not in own_runs
        ]
        return [*(handle for handle in ours if not handle.is_over), *others]

    def await_any(self, jmanager: Any, timeout_seconds: float | None) -> bool | None:
        """Spark's ``streams.awaitAnyTermination``; one deadline, however many queries end meanwhile."""
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
        """Raises what the first of them failed with."""
        with self._guard:
            over = [known for known in self._handles if known[1].is_over and not known[1].is_held_back]
            ended = list(self._ended_since_reset)
        if not over and not ended:
            return False  # the usual answer of a poll: no call to the JVM
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
    """What ``start`` and ``toTable`` are given beside their target, in pyspark's own order."""
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
    """Keep the name and the documentation of what is replaced."""

    def decorate(replacement: AnyCallable) -> AnyCallable:
        for attribute in functools.WRAPPER_ASSIGNMENTS:
            setattr(replacement, attribute, getattr(original, attribute))
        return replacement

    return decorate
