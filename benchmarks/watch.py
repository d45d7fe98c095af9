"""A watcher of 1,000 streams on one core: CPU, memory and calls of the store, while nothing happens.

Every stream is recorded as one that runs, its driver a process of this machine; all share one process, which costs the
watcher the same as one each. The store is on disk, behind a count; it is asked as a server would be.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from airflow_streamstate.store.local import LocalStore
from benchmarks.recorded import record, stream_name
from benchmarks.results import BenchmarkError, Number, Result, Side
from benchmarks.session import Session

NAME = "watch"
STREAMS, QUICK_STREAMS = 1_000, 100
SECONDS, QUICK_SECONDS = 600.0, 30.0


def run(session: Session) -> list[Result]:
    """Record the streams, and watch them for a while."""
    streams = QUICK_STREAMS if session.quick else STREAMS
    seconds = QUICK_SECONDS if session.quick else SECONDS
    folder = session.folder / NAME
    folder.mkdir(parents=True)
    store = LocalStore(folder)
    driver = subprocess.Popen(["sleep", "86400"], start_new_session=True)
    try:
        for number in range(streams):
            record(store, folder, stream_name(number), driver.pid)
        found = _watched(folder, seconds)
    finally:
        driver.kill()
        driver.wait()
    cpu, calls = float(found["cpu_seconds"]), int(found["calls"])
    session.say(f"  {streams} streams: {cpu:.1f} s of CPU and {calls} calls in {seconds:.0f} s")
    return [
        Result(
            name=f"{NAME}: cpu",
            of=Side(f"{streams:,} quiet streams, CPU", cpu, "s"),
            against=Side("one core", seconds, "s"),
            ratio=100 * cpu / seconds,
            ratio_means="% of it",
            goal=None,
            rounds=(found,),
            notes=(
                f"calls of the store: {found['first_calls']} in the first pass ({found['first_seconds']:.1f} s), then"
                f" {60 * calls / seconds:.0f} in a minute ({found['kinds']})",
                f"resident memory {found['rss_mb']:.0f} MB",
            ),
        )
    ]


def _watched(folder: Path, seconds: float) -> dict[str, Any]:
    core = str(min(os.sched_getaffinity(0)))
    done = subprocess.run(
        ["taskset", "-c", core, sys.executable, "-m", "benchmarks.watched", str(folder), str(seconds)],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    if done.returncode:
        raise BenchmarkError(f"the watcher failed: {done.stderr[-2000:]}")
    found: dict[str, Number] = json.loads(done.stdout)
    return found
