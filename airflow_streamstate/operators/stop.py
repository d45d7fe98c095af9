"""``StopStreamOperator``: the end after the batch in flight, state kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_streamstate.hooks.observing import Watch
from airflow_streamstate.hooks.rendered import as_seconds, one_of, optional_text
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.lifecycle.views import StreamStatus
from airflow_streamstate.operators.base import StreamStateOperator, ordered, request_id_of

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class StopStreamOperator(StreamStateOperator):
    """End a stream after the batch in flight, and keep its state in a snapshot.

    Idempotent: a retry, or a task that was cleared, finds its order, or what became of it. A stream that is stopped
    already is answered at once.

    Returns ``{stream_id, deployment_id, command_id, snapshot_id, end_offsets, watermark_at, state_rows_left}``; without
    ``wait`` ``{stream_id, deployment_id, command_id, key, state}``.

    :param deployment_id: which deployment; the current one by default. (templated)
    :param begin_within_seconds: an order that is read later is not begun; None: any time. (templated)
    :param if_not_running: what becomes of the task where the deployment has failed, so nobody would obey: ``fail``,
        or ``pass``, with no snapshot in the result: a deploy takes that one itself. (templated)
    :param wait: wait until it has stopped, for ``wait_seconds`` at most.

    .. seealso:: :ref:`howto/operator:StopStreamOperator`
    """

    template_fields: Sequence[str] = (
        *StreamStateOperator.template_fields,
        "deployment_id",
        "begin_within_seconds",
        "if_not_running",
    )

    def __init__(
        self,
        *,
        deployment_id: str | None = None,
        begin_within_seconds: float | str | None = None,
        if_not_running: str = "fail",
        wait: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.deployment_id = deployment_id
        self.begin_within_seconds = begin_within_seconds
        self.if_not_running = if_not_running
        self.wait = wait

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:
        deployment_id = optional_text(self.deployment_id)
        if one_of(self.if_not_running, ("fail", "pass"), "if_not_running") == "pass":
            status = hook.status(str(self.stream_id), deployment_id)
            if status.state == "failed":
                self.log.warning("Not running, so there is nothing to stop: %s", status.error)
                return _nothing_to_stop(status)
        begin_within = optional_text(self.begin_within_seconds)
        order = hook.stop(
            str(self.stream_id),
            deployment_id=deployment_id,
            reason=str(self.reason),
            deadline_seconds=None if begin_within is None else as_seconds(begin_within, "begin_within_seconds"),
            request_id=request_id_of(context),
        )
        if not self.wait:
            return ordered(order)
        return self.wait_until_done(
            hook, Watch("stopped", order.stream_id, deployment_id=order.deployment_id, command_id=order.command_id)
        )


def _nothing_to_stop(status: StreamStatus) -> dict[str, Any]:
    return {
        "stream_id": status.stream_id,
        "deployment_id": status.deployment_id,
        "command_id": None,
        "snapshot_id": None,
        "end_offsets": {},
        "watermark_at": None,
        "state_rows_left": None,
    }
