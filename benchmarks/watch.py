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

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.launch.processes import read_stat, this_machine
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Claimed, Started
from airflow_streamstate.protocol.heartbeat import Heartbeat, QueryBeat
from airflow_streamstate.protocol.ids import deployment_id_for, launch_key_for
from airflow_streamstate.protocol.records import Artifact, Claim, DeploymentSpec, LaunchRecord, StartPlan
from airflow_streamstate.protocol.register import StreamRegister
from airflow_streamstate.protocol.restarts import RestartPolicy
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.store.local import LocalStore
from benchmarks.results import BenchmarkError, Number, Result, Side
from benchmarks.session import Session

NAME = "watch"
STREAMS, QUICK_STREAMS = 1_000, 100
SECONDS, QUICK_SECONDS = 600.0, 30.0
_ID = deployment_id_for(1)
_KEY = launch_key_for(_ID, 1)


def run(session: Session) -> list[Result]:
    """Record the streams, and watch them for a while."""
    streams = QUICK_STREAMS if session.quick else STREAMS
    seconds = QUICK_SECONDS if session.quick else SECONDS
    folder = session.folder / NAME
    driver = subprocess.Popen(["sleep", "86400"], start_new_session=True)
    try:
        for number in range(streams):
            record_stream(folder, f"stream-{number:04d}", driver.pid)
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


def record_stream(folder: Path, stream_id: str, pid: int) -> None:
    """A stream that runs, as its controller and its driver would have recorded it."""
    folder.mkdir(parents=True, exist_ok=True)
    store = LocalStore(folder)
    control = StreamControl(store, stream_id, SYSTEM_CLOCK)
    now, new_id = SYSTEM_CLOCK.now(), SYSTEM_CLOCK.new_uuid
    control.create_register(
        StreamRegister(
            stream_id, 1, _ID, 1, "run", None, new_id(), now, "a benchmark", restart_policy=RestartPolicy("restart")
        )
    )
    control.create_spec(
        DeploymentSpec(
            stream_id=stream_id, deployment_id=_ID, fencing_token=1, application=Artifact("job.py", "0" * 64),
            arguments=(), master="local[2]", conf={}, py_files=(), files=(), packages=(), start=StartPlan("fresh"),
            checkpoints_uri=store.uri, code_digest="0" * 64, request_id="r", requested_by="a benchmark", reason="",
            created_at=now, settings=AgentSettings(),
        )
    )  # fmt: skip
    control.create_claim(Claim(stream_id, _ID, 1, _KEY, "here", pid, 1, 1, "0", new_id(), now))
    journal = control.journal(_ID)
    said: dict[str, Any] = {"stream_id": stream_id, "deployment_id": _ID, "attempt": 1, "at": now}
    journal.append(Claimed(**said, write_id=new_id(), host="here", pid=pid, fencing_token=1))
    journal.append(Started(**said, write_id=new_id(), spark_version="4.2.0", application_id="local-1"))
    control.put_heartbeat(Heartbeat(stream_id, _ID, 1, now, {"counts": QueryBeat(1, now, is_active=True)}))
    launch = folder / layout.launch_folder(stream_id, _ID, _KEY)
    launch.mkdir(parents=True)
    stat = read_stat(pid)
    if stat is None:
        raise BenchmarkError("the process that stands for every driver has ended")
    facts = {
        "launch_key": _KEY, "folder": str(launch), "log_path": str(launch / "driver.log"), "pid": pid,
        "start_ticks": stat.start_ticks, "locked": False, **vars(this_machine()),
    }  # fmt: skip
    (launch / "handle.json").write_text(json.dumps(facts))
    control.create_launch(
        LaunchRecord(stream_id, _ID, 1, _KEY, "local", facts, str(launch / "driver.log"), now, write_id=new_id())
    )
