"""A driver that reads the state in forks of snapshots, and does not run the script.

It writes one JSON object, the result or the error, into the folder of its launch.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_streamstate.clock import Clock
from airflow_streamstate.driver.config import DriverConfig
from airflow_streamstate.driver.watchdog import is_child_of_jvm, watch_parent
from airflow_streamstate.errors import DataError, StreamStateError
from airflow_streamstate.protocol.redaction import secrets_of, shortened
from airflow_streamstate.snapshot.state_order import PROGRESS, RESULT, StateOrder

MAX_WORDS_CHARACTERS = 1_000
LATE_STATUS = 3

Report = Callable[[str], None]
Read = Callable[[StateOrder, Report], dict[str, Any]]


def read_state(
    config: DriverConfig, order: StateOrder, clock: Clock, end_process: Callable[[int], None], read: Read | None = None
) -> int:
    """Read what the order asks for; the exit status.

    Args:
        end_process: ends this process with a status, also while threads run.
        read: None for Spark.
    """
    if is_child_of_jvm(os.environ):
        watch_parent(clock, end_process)

    def end() -> None:
        clock.sleep(order.deadline_seconds)
        end_process(LATE_STATUS)

    threading.Thread(target=end, name="streamstate-deadline", daemon=True).start()
    folder = Path(order.folder)
    try:
        answer = {"result": (read or _read_by_spark)(order, lambda words: _write(folder / PROGRESS, words))}
    except StreamStateError as error:
        answer = {"error": error.to_json()}
    except Exception as error:
        answer = {"error": _unread(error, config).to_json()}
    _write(folder / RESULT, json.dumps(answer))
    return 0 if "result" in answer else 1


def _read_by_spark(order: StateOrder, report: Report) -> dict[str, Any]:
    report("Spark starts")
    from pyspark.sql import SparkSession

    from airflow_streamstate.driver.spark.state_changes import compare
    from airflow_streamstate.driver.spark.state_export import check_export, export
    from airflow_streamstate.driver.spark.state_reading import look

    spark = SparkSession.builder.getOrCreate()
    try:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        if order.verb == "diff":
            return {"queries": compare(spark, order, report)}
        if order.export is not None:
            check_export(spark, order.export)
        found = {} if order.before else look(spark, order, report)
        return {"queries": found, "export": None if order.export is None else export(spark, order, report)}
    finally:
        spark.stop()


def _unread(error: Exception, config: DriverConfig) -> StreamStateError:
    words = f"{type(error).__name__}: {error}"
    if not isinstance(error, ImportError):
        from airflow_streamstate.driver.spark.words import spark_words

        words = spark_words(error)
    secrets = secrets_of({}, (), looked_up=config.secrets)
    return DataError(
        "Spark could not read this state",
        reason=shortened(words, secrets, MAX_WORDS_CHARACTERS, in_a_line=True),
        next_step="Check the snapshot with `streamstate snapshot verify`, and read it with a Spark that supports its"
        " formats.",
    )


def _write(path: Path, text: str) -> None:
    """Written atomically, readable for the owner alone: it may hold rows of the state."""
    fresh = path.with_name(f".{path.name}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    fresh.replace(path)
