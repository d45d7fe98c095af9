"""A stream on a cluster, driven by the shell: its script, input and output, held at chosen moments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_streamstate.protocol.layout import checkpoint_folder
from support import quick_jvm
from support.cluster import EXECUTOR_CONF, Cluster, Daemon
from support.drivers import wait_until
from support.launches import end_processes, living_processes
from support.shell import Answer, Desk, shell
from support.window_rows import WindowRows

WAIT = ("--timeout", 300)
QUICK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "600m",
    "spark.driver.extraJavaOptions": quick_jvm.OPTIONS,
    "spark.sql.streaming.pollingDelay": "50ms",
    "spark.log.level": "WARN",
    "spark.cores.max": "2",
    **EXECUTOR_CONF,
}
LIBRARY = "def same(number):\n    return number\n"
COUNTS = """
import os
import sys
import time

from pyspark import SparkFiles
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

base = sys.argv[1]
spark = SparkSession.builder.getOrCreate()


class Number:
    # pickled by value: executors know nothing of this script
    def __init__(self, value):
        self.value = value


@F.udf("int")
def same(v):
    import library  # of --py-files

    with open(SparkFiles.get("zero.txt")) as file:  # of --files
        zero = int(file.read())
    while os.path.exists(base + "/hold"):
        with open(base + "/inside.new", "w") as file:
            file.write(str(os.getpid()))
        os.replace(base + "/inside.new", base + "/inside")
        time.sleep(0.05)
    return library.same(Number(v).value) + zero


rows = spark.readStream.schema("t timestamp, k string, v int").option("maxFilesPerTrigger", 1).json(base + "/in")
numbers = rows.withColumn("v", same("v")).withWatermark("t", "10 seconds")
windows = numbers.groupBy(F.window("t", "10 seconds"), "k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))
counts = windows.select("window.start", "k", "n", "s")
counts.writeStream.queryName("counts").format("json").start(base + "/out").awaitTermination()
"""


class ClusterStream:
    """One stream, ``counts``."""

    name = "counts"

    def __init__(self, desk: Desk, cluster: Cluster) -> None:
        self.base = desk.base
        self.home = desk.home
        self.cluster = cluster
        self.rows = WindowRows(desk.base)
        (self.base / "library.py").write_text(LIBRARY)
        (self.base / "zero.txt").write_text("0")
        self.deployment_id = ""

    def deploy_words(self, script: str = COUNTS, **conf: str) -> tuple[object, ...]:
        """The words of a deploy of this script."""
        app = self.base / "job.py"
        app.write_text(script)
        settings = {**QUICK, **conf}
        spark: tuple[object, ...] = ()
        if self.cluster.spark is not None:
            settings |= {"spark.driver.extraJavaOptions": quick_jvm.PLAIN}
            spark = ("--spark", self.cluster.spark.python.parents[1])
        given = [*spark, *(word for item in settings.items() for word in ("--conf", "=".join(item)))]
        return (
            *("deploy", self.name, "--app", app, "--master", self.cluster.master_url, *given),
            *("--py-files", self.base / "library.py", "--files", self.base / "zero.txt"),
        )

    def deploy(self, script: str = COUNTS, **conf: str) -> dict[str, Any]:
        """Deploy, and wait until it works; what the verb answered."""
        return self._become(shell(*self.deploy_words(script, **conf), *WAIT, "--json", "--", self.base))

    def resume(self) -> dict[str, Any]:
        """The next attempt, once it works."""
        return self._become(shell("resume", self.name, *WAIT, "--json"))

    def _become(self, answer: Answer) -> dict[str, Any]:
        assert answer.status == 0, f"{answer}\n{self.log()}"
        self.deployment_id = answer.json["deployment_id"]
        return answer.json

    def order(self, verb: str) -> dict[str, Any]:
        """Stop or drain, and wait for the end."""
        answer = shell(verb, self.name, *WAIT, "--json")
        assert answer.status == 0, f"{answer}\n{self.log()}"
        return answer.json

    def status(self) -> dict[str, Any]:
        """What ``status`` reports."""
        return shell("status", self.name, "--json").json

    def audit(self) -> dict[str, Any]:
        """What ``audit`` reports."""
        return shell("audit", self.name, "--json").json

    def log(self) -> str:
        """What the last driver printed."""
        return shell("logs", self.name).out

    def feed(self, files: int = 1) -> None:
        """More input, and wait until it is counted."""
        for _ in range(files):
            self.rows.feed()
        self.wait_counted()

    def wait_counted(self) -> None:
        """Wait until a batch is committed after which the query has read every file, and no older batch is open."""
        wait_until(lambda: self.files_read() == self.rows.files, lambda: f"a commit:\n{self.log()}", 180)

    def files_read(self) -> int:
        """Files that committed batches of the current deployment, or those before it, have read."""
        from support.progress import files_read

        return files_read(self.checkpoint())

    def checkpoint(self) -> Path:
        """The checkpoint of the current deployment."""
        return self.home / checkpoint_folder(self.name, self.deployment_id, "counts")

    # moments

    def hold(self) -> None:
        """From now on batches with input do not come to their end."""
        (self.base / "inside").unlink(missing_ok=True)
        (self.base / "hold").touch()

    def let_go(self) -> None:
        (self.base / "hold").unlink()

    def wait_inside(self) -> Daemon:
        """Wait until a batch is held; the worker that runs it."""
        inside = self.base / "inside"
        wait_until(inside.exists, lambda: f"a batch under way:\n{self.log()}", 180)
        pid = int(inside.read_text())
        return next(w for w in self.cluster.workers if pid in {member.pid for member in w.members()})

    def kill_driver(self) -> None:
        """SIGKILL to every process of the driver, its leading shell included."""
        for folder in self.home.rglob("launches/d-*"):
            end_processes(str(folder))
            assert living_processes(str(folder)) == []
