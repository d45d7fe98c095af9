"""``DrainStreamOperator``: no new input, everything that is buffered written, then the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_streamstate.hooks.observing import Watch
from airflow_streamstate.hooks.rendered import as_seconds, one_of, optional_text, yes_or_no
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import StreamStateOperator, ordered, request_id_of
from airflow_streamstate.protocol.commands import DrainMode, DrainTerms

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

DRAIN_MODES: tuple[DrainMode, ...] = ("default", "event_time")


class DrainStreamOperator(StreamStateOperator):
    """Write the drain notification of a stream, and wait for the drain only if that is asked for.

    A drain writes open windows early: it is for upgrades that the state cannot survive. For all others, stop.
    What is stopped, finished or failed is drained, too: its own code is launched once more, for the flush alone.

    Idempotent: a retry, or a task that was cleared, finds its notification, or what became of it.

    Returns ``{stream_id, deployment_id, command_id, key, state}``; with ``wait`` also
    ``{snapshot_id, end_offsets, watermark_at, state_rows_left}`` and no key.

    :param deployment_id: which deployment; the current one by default. (templated)
    :param mode: ``default`` flushes all that the queries have, ``event_time`` moves the watermark only. (templated)
    :param rehearse: try the flush on a fork of the state first, while the stream runs on: a drain that would leave
        state, or whose flush would fail, is rejected before anything is stopped. (templated)
    :param discard_state: state that the flush leaves is no reason to reject it: what follows drops that. (templated)
    :param begin_within_seconds: a notification that is read later is not begun; None: any time. (templated)
    :param wait: wait until it is drained, for ``wait_seconds`` at most.

    .. seealso:: :ref:`howto/operator:DrainStreamOperator`
    """

    template_fields: Sequence[str] = (
        *StreamStateOperator.template_fields,
        "deployment_id",
        "mode",
        "rehearse",
        "discard_state",
        "begin_within_seconds",
    )

    def __init__(
        self,
        *,
        deployment_id: str | None = None,
        mode: str = "default",
        rehearse: bool | str = True,
        discard_state: bool | str = False,
        begin_within_seconds: float | str | None = None,
        wait: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.deployment_id = deployment_id
        self.mode = mode
        self.rehearse = rehearse
        self.discard_state = discard_state
        self.begin_within_seconds = begin_within_seconds
        self.wait = wait

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:
        begin_within = optional_text(self.begin_within_seconds)
        order = hook.drain(
            str(self.stream_id),
            deployment_id=optional_text(self.deployment_id),
            terms=DrainTerms(
                mode=one_of(self.mode, DRAIN_MODES, "mode"),
                rehearse=yes_or_no(self.rehearse, "rehearse"),
                discard_state=yes_or_no(self.discard_state, "discard_state"),
            ),
            reason=str(self.reason),
            deadline_seconds=None if begin_within is None else as_seconds(begin_within, "begin_within_seconds"),
            request_id=request_id_of(context),
        )
        if not self.wait:
            return ordered(order)
        return self.wait_until_done(
            hook, Watch("drained", order.stream_id, deployment_id=order.deployment_id, command_id=order.command_id)
        )
