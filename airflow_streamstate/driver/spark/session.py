"""Sessions of a script: Spark Connect is refused, a rehearsal is intercepted, a second pass gets a fresh session."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.context import SQLContext

from airflow_streamstate.clock import Clock
from airflow_streamstate.driver.rehearsal.rehearsing import Rehearsing
from airflow_streamstate.driver.spark.interception import Interception
from airflow_streamstate.driver.spark.jvm import jvm_answers
from airflow_streamstate.driver.spark.spark_query import SparkWriter
from airflow_streamstate.errors import InvalidRequestError, UnsupportedCheckpointError

WRITER_MODULE = "pyspark.sql.connect.streaming.readwriter"
_SWITCHES = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_LOCAL_REMOTE")


def refuse_connect_environment(environment: Mapping[str, str]) -> None:
    """Refuse an environment that makes every session a Connect session, whose queries cannot be intercepted.

    Raises:
        InvalidRequestError: it does.
    """
    found = [name for name in _SWITCHES if environment.get(name)]
    if environment.get("SPARK_API_MODE", "").lower() == "connect":
        found.append("SPARK_API_MODE")
    if found:
        raise _refusal(set_by=found)


def refuse_connect_writers() -> None:
    """Make ``start`` and ``toTable`` of Connect's writer refuse, now or as soon as a script imports it."""
    module = sys.modules.get(WRITER_MODULE)
    if module is not None:
        _refuse_in(module)
    elif not any(isinstance(finder, _RefusingFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _RefusingFinder())


class _RefusingFinder(importlib.abc.MetaPathFinder):
    """Patches Connect's writer once the import system has loaded it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != WRITER_MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _RefusingLoader(spec.loader)
        return spec


class _RefusingLoader(importlib.abc.Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        found: ModuleType | None = self._loader.create_module(spec)
        return found

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _refuse_in(module)


def _refuse_in(module: ModuleType) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise _refusal()

    module.DataStreamWriter.start = refuse
    module.DataStreamWriter.toTable = refuse


def _refusal(**facts: object) -> InvalidRequestError:
    return InvalidRequestError(
        "Spark Connect is not supported: its queries cannot be stopped or drained at a batch boundary",
        **facts,
        next_step="Run the script with a classic session: unset SPARK_REMOTE, and set no remote() or spark.remote.",
    )


class RehearsedInterception(Interception):
    """The queries of one script in its rehearsal; none runs when its ``start()`` returns."""

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
        sessions = session._jvm.org.apache.spark.sql.classic.SparkSession
        sessions.clearDefaultSession()
        sessions.clearActiveSession()
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None
    SQLContext._instantiatedContext = None
