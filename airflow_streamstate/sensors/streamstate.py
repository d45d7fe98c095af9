"""The sensors: drains, snapshots, health and complete partitions, in all three modes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseSensorOperator,
    PokeReturnValue,
    conf,
)

from airflow_streamstate.errors import InvalidRequestError, StreamStateError
from airflow_streamstate.hooks import configuration
from airflow_streamstate.hooks.refusals import ChecksLiterals, is_mistake, is_retryable, text_of
from airflow_streamstate.hooks.rendered import (
    as_moment,
    as_seconds,
    optional_seconds,
    optional_text,
    whole_number,
    yes_or_no,
)
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.protocol.codec import format_time

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_streamstate.controller.wait.condition import WaitCondition


_TRIGGER_FAILED = "__fail__"
"""Airflow's name of the method that continues a task whose trigger could not run."""


class StreamStateSensor(ChecksLiterals, BaseSensorOperator):
    """Base of the sensors; not for use by itself.

    If the awaited event can no longer come, the task fails at once, without retries; with ``soft_fail`` it is skipped.
    A mistake always fails the task, whatever ``soft_fail`` and ``never_fail`` are: a missing stream, deployment,
    connection or home, or an unreadable record, at once; a home that does not answer, at the timeout.

    :param stream_id: the stream. (templated)
    :param deployment_id: by default the deployment that was current when the DAG run started, so that a later one does
        not hide it. (templated)
    :param streamstate_conn_id: the Airflow connection that names the home. (templated)
    :param poke_interval: seconds between two polls; by default Airflow's option ``[streamstate]
        poke_interval_seconds``.
    :param deferrable: wait in the triggerer; otherwise ``mode`` applies. The result is the same.
    """

    template_fields: Sequence[str] = ("stream_id", "deployment_id", "streamstate_conn_id")
    ui_color = "#e4ecf0"

    def __init__(
        self,
        *,
        stream_id: str,
        deployment_id: str | None = None,
        streamstate_conn_id: str = StreamStateHook.default_conn_name,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poke_interval: timedelta | float | None = None,
        **kwargs: Any,
    ) -> None:
        if poke_interval is None:
            poke_interval = configuration.poke_interval_seconds()
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.stream_id = stream_id
        self.deployment_id = deployment_id
        self.streamstate_conn_id = streamstate_conn_id
        self.deferrable = deferrable
        self._never_skipped: AirflowException | None = None
        self._unanswered: StreamStateError | None = None

    @abstractmethod
    def watch(self, context: Context, hook: StreamStateHook) -> WaitCondition:
        """The condition of this sensor; the same at every poke of a DAG run."""

    def poke(self, context: Context) -> PokeReturnValue:
        hook = self.hook()
        try:
            seen = hook.client.advance(self.watch(context, hook))
        except StreamStateError as error:
            if not is_retryable(error):
                self._give_up(error)
            self._unanswered = error
            self.log.warning("This poll went wrong, which shows nothing about the stream: %s", error)
            return PokeReturnValue(is_done=False)
        self._unanswered = None
        if seen.outcome == "pending":
            return PokeReturnValue(is_done=False)
        if seen.error is not None:
            self._give_up(seen.error)
        return PokeReturnValue(is_done=True, xcom_value=seen.result)

    def execute(self, context: Context) -> Any:
        try:
            return self._executed(context)
        except AirflowSkipException:
            # ``soft_fail`` and ``never_fail`` turn every failure of a poke and a timeout into a skip.
            if self._never_skipped is not None:
                raise self._never_skipped from None
            if self._unanswered is not None:
                raise AirflowSensorTimeout(f"the home did not answer: {text_of(self._unanswered)}") from None
            raise

    def _executed(self, context: Context) -> Any:
        from airflow_streamstate.triggers.streamstate import StreamStateTrigger

        if not self.deferrable:
            return super().execute(context)
        now = self.poke(context)  # what has ended already needs no triggerer
        if not now.is_done:
            hook = self.hook()
            self.defer(
                trigger=StreamStateTrigger(
                    watch=self.watch(context, hook).to_json(),
                    streamstate_conn_id=str(self.streamstate_conn_id),
                    deferred_at=hook.deadline_text(0),
                    deadline_at=hook.deadline_text(self.timeout),
                    poll_interval_seconds=self.poke_interval,
                ),
                method_name="execute_complete",
            )
        return now.xcom_value

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except AirflowSkipException as skip:
            if self._never_skipped is not None:
                raise self._never_skipped from None
            if next_method == _TRIGGER_FAILED and isinstance(skip.__cause__, AirflowException):
                raise skip.__cause__ from None  # the state of the stream is unknown
            raise

    def execute_complete(self, context: Context, event: Any = None) -> dict[str, Any]:  # noqa: ARG002
        """Continue a deferred task; the event holds the result."""
        from airflow_streamstate.controller.wait.condition import UNANSWERED
        from airflow_streamstate.triggers.streamstate import read_event

        try:
            content = read_event(event)
        except StreamStateError as error:
            self._give_up(error)
        if content.outcome == "deadline":
            timeout = AirflowSensorTimeout(str(content.error))
            if content.error is not None and UNANSWERED in content.error.context:
                self._never_skipped = timeout
            raise timeout
        if content.error is not None:
            self._give_up(content.error)
        return content.need_result()

    def hook(self) -> StreamStateHook:
        """The hook of this sensor."""
        return StreamStateHook(str(self.streamstate_conn_id), requested_by="airflow")

    def deployment_of(self, context: Context, hook: StreamStateHook) -> str:
        """The deployment of this DAG run: named, or current when the run started."""
        named = optional_text(self.deployment_id)
        return named or hook.client.deployment_current_at(str(self.stream_id), context["dag_run"].start_date)

    def _give_up(self, error: StreamStateError) -> NoReturn:
        # Not by remedy as in operators: what cannot come will not come on the next try either.
        text = text_of(error)
        if is_mistake(error):
            self._never_skipped = AirflowFailException(text)
            raise self._never_skipped from error
        if self.soft_fail:
            raise AirflowSkipException(text) from error
        raise AirflowFailException(text) from error


# ``CompletePartitionSensor``: waits until a span of event time is complete.


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
    :param ended_for_seconds: for how long a stream that has ended may be idle, as between the tasks of a drain and a
        deploy, before the wait is abandoned. (templated)
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


# ``DrainCompleteSensor``: waits for a drain.


class DrainCompleteSensor(StreamStateSensor):
    """Wait until a deployment is drained, whatever ordered the drain and whenever.

    A drain that had ended before the sensor started counts, and a later deployment does not hide it. An end without a
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


# ``StreamHealthSensor``: waits until a stream makes progress, or has caught up.


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


# ``SnapshotReadySensor``: waits for a complete snapshot.


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
