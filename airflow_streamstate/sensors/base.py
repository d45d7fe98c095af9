"""What every sensor here does the same way, in all three modes: poke, reschedule, deferrable."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseSensorOperator,
    PokeReturnValue,
    conf,
)

from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.hooks.observing import Watch
from airflow_streamstate.hooks.refusals import is_retryable, text_of
from airflow_streamstate.hooks.rendered import optional_text
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.triggers.events import read_event
from airflow_streamstate.triggers.streamstate import StreamStateTrigger

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

OnFailure = Literal["fail", "skip"]


class StreamStateSensor(BaseSensorOperator):
    """Base of the sensors; not for use by itself.

    :param stream_id: the stream. (templated)
    :param deployment_id: which deployment; by default the one that was current when the DAG run began, so that a later
        one does not hide it. (templated)
    :param streamstate_conn_id: the Airflow connection that names the home. (templated)
    :param on_failure: what the task does when it cannot come any more: ``fail`` (at once, without retries) or ``skip``.
    :param deferrable: wait in the triggerer; ``mode`` says how to wait otherwise. The result is the same.
    """

    template_fields: Sequence[str] = ("stream_id", "deployment_id", "streamstate_conn_id")
    ui_color = "#e4ecf0"

    def __init__(
        self,
        *,
        stream_id: str,
        deployment_id: str | None = None,
        streamstate_conn_id: str = StreamStateHook.default_conn_name,
        on_failure: OnFailure = "fail",
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poke_interval: timedelta | float = 10,
        **kwargs: Any,
    ) -> None:
        if on_failure not in ("fail", "skip"):
            raise ValueError(f"on_failure is {on_failure!r}, not 'fail' or 'skip'")
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.stream_id = stream_id
        self.deployment_id = deployment_id
        self.streamstate_conn_id = streamstate_conn_id
        self.on_failure = on_failure
        self.deferrable = deferrable

    @abstractmethod
    def watch(self, context: Context, hook: StreamStateHook) -> Watch:
        """What this sensor waits for; the same at every poke of a DAG run."""

    def poke(self, context: Context) -> PokeReturnValue:
        hook = self.hook()
        try:
            seen = hook.look(self.watch(context, hook))
        except StreamStateError as error:
            if not is_retryable(error):
                self._give_up(error)
            self.log.warning("This look went wrong, which says nothing about the stream: %s", error)
            return PokeReturnValue(is_done=False)
        if seen.outcome == "pending":
            return PokeReturnValue(is_done=False)
        if seen.error is not None:
            self._give_up(seen.error)
        return PokeReturnValue(is_done=True, xcom_value=seen.result)

    def execute(self, context: Context) -> Any:
        if not self.deferrable:
            return super().execute(context)
        now = self.poke(context)  # what has come or gone already needs no triggerer
        if not now.is_done:
            hook = self.hook()
            self.defer(
                trigger=StreamStateTrigger(
                    watch=self.watch(context, hook).to_json(),
                    streamstate_conn_id=str(self.streamstate_conn_id),
                    deadline_at=hook.deadline_text(self.timeout),
                    poll_interval_seconds=self.poke_interval,
                ),
                method_name="execute_complete",
            )
        return now.xcom_value

    def execute_complete(self, context: Context, event: Any = None) -> dict[str, Any]:  # noqa: ARG002
        """Go on where ``execute`` deferred. Nothing is kept in between: the event says it all."""
        content = read_event(event)
        if content.outcome == "deadline":
            raise AirflowSensorTimeout(str(content.error))
        if content.error is not None:
            self._give_up(content.error)
        return content.need_result()

    def hook(self) -> StreamStateHook:
        """The hook that looks."""
        return StreamStateHook(str(self.streamstate_conn_id), requested_by="airflow")

    def deployment_of(self, context: Context, hook: StreamStateHook) -> str:
        """The deployment that this DAG run is about: named, or current when the run began."""
        named = optional_text(self.deployment_id)
        return named or hook.deployment_current_at(str(self.stream_id), context["dag_run"].start_date)

    def _give_up(self, error: StreamStateError) -> NoReturn:
        # Not by remedy, as operators do: what cannot come will not come on the next try either.
        text = text_of(error)
        if self.on_failure == "skip" or self.soft_fail:
            raise AirflowSkipException(text) from error
        raise AirflowFailException(text) from error
