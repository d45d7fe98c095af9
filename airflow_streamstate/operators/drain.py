"""``DrainStreamOperator``: stop reading, flush all buffered state, and end the stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.hooks.rendered import one_of, optional_seconds, optional_text, texts, yes_or_no
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import StreamStateOperator, ordered, request_id_of
from airflow_streamstate.operators.lineage import TellsLineage
from airflow_streamstate.protocol.commands import DrainMode, DrainTerms, OnDrainDeadline

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

DRAIN_MODES: tuple[DrainMode, ...] = ("default", "event_time")
ON_DEADLINE: tuple[OnDrainDeadline, ...] = ("fail", "stop", "kill")


class DrainStreamOperator(TellsLineage, StreamStateOperator):
    """Order the drain of a stream, and wait for it only with ``wait_for_completion``.

    A drain writes open windows early: use it for upgrades that the state cannot survive, and a stop for all others. A
    stopped, finished or failed deployment is launched once more for the flush.

    Idempotent: a retry, or a cleared task, finds its order and the order's result.

    Returns ``{stream_id, deployment_id, command_id, key, state}``; with ``wait_for_completion`` also
    ``{snapshot_id, end_offsets, watermark_at, state_rows_left}`` and no key.

    :param deployment_id: which deployment; the current one by default. (templated)
    :param mode: ``default`` flushes all state of the queries, ``event_time`` only moves the watermark. (templated)
    :param rehearse: first try the flush on a fork of the state, while the stream runs on: the driver rejects a drain
        that would leave state, or whose flush would fail. (templated)
    :param allow_state_loss: accept state that the flush leaves; the next version drops it. (templated)
    :param batches_deadline_seconds: seconds from the order until the batches in flight must be committed; None: no
        limit. (templated)
    :param on_batches_deadline: what the driver does then: ``fail`` withdraws the drain and runs on, ``stop`` stops with
        the state kept, ``kill`` cuts the batch, and the next start runs it again. (templated)
    :param flush_deadline_seconds: seconds from the begin of the flush until it must be committed. (templated)
    :param on_flush_deadline: what the driver does then: ``fail``, ``stop`` or ``kill``. (templated)
    :param leave_queries: queries that the script does not start, and whose state the drain may leave for the next
        deployment; without their names it is refused. (templated)
    :param expires_in_seconds: the driver ignores an order that it reads later than this; None: no limit. (templated)
    :param wait_for_completion: wait until the stream is drained, for ``timeout_seconds`` at most.
    """

    template_fields: Sequence[str] = (
        *StreamStateOperator.template_fields,
        "deployment_id",
        "mode",
        "rehearse",
        "allow_state_loss",
        "batches_deadline_seconds",
        "on_batches_deadline",
        "flush_deadline_seconds",
        "on_flush_deadline",
        "leave_queries",
        "expires_in_seconds",
    )

    literal_choices: ClassVar[Mapping[str, Sequence[str]]] = {
        "mode": DRAIN_MODES,
        "on_batches_deadline": ON_DEADLINE,
        "on_flush_deadline": ON_DEADLINE,
    }

    def __init__(
        self,
        *,
        deployment_id: str | None = None,
        mode: str = "default",
        rehearse: bool | str = True,
        allow_state_loss: bool | str = False,
        batches_deadline_seconds: float | str | None = None,
        on_batches_deadline: str = "fail",
        flush_deadline_seconds: float | str | None = None,
        on_flush_deadline: str = "fail",
        leave_queries: Sequence[str] | str = (),
        expires_in_seconds: float | str | None = None,
        wait_for_completion: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.deployment_id = deployment_id
        self.mode = mode
        self.rehearse = rehearse
        self.allow_state_loss = allow_state_loss
        self.batches_deadline_seconds = batches_deadline_seconds
        self.on_batches_deadline = on_batches_deadline
        self.flush_deadline_seconds = flush_deadline_seconds
        self.on_flush_deadline = on_flush_deadline
        self.leave_queries = leave_queries
        self.expires_in_seconds = expires_in_seconds
        self.wait_for_completion = wait_for_completion

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:
        from airflow_streamstate.controller.wait.condition import WaitCondition

        within, flush_within, expires_in = (
            optional_seconds(value, name)
            for name, value in (
                ("batches_deadline_seconds", self.batches_deadline_seconds),
                ("flush_deadline_seconds", self.flush_deadline_seconds),
                ("expires_in_seconds", self.expires_in_seconds),
            )
        )
        for name, value, needed in (
            ("on_batches_deadline", self.on_batches_deadline, within),
            ("on_flush_deadline", self.on_flush_deadline, flush_within),
        ):
            if value != "fail" and needed is None:
                raise InvalidRequestError(
                    "this field needs a deadline, and none was given",
                    field=name,
                    next_step="Give batches_deadline_seconds, or flush_deadline_seconds, or leave it out.",
                )
        order = hook.client.drain(
            str(self.stream_id),
            deployment_id=optional_text(self.deployment_id),
            terms=DrainTerms(
                mode=one_of(self.mode, DRAIN_MODES, "mode"),
                rehearse=yes_or_no(self.rehearse, "rehearse"),
                allow_state_loss=yes_or_no(self.allow_state_loss, "allow_state_loss"),
                batches_within_seconds=within,
                on_deadline=one_of(self.on_batches_deadline, ON_DEADLINE, "on_batches_deadline"),
                flush_within_seconds=flush_within,
                on_flush_deadline=one_of(self.on_flush_deadline, ON_DEADLINE, "on_flush_deadline"),
                leave_queries=texts(self.leave_queries, "leave_queries"),
            ),
            reason=str(self.reason),
            expires_in_seconds=expires_in,
            request_id=request_id_of(context),
        )
        self.tell_known(context, hook, deployment_id=order.deployment_id, command_id=order.command_id)
        return self.wait_until_done(hook, WaitCondition.of(order)) if self.wait_for_completion else ordered(order)
