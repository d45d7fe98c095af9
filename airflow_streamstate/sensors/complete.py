"""``CompletePartitionSensor``: waits until a span of event time is complete."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.hooks.rendered import as_moment, as_seconds, optional_seconds, optional_text
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.sensors.base import StreamStateSensor

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_streamstate.controller.wait.condition import WaitCondition


class CompletePartitionSensor(StreamStateSensor):
    """Wait until all results of a stream up to a moment of event time are in its sinks, whatever deployment runs.

    Complete means: a committed batch ran with a watermark at or after ``partition_end``, so every window that ends by
    then was emitted. A stream that has ended before that, and stays so for ``ended_for_seconds``, fails the task, or
    skips it with ``soft_fail``. Restarts, upgrades and drains do not end the wait.

    Returns ``{stream_id, query_name, complete_through_at, deployment_id, queries, reopened_from_at}``.

    :param partition_end: the end of the span, RFC 3339; by default the end of the DAG run's data interval. (templated)
    :param query_name: the query whose results are meant; by default all queries of the stream, each of which needs a
        watermark. (templated)
    :param lateness_seconds: how much further the watermark has to be, e.g. for rows that an outer join emits later.
        (templated)
    :param ended_for_seconds: for how long a stream that has ended may stand still, as between the tasks of a drain and
        a deploy, before the wait is given up. (templated)
    """

    template_fields: Sequence[str] = (
        *(name for name in StreamStateSensor.template_fields if name != "deployment_id"),
        "partition_end",
        "query_name",
        "lateness_seconds",
        "ended_for_seconds",
    )

    def __init__(
        self,
        *,
        partition_end: str = "{{ data_interval_end }}",
        query_name: str | None = None,
        lateness_seconds: float | str | None = None,
        ended_for_seconds: float | str = 300.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.partition_end = partition_end
        self.query_name = query_name
        self.lateness_seconds = lateness_seconds
        self.ended_for_seconds = ended_for_seconds

    def watch(self, context: Context, hook: StreamStateHook) -> WaitCondition:
        from airflow_streamstate.controller.wait.condition import WaitCondition

        end_at = as_moment(self.partition_end, "partition_end")
        if end_at is None:
            raise InvalidRequestError(
                "this field is empty",
                field="partition_end",
                next_step="Give a time: a DAG run without a schedule has no data interval.",
            )
        lateness = timedelta(seconds=optional_seconds(self.lateness_seconds, "lateness_seconds") or 0.0)
        return WaitCondition(
            "complete",
            str(self.stream_id),
            deployment_id=self.deployment_of(context, hook),
            complete_at=format_time(end_at + lateness),
            query_name=optional_text(self.query_name),
            ended_for_seconds=as_seconds(self.ended_for_seconds, "ended_for_seconds"),
        )
