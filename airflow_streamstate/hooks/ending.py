"""What becomes of a deployment when Airflow ends the task that waits for it."""

from __future__ import annotations

from typing import Literal

from airflow_streamstate.lifecycle.controller import Controller

OnKill = Literal["leave", "stop", "drain", "kill"]
ON_KILL_ACTIONS: tuple[OnKill, ...] = ("leave", "stop", "drain", "kill")
_REASON = "the Airflow task that waited for it was ended"


def end_as_asked(controller: Controller, action: str, stream_id: str, deployment_id: str) -> None:
    """Leave, stop, drain or kill the deployment, if it is still the current one.

    Records the order and does not wait: Airflow gives little time for this.
    """
    if action == "stop":
        controller.stop(stream_id, deployment_id=deployment_id, reason=_REASON)
    elif action == "drain":
        controller.drain(stream_id, deployment_id=deployment_id, reason=_REASON)
    elif action == "kill" and controller.status(stream_id).deployment_id == deployment_id:
        controller.kill(stream_id)
