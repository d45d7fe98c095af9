"""What all sensors share, in all three modes: poke, reschedule, deferrable."""

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

from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.hooks import configuration
from airflow_streamstate.hooks.literals import ChecksLiterals
from airflow_streamstate.hooks.refusals import is_mistake, is_retryable, text_of
from airflow_streamstate.hooks.rendered import optional_text
from airflow_streamstate.hooks.streamstate import StreamStateHook

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_streamstate.controller.wait.condition import WaitCondition

_TRIGGER_FAILED = "__fail__"
"""Airflow's name of the method that continues a task whose trigger could not run."""


class StreamStateSensor(ChecksLiterals, BaseSensorOperator):
    """Base of the sensors; not for use by itself.

    If the awaited event can no longer come, the task fails at once, without retries; with ``soft_fail`` it is skipped.
    A mistake always fails the task, whatever ``soft_fail`` and ``never_fail`` say: a missing stream, deployment,
    connection or home, or an unreadable record, at once; a home that does not answer, at the timeout.

    :param stream_id: the stream. (templated)
    :param deployment_id: by default the deployment that was current when the DAG run began, so that a later one does
        not hide it. (templated)
    :param streamstate_conn_id: the Airflow connection that names the home. (templated)
    :param poke_interval: seconds between two looks; by default Airflow's option ``[streamstate]
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
            self.log.warning("This look went wrong, which says nothing about the stream: %s", error)
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
        now = self.poke(context)  # what is over already needs no triggerer
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
        from airflow_streamstate.triggers.events import read_event

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
        """The deployment of this DAG run: named, or current when the run began."""
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
