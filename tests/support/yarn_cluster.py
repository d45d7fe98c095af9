"""A real YARN on loopback: one ResourceManager and one NodeManager, from the jars of Maven, on free ports."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from airflow_streamstate.launch.spark_home import own_pyspark
from support.kafka_broker import _free_ports
from support.maven import fetch_jars, pinned
from support.sparks import Spark
from support.versitygw import die_with_the_test

VERSION = "3.5.0"
START_SECONDS = 180
STOP_SECONDS = 30
MEMORY_MB = 6144
RESOURCE_MANAGER = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
NODE_MANAGER = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"
TIGHT_QUEUE = "tight"
"""A queue in which no driver has room."""
_SCHEDULER = {
    "yarn.scheduler.capacity.root.queues": f"default,{TIGHT_QUEUE}",
    "yarn.scheduler.capacity.root.default.capacity": "99",
    f"yarn.scheduler.capacity.root.{TIGHT_QUEUE}.capacity": "1",
    f"yarn.scheduler.capacity.root.{TIGHT_QUEUE}.maximum-capacity": "1",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "0.9",
    "yarn.scheduler.capacity.resource-calculator": ("org.apache.hadoop.yarn.util.resource.DefaultResourceCalculator"),
}


class YarnCluster:
    """One ResourceManager, which keeps its applications over restarts, and one NodeManager.

    Attributes:
        url: of the ResourceManager's web interface; the same over restarts.
        conf_dir: for HADOOP_CONF_DIR.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._jars = fetch_jars(f"yarn-{VERSION}", pinned(Path(__file__).with_name("yarn_cluster_jars.txt")))
        self.conf_dir = folder / "conf"
        self.conf_dir.mkdir(parents=True)
        ports = _free_ports(9)
        self.url = f"http://127.0.0.1:{ports[4]}"
        self._write("core-site", {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(folder / "tmp")})
        self._write("capacity-scheduler", _SCHEDULER)
        self._write("yarn-site", self._site(ports))
        (self.conf_dir / "log4j.properties").write_text(
            "log4j.rootLogger=INFO, out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.out.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.out.layout.ConversionPattern=%d %p %c{1} %m%n\n"
        )
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def options(self) -> dict[str, object]:
        """Of the launcher, for drivers there."""
        return {
            "hadoop_conf_dir": str(self.conf_dir),
            "python": sys.executable,
            "spark_yarn_jars": f"local:{own_pyspark()}/jars/*",
            "staging_dir": self.staging.as_uri(),
        }

    @property
    def conf(self) -> dict[str, str]:
        """Of Spark, for small drivers there with one executor, on loopback."""
        return {
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.instances": "1",
            "spark.executor.cores": "1",
            "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
            "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
        }

    def words(self, spark: Spark | None = None) -> tuple[str, ...]:
        """Of the shell: the launcher, this cluster, and small drivers; of another Spark than that of the tests."""
        given = self.options
        if spark is not None:
            given |= {"python": str(spark.python), "spark_yarn_jars": f"local:{spark.home}/jars/*"}
        options = (word for name, value in given.items() for word in ("--launcher-option", f"{name}={value}"))
        conf = (word for name, value in self.conf.items() for word in ("--conf", f"{name}={value}"))
        return ("--launcher", "yarn", *options, *conf)

    @property
    def staging(self) -> Path:
        """Where spark-submit puts the files of applications."""
        return self.folder / "staging"

    @property
    def node_folder(self) -> Path:
        """Where the NodeManager keeps files and logs of containers."""
        return self.folder / "nm"

    def start(self) -> None:
        """Start both, and wait until the node is there."""
        self.start_resource_manager()
        self.start_node_manager()
        self.wait_for_node()

    def start_resource_manager(self) -> None:
        self._start("rm", RESOURCE_MANAGER)

    def start_node_manager(self) -> None:
        self._start("nm", NODE_MANAGER)

    def kill_resource_manager(self) -> None:
        self.end("rm", signal.SIGKILL)

    def pause_resource_manager(self) -> None:
        """From now on it does not answer."""
        self._processes["rm"].send_signal(signal.SIGSTOP)

    def resume_resource_manager(self) -> None:
        self._processes["rm"].send_signal(signal.SIGCONT)

    def end(self, name: str, with_signal: signal.Signals) -> None:
        """End one of ``rm`` and ``nm``."""
        process = self._processes.get(name)
        if process is None or process.poll() is not None:
            return
        process.send_signal(with_signal)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)

    def get(self, path: str) -> dict[str, object]:
        """What the ResourceManager answers below ``/ws/v1/cluster/``."""
        with urllib.request.urlopen(f"{self.url}/ws/v1/cluster/{path}", timeout=20) as reply:  # noqa: S310
            found: dict[str, object] = json.load(reply)
            return found

    def running(self) -> list[str]:
        """The ids of the applications that have not ended."""
        return sorted(app["id"] for app in self.applications())

    def applications(self) -> list[dict[str, Any]]:
        """Those that have not ended."""
        found: Any = self.get("apps?states=NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING").get("apps") or {}
        return list(found.get("app", []))

    def kill_application(self, application_id: str) -> None:
        """As the button of YARN's own page does."""
        asked = urllib.request.Request(  # noqa: S310 - of this cluster
            f"{self.url}/ws/v1/cluster/apps/{application_id}/state",
            data=b'{"state": "KILLED"}',
            headers={"Content-Type": "application/json"},
            method="PUT",
        )
        urllib.request.urlopen(asked, timeout=30).close()  # noqa: S310

    def wait_for_node(self) -> None:
        until = time.monotonic() + START_SECONDS  # noqa: TID251 - real processes
        while time.monotonic() < until and all(one.poll() is None for one in self._processes.values()):  # noqa: TID251
            try:
                if '"RUNNING"' in json.dumps(self.get("nodes")):
                    return
            except OSError:
                pass
            time.sleep(0.2)  # noqa: TID251
        raise RuntimeError(f"YARN does not come up: {self.log('rm')[-2000:]} {self.log('nm')[-2000:]}")

    def log(self, name: str) -> str:
        """What ``rm`` or ``nm`` has written."""
        return (self.folder / f"{name}.log").read_text("utf-8", "replace")

    def container_processes(self) -> list[int]:
        """Processes of containers: those that have a file of this cluster on their command line or in their
        environment."""
        found = []
        marks = (str(self.node_folder).encode(),)
        own = {process.pid for process in self._processes.values()}
        for place in Path("/proc").glob("[0-9]*"):
            try:
                said = (place / "environ").read_bytes() + (place / "cmdline").read_bytes()
            except OSError:
                continue
            if any(mark in said for mark in marks) and int(place.name) not in own:
                found.append(int(place.name))
        return found

    def stop(self) -> None:
        """End both and every container."""
        for name in ("nm", "rm"):
            self.end(name, signal.SIGKILL)
        for pid in self.container_processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def _start(self, name: str, main: str) -> None:
        java_home = os.environ.get("JAVA_HOME")
        java = str(Path(java_home) / "bin" / "java") if java_home else shutil.which("java") or "java"
        opens = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in ("lang", "net")]
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("HADOOP", "YARN", "SPARK"))},
            "HADOOP_CONF_DIR": str(self.conf_dir),
            "HADOOP_HOME": str(self.folder),
            "HADOOP_YARN_HOME": str(self.folder),
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [
                    *(java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *opens),
                    *(f"-Dhadoop.log.dir={self.folder}", f"-Dyarn.log.dir={self.folder}"),
                    *("-cp", f"{self.conf_dir}:{self._jars}/*", main),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
                preexec_fn=die_with_the_test,
            )

    def _write(self, name: str, values: dict[str, str]) -> None:
        rows = "".join(
            f"<property><name>{key}</name><value>{escape(value)}</value></property>\n" for key, value in values.items()
        )
        (self.conf_dir / f"{name}.xml").write_text(f"<configuration>\n{rows}</configuration>\n")

    def _site(self, ports: list[int]) -> dict[str, str]:
        names = ("address", "scheduler.address", "resource-tracker.address", "admin.address", "webapp.address")
        rm = {f"yarn.resourcemanager.{name}": f"127.0.0.1:{port}" for name, port in zip(names, ports[:5], strict=True)}
        nodes = ("address", "localizer.address", "webapp.address", "collector-service.address")
        nm = {f"yarn.nodemanager.{name}": f"127.0.0.1:{port}" for name, port in zip(nodes, ports[5:], strict=True)}
        return {
            **rm,
            **nm,
            "yarn.resourcemanager.hostname": "127.0.0.1",
            "yarn.resourcemanager.bind-host": "127.0.0.1",
            "yarn.resourcemanager.scheduler.class": (
                "org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler"
            ),
            "yarn.resourcemanager.recovery.enabled": "true",
            "yarn.resourcemanager.store.class": (
                "org.apache.hadoop.yarn.server.resourcemanager.recovery.FileSystemRMStateStore"
            ),
            "yarn.resourcemanager.fs.state-store.uri": (self.folder / "rmstore").as_uri(),
            "yarn.nodemanager.hostname": "127.0.0.1",
            "yarn.nodemanager.bind-host": "127.0.0.1",
            "yarn.nodemanager.local-dirs": str(self.node_folder / "local"),
            "yarn.nodemanager.log-dirs": str(self.node_folder / "logs"),
            "yarn.nodemanager.resource.memory-mb": str(MEMORY_MB),
            "yarn.nodemanager.resource.cpu-vcores": "8",
            "yarn.scheduler.minimum-allocation-mb": "256",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.9",
            "yarn.nodemanager.disk-health-checker.min-free-space-per-disk-mb": "10",
            "yarn.log-aggregation-enable": "true",
            "yarn.nodemanager.remote-app-log-dir": (self.folder / "applogs").as_uri(),
            "yarn.log-aggregation.file-formats": "TFile",
            "yarn.nm.liveness-monitor.expiry-interval-ms": "120000",
        }


@contextmanager
def yarn_cluster() -> Iterator[YarnCluster]:
    """A running cluster without an application. Nothing of it is left afterwards, also after a failure."""
    with tempfile.TemporaryDirectory(prefix="streamstate-yarn-", ignore_cleanup_errors=True) as folder:
        cluster = YarnCluster(Path(folder))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
