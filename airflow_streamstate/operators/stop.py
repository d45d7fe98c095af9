"""``StopStreamOperator``: the end after the batch in flight, state kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_streamstate.controller.commands.forced_stop import ON_DEADLINE
from airflow_streamstate.controller.observe.views import StreamStatus
from airflow_streamstate.controller.wait.condition import WaitCondition, end_result
from airflow_streamstate.errors import ConflictError, InvalidRequestError
from airflow_streamstate.hooks.refusals import told_to_airflow
from airflow_streamstate.hooks.rendered import as_seconds, one_of, optional_text, yes_or_no
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import StreamStateOperator, ordered, request_id_of
from airflow_streamstate.triggers.events import read_event
from airflow_streamstate.triggers.streamstate import StreamStateTrigger

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class StopStreamOperator(StreamStateOperator):
    """End a stream after the batch in flight, and keep its state in a snapshot.

    Idempotent: a retry, or a task that was cleared, finds its order, or what became of it. A stream that is stopped
    already is answered at once.

    Returns ``{stream_id, deployment_id, command_id, snapshot_id, end_offsets, watermark_at, state_rows_left}``; without
    ``wait_for_completion`` ``{stream_id, deployment_id, command_id, key, state}``; with ``deadline_seconds`` also
    ``outcome`` and ``cut_batches``.

    :param deployment_id: which deployment; the current one by default. (templated)
    :param expires_in_seconds: an order that is read later is not begun; None: any time. (templated)
    :param ignore_if_not_running: succeed where the deployment has failed, so that no driver could obey, with no
        snapshot in the result: a deploy takes that one itself. By default the task fails then. (templated)
    :param wait_for_completion: wait until it has stopped, for ``timeout_seconds`` at most.
    :param deadline_seconds: how long the stop may take, from when it is ordered; it takes the place of
        ``timeout_seconds`` and of ``expires_in_seconds``. None: there is no such end. (templated)
    :param on_deadline: what is done then, by a worker: ``fail`` withdraws an order that is not begun, and fails the
        task; a retry orders anew. ``kill`` ends the driver, which must run on this worker's machine, and keeps its end
        in a snapshot; that of a driver that had died by itself, too, and then ``ignore_if_not_running`` says what
        becomes of the task. (templated)
    """

    template_fields: Sequence[str] = (
        *StreamStateOperator.template_fields,
        "deployment_id",
        "expires_in_seconds",
        "ignore_if_not_running",
        "deadline_seconds",
        "on_deadline",
    )

    def __init__(
        self,
        *,
        deployment_id: str | None = None,
        expires_in_seconds: float | str | None = None,
        ignore_if_not_running: bool | str = False,
        wait_for_completion: bool = True,
        deadline_seconds: float | str | None = None,
        on_deadline: str = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.deployment_id = deployment_id
        self.expires_in_seconds = expires_in_seconds
        self.ignore_if_not_running = ignore_if_not_running
        self.wait_for_completion = wait_for_completion
        self.deadline_seconds = deadline_seconds
        self.on_deadline = on_deadline

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:
        deployment_id = optional_text(self.deployment_id)
        deadline = self._deadline(context)
        keeps_any_end = deadline is not None and deadline["on_deadline"] == "kill"
        if yes_or_no(self.ignore_if_not_running, "ignore_if_not_running") and not keeps_any_end:
            status = hook.client.status(str(self.stream_id), deployment_id)
            if status.state == "failed":
                self.log.warning("Not running, so there is nothing to stop: %s", status.error)
                return _nothing_to_stop(status)
        if deadline is not None:
            if self.deferrable:
                self._defer_until(hook, deadline)
            return self._stopped_by(hook, deadline)
        expires_in = optional_text(self.expires_in_seconds)
        order = hook.client.stop(
            str(self.stream_id),
            deployment_id=deployment_id,
            reason=str(self.reason),
            expires_in_seconds=None if expires_in is None else as_seconds(expires_in, "expires_in_seconds"),
            request_id=request_id_of(context),
        )
        if not self.wait_for_completion:
            return ordered(order)
        return self.wait_until_done(hook, WaitCondition.of(order))

    def execute_complete(self, context: Context, event: Any = None) -> dict[str, Any]:
        with told_to_airflow():
            deadline = self._deadline(context)
            if deadline is not None:
                read_event(event)  # the trigger only looks: what is to be done is done here, by the same request
                return self._stopped_by(self.hook(context), deadline)
        return super().execute_complete(context, event)

    def _deadline(self, context: Context) -> dict[str, Any] | None:
        """What ``ForcedStops`` takes; None where there is no deadline."""
        seconds = optional_text(self.deadline_seconds)
        if seconds is None:
            return None
        if not self.wait_for_completion or optional_text(self.expires_in_seconds) is not None:
            raise InvalidRequestError(
                "a stop with deadline_seconds waits by itself, and has that one deadline",
                wait_for_completion=self.wait_for_completion,
                expires_in_seconds=self.expires_in_seconds,
                next_step="Leave out wait_for_completion and expires_in_seconds, or deadline_seconds.",
            )
        return {
            "deadline_seconds": as_seconds(seconds, "deadline_seconds"),
            "on_deadline": one_of(self.on_deadline, ON_DEADLINE, "on_deadline"),
            "deployment_id": optional_text(self.deployment_id),
            "request_id": request_id_of(context),
            "reason": str(self.reason),
        }

    def _defer_until(self, hook: StreamStateHook, deadline: dict[str, Any]) -> None:
        """Order it, and wait in the triggerer; what is over already is left to a worker."""
        order = hook.client.forced_stops.order(str(self.stream_id), **deadline)
        if order is None:
            return
        watch = WaitCondition.of(order)
        if hook.client.advance(watch).outcome == "pending":
            self.defer(
                trigger=StreamStateTrigger(
                    watch=watch.to_json(),
                    streamstate_conn_id=str(self.streamstate_conn_id),
                    deferred_at=hook.deadline_text(0),
                    deadline_at=hook.deadline_text(deadline["deadline_seconds"]),
                    poll_interval_seconds=self.poll_interval_seconds,
                ),
                method_name="execute_complete",
            )

    def _stopped_by(self, hook: StreamStateHook, deadline: dict[str, Any]) -> dict[str, Any]:
        found = hook.client.forced_stops.stop(str(self.stream_id), **deadline)
        outcome = found.outcome
        ignored = yes_or_no(self.ignore_if_not_running, "ignore_if_not_running")
        if outcome.outcome == "failed" and not ignored:
            raise ConflictError(
                "the deployment had failed before it could be stopped; its end is kept",
                stream_id=outcome.stream_id,
                deployment_id=outcome.deployment_id,
                snapshot_id=outcome.snapshot_id,
                reason=outcome.reason,
                next_step="A deploy goes on from that snapshot; ignore_if_not_running=True lets the task succeed.",
            )
        if outcome.reason:
            self.log.warning("%s %s: %s", outcome.stream_id, outcome.deployment_id, outcome.reason)
        return {
            "stream_id": outcome.stream_id,
            "command_id": outcome.command_id or None,
            **end_result(outcome),
            "outcome": outcome.outcome,
            "cut_batches": dict(found.cut_batches),
        }


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
