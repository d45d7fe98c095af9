"""``PinSnapshotOperator``: keep a snapshot until it is unpinned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_streamstate.hooks.rendered import yes_or_no
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import StreamStateOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class PinSnapshotOperator(StreamStateOperator):
    """Pin a snapshot, so that no pruning removes it, or unpin it.

    Idempotent. The task does not wait, so ``deferrable`` and ``timeout_seconds`` have no effect.

    Returns ``{stream_id, snapshot_id, pinned}``.

    :param pinned: false removes the pin. (templated)
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
