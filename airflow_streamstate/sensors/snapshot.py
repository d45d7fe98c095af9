"""``SnapshotReadySensor``: waits for a complete snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_streamstate.hooks.rendered import optional_text
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.sensors.base import StreamStateSensor

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_streamstate.controller.wait.condition import WaitCondition


class SnapshotReadySensor(StreamStateSensor):
    """Wait until a snapshot of a deployment is complete: that of a request, an order or an id, or any.

    Returns ``{deployment_id, snapshot_id, kind, files, bytes, queries}``.

    :param request_id: the request, e.g. from the XCom of ``SnapshotStreamOperator(wait_for_completion=False)``; the
        snapshot may be of any deployment then, and the sensor repeats the order while no driver takes it up.
        (templated)
    :param command_id: the order, e.g. from the XCom of ``SnapshotStreamOperator(wait_for_completion=False)``.
        (templated)
    """

    template_fields: Sequence[str] = (*StreamStateSensor.template_fields, "request_id", "command_id", "snapshot_id")

    def __init__(
        self,
        *,
        request_id: str | None = None,
        command_id: str | None = None,
        snapshot_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.request_id = request_id
        self.command_id = command_id
        self.snapshot_id = snapshot_id

    def watch(self, context: Context, hook: StreamStateHook) -> WaitCondition:
        from airflow_streamstate.controller.wait.condition import WaitCondition

        return WaitCondition(
            "snapshot",
            str(self.stream_id),
            deployment_id=self.deployment_of(context, hook),
            command_id=optional_text(self.command_id),
            request_id=optional_text(self.request_id),
            snapshot_id=optional_text(self.snapshot_id),
        )
