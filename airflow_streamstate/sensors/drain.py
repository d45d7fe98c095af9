"""``DrainCompleteSensor``: waits for a drain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_streamstate.hooks.rendered import optional_text
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.sensors.base import StreamStateSensor

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_streamstate.controller.wait.condition import WaitCondition


class DrainCompleteSensor(StreamStateSensor):
    """Wait until a deployment is drained, whatever ordered the drain and whenever.

    A drain that was over before the sensor began counts, and a later deployment does not hide it. An end without a
    drain (stopped, failed, finished, fenced, the order expired or refused) fails the task at once, or skips it with
    ``soft_fail``.

    Returns ``{deployment_id, snapshot_id, end_offsets, watermark_at, state_rows_left}``: offsets per query, one text
    per source; the earliest watermark of before the flush; rows of state over all queries.

    :param command_id: the drain order, e.g. from the XCom of ``DrainStreamOperator``: its expiry or refusal counts,
        too. (templated)
    """

    template_fields: Sequence[str] = (*StreamStateSensor.template_fields, "command_id")

    def __init__(self, *, command_id: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.command_id = command_id

    def watch(self, context: Context, hook: StreamStateHook) -> WaitCondition:
        from airflow_streamstate.controller.wait.condition import WaitCondition

        return WaitCondition(
            "drained",
            str(self.stream_id),
            deployment_id=self.deployment_of(context, hook),
            command_id=optional_text(self.command_id),
        )
