"""Ends a python whose JVM is gone.

``spark-submit`` is a JVM that starts python. If that JVM is killed, python goes on as an orphan, and its agent would
write heartbeats for a query that no longer runs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping

from airflow_streamstate.clock import Clock
from airflow_streamstate.driver.attempt.reporting import say_to_driver_log

WATCH_SECONDS = 0.5
LOST_JVM_STATUS = 143
GATEWAY_VARIABLE = "PYSPARK_GATEWAY_PORT"


def is_child_of_jvm(environment: Mapping[str, str]) -> bool:
    """Whether a JVM started this process, as ``spark-submit`` does."""
    return GATEWAY_VARIABLE in environment


def watch_parent(
    clock: Clock, end_process: Callable[[int], None], parent_id: Callable[[], int] = os.getppid
) -> threading.Thread:
    """Start a daemon thread that calls ``end_process(LOST_JVM_STATUS)`` once this process has another parent."""
    first = parent_id()

    def watch() -> None:
        while parent_id() == first:
            clock.sleep(WATCH_SECONDS)
        say_to_driver_log("Spark's JVM is gone; this driver ends")
        end_process(LOST_JVM_STATUS)

    thread = threading.Thread(target=watch, name="streamstate-watchdog", daemon=True)
    thread.start()
    return thread
