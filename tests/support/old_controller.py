"""The writes of a controller of an older release, run with that release's modules on the path.

``python old_controller.py HOME VERB [ARGUMENT…]``, where VERB is ``deploy`` or an order: ``stop``, ``drain``,
``snapshot``. Only what travels to drivers is there, so it writes what the old ``lifecycle`` wrote, by the old protocol.
"""

from __future__ import annotations

import sys
from pathlib import Path

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.protocol.commands import DrainNotification, SnapshotRequest, StopRequest
from airflow_streamstate.protocol.records import Artifact, DeploymentSpec, StartPlan
from airflow_streamstate.protocol.register import StreamRegister
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.store.local import LocalStore

STREAM = "orders"


def deploy(control: StreamControl, home: LocalStore, conf: dict[str, str], arguments: tuple[str, ...]) -> None:
    """The stream's first deployment, current at once."""
    control.create_spec(
        DeploymentSpec(
            stream_id=STREAM,
            deployment_id="d-0001",
            fencing_token=1,
            application=Artifact(name="job.py", sha256="0" * 64),
            arguments=arguments,
            master="local[2]",
            conf=conf,
            py_files=(),
            files=(),
            packages=(),
            start=StartPlan("fresh"),
            checkpoints_uri=home.uri,
            code_digest="0" * 64,
            request_id="r-1",
            requested_by="an old controller",
            reason="",
            created_at=SYSTEM_CLOCK.now(),
            settings=AgentSettings(command_poll_seconds=0.1, heartbeat_seconds=1.0),
        )
    )
    control.create_register(
        StreamRegister(
            stream_id=STREAM,
            fencing_token=1,
            deployment_id="d-0001",
            attempt=1,
            attempt_mode="run",
            intent=None,
            write_id=SYSTEM_CLOCK.new_uuid(),
            updated_at=SYSTEM_CLOCK.now(),
            updated_by="an old controller",
        )
    )


def order(control: StreamControl, verb: str) -> None:
    """An order to its first attempt."""
    kinds = {"stop": StopRequest, "snapshot": SnapshotRequest, "drain": DrainNotification}
    attempt = {} if verb == "drain" else {"attempt": 1}
    command = kinds[verb](
        command_id=SYSTEM_CLOCK.new_uuid(),
        stream_id=STREAM,
        deployment_id="d-0001",
        requested_at=SYSTEM_CLOCK.now(),
        deadline_at=None,
        requested_by="an old controller",
        reason="",
        **attempt,
    )
    control.journal("d-0001").write_command(command, 1)


def main(words: list[str]) -> None:
    """Do as the command line says."""
    home = LocalStore(Path(words[0]))
    control = StreamControl(home, STREAM, SYSTEM_CLOCK)
    if words[1] == "deploy":
        deploy(control, home, dict(word.split("=", 1) for word in words[3:]), (words[2],))
    else:
        order(control, words[1])


if __name__ == "__main__":
    main(sys.argv[1:])
