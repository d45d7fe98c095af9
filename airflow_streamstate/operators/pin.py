"""``PinSnapshotOperator``: a snapshot that is kept until somebody lets go of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_streamstate.hooks.rendered import yes_or_no
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import StreamStateOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class PinSnapshotOperator(StreamStateOperator):
    """Keep a snapshot whatever is pruned, or let go of it.

    Idempotent: twice is once. Nothing is waited for, so ``deferrable`` and ``timeout_seconds`` change nothing.

    Returns ``{stream_id, snapshot_id, pinned}``.

    :param snapshot_id: which snapshot. (templated)
    :param pinned: whether it is to be pinned; false takes the pin away. (templated)
    """

    template_fields: Sequence[str] = (*StreamStateOperator.template_fields, "snapshot_id", "pinned")

    def __init__(self, *, snapshot_id: str, pinned: bool | str = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.snapshot_id = snapshot_id
        self.pinned = pinned

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:  # noqa: ARG002 - asks for no id
        stream_id, snapshot_id = str(self.stream_id), str(self.snapshot_id)
        pinned = yes_or_no(self.pinned, "pinned")
        if pinned:
            hook.client.retention.pin(stream_id, snapshot_id)
        else:
            hook.client.retention.unpin(stream_id, snapshot_id)
        return {"stream_id": stream_id, "snapshot_id": snapshot_id, "pinned": pinned}
