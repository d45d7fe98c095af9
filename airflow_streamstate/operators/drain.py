"""``DrainStreamOperator``: no new input, everything that is buffered written, then the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.hooks.rendered import as_seconds, one_of, optional_text, yes_or_no
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import StreamStateOperator, ordered, request_id_of
from airflow_streamstate.protocol.commands import DrainMode, DrainTerms, OnDrainDeadline

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

DRAIN_MODES: tuple[DrainMode, ...] = ("default", "event_time")
ON_DEADLINE: tuple[OnDrainDeadline, ...] = ("fail", "stop", "kill")


class DrainStreamOperator(StreamStateOperator):
    """Write the drain notification of a stream, and wait for the drain only if that is asked for.

    A drain writes open windows early: it is for upgrades that the state cannot survive. For all others, stop.
    What is stopped, finished or failed is drained, too: its own code is launched once more, for the flush alone.

    Idempotent: a retry, or a task that was cleared, finds its notification, or what became of it.

    Returns ``{stream_id, deployment_id, command_id, key, state}``; with ``wait_for_completion`` also
    ``{snapshot_id, end_offsets, watermark_at, state_rows_left}`` and no key.

    :param deployment_id: which deployment; the current one by default. (templated)
    :param mode: ``default`` flushes all that the queries have, ``event_time`` moves the watermark only. (templated)
    :param rehearse: try the flush on a fork of the state first, while the stream runs on: a drain that would leave
        state, or whose flush would fail, is rejected before anything is stopped. (templated)
    :param allow_state_loss: state that the flush leaves is no reason to reject it: what follows drops that. (templated)
    :param batches_deadline_seconds: the batches in flight are to be committed so long after the order; None: however
        long they take. (templated)
    :param on_batches_deadline: what the driver does where they are not: ``fail`` takes the drain back and runs on,
        ``stop`` makes it a stop, state kept, ``kill`` cuts the batch, for the next start to run it again. (templated)
    :param flush_deadline_seconds: the flush is to be committed so long after it has begun. (templated)
    :param on_flush_deadline: what is done where it is not: the same three. (templated)
    :param expires_in_seconds: a notification that is read later is not begun; None: any time. (templated)
    :param wait_for_completion: wait until it is drained, for ``timeout_seconds`` at most.
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
        "expires_in_seconds",
    )

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
        self.expires_in_seconds = expires_in_seconds
        self.wait_for_completion = wait_for_completion

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:
        within, flush_within, expires_in = (
            None if (text := optional_text(value)) is None else as_seconds(text, name)
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
                    "this says what is done at a deadline, and none was given",
                    field=name,
                    next_step="Give batches_deadline_seconds, or flush_deadline_seconds, or leave it out.",
                )
        order = hook.client.drain(
            str(self.stream_id),
            deployment_id=optional_text(self.deployment_id),
            terms=DrainTerms(
                mode=one_of(self.mode, DRAIN_MODES, "mode"),
                rehearse=yes_or_no(self.rehearse, "rehearse"),
                discard_state=yes_or_no(self.allow_state_loss, "allow_state_loss"),
                batches_within_seconds=within,
                on_deadline=one_of(self.on_batches_deadline, ON_DEADLINE, "on_batches_deadline"),
                flush_within_seconds=flush_within,
                on_flush_deadline=one_of(self.on_flush_deadline, ON_DEADLINE, "on_flush_deadline"),
            ),
            reason=str(self.reason),
            expires_in_seconds=expires_in,
            request_id=request_id_of(context),
        )
        if not self.wait_for_completion:
            return ordered(order)
        return self.wait_until_done(hook, WaitCondition.of(order))
