"""The YARN launcher as a stage of its conformance suite, on a real cluster."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.launch.interface import LaunchHandle, LaunchRequest
from airflow_streamstate.launch.yarn import YarnLauncher
from support.launches import launch_and_die
from support.yarn_cluster import TIGHT_QUEUE, YarnCluster

# The program is submitted itself; this is what our runner would do first.
PRELUDE = """
import json, os, sys
config = json.load(open(os.environ["STREAMSTATE_DRIVER"]))
os.environ.update(config["environment"])
"""


class YarnStage:
    """As ``LauncherStage``."""

    patience_seconds = 240.0

    def __init__(self, base: Path, cluster: YarnCluster) -> None:
        self.clock: Clock = SYSTEM_CLOCK
        self.base = base
        self.cluster = cluster
        self.folder = base / "said"
        self.folder.mkdir()

    def launcher(self) -> YarnLauncher:
        hidden = ("SPARK_", "PYSPARK_", "HADOOP_", "YARN_")
        environ = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
        return YarnLauncher(SYSTEM_CLOCK, environ={**environ, "SPARK_LOCAL_IP": "127.0.0.1"})

    def request(self, launch_key: str, program: str, scope: str = "") -> LaunchRequest:
        folder = self.base / "launches" / scope[-1:] / launch_key
        path = self.base / f"{scope[-1:]}{launch_key}.py"
        path.write_text(PRELUDE + program)
        return LaunchRequest(
            launch_key=launch_key,
            application=str(path),
            master="yarn",
            conf=self.cluster.conf,
            folder=str(folder),
            log_path=str(folder / "driver.log"),
            attaches=True,
            launcher="yarn",
            scope=scope or f"home/{self.base.name}",
            options=self.cluster.options,
        )

    def impossible_request(self, launch_key: str) -> LaunchRequest:
        return replace(self.request(launch_key, ""), jars=(str(self.base / "nosuch.jar"),))

    def lacking_request(self, launch_key: str) -> LaunchRequest:
        """Its Python is not on the nodes."""
        request = self.request(launch_key, "")
        return replace(request, options={**request.options, "python": "/nosuch/python"})

    def roomless_request(self, launch_key: str) -> LaunchRequest:
        """Its queue is too small for any driver."""
        request = self.request(launch_key, "")
        return replace(request, options={**request.options, "queue": TIGHT_QUEUE})

    def shown(self, handle: LaunchHandle) -> str:
        """Command lines, what the ResourceManager reports and keeps of its applications, and every file of containers,
        logs and staging that others than its owner may read, archives unpacked."""
        lines = []
        for place in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                lines.append(place.read_bytes())
        lines.append(json.dumps(self.cluster.get(f"apps/{handle.data['application_id']}")).encode())
        for top in (self.cluster.folder, self.base):
            lines += [_content(path) for path in _readable_by_others(top)]
        # Of whatever rights: what starts a container, and what it prints.
        for name in ("launch_container.sh", "stdout", "stderr", "*.log", "appattempt_*", "application_*"):
            lines += [path.read_bytes() for path in self.cluster.folder.rglob(name) if path.is_file()]
        return b"\n".join(lines).decode("utf-8", "replace")

    def left_behind(self) -> list[str]:
        return [
            *(f"pid {pid}" for pid in self.cluster.container_processes()),
            *(str(path) for path in self.cluster.staging.glob(".sparkStaging/*")),
            *(str(path) for path in (self.cluster.node_folder / "local").glob("usercache/*/appcache/*")),
            *(str(path) for path in self.base.glob("launches/**/submit")),
        ]

    def launch_and_die(self, request: LaunchRequest) -> None:
        launch_and_die(request, self.launcher()._inherited())

    @contextlib.contextmanager
    def out_of_reach(self, handle: LaunchHandle) -> Iterator[LaunchHandle]:
        """The ResourceManager hangs."""
        self.cluster.pause_resource_manager()
        try:
            yield handle
        finally:
            self.cluster.resume_resource_manager()

    def end(self) -> None:
        """End what a failed promise has left."""
        for app in self.cluster.applications():
            tags = [tag for tag in app["applicationTags"].split(",") if tag]
            data = {"application_id": app["id"], "tag": tags[0], "resource_managers": [self.cluster.url]}
            self.launcher().kill(LaunchHandle("yarn", "", data), 0.0)


def _readable_by_others(top: Path) -> Iterator[Path]:
    """Files below a folder that a user who is neither owner nor in the group can reach, by a name that can be guessed,
    and read; whatever the rights of ``top`` itself, which are those of the test."""
    for entry in top.iterdir():
        with contextlib.suppress(OSError):
            mode = entry.lstat().st_mode
            if stat.S_ISDIR(mode) and mode & stat.S_IXOTH:
                yield from _readable_by_others(entry)
            elif stat.S_ISREG(mode) and mode & stat.S_IROTH:
                yield entry


def _content(path: Path) -> bytes:
    if not zipfile.is_zipfile(path):
        return path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        return b"\n".join(archive.read(name) for name in archive.namelist())
