"""The drivers of a soak as applications of a real YARN."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from support import quick_jvm
from support.soaked import Handle
from support.yarn_cluster import YarnCluster

LOST_AFTER_SECONDS = 10
"""An end that YARN reports without proof counts after so much silence: short, so that the soak continues."""
CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": quick_jvm.PLAIN,
    "spark.executor.extraJavaOptions": quick_jvm.PLAIN,
    "spark.driver.memoryOverhead": "256m",
    "spark.executor.memoryOverhead": "256m",
    "spark.sql.streaming.pollingDelay": "50ms",
    "spark.log.level": "WARN",
    "spark.executor.syncLogLevel.enabled": "true",
}
"""Small enough for four drivers on the cluster at once: two of one upgrade, and two that are just ending."""
WAYS = ("container", "container", "jvm", "python", "api")


class YarnDrivers:
    """``Drivers`` there: each has an ApplicationMaster with a JVM and a Python, and one executor."""

    patience = 3

    def __init__(self, cluster: YarnCluster) -> None:
        self._cluster = cluster
        self._pause = threading.Timer(0, lambda: None)

    @property
    def deploy_words(self) -> Sequence[str]:
        conf = (word for item in CONF.items() for word in ("--conf", "=".join(item)))
        settings = (f"lost_after_seconds={LOST_AFTER_SECONDS}", "heartbeat_seconds=2")
        return *self._cluster.words(), *conf, *(word for setting in settings for word in ("--setting", setting))

    def lives(self, handle: Handle) -> bool:
        return bool(_processes(handle))

    def kill(self, handle: Handle, chance: random.Random) -> str:
        """SIGKILL to all of the driver's container, to its JVM or to its Python alone, which then notice; or the button
        of YARN's own page, where the ResourceManager answers."""
        application, way = str(handle["application_id"]), chance.choice(WAYS)
        if way == "api":
            with suppress(OSError):
                self._cluster.kill_application(application)
                return f"{application} killed by the ResourceManager"
            way = "container"
        killed = []
        for pid, name in _processes(handle).items():
            if way == "container" or name.startswith({"jvm": "java", "python": "python"}[way]):
                killed.append(name)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return f"kill -9 {way} of {application}: {', '.join(killed)}"

    def disturb(self, chance: random.Random) -> str:
        """Once in four times the ResourceManager hangs for some seconds, or is killed and started again."""
        trouble, seconds = chance.choice(("", "", "", "", "", "", "hangs", "restarts")), chance.uniform(3.0, 15.0)
        self._settle()
        if trouble == "restarts":
            self._cluster.kill_resource_manager()
            self._cluster.start_resource_manager()
            return "the ResourceManager restarts"
        if trouble == "hangs":
            self._cluster.pause_resource_manager()
            self._pause = threading.Timer(seconds, self._cluster.resume_resource_manager)
            self._pause.start()
            return f"the ResourceManager hangs for {seconds:.0f} s"
        return ""

    def left(self, home: Path) -> list[str]:
        del home  # the cluster is this soak's alone
        self._settle()
        try:
            listed = [str(app["id"]) for app in self._cluster.applications()]
        except OSError as error:
            listed = [f"the ResourceManager does not report it: {error}"]
        return [*listed, *(f"pid {pid}" for pid in self._cluster.container_processes())]

    def _settle(self) -> None:
        if self._pause.is_alive():
            self._pause.join()


def _processes(handle: Handle) -> dict[int, str]:
    """Pids and names of the processes of a driver's container, which is the first one of its application."""
    application = re.fullmatch(r"application_(\d+_\d+)", str(handle.get("application_id")))
    if application is None:
        return {}
    first = re.compile(rf"\0CONTAINER_ID=container_(?:e\d+_)?{application[1]}_\d+_000001\0".encode())
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if first.search(b"\0" + (place / "environ").read_bytes()):
                found[int(place.name)] = (place / "comm").read_text().strip()
    return found
