"""The interception of a rehearsal, and a fresh session for each further run of a script in its process."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.context import SQLContext

from airflow_streamstate.clock import Clock
from airflow_streamstate.driver.rehearsal.rehearsing import Rehearsing
from airflow_streamstate.driver.spark.interception import Interception
from airflow_streamstate.driver.spark.jvm import jvm_answers
from airflow_streamstate.driver.spark.spark_query import SparkWriter
from airflow_streamstate.errors import UnsupportedCheckpointError


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
