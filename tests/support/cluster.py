"""A real standalone Spark cluster on loopback, from the pip package: a master and workers, each a separate process.

Everything listens on 127.0.0.1, on free ports, web pages included; there is no REST gateway. Every daemon, and every
executor that a worker starts, carries a mark in its environment, by which all of them are found and ended: executors
whose worker was killed, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_streamstate.launch.processes import ProcessStat, all_processes, has_in_environment, send_signal
from airflow_streamstate.launch.spark_home import own_pyspark
from support.drivers import wait_until
from support.sparks import Spark
from support.versitygw import die_with_the_test

START_SECONDS = 120.0
_MARK = "STREAMSTATE_TEST_CLUSTER"
_DAEMON_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
EXECUTOR_CONF = {
    "spark.executor.memory": "480m",  # the least that Spark takes
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": _DAEMON_JAVA,
}
"""For an application on this cluster, so that an executor fits on each worker."""


class Daemon:
    """A master or a worker.

    Args:
        name: names its files and marks its processes.
        spark: the Spark that it is of, where that is not the one of the tests.
    """

    def __init__(
        self, name: str, folder: Path, command: list[str], environment: Mapping[str, str], spark: Spark | None = None
    ) -> None:
        home = own_pyspark() if spark is None else spark.home
        assert home is not None, "a cluster needs the whole pyspark, not only its client"
        self.name = name
        self.log_path = folder / f"{name}.log"
        self.mark = f"{_MARK}={folder}/{name}"
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [str(home / "bin" / "spark-class"), *command],
                env={**inherited, "SPARK_HOME": str(home), **environment, _MARK: f"{folder}/{name}"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_the_test,
            )

    @property
    def log(self) -> str:
        """Everything that it printed."""
        return self.log_path.read_text("utf-8", "replace")

    def said(self, pattern: str) -> str:
        """The first group of this pattern in its log, once it is there."""
        found: list[re.Match[str]] = []

        def is_said() -> bool:
            assert self.process.poll() is None, f"{self.name} has ended:\n{self.log}"
            match = re.search(pattern, self.log)
            found.extend([match] if match else [])
            return bool(match)

        wait_until(is_said, lambda: f"{self.name} to say {pattern}:\n{self.log}", START_SECONDS)
        return found[0][1]

    def members(self) -> list[ProcessStat]:
        """It and, of a worker, its executors and their pythons, as far as they live."""
        return [stat for stat in all_processes() if stat.is_alive and has_in_environment(stat.pid, self.mark)]

    def kill(self) -> None:
        """SIGKILL to it and to all that it started."""
        while members := self.members():
            for member in members:
                with contextlib.suppress(ProcessLookupError):
                    send_signal(member, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
        self.process.wait(30)


class Cluster:
    """A running cluster.

    Args:
        folder: an empty folder for its files.
        workers: how many, with one core each.
        recovers: the master keeps what it knows in files, so that a new one continues with the same applications.
        spark: the Spark that it is of, where that is not the one of the tests.
    """

    def __init__(self, folder: Path, workers: int = 2, *, recovers: bool = True, spark: Spark | None = None) -> None:
        self.folder = folder
        self.spark = spark
        self.workers: list[Daemon] = []
        self._recovers = recovers
        self._daemons: list[Daemon] = []
        self.port = _free_port()
        try:
            self.start_master()
            for _ in range(workers):
                self.start_worker()
            self.wait_workers(workers)
        except BaseException:
            self.stop()
            raise

    @property
    def master_url(self) -> str:
        """What ``--master`` takes."""
        return f"spark://127.0.0.1:{self.port}"

    def start_master(self) -> None:
        """Start the master; the second one on the port of the first."""
        self.master = self._start(
            f"master-{len(self._daemons) + 1}",
            ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(self.port)],
        )
        port = int(self.master.said(r"Starting Spark master at spark://127\.0\.0\.1:(\d+)"))
        assert port == self.port or not self.workers, f"the port of the first master is taken:\n{self.master.log}"
        self.port = port
        self.master_page = self._page(self.master, "MasterWebUI")

    def start_worker(self) -> Daemon:
        """One more worker."""
        name = f"worker-{len(self._daemons) + 1}"
        worker = self._start(
            name,
            [
                *("org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--port", "0"),
                *("--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / name), self.master_url),
            ],
        )
        self.workers.append(worker)
        return worker

    def kill_worker(self, worker: Daemon) -> None:
        """SIGKILL to a worker and its executors."""
        worker.kill()
        self.workers.remove(worker)

    def wait_workers(self, count: int) -> None:
        """Wait until the master counts this many living workers."""
        wait_until(
            lambda: sum(worker["state"] == "ALIVE" for worker in self.state()["workers"]) == count,
            lambda: f"{count} workers:\n{self.master.log}",
            START_SECONDS,
        )

    def state(self) -> dict[str, Any]:
        """What the master reports of itself as JSON."""
        return dict(json.loads(read_page(f"{self.master_page}/json/")))

    def pages(self, application_id: str) -> dict[str, str]:
        """Every web page that shows something of an application, by its address."""
        workers = [self._page(worker, "WorkerWebUI") for worker in self.workers]
        addresses = [self.master_page, f"{self.master_page}/json/", f"{self.master_page}/app/?appId={application_id}"]
        addresses += [f"{page}{path}" for page in workers for path in ("", "/json/")]
        executors = [path.name for worker in self.workers for path in self._application(worker, application_id)]
        addresses += [
            f"{page}/logPage/?appId={application_id}&executorId={executor}&logType={kind}"
            for page in workers
            for executor in executors
            for kind in ("stdout", "stderr")
        ]
        return {address: read_page(address) for address in addresses}

    def _application(self, worker: Daemon, application_id: str) -> list[Path]:
        return [path for path in (self.folder / worker.name / application_id).glob("*") if path.is_dir()]

    def stop(self) -> None:
        """End everything of it, executors that were left behind included."""
        for daemon in reversed(self._daemons):
            daemon.kill()

    def _page(self, daemon: Daemon, what: str) -> str:
        return daemon.said(rf"Bound {what} to 127\.0\.0\.1.*? started at (http://127\.0\.0\.1:\d+)")

    def _start(self, name: str, command: list[str]) -> Daemon:
        options = [_DAEMON_JAVA, "-Dspark.master.rest.enabled=false", "-Dspark.ui.reverseProxy=false"]
        if self._recovers:
            options += ["-Dspark.deploy.recoveryMode=FILESYSTEM"]
            options += [f"-Dspark.deploy.recoveryDirectory={self.folder / 'recovery'}"]
        environment = {
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_PUBLIC_DNS": "127.0.0.1",
            "SPARK_CONF_DIR": str(self.folder / "conf"),  # no settings of a user
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": " ".join(options),
            "PYSPARK_PYTHON": sys.executable,
        }
        daemon = Daemon(name, self.folder, [*command, "--webui-port", "0"], environment, self.spark)
        self._daemons.append(daemon)
        return daemon


def _free_port() -> int:
    """A free port that no connection gets by chance: a master that is restarted needs it again."""
    for port in range(20_000 + os.getpid() % 8_000, 32_000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def read_page(address: str) -> str:
    """The text of a web page."""
    with urllib.request.urlopen(address, timeout=60) as answer:  # noqa: S310 - our own, on loopback
        return str(answer.read().decode("utf-8", "replace"))


@contextmanager
def cluster(*, workers: int = 2, recovers: bool = True, spark: Spark | None = None) -> Iterator[Cluster]:
    """A running cluster; nothing is left of it afterwards, also after a failure."""
    with tempfile.TemporaryDirectory(prefix="spark-cluster-", ignore_cleanup_errors=True) as place:
        (Path(place) / "conf").mkdir()
        made = Cluster(Path(place), workers, recovers=recovers, spark=spark)
        try:
            yield made
        finally:
            made.stop()
