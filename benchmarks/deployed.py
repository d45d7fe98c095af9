"""``python -m benchmarks.deployed HOME STREAM LAUNCHER-OPTIONS SCRIPT ARGUMENT …``: a deploy in its own process.

Prints the pod, and what the launcher's call cost, as JSON.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.home import Home, HomeConfig
from airflow_streamstate.controller.request.requests import deploy_request
from airflow_streamstate.launch.interface import LaunchHandle, LaunchRequest
from airflow_streamstate.launch.launchers import Launchers
from airflow_streamstate.protocol.terms.version import LauncherChoice
from benchmarks.streams import CONF, MASTER


class _Timed(Launchers):
    """Launchers that remember the last launch.

    Attributes:
        found: its cost, and the pod.
    """

    found: dict[str, object]

    def launch(self, request: LaunchRequest) -> LaunchHandle:
        cpu, began = _cpu_seconds(), SYSTEM_CLOCK.monotonic_seconds()
        handle = super().launch(request)
        seconds = SYSTEM_CLOCK.monotonic_seconds() - began
        self.found = {
            "launch_cpu_seconds": _cpu_seconds() - cpu,
            "launch_seconds": seconds,
            "pod": handle.data["pod"],
        }
        return handle


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Deploy, and print."""
    home, stream_id, options, script, *arguments = sys.argv[1:]
    launchers = _Timed(SYSTEM_CLOCK)
    controller = Controller(Home(HomeConfig(home)), launchers, SYSTEM_CLOCK, "a benchmark")
    choice = LauncherChoice("kubernetes", json.loads(options))
    view = controller.deploy(
        deploy_request(stream_id, Path(script), tuple(arguments), master=MASTER, conf=CONF, launcher=choice)
    )
    print(json.dumps({"deployment_id": view.deployment_id, **launchers.found}))


if __name__ == "__main__":
    main()
