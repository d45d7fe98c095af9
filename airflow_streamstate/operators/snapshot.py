"""``SnapshotStreamOperator``: a committed batch of every query, kept while the stream runs on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_streamstate.hooks.observing import Watch
from airflow_streamstate.hooks.rendered import as_seconds, optional_text
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import StreamStateOperator, ordered, request_id_of

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class SnapshotStreamOperator(StreamStateOperator):
    """Keep a committed batch of every query of a running stream.

    Idempotent: a retry, or a task that was cleared, finds its snapshot.

    Returns ``{stream_id, deployment_id, command_id, snapshot_id, kind, files, bytes, queries}``; without ``wait``
    ``{stream_id, deployment_id, command_id, key, state}``.

    :param begin_within_seconds: an order that is read later is not begun; None: any time. (templated)
    :param wait: wait until the snapshot is complete, for ``wait_seconds`` at most.

    .. seealso:: :ref:`howto/operator:SnapshotStreamOperator`
    """

    template_fields: Sequence[str] = (*StreamStateOperator.template_fields, "begin_within_seconds")

    def __init__(self, *, begin_within_seconds: float | str | None = None, wait: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.begin_within_seconds = begin_within_seconds
        self.wait = wait

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:
        begin_within = optional_text(self.begin_within_seconds)
        order = hook.snapshot(
            str(self.stream_id),
            reason=str(self.reason),
            deadline_seconds=None if begin_within is None else as_seconds(begin_within, "begin_within_seconds"),
            request_id=request_id_of(context),
        )
        if not self.wait:
            return ordered(order)
        return self.wait_until_done(
            hook, Watch("snapshot", order.stream_id, deployment_id=order.deployment_id, command_id=order.command_id)
        )
