"""``StreamHealthSensor``: waits until a stream makes progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_streamstate.hooks.observing import Watch
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.sensors.base import StreamStateSensor

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class StreamHealthSensor(StreamStateSensor):
    """Wait until a deployment runs and each of its queries has committed a batch, or has found no input.

    A deployment that has ended fails or skips the task at once, as ``on_failure`` says.

    Returns the stream's status: ``{stream_id, deployment_id, attempt, state, queries, heartbeat_age_seconds, …}``.

    .. seealso:: :ref:`howto/sensor:StreamHealthSensor`
    """

    def watch(self, context: Context, hook: StreamStateHook) -> Watch:
        return Watch("healthy", str(self.stream_id), deployment_id=self.deployment_of(context, hook))
