"""``RetireStreamOperator``: the end of a stream that is not to run any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_streamstate.hooks.rendered import yes_or_no
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import StreamStateOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class RetireStreamOperator(StreamStateOperator):
    """Mark a stream that has ended as one that is not to run any more; with ``delete`` nothing of it stays.

    A stream that runs is refused: stop or drain it before. Idempotent: twice is once, and a deletion that was cut short
    goes on; of a stream that is gone already a retry says that there is none. Nothing is waited for, so ``deferrable``
    and ``timeout_seconds`` change nothing.

    Returns ``{stream_id, retired_at, retired_by, reason, deleted, objects}``.

    :param delete: remove everything of it, snapshots and pins among it. There is no way back. (templated)
    """

    template_fields: Sequence[str] = (*StreamStateOperator.template_fields, "delete")

    def __init__(self, *, delete: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.delete = delete

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:  # noqa: ARG002 - asks for no id
        deletes = yes_or_no(self.delete, "delete")
        return hook.client.retention.retire(str(self.stream_id), reason=str(self.reason), deletes=deletes).to_json()
