"""A stream that runs, as its controller and its driver would have recorded it; any process takes the driver's place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.launch.processes import read_stat, this_machine
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Claimed, Started
from airflow_streamstate.protocol.ids import deployment_id_for, launch_key_for
from airflow_streamstate.protocol.policies import Ownership, RestartPolicy
from airflow_streamstate.protocol.positions import Heartbeat, QueryBeat
from airflow_streamstate.protocol.records import Claim, DeploymentSpec, LaunchRecord, StartPlan, StreamRegister
from airflow_streamstate.protocol.terms.version import Artifact, Version
from airflow_streamstate.store.base import Store
from benchmarks.results import BenchmarkError

DEPLOYMENT_ID = deployment_id_for(1)
UNOWNED = Ownership()
_KEY = launch_key_for(DEPLOYMENT_ID, 1)


def stream_name(number: int) -> str:
    """The id of one of many streams."""
    return f"stream-{number:04d}"


def record(store: Store, launches: Path, stream_id: str, pid: int, ownership: Ownership = UNOWNED) -> None:
    """Record the stream.

    Args:
        store: of home and checkpoints.
        launches: the folder of this machine for launches.
        pid: of the process that takes the driver's place.

    Raises:
        BenchmarkError: it has ended.
    """
    control = StreamControl(store, stream_id, SYSTEM_CLOCK)
    now, new_id = SYSTEM_CLOCK.now(), SYSTEM_CLOCK.new_uuid
    control.create_register(
        StreamRegister(
            stream_id,
            1,
            DEPLOYMENT_ID,
            1,
            "run",
            None,
            new_id(),
            now,
            "a benchmark",
            restart_policy=RestartPolicy("restart"),
            ownership=ownership,
        )
    )
    control.create_spec(
        DeploymentSpec(
            stream_id=stream_id, deployment_id=DEPLOYMENT_ID, fencing_token=1,
            version=Version(Artifact("job.py", "0" * 64), master="local[2]"), start=StartPlan("fresh"),
            checkpoints_uri=store.uri, request_id="r", requested_by="a benchmark", reason="", created_at=now,
        )
    )  # fmt: skip
    control.create_claim(Claim(stream_id, DEPLOYMENT_ID, 1, _KEY, "here", pid, 1, 1, "0", new_id(), now))
    journal = control.journal(DEPLOYMENT_ID)
    said: dict[str, Any] = {"stream_id": stream_id, "deployment_id": DEPLOYMENT_ID, "attempt": 1, "at": now}
    journal.append(Claimed(**said, write_id=new_id(), host="here", pid=pid, fencing_token=1))
    journal.append(Started(**said, write_id=new_id(), spark_version="4.2.0", application_id="local-1"))
    control.put_heartbeat(Heartbeat(stream_id, DEPLOYMENT_ID, 1, now, {"counts": QueryBeat(1, now, is_active=True)}))
    launch = launches / layout.launch_folder(stream_id, DEPLOYMENT_ID, _KEY)
    launch.mkdir(parents=True)
    stat = read_stat(pid)
    if stat is None:
        raise BenchmarkError("the process that plays every driver has ended")
    facts = {
        "launch_key": _KEY, "folder": str(launch), "log_path": str(launch / "driver.log"), "pid": pid,
        "start_ticks": stat.start_ticks, "locked": False, **vars(this_machine()),
    }  # fmt: skip
    (launch / "handle.json").write_text(json.dumps(facts))
    control.create_launch(
        LaunchRecord(
            stream_id, DEPLOYMENT_ID, 1, _KEY, "local", facts, str(launch / "driver.log"), now, write_id=new_id()
        )
    )
