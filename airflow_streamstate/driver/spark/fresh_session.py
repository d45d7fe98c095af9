"""A session for a script that runs a second time in its process: as if Spark had just come up.

The context stays, and with it the JVM's warmth: executors, Python workers, generated code. What a session holds does
not: temporary views, settings, caches, listeners, and its queries, those that ran and those that Spark remembers.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.context import SQLContext

from airflow_streamstate.driver.spark.jvm import jvm_answers


def forget_session() -> None:
    """Let the next ``getOrCreate()`` make a session of its own; where the script stopped Spark it does so anyway.

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
