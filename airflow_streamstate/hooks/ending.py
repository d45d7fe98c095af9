"""What happens to a deployment or an upgrade when Airflow ends the task that waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from airflow_streamstate.protocol.upgrades import AfterStop

if TYPE_CHECKING:
    from airflow_streamstate.controller.client import Controller
    from airflow_streamstate.controller.wait.condition import WaitCondition

OnKill = Literal["leave", "stop", "drain", "kill"]
ON_KILL_ACTIONS: tuple[OnKill, ...] = ("leave", "stop", "drain", "kill")
_REASON = "the Airflow task that waited for it was ended"


def end_as_asked(controller: Controller, action: str, stream_id: str, deployment_id: str) -> None:
    """Record the leaving, stop, drain or kill of the deployment, if it is still current; does not wait for it."""
    if action in ("stop", "drain"):
        controller.order(
            "stop" if action == "stop" else "drain", stream_id, deployment_id=deployment_id, reason=_REASON
        )
    elif action == "kill" and controller.status(stream_id).deployment_id == deployment_id:
        controller.kill(stream_id)


def end_watched(controller: Controller, action: str, watch: WaitCondition) -> str:
    """What the trigger does when a user ends its deferred task; returns a line for the log.

    For an upgrade, ``action`` is ``finish`` or ``rollback``. It is only recorded: a trigger starts no driver.
    """
    from airflow_streamstate.hooks.upgrading import give_up_from_afar, what_remains

    if watch.wanted == "upgrade":
        after_stop: AfterStop = "finish" if action == "finish" else "rollback"
        view = give_up_from_afar(controller, watch.stream_id, watch.deployment_id, after_stop)
        return what_remains(view, after_stop)
    end_as_asked(controller, action, watch.stream_id, watch.deployment_id)
    return f"{action} of {watch.deployment_id} of {watch.stream_id}: recorded"
