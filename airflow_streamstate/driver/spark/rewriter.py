"""A newer Spark alongside the job, which rewrites the state that the job's own Spark cannot rewrite.

The driver starts it as a separate process, on its machine, and gives it the order by its standard input, secrets
included. When the driver ends, however it ends, the process sees the end of its input, and ends. The job's Spark lays
the new schema down and keeps all log entries; the other Spark only writes state files, in the formats that the entries
pin.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any, cast

import airflow_streamstate
from airflow_streamstate import errors
from airflow_streamstate.driver.attempt.ports import RewriteOrder, RewrittenState
from airflow_streamstate.driver.spark.jvm import settings_of
from airflow_streamstate.errors import DataError, InvalidRequestError, StreamStateError, UnsupportedCheckpointError
from airflow_streamstate.migration import Migration, MigrationFile, read_migrations
from airflow_streamstate.protocol.scratch import RewrittenTable
from airflow_streamstate.store.options import EXCLUDES, S3_PACKAGES, s3_connector

_MAIN = "from airflow_streamstate.driver.spark.rewriter import main; main()"
_NOT_PASSED_ON = ("SPARK_", "PYSPARK_", "PYTHON", "_SPARK_")
"""Variables of the job's own Spark and Python."""
_ALWAYS = ("SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME", "SPARK_LOCAL_DIRS")
_SETTINGS = ("spark.hadoop.", "fs.", "spark.sql.streaming.stateStore.", "spark.sql.caseSensitive")
"""What of the job's settings the other Spark gets: places, and how state is stored."""
_HADOOP = "spark.hadoop."
_MEMORY = "spark.driver.memory"
_IVY = ("spark.jars.ivy", "spark.jars.ivySettings", "spark.jars.repositories")
_S3 = "s3a:"
_GO = "go"
IDLE_SECONDS = 120.0
_STANDARD_ERROR = 2
_LOST_DRIVER_STATUS = 143


_one_at_a_time = threading.Lock()
_kept: dict[str, _Process] = {}


def rewrite_alongside(spark: Any, order: RewriteOrder) -> RewrittenState:
    """Have the state rewritten by the Spark that the order names.

    Its process stays for a while: it is warm when the driver rewrites the state of the next query, or when that of a
    rehearsal takes over.

    Raises:
        InvalidRequestError: there is no Spark at its path.
        UnsupportedCheckpointError: it cannot rewrite state either, or it does not start.
        and as ``rewrite_state``.
    """
    with _one_at_a_time:
        process = _kept.pop(order.rewriter, None)
        found = None if process is None else _rewritten_by(process, order)
        if found is None:
            settings = {**dict(spark.sparkContext.getConf().getAll()), **settings_of(spark)}
            process = _Process(order.rewriter, settings, needs_s3=order.after_uri.startswith(_S3))
            found = _rewritten_by(process, order)
        if process is None or found is None:
            raise UnsupportedCheckpointError(
                "the Spark that was to rewrite the state ended without an answer",
                rewriter=order.rewriter,
                next_step="Nothing was changed. The end of the driver's log shows why; it needs Java 17, and its own"
                " memory.",
            )
        _kept[order.rewriter] = process
        return found


def _rewritten_by(process: _Process, order: RewriteOrder) -> RewrittenState | None:
    """What a process has rewritten; None where it is gone. It is ended where it has failed."""
    found = None
    try:
        found = process.rewrite(order)
    finally:
        if found is None:
            process.end()
    return found


class _Process:
    def __init__(self, path: str, settings: Mapping[str, str], *, needs_s3: bool) -> None:
        reader, writer = os.pipe()
        self._settings = {name: value for name, value in settings.items() if name.startswith(_SETTINGS)}
        self._process = subprocess.Popen(
            [*_python_of(path), "-c", _MAIN, str(writer)],
            stdin=subprocess.PIPE,
            stdout=_STANDARD_ERROR,
            env=_environment(path, _arguments(path, settings, needs_s3=needs_s3)),
            pass_fds=(writer,),
            start_new_session=True,
        )
        os.close(writer)
        self._commands = cast("IO[bytes]", self._process.stdin)
        self._answers = os.fdopen(reader, encoding="utf-8")

    def rewrite(self, order: RewriteOrder) -> RewrittenState | None:
        """What it has rewritten; None where it ends without an answer."""
        _tell(self._commands, json.dumps({"order": _plain(order), "settings": self._settings}))
        for line in self._answers:
            answer = json.loads(line)
            if "written" in answer:
                order.on_written(answer["written"])
                _tell(self._commands, _GO)
            elif "error" in answer:
                raise _error(answer["error"])
            else:
                return _state(answer["result"])
        return None

    def end(self) -> None:
        with suppress(OSError):
            self._commands.close()
        self._answers.close()
        self._process.wait()


def _tell(commands: IO[bytes], words: str) -> None:
    with suppress(BrokenPipeError):  # the end of its answers is the error
        commands.write(words.encode() + b"\n")
        commands.flush()


def _python_of(path: str) -> tuple[str, ...]:
    own = Path(path) / "bin" / "python"
    return (str(own) if own.is_file() else sys.executable,)


def _home_of(path: str) -> Path:
    found = [Path(path), *sorted(Path(path).glob("lib/python3*/site-packages/pyspark"))]
    for home in found:
        if (home / "jars").is_dir() and (home / "bin" / "spark-submit").is_file():
            return home
    raise InvalidRequestError(
        "there is no Spark at the path of the rewriter, on the machine of the driver",
        rewriter=path,
        next_step="Name an installation, which has bin/spark-submit and jars, or a virtual environment with pyspark.",
    )


def _arguments(path: str, settings: Mapping[str, str], *, needs_s3: bool) -> str:
    """What a JVM takes at its launch alone: its memory, and the packages by which this Spark reaches S3."""
    words = ["--master", "local[*]"]
    if settings.get(_MEMORY):
        words += ["--driver-memory", settings[_MEMORY]]
    if needs_s3:
        asked = {name: value for name, value in settings.items() if name == S3_PACKAGES and value != "pinned"}
        found = s3_connector(_home_of(path), asked)
        if found.packages:
            words += ["--packages", ",".join(found.packages), "--conf", f"{EXCLUDES}={','.join(found.excludes)}"]
        for name in _IVY:
            words += ["--conf", f"{name}={settings[name]}"] if name in settings else []
    return shlex.join([*words, "pyspark-shell"])


def _environment(path: str, arguments: str) -> dict[str, str]:
    home = _home_of(path)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_PASSED_ON) or name in _ALWAYS}
    libraries = [str(home / "python"), *map(str, sorted((home / "python" / "lib").glob("py4j-*.zip")))]
    if home.parent.name == "site-packages":
        libraries = [str(home.parent)]
    package = str(Path(airflow_streamstate.__file__).parents[1])
    return {
        **kept,
        "SPARK_HOME": str(home),
        "PYTHONPATH": os.pathsep.join((package, *libraries)),
        "PYSPARK_PYTHON": _python_of(path)[0],
        "PYSPARK_DRIVER_PYTHON": _python_of(path)[0],
        "PYSPARK_SUBMIT_ARGS": arguments,
    }


# the order and the answer, as JSON


def _plain(order: RewriteOrder) -> dict[str, Any]:
    file = order.migration_file
    return {
        **asdict(replace(order, on_written=_nothing, migrations={}, migration_file=None)),
        "on_written": None,
        "partitions": list(order.partitions.items()),
        "aggregates": None if order.aggregates is None else list(order.aggregates.items()),
        "migrations": [[*place, each.query, each.operator, each.variable] for place, each in order.migrations.items()],
        "migration_file": None if file is None else [file.name, file.body.decode("latin-1"), file.is_inverse],
    }


def _nothing(_: object) -> None:
    pass


def _order(raw: Mapping[str, Any], on_written: Callable[[Any], None]) -> RewriteOrder:
    file, migrations = None, dict[tuple[int, str], Migration]()
    if raw["migration_file"] is not None:
        name, body, is_inverse = raw["migration_file"]
        file = MigrationFile(name, body.encode("latin-1"), is_inverse)
        known = {(each.query, each.operator, each.variable): each for each in read_migrations(file.body, name)}
        for operator_id, table, *place in raw["migrations"]:
            found = known[place[0], place[1], place[2]]
            migrations[operator_id, table] = cast("Migration", found.inverted() if is_inverse else found)
    changed = raw["aggregates"]
    aggregates = None if changed is None else {number: tuple(map(tuple, two)) for number, two in changed}
    return RewriteOrder(
        **{
            **raw,
            "partitions": dict(raw["partitions"]),
            "aggregates": aggregates,
            "migrations": migrations,
            "migration_file": file,
            "on_written": on_written,
            "rewriter": "",
        }
    )


def _state(raw: Mapping[str, Any]) -> RewrittenState:
    tables = tuple(RewrittenTable(**{**table, "samples": tuple(table["samples"])}) for table in raw["tables"])
    return RewrittenState(tables, raw["state_ids"], {int(number): rows for number, rows in raw["rows_read"].items()})


def _error(raw: Mapping[str, Any]) -> StreamStateError:
    kind = getattr(errors, str(raw["type"]), None)
    if not (isinstance(kind, type) and issubclass(kind, StreamStateError)):
        kind = DataError
    return kind(str(raw["message"]), next_step=str(raw["next_step"]), **raw["context"])


# the process


def main() -> None:
    """Obey the lines of the standard input: each asks for a rewrite, or lets it continue. The process ends with them,
    and when it was asked for nothing for ``IDLE_SECONDS``.

    The argument of the command is the number of the pipe for answers.
    """
    asks: SimpleQueue[Mapping[str, Any]] = SimpleQueue()
    may_go = threading.Semaphore(0)
    threading.Thread(target=_obey, args=(asks, may_go), daemon=True).start()
    with os.fdopen(int(sys.argv[1]), "w", encoding="utf-8") as answers:

        def say(**answer: object) -> None:
            answers.write(json.dumps(answer, default=str) + "\n")
            answers.flush()

        def written(ids: object) -> None:
            say(written=ids)
            may_go.acquire()

        while True:
            try:
                ask = asks.get(timeout=IDLE_SECONDS)
            except Empty:
                os._exit(0)
            try:
                found = _rewritten(ask, written)
            except StreamStateError as error:
                say(error=error.to_json())
            else:
                say(result=asdict(found))


def _obey(asks: SimpleQueue[Mapping[str, Any]], may_go: threading.Semaphore) -> None:
    for line in sys.stdin:
        if line.strip() == _GO:
            may_go.release()
        else:
            asks.put(json.loads(line))
    os._exit(_LOST_DRIVER_STATUS)


def _rewritten(ask: Mapping[str, Any], on_written: Callable[[Any], None]) -> RewrittenState:
    from pyspark.sql import SparkSession

    from airflow_streamstate.driver.spark.state_rewriting import rewrite_state

    builder = SparkSession.builder.appName("streamstate rewriter").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    for name, value in ask["settings"].items():
        if name.startswith(_HADOOP):
            hadoop.set(name.removeprefix(_HADOOP), value)
        else:
            spark.conf.set(name, value)
    # The state store's coordinator is created at the first use of a session's streams.
    spark.streams.active  # noqa: B018
    return rewrite_state(spark, _order(ask["order"], on_written))
