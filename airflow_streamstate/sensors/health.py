"""``StreamHealthSensor``: waits until a stream makes progress, or has caught up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_streamstate.hooks.rendered import whole_number, yes_or_no
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.sensors.base import StreamStateSensor

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_streamstate.controller.wait.condition import WaitCondition


class StreamHealthSensor(StreamStateSensor):
    """Wait until a deployment runs and each of its queries has committed a batch, or has found no input.

    A deployment that has ended fails the task at once, or skips it with ``soft_fail``.

    Returns the stream's status: ``{stream_id, deployment_id, attempt, state, queries, heartbeat_age_seconds, …}``.

    :param caught_up: also wait until no input is left, as measured at each source after the start, or because the
        newest trigger found no input. For a source that cannot be measured only the second counts. (templated)
    :param max_lag: with ``caught_up``: how much may be left of each source, in its own unit. (templated)
    """

    template_fields: Sequence[str] = (*StreamStateSensor.template_fields, "caught_up", "max_lag")

    def __init__(self, *, caught_up: bool | str = False, max_lag: int | str = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.caught_up = caught_up
        self.max_lag = max_lag

    def watch(self, context: Context, hook: StreamStateHook) -> WaitCondition:
        from airflow_streamstate.controller.wait.condition import WaitCondition

        deployment_id = self.deployment_of(context, hook)
        if not yes_or_no(self.caught_up, "caught_up"):
            return WaitCondition("healthy", str(self.stream_id), deployment_id=deployment_id)
        at_most = whole_number(self.max_lag, "max_lag")
        return WaitCondition("caught_up", str(self.stream_id), deployment_id=deployment_id, max_lag=at_most)
