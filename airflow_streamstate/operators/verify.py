"""``VerifySnapshotOperator``: check that a snapshot is whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_streamstate.errors import InvalidRequestError, SnapshotCorruptError
from airflow_streamstate.hooks.rendered import optional_text, yes_or_no
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import RETURN_KEY
from airflow_streamstate.operators.reading import ReadingOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class VerifySnapshotOperator(ReadingOperator):
    """Read every byte of a snapshot, and fail if a part of it is missing or altered.

    With ``deep`` a Spark driver on the worker's machine then loads every row of the state from a fork. The stream is
    not touched. The task waits in its worker; ``deferrable`` has no effect.

    Returns ``{stream_id, snapshot_id, ok, problems, loaded}``; a failed task has the same XCom.

    :param deep: also load the state with Spark. (templated)
    :param master: Spark's master for the driver that loads it. (templated)
    :param conf: Spark configuration that overrides the deployment's; a value may be a reference to a secret.
        (templated)
    :param packages: Maven coordinates in addition to the deployment's. (templated)
    :param deadline_seconds: when the driver is ended, and the task fails. (templated)
    """

    template_fields: Sequence[str] = (*ReadingOperator.template_fields, "deep")

    def __init__(self, *, snapshot_id: str, deep: bool | str = False, **kwargs: Any) -> None:
        super().__init__(snapshot_id=snapshot_id, **kwargs)
        self.deep = deep
        self._built = True

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:
        from airflow_streamstate.controller.state_reader.verifying import verify_snapshot

        if optional_text(self.snapshot_id) is None:
            raise InvalidRequestError(
                "no snapshot is named", stream_id=str(self.stream_id), next_step="Give the task a snapshot_id."
            )
        found = verify_snapshot(
            hook.client.snapshots,
            hook.client.readings,
            self.reading(),
            deep=yes_or_no(self.deep, "deep"),
            on_progress=self.tell,
        )
        result = {"stream_id": str(self.stream_id), **found}
        if not found["ok"]:
            context["ti"].xcom_push(key=RETURN_KEY, value=result)
            raise SnapshotCorruptError(
                "this snapshot is not whole",
                stream_id=str(self.stream_id),
                snapshot_id=found["snapshot_id"],
                problems=[f"{one['query']} {one['path']}: {one['detail']}" for one in found["problems"]],
                next_step="Nothing restores from it; take another one, or fetch it from a mirror.",
            )
        return result
