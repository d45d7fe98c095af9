"""What becomes of a deployment, or an upgrade, when Airflow ends the task that waits for it."""

from __future__ import annotations

from typing import Literal

from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.hooks.upgrading import give_up_from_afar, what_remains
from airflow_streamstate.protocol.upgrades import AfterStop

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


def end_watched(controller: Controller, action: str, watch: WaitCondition) -> str:
    """What a trigger does when a user ends the task that is deferred to it; gives a line for its log.

    Of an upgrade, ``action`` is what becomes of it after the stop: ``finish`` or ``rollback``. That is recorded and not
    done here: no driver is started from a triggerer for it.
    """
    if watch.wanted == "upgrade":
        after_stop: AfterStop = "finish" if action == "finish" else "rollback"
        return what_remains(give_up_from_afar(controller, watch.stream_id, watch.deployment_id, after_stop))
    end_as_asked(controller, action, watch.stream_id, watch.deployment_id)
    return f"{action} of {watch.deployment_id} of {watch.stream_id}: recorded"
