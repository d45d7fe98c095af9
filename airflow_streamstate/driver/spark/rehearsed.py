"""The script's queries in a rehearsal: each ``start()`` is tried, and nothing of it runs when it comes back."""

from __future__ import annotations

from typing import Any

from airflow_streamstate.clock import Clock
from airflow_streamstate.driver.rehearsal.rehearsing import Rehearsing
from airflow_streamstate.driver.spark.interception import Interception
from airflow_streamstate.driver.spark.spark_query import SparkWriter
from airflow_streamstate.errors import UnsupportedCheckpointError


class RehearsedInterception(Interception):
    """The queries of one script in its rehearsal.

    Args:
        rehearsing: what tries them.
        clock: for waits.
    """

    def __init__(self, rehearsing: Rehearsing, clock: Clock) -> None:
        super().__init__(rehearsing, clock)
        self._rehearsing = rehearsing

    def _guard_start(self, spark: Any, startable: SparkWriter) -> None:
        try:
            super()._guard_start(spark, startable)
        except UnsupportedCheckpointError as error:
            # Of this query alone: the ones after it are to be seen, too.
            self._rehearsing.refuse(startable, error)
