"""A newer Spark alongside the job, which rewrites the state that the job's own Spark cannot rewrite.

The driver starts it as a separate process, on its machine, and gives it the order by its standard input, secrets
included. When the driver ends, however it ends, the process sees the end of its input, and ends. The job's Spark lays
the new schema down and keeps all log entries; the other Spark only writes state files, in the formats that the entries
pin.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any, cast

import airflow_streamstate
from airflow_streamstate.driver.attempt.ports import RewriteOrder, RewrittenState
from airflow_streamstate.driver.spark.jvm import settings_of
from airflow_streamstate.errors import (
    InvalidRequestError,
    StreamStateError,
    UnsupportedCheckpointError,
    read_error,
)
from airflow_streamstate.migration import Migration, MigrationFile, read_migrations
from airflow_streamstate.protocol.scratch import RewrittenTable
from airflow_streamstate.store.options import EXCLUDES, S3_PACKAGES, format_properties, s3_connector

_MAIN = (  # not from the working folder, in which the job's own modules may be
    "import sys; sys.path[:] = filter(None, sys.path)\n"
    "from airflow_streamstate.driver.spark.rewriter import main\n"
    "main()"
)
_NOT_PASSED_ON = ("SPARK_", "PYSPARK_", "PYTHON", "_SPARK_")
"""Variables of the job's own Spark and Python."""
_ALWAYS = ("SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME", "SPARK_LOCAL_DIRS")
_SETTINGS = (
    *("spark.hadoop.", "fs.", "spark.sql.streaming.stateStore.", "spark.sql.caseSensitive"),
    "spark.sql.shuffle.partitions",
)
"""What of the job's settings the other Spark gets: places, and how state is stored."""
_HADOOP = "spark.hadoop."
_SITE = "site-packages"
_MASTER, _LOCAL = "spark.master", re.compile(r"local(\[.*\])?")
_AT_LAUNCH = ("spark.driver.memory", "spark.local.dir")
JAVA_VARIABLE = "STREAMSTATE_REWRITER_JAVA_HOME"
"""Names the Java of this Spark, where the driver's own is an older one."""
_IVY = ("spark.jars.ivy", "spark.jars.ivySettings", "spark.jars.repositories")
_S3 = "s3a:"
_GO = "go"
IDLE_SECONDS, WAITING_SECONDS = 30.0, 900.0
"""So long a process waits for the next query of a start; and for the start, after a rehearsal."""
_ANSWER_SECONDS = 10.0
_STANDARD_ERROR = 2
_LOST_DRIVER_STATUS = 143
_MOST_CHARACTERS = 300


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
        settings = {**dict(spark.sparkContext.getConf().getAll()), **settings_of(spark)}
        found = None if process is None else _rewritten_by(process, order, settings)
        if found is None:
            process = _Process(order.rewriter, settings, needs_s3=order.after_uri.startswith(_S3))
            found = _rewritten_by(process, order, settings)
        if process is None or found is None:
            raise UnsupportedCheckpointError(
                "the Spark that was to rewrite the state ended without an answer",
                rewriter=order.rewriter,
                next_step="Nothing was changed. The end of the driver's log shows why; it needs Java 17"
                f" ({JAVA_VARIABLE}), and its own memory.",
            )
        _kept[order.rewriter] = process
        return found


def _rewritten_by(process: _Process, order: RewriteOrder, settings: Mapping[str, str]) -> RewrittenState | None:
    """What a process has rewritten; None where it is gone. It is ended where it has failed."""
    found = None
    try:
        found = process.rewrite(order, {k: v for k, v in settings.items() if k.startswith(_SETTINGS)})
    finally:
        if found is None:
            process.end()
    return found


class _Process:
    def __init__(self, path: str, settings: Mapping[str, str], *, needs_s3: bool) -> None:
        at_launch, command = format_properties(_at_launch(path, settings, needs_s3)), [_python_of(path), "-c", _MAIN]
        descriptor, self._launch_settings = tempfile.mkstemp(prefix="streamstate-rewriter-", suffix=".conf")
        with os.fdopen(descriptor, "wb") as file:  # for its owner alone: the URL of a repository may have a token
            file.write(at_launch)
        environment = _environment(path, self._launch_settings)
        reader, writer = os.pipe()
        try:
            self._process = subprocess.Popen(
                [*command, str(writer)],
                stdin=subprocess.PIPE,
                stdout=_STANDARD_ERROR,
                env=environment,
                pass_fds=(writer,),
            )
        except OSError as error:
            os.close(reader)
            Path(self._launch_settings).unlink()
            raise InvalidRequestError(
                "the Python of the Spark that is to rewrite the state cannot be started",
                python=command[0],
                reason=str(error),
                next_step="Name another installation or virtual environment by --rewriter-spark.",
            ) from None
        finally:
            os.close(writer)
        self._commands = cast("IO[bytes]", self._process.stdin)
        self._answers = os.fdopen(reader, encoding="utf-8")

    def rewrite(self, order: RewriteOrder, settings: Mapping[str, str]) -> RewrittenState | None:
        """What it has rewritten; None where it ends without an answer."""
        idle_seconds = WAITING_SECONDS if order.is_verified else IDLE_SECONDS
        ask = {"order": _plain(order), "settings": settings, "idle_seconds": idle_seconds}
        _tell(self._commands, json.dumps(ask))
        for line in self._answers:
            answer = json.loads(line)
            if "written" in answer:
                order.on_written(answer["written"])
                _tell(self._commands, _GO)
            elif "error" in answer:
                raise read_error(answer["error"])
            else:
                return _state(answer["result"])
        return None

    def end(self) -> None:
        with suppress(OSError):
            self._commands.close()
        self._answers.close()
        self._process.wait()
        with suppress(OSError):
            Path(self._launch_settings).unlink()


def _tell(commands: IO[bytes], words: str) -> None:
    with suppress(BrokenPipeError, ValueError):  # the end of its answers is the error
        commands.write(words.encode() + b"\n")
        commands.flush()


def _python_of(path: str) -> str:
    """That of a virtual environment, also where its pyspark is named; else the driver's."""
    folders = [Path(path), *(Path(path).parents[3:4] if Path(path).parent.name == _SITE else ())]
    found = [folder / "bin" / "python" for folder in folders]
    return next((str(python) for python in found if python.is_file()), sys.executable)


def _home_of(path: str) -> Path:
    found = [Path(path), *sorted(Path(path).glob(f"lib/python3*/{_SITE}/pyspark"))]
    for home in found:
        if (home / "jars").is_dir() and (home / "bin" / "spark-submit").is_file():
            return home
    raise InvalidRequestError(
        "there is no Spark at the path of the rewriter, on the machine of the driver",
        rewriter=path,
        next_step="Name an installation, which has bin/spark-submit and jars, or a virtual environment with pyspark.",
    )


def _at_launch(path: str, settings: Mapping[str, str], needs_s3: bool) -> dict[str, str]:
    """What a JVM takes at its launch alone: cores, memory, and the packages by which this Spark reaches S3.

    Raises:
        InvalidRequestError: there is no Spark at this path, or it would reach S3 by jars that are not pinned.
    """
    home, master = _home_of(path), settings.get(_MASTER, "")
    found = {_MASTER: master if _LOCAL.fullmatch(master) else "local[*]"}
    found |= {name: settings[name] for name in _AT_LAUNCH if name in settings}
    connector = s3_connector(home, {}) if needs_s3 else None
    if connector is None or not connector.packages:
        return found
    if settings.get(S3_PACKAGES) == "pinned":
        raise InvalidRequestError(
            "this Spark would reach S3 by jars that are not pinned",
            rewriter=path,
            next_step="Put the jars of hadoop-aws and what it needs into its folder `jars`.",
        )
    found |= {name: settings[name] for name in _IVY if name in settings}
    return {**found, "spark.jars.packages": ",".join(connector.packages), EXCLUDES: ",".join(connector.excludes)}


def _environment(path: str, launch_settings: str) -> dict[str, str]:
    home, python = _home_of(path), _python_of(path)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_PASSED_ON) or name in _ALWAYS}
    if os.environ.get(JAVA_VARIABLE):
        kept["JAVA_HOME"] = os.environ[JAVA_VARIABLE]
    libraries = [str(home / "python"), *map(str, sorted((home / "python" / "lib").glob("py4j-*.zip")))]
    if home.parent.name == _SITE:
        libraries = [str(home.parent)]
    package = str(Path(airflow_streamstate.__file__).parents[1])
    return {
        **kept,
        "SPARK_HOME": str(home),
        "PYTHONPATH": os.pathsep.join((package, *libraries)),
        "PYTHONSAFEPATH": "1",
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "PYSPARK_SUBMIT_ARGS": shlex.join(["--properties-file", launch_settings, "pyspark-shell"]),
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


# the process


def main() -> None:
    """Obey the lines of the standard input: each asks for a rewrite, or lets it continue. The process ends with them,
    and when it was asked for nothing for as long as the last one told.

    The argument of the command is the number of the pipe for answers.
    """
    asks: SimpleQueue[Mapping[str, Any]] = SimpleQueue()
    may_go, driver = threading.Semaphore(0), os.getppid()
    threading.Thread(target=_obey, args=(asks, may_go), daemon=True).start()
    with os.fdopen(int(sys.argv[1]), "w", encoding="utf-8") as answers:

        def say(**answer: object) -> None:
            answers.write(json.dumps(answer, default=str) + "\n")
            answers.flush()

        def written(ids: object) -> None:
            say(written=ids)
            while not may_go.acquire(timeout=_ANSWER_SECONDS):
                _end_without(driver)

        idle_seconds = WAITING_SECONDS
        while True:
            try:
                ask = asks.get(timeout=idle_seconds)
            except Empty:
                os._exit(0)
            idle_seconds = ask["idle_seconds"]
            try:
                say(result=asdict(_rewritten(ask, written)))
            except StreamStateError as error:
                say(error=error.to_json())
            except Exception as error:
                traceback.print_exc()
                words = " ".join(f"{type(error).__name__}: {error}".split())[:_MOST_CHARACTERS]
                say(error=_failed(words).to_json())


def _failed(words: str) -> StreamStateError:
    return UnsupportedCheckpointError(
        "the Spark that was to rewrite the state has failed",
        reason=words,
        python=sys.executable,
        next_step=f"Nothing was changed. The end of the driver's log has more; it needs Java 17 ({JAVA_VARIABLE}).",
    )


def _end_without(driver: int) -> None:
    """End where the driver has, whose forks may keep the input open."""
    if os.getppid() != driver:
        os._exit(_LOST_DRIVER_STATUS)


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
    hadoop, session = spark.sparkContext._jsc.hadoopConfiguration(), spark.newSession()
    for name, value in ask["settings"].items():
        if name.startswith(_HADOOP):
            hadoop.set(name.removeprefix(_HADOOP), value)
        else:
            session.conf.set(name, value)
    # The state store's coordinator is created at the first use of a session's streams.
    session.streams.active  # noqa: B018
    return rewrite_state(session, _order(ask["order"], on_written))
