"""``RescaleStreamOperator``: give the state of a stream another number of partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_streamstate.hooks.rendered import one_of, optional_text, whole_number, yes_or_no
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.driving import UpgradeOperatorBase
from airflow_streamstate.protocol.records import STATE_STORES

if TYPE_CHECKING:
    from airflow_streamstate.controller.upgrade.requests import UpgradeRequest
    from airflow_streamstate.controller.upgrade.views import UpgradeView


class RescaleStreamOperator(UpgradeOperatorBase):
    """Write the state of a stream anew in another number of partitions, without a lost or doubled row.

    The state is written anew on a fork, compared row by row with the old one, and rehearsed with real rows while the
    stream runs; if that cannot work, the task fails and nothing was touched. Then the stream is stopped, and its state
    written anew as it is by then. Needs Spark 4.2 or newer. Idempotent, with the result of ``UpgradeStreamOperator``;
    ``RollbackStreamOperator`` brings the old number back.

    :param partitions: the number of partitions of the state of each operator. (templated)
    :param state_store: ``rocksdb`` also moves the state there; Spark writes state anew into no other store. (templated)
    :param warm: launch the next driver while the other one still runs; false if there is no room for two. (templated)
    """

    template_fields: Sequence[str] = (*UpgradeOperatorBase.template_fields, "partitions", "state_store", "warm")

    def __init__(
        self,
        *,
        partitions: int | str,
        state_store: str | None = None,
        warm: bool | str = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.partitions = partitions
        self.state_store = state_store
        self.warm = warm

    def request_digest(self) -> str:
        return self._request().digest

    def begin(self, hook: StreamStateHook, request_id: str) -> UpgradeView:
        from airflow_streamstate.control.upgrades import LEASE_SECONDS

        return hook.client.upgrades.begin(self._request(), request_id, lease_seconds=LEASE_SECONDS)

    def _request(self) -> UpgradeRequest:
        from airflow_streamstate.controller.request.changes import ChangeRequest
        from airflow_streamstate.controller.upgrade.requests import UpgradeRequest

        change = ChangeRequest(
            str(self.stream_id),
            partitions=whole_number(self.partitions, "partitions"),
            state_store=one_of(optional_text(self.state_store), (None, *STATE_STORES), "state_store"),
            reason=str(self.reason),
        )
        return UpgradeRequest(
            change=change,
            mode="restore",
            warm=yes_or_no(self.warm, "warm"),
            healthy_when=self.healthy_when(),
            rehearsal_within_seconds=self.rehearsal_seconds(),
            undo_command=self.undo_words(),
        )
