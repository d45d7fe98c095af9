"""The sinks and Sparks that are tried, each pair in its own process."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import airflow_streamstate
from airflow_streamstate.launch.driver_zip import driver_zip_bytes
from support import quick_jvm
from support.maven import fetch_jars, pinned
from support.sparks import IN_FULL, VERSIONS, spark_of

RUN_SECONDS = 800
KAFKA = {"4.2.0": "4.2.0", "4.2.1": "4.2.0", "4.1.4": "4.1.3", "4.0.5": "4.0.4", "3.5.9": "3.5.7"}
"""Spark -> the release of its connector to Kafka: not every Spark has a separate one."""
KAFKA_CLIENTS = {"3.5": "3.4.1"}
"""Line of Spark -> the Kafka client that it was built with, where that is not the one of the other lines."""
DELTA = {"3.5": "3.3.3"}
"""Line of Spark -> the newest Delta that has a build for it, where that is not the newest of all."""
MOST = ("restore", "seed", "from_zero", "replay", "died")
UNDONE = ("undo", "undo_foreign", "undo_lost")
_FOLDER = Path(__file__).parent
_DELTA_CONF = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",  # of 50: a job of 50 tasks for each read of a small table
}
_ICEBERG_CONF = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",
}


@dataclass(frozen=True)
class Run:
    """One process: a Spark, and the sinks that are tried on it.

    Attributes:
        connector: release of what the sinks need besides Spark; "" for nothing.
        jars: parts of the names of its jars in ``sink_jars.txt`` and ``kafka_spark_jars.txt``.
        needs_broker: a Kafka broker runs alongside it.
    """

    name: str
    spark: str
    sinks: Mapping[str, tuple[str, ...]]
    connector: str = ""
    jars: tuple[str, ...] = ()
    conf: Mapping[str, str] = field(default_factory=dict)
    needs_broker: bool = False

    @property
    def cases(self) -> list[tuple[str, str]]:
        """Sink and case, in the order in which they are run."""
        return [(sink, case) for sink, cases in self.sinks.items() for case in cases]


def _delta(spark: str, cases: tuple[str, ...] = (*MOST, *UNDONE), name: str = "delta") -> Run:
    line = spark.rpartition(".")[0]
    release = DELTA.get(line, "4.4.0")
    built_for = "" if line == "3.5" else f"{line}_"
    jars = (f"delta-spark_{built_for}{_scala(line)}-{release}.jar", f"delta-storage-{release}.jar")
    return Run(f"{name}-{spark}", spark, {"delta": cases}, f"Delta {release}", jars, _DELTA_CONF)


def _iceberg(spark: str, version: str, cases: tuple[str, ...] = (*MOST, *UNDONE), name: str = "iceberg") -> Run:
    line = spark.rpartition(".")[0]
    jars = (f"iceberg-spark-runtime-{line}_{_scala(line)}-{version}",)
    return Run(f"{name}-{spark}", spark, {"iceberg": cases}, f"Iceberg {version}", jars, _ICEBERG_CONF)


def _kafka(spark: str, cases: tuple[str, ...] = (*MOST, "undo"), name: str = "kafka") -> Run:
    return Run(f"{name}-{spark}", spark, {"kafka": cases}, "Kafka 4.1.0", kafka_jars(spark), needs_broker=True)


def kafka_jars(spark: str) -> tuple[str, ...]:
    """Parts of the names of the jars by which a Spark reads from Kafka and writes to it."""
    line = spark.rpartition(".")[0]
    return (
        f"spark-sql-kafka-0-10_{_scala(line)}-{KAFKA[spark]}.jar",
        f"token-provider-kafka-0-10_{_scala(line)}",
        f"kafka-clients-{KAFKA_CLIENTS.get(line, '3.9.2')}.jar",
        "commons-pool2",
    )


def _scala(line: str) -> str:
    return "2.12" if line == "3.5" else "2.13"


_TABLES = {"table of files": ("restore", "from_zero")}
_PLAIN = {
    "foreachBatch, append": MOST,
    "foreachBatch, overwrite per batch id": (*MOST, "undo"),
    "memory": ("restore",),
    "console": ("restore", "seed"),
    "noop": ("restore", "seed"),
}
QUICK: tuple[Run, ...] = (
    Run("file", IN_FULL, {"file": (*MOST, "new_output", "alarm", "undo"), **_TABLES}),
    _kafka(IN_FULL, MOST),
    _delta(IN_FULL, (*MOST, "undo")),
)
BY_HAND: tuple[Run, ...] = (
    Run("plain", IN_FULL, _PLAIN),
    _delta("4.0.5", MOST),
    _iceberg("4.1.4", "1.12.0", (*MOST, "undo")),
    Run("file-4.3.0", "4.3.0", {"file": (*MOST, "new_output")}),
    _kafka(IN_FULL, ("undo",), "kafka-undone"),
    _delta(IN_FULL, UNDONE[1:], "delta-undone"),
    _delta("4.0.5", UNDONE, "delta-undone"),
    _iceberg("4.1.4", "1.12.0", UNDONE[1:], "iceberg-undone"),
    Run("file-undone-4.3.0", "4.3.0", {"file": ("undo",)}),
    *(_delta(spark) for spark in ("4.1.4", "4.2.1")),
    _iceberg("4.0.5", "1.11.0"),
    _delta("3.5.9"),
    _iceberg("3.5.9", "1.12.0"),
    *(
        Run(f"file-{spark}", spark, {"file": (*MOST, "new_output", "undo")})
        for spark in ("3.5.9", "4.0.5", "4.1.4", "4.2.1")
    ),
    *(Run(f"plain-{spark}", spark, {**_TABLES, **_PLAIN}) for spark in VERSIONS if spark != IN_FULL),
    *(_kafka(spark) for spark in KAFKA if spark != IN_FULL),
)
RUNS = QUICK + BY_HAND
"""All that is recorded; those by hand are run with ``STREAMSTATE_SINKS=full``."""


def results_of(run: Run, folder: Path) -> list[dict[str, str]]:
    """Run its cases in a separate process; one line each.

    Raises:
        RuntimeError: the process did not end well; with the end of what it printed.
    """
    orders = folder / "orders.json"
    results = folder / "results.jsonl"
    with ExitStack() as stack:
        settings = {}
        if run.needs_broker:
            settings["servers"] = stack.enter_context(_broker(len(run.cases)))
        listed = [{"sink": sink, "case": case} for sink, case in run.cases]
        orders.write_text(json.dumps({"results": str(results), "settings": settings, "orders": listed}))
        process = subprocess.Popen(
            [_python(run), "-m", "support.sink_lab", str(orders)],
            env=_environment(run, folder),
            stdin=subprocess.DEVNULL,
            stdout=stack.enter_context((folder / "log").open("w")),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(RUN_SECONDS)
        except subprocess.TimeoutExpired:
            status = -1
        finally:
            _end(process)
    lines = results.read_text().splitlines() if results.exists() else []
    if status != 0 or len(lines) != len(run.cases):
        raise RuntimeError(f"{run.name} ended with {status} after {len(lines)} cases: {_tail(folder / 'log')}")
    return [json.loads(line) for line in lines]


def jars_of(run: Run) -> list[str]:
    """What its sinks need besides Spark, as paths; fetched if they are not there yet."""
    jars = {path: digest for path, digest in pinned_jars().items() if any(part in path for part in run.jars)}
    return sorted(str(path) for path in fetch_jars(f"sinks-{run.name}", jars).glob("*.jar")) if jars else []


def pinned_jars() -> dict[str, str]:
    """Path -> sha256 of all jars that any sink or Spark needs."""
    return pinned(_FOLDER / "sink_jars.txt") | pinned(_FOLDER / "kafka_spark_jars.txt")


def _python(run: Run) -> str:
    return sys.executable if run.spark == IN_FULL else str(spark_of(run.spark).python)


def _environment(run: Run, folder: Path) -> dict[str, str]:
    conf = {
        "spark.driver.memory": "700m",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": quick_jvm.OPTIONS if run.spark == IN_FULL else quick_jvm.PLAIN,
        **run.conf,
    }
    jars = jars_of(run)
    words = [word for key, value in conf.items() for word in ("--conf", f"'{key}={value}'")]
    if "iceberg" in run.name:
        words += ["--conf", f"spark.sql.catalog.lake.warehouse={folder / 'lake'}"]
    if jars:
        words += ["--jars", ",".join(jars)]
    strays = ("PYTHON", "SPARK_", "PYSPARK_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(strays)}
    own = {} if run.spark == IN_FULL else spark_of(run.spark).environment
    return {
        **kept,
        "PYSPARK_PYTHON": _python(run),
        **own,
        "PYSPARK_SUBMIT_ARGS": " ".join([*words, "pyspark-shell"]),
        "PYTHONPATH": os.pathsep.join([str(_package_alone(folder)), str(_FOLDER.parent)]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def _package_alone(folder: Path) -> Path:
    """A folder with the package under test and its entry points, and nothing else that is installed with it."""
    alone = folder / "package"
    with zipfile.ZipFile(io.BytesIO(driver_zip_bytes())) as travels:
        travels.extractall(alone, [name for name in travels.namelist() if ".dist-info/" in name])
    (alone / "airflow_streamstate").symlink_to(Path(airflow_streamstate.__file__).parent)
    return alone


@contextmanager
def _broker(cases: int) -> Iterator[str]:
    """A broker with the topics of every case."""
    from confluent_kafka.admin import AdminClient, NewTopic

    from support.kafka_broker import kafka_broker

    with kafka_broker() as broker:
        names = [f"out-{number}{suffix}" for number in range(cases) for suffix in ("", "-new")]
        admin = AdminClient({"bootstrap.servers": broker.servers})
        for made in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
            made.result(60)
        yield broker.servers


def _end(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """The process and what it started: its JVM, too, which a python that was cut off leaves behind."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(10)
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _tail(path: Path) -> str:
    return path.read_text()[-3000:] if path.exists() else "nothing said"
