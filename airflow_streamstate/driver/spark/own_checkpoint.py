"""A look at the checkpoint that a script names for a query, by Spark's own Hadoop file systems.

Where Spark finds it: the writer's ``checkpointLocation``, else the folder of the query's name below
``spark.sql.streaming.checkpointLocation``. Without a name Spark takes a random folder there, which holds nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, TypeVar

from airflow_streamstate.driver.attempt.ports import OwnCheckpoint
from airflow_streamstate.driver.spark.jvm import jvm_is_gone
from airflow_streamstate.driver.spark.writer_facts import WriterSettings
from airflow_streamstate.store.s3a import plain_uri

Found = TypeVar("Found")
SESSION_LOCATION = "spark.sql.streaming.checkpointLocation"
LOOK_SECONDS = 20.0
"""How long a file system may take to answer: S3A tries for minutes."""
OTHERS_LOOKED_AT = 50
_COMMITS = "commits"


def look_at_own_checkpoint(spark: Any, settings: WriterSettings) -> OwnCheckpoint | None:
    """What the folder holds now; None where the script names none."""
    location = settings.checkpoint_location or _of_session(spark, settings.query_name)
    if not location:
        return None
    try:
        return _within(LOOK_SECONDS, lambda: _look(spark, location))
    except Exception as error:
        if jvm_is_gone(error):
            raise
        return OwnCheckpoint(plain_uri(location), unread_reason=_in_a_line(error))


def _of_session(spark: Any, query_name: str | None) -> str:
    base = spark.conf.get(SESSION_LOCATION, None) if query_name else None
    return f"{base.rstrip('/')}/{query_name}" if base else ""


def _look(spark: Any, location: str) -> OwnCheckpoint:
    path = spark._jvm.org.apache.hadoop.fs.Path(location)
    files = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    path = files.makeQualified(path)
    batch_id, written_ms = _last_commit(spark, files, path)
    if batch_id is None:
        return OwnCheckpoint(plain_uri(path.toString()))
    others = _others(spark, files, path)
    return OwnCheckpoint(plain_uri(path.toString()), batch_id, _time(written_ms), others)


def _last_commit(spark: Any, files: Any, folder: Any) -> tuple[int | None, int]:
    """The last committed batch, and when its file was written, in milliseconds since 1970."""
    commits = spark._jvm.org.apache.hadoop.fs.Path(folder, _COMMITS)
    if not files.exists(commits):
        return None, 0
    found: tuple[int | None, int] = (None, 0)
    for status in files.listStatus(commits):
        name = str(status.getPath().getName())
        if name.isdecimal() and (found[0] is None or int(name) > found[0]):
            found = int(name), int(status.getModificationTime())
    return found


def _others(spark: Any, files: Any, folder: Any) -> tuple[str, ...]:
    """Checkpoints with committed batches in the same parent: probably those of the script's other queries."""
    if folder.getParent() is None:
        return ()
    found = []
    for status in list(files.listStatus(folder.getParent()))[:OTHERS_LOOKED_AT]:
        other = status.getPath()
        is_another = bool(status.isDirectory()) and other.getName() != folder.getName()
        if is_another and _last_commit(spark, files, other)[0] is not None:
            found.append(plain_uri(other.toString()))
    return tuple(sorted(found))


def _time(ms: int) -> datetime | None:
    return datetime.fromtimestamp(ms / 1000, timezone.utc) if ms > 0 else None


def _within(seconds: float, look: Callable[[], Found]) -> Found:
    """The result of a look in a thread of its own, which is left alone where it takes too long."""
    results: list[Found] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(look())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="streamstate-own-checkpoint", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"its file system did not answer within {seconds:.0f} s")
    return results[0]


def _in_a_line(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    return " ".join(str(java.toString() if java is not None else error).split())[:300]
