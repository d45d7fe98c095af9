"""Base of the operators that start a driver: what they wait for, and what happens when Airflow ends them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow_streamstate.hooks.ending import ON_KILL_ACTIONS
from airflow_streamstate.hooks.rendered import one_of
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import StreamStateOperator
from airflow_streamstate.operators.lineage import TellsLineage

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_streamstate.controller.observe.views import DeploymentView
    from airflow_streamstate.controller.wait.condition import WaitCondition

WaitUntil = Literal["healthy", "caught_up", "finished", "none"]
WAIT_UNTIL: tuple[WaitUntil, ...] = ("healthy", "caught_up", "finished", "none")


def launched(found: Mapping[str, Any]) -> dict[str, Any]:
    """The result of an operator that starts a driver."""
    return {name: found.get(name) for name in ("stream_id", "deployment_id", "attempt", "state", "start")}


class LaunchingOperator(TellsLineage, StreamStateOperator):
    """Base of ``DeployStreamOperator``, which documents its parameters, and ``ResumeStreamOperator``."""

    template_fields: Sequence[str] = (*StreamStateOperator.template_fields, "wait_until", "if_stopped")

    literal_choices: ClassVar[Mapping[str, Sequence[str]]] = {
        "wait_until": WAIT_UNTIL,
        "on_kill_action": ON_KILL_ACTIONS,
    }

    def __init__(
        self,
        *,
        wait_until: str = "healthy",
        if_stopped: str = "fail",
        on_kill_action: str = "leave",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.wait_until = wait_until
        self.if_stopped = if_stopped
        self.on_kill_action = on_kill_action
        self._launched: tuple[str, str] | None = None

    @property
    def until_finished(self) -> bool:
        """Whether a retry launches the next attempt of a failed run, whatever it had committed."""
        return one_of(self.wait_until, WAIT_UNTIL, "wait_until") == "finished"

    def wait_for_launched(self, context: Context, hook: StreamStateHook, view: DeploymentView) -> dict[str, Any]:
        """Wait for the launched deployment as ``wait_until`` says."""
        found = view.to_json()
        self.tell_known(context, hook, deployment_id=view.deployment_id, snapshot_id=view.start.snapshot_id)
        return self.wait_for(hook, view.deployment_id, found)

    def wait_for(self, hook: StreamStateHook, deployment_id: str, found: Mapping[str, Any]) -> dict[str, Any]:
        """Wait for a deployment as ``wait_until`` says; ``found`` is what is known of it by now."""
        from airflow_streamstate.controller.wait.condition import IF_STOPPED, WaitCondition

        wanted = one_of(self.wait_until, WAIT_UNTIL, "wait_until")
        if_stopped = one_of(self.if_stopped, IF_STOPPED, "if_stopped")
        action = one_of(self.on_kill_action, ON_KILL_ACTIONS, "on_kill_action")
        if wanted == "none":
            return launched(found)
        stream_id = str(self.stream_id)
        self._launched = (stream_id, deployment_id)
        watch = WaitCondition(wanted, stream_id, deployment_id=deployment_id, if_stopped=if_stopped)
        return self.wait_until_done(hook, watch, action)

    def result_from(self, watch: WaitCondition, observed: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        return launched(observed)

    def on_kill(self) -> None:
        """Airflow ends the task in its worker. For a deferred task it calls ``StreamStateTrigger.on_kill``."""
        from airflow_streamstate.hooks.ending import end_as_asked

        if self._launched is not None:
            end_as_asked(self.hook().client, self.on_kill_action, *self._launched)
