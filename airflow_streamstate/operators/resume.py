"""``ResumeStreamOperator``: start the current deployment again, on its own checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_streamstate.hooks.rendered import yes_or_no
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import request_id_of
from airflow_streamstate.operators.launching import LaunchingOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class ResumeStreamOperator(LaunchingOperator):
    """Start the current deployment of a stream again, with its recorded code, whatever the path holds by now.

    Idempotent: a retry, or a cleared task, finds the attempt that it began. If that attempt failed before its first
    commit, or with ``wait_until="finished"`` at any time, the retry starts the next one.

    Returns ``{stream_id, deployment_id, attempt, state, start: {mode, snapshot_id}}``.

    :param assume_dead: continue although the launcher cannot tell whether the old driver is dead. (templated)
    :param accept_hazards: see ``DeployStreamOperator``. (templated)
    :param wait_until: see ``DeployStreamOperator``. (templated)
    :param if_stopped: see ``DeployStreamOperator``. (templated)
    :param on_kill_action: see ``DeployStreamOperator``.
    """

    template_fields: Sequence[str] = (*LaunchingOperator.template_fields, "assume_dead", "accept_hazards")

    def __init__(self, *, assume_dead: bool | str = False, accept_hazards: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.assume_dead = assume_dead
        self.accept_hazards = accept_hazards

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:
        view = hook.client.resume(
            str(self.stream_id),
            request_id=request_id_of(context),
            assume_dead=yes_or_no(self.assume_dead, "assume_dead"),
            accept_hazards=yes_or_no(self.accept_hazards, "accept_hazards"),
            reason=str(self.reason),
            until_finished=self.until_finished,
        )
        return self.wait_for_launched(context, hook, view)
