"""``RollbackStreamOperator``: go back to the version before, in the first exact way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_streamstate.hooks.rendered import one_of, optional_seconds, optional_text, texts, yes_or_no
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.driving import UpgradeOperatorBase

if TYPE_CHECKING:
    from airflow_streamstate.controller.upgrade.requests import RollbackRequest
    from airflow_streamstate.controller.upgrade.views import UpgradeView


class RollbackStreamOperator(UpgradeOperatorBase):
    """Run the version before the current deployment again, without a lost or doubled row.

    If the current version has committed nothing, the version before continues from the handover. Otherwise its code is
    rehearsed on the state that the current version left, and continues from the last commit; the result names the
    batches that the current version wrote. If neither is possible, the sinks are undone to the handover. If no way is
    exact, the task fails without a retry, and nothing is touched.

    Idempotent, with the result of ``UpgradeStreamOperator``. If the task is killed, marked or cleared before the
    current version is told to stop, nothing happens; after that the rollback is finished by the task as far as Airflow
    lets it, by its next try, or by ``streamstate continue STREAM``.

    :param strategy: ``forward``: the old code continues from the last commit; ``undo``: back to the handover, with the
        sinks undone; by default the first of them that is exact. (templated)
    :param snapshot_id: go back to this older snapshot and its code, with every sink undone to it. (templated)
    :param max_snapshot_age_seconds: refuse that snapshot if it is older. (templated)
    :param accept_duplicates: accept doubled rows on sinks that cannot be undone. (templated)
    :param warm: launch the driver of the version before while the current one still runs; false if there is no room for
        two. (templated)
    :param accept_lost_input: queries that may continue although input after their offsets is lost. (templated)
    """

    template_fields: Sequence[str] = (
        *UpgradeOperatorBase.template_fields,
        "strategy",
        "snapshot_id",
        "max_snapshot_age_seconds",
        "accept_duplicates",
        "warm",
        "accept_lost_input",
    )

    def __init__(
        self,
        *,
        strategy: str | None = None,
        snapshot_id: str | None = None,
        max_snapshot_age_seconds: float | str | None = None,
        accept_duplicates: bool | str = False,
        warm: bool | str = True,
        accept_lost_input: Sequence[str] | str = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.strategy = strategy
        self.snapshot_id = snapshot_id
        self.max_snapshot_age_seconds = max_snapshot_age_seconds
        self.accept_duplicates = accept_duplicates
        self.warm = warm
        self.accept_lost_input = accept_lost_input

    def request_digest(self) -> str:
        return self._request().digest

    def begin(self, hook: StreamStateHook, request_id: str) -> UpgradeView:
        from airflow_streamstate.control.upgrades import LEASE_SECONDS

        return hook.client.upgrades.begin_rollback(self._request(), request_id, lease_seconds=LEASE_SECONDS)

    def _request(self) -> RollbackRequest:
        from airflow_streamstate.controller.upgrade.requests import WAYS, RollbackRequest

        return RollbackRequest(
            stream_id=str(self.stream_id),
            way=one_of(optional_text(self.strategy), (None, *WAYS), "strategy"),
            snapshot_id=optional_text(self.snapshot_id),
            max_snapshot_age_seconds=optional_seconds(self.max_snapshot_age_seconds, "max_snapshot_age_seconds"),
            undo_command=self.undo_words(),
            accepts_duplicates=yes_or_no(self.accept_duplicates, "accept_duplicates"),
            warm=yes_or_no(self.warm, "warm"),
            accept_lost_input=texts(self.accept_lost_input, "accept_lost_input"),
            healthy_when=self.healthy_when(),
            rehearsal_within_seconds=self.rehearsal_seconds(),
            reason=str(self.reason),
        )
