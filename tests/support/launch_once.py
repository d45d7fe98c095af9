"""Run as a program: one more controller. ``launch_once.py REQUEST_JSON [linger]`` launches and prints the handle.

Then it ends; with ``linger`` it stays, so that a test can kill it.
"""

from __future__ import annotations

import json
import sys
import time

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.launch.interface import LaunchRequest
from airflow_streamstate.launch.launchers import Launchers


def main() -> None:
    request = LaunchRequest.from_json(json.loads(sys.argv[1]))
    print(json.dumps(Launchers(SYSTEM_CLOCK).launch(request).to_json()), flush=True)
    if sys.argv[2:] == ["linger"]:
        time.sleep(300)  # noqa: TID251 - until it is killed


if __name__ == "__main__":
    main()
