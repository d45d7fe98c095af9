"""The SSH launcher as a stage of the conformance suite of launchers, over a real ``sshd`` on this machine."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.launch.interface import LaunchHandle, LaunchRequest
from airflow_streamstate.launch.ssh import SshLauncher
from support.launcher_stage import LocalStage
from support.launches import launch_request, living_processes
from support.sshd import Sshd

SCOPE = "h-1/orders"
RECORDS = {"intent.json", "handle.json", "exit_status", "driver.log"}


def ssh_request(
    server: Sshd, base: Path, body: str, options: dict[str, object] | None = None, **changes: Any
) -> LaunchRequest:
    """A request whose driver is a shell script of this body; its folders on the host are below ``base / "there"``."""
    request = launch_request(base, body, **changes)
    return replace(request, launcher="ssh", scope=SCOPE, options={**ssh_options(server, base), **(options or {})})


def ssh_options(server: Sshd, base: Path) -> dict[str, object]:
    return {**server.options, "python": sys.executable, "work_dir": str(base / "there")}


def _driver(handle: LaunchHandle) -> dict[str, Any]:
    """The facts of a driver, as its host has them."""
    driver = json.loads((Path(str(handle.data["remote_folder"])) / "handle.json").read_text())
    assert isinstance(driver, dict)
    return driver


class SshStage(LocalStage):
    """As ``LauncherStage``: the host is this machine, seen through SSH."""

    def __init__(self, base: Path, server: Sshd) -> None:
        super().__init__(base)
        self._server = server

    def launcher(self) -> SshLauncher:  # type: ignore[override]
        return SshLauncher(SYSTEM_CLOCK)

    def request(self, launch_key: str, program: str, scope: str = "") -> LaunchRequest:
        request = super().request(launch_key, program, scope)
        return replace(request, launcher="ssh", scope=scope or SCOPE, options=ssh_options(self._server, self.base))

    def shown(self, handle: LaunchHandle) -> str:
        """As ``LocalStage.shown``, of the host; with the log of its server."""
        log = self._server.log.read_text("utf-8", "replace")
        return log + super().shown(LaunchHandle("local", handle.launch_key, _driver(handle)))

    def left_behind(self) -> list[str]:
        """All but what a key means: that it had its driver, and how that ended."""
        folders = [path.parent for path in (self.base / "there").glob("launches/*/*/intent.json")]
        files = [path for folder in folders for path in folder.rglob("*") if path.name not in RECORDS]
        processes = [process for folder in folders for process in living_processes(str(folder))]
        return [*map(str, files), *(f"pid {process.pid}" for process in processes)]

    @contextlib.contextmanager
    def out_of_reach(self, handle: LaunchHandle) -> Iterator[LaunchHandle]:
        """The server is stopped, and its connections are cut."""
        with self._server.away():
            yield handle
