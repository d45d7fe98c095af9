"""``RollbackStreamOperator``: back to the version before, in the first way that is exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_streamstate.controller.upgrade.requests import WAYS, RollbackRequest
from airflow_streamstate.controller.upgrade.upgrades import LEASE_SECONDS
from airflow_streamstate.controller.upgrade.views import UpgradeView
from airflow_streamstate.hooks.rendered import one_of, optional_seconds, optional_text, texts, yes_or_no
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.driving import UpgradeOperatorBase


class RollbackStreamOperator(UpgradeOperatorBase):
    """Run again in a stream what ran before its current deployment, without a lost or doubled row.

    Where nothing came of the current version, the one before goes on from the handover. Else its code is rehearsed on
    what the current one has left, and goes on from the last commit; the batches whose output is the given-up version's
    are named. Where neither can be, the sinks are undone to the handover. Where none is exact the task fails, without a
    retry, and nothing is touched.

    Idempotent, and its result is, as those of ``UpgradeStreamOperator``. Where the task is killed, marked or cleared
    before the current version is told to stop, nothing happens; after that the rollback is finished: by the task as far
    as Airflow lets it, by its next try, or by ``streamstate continue STREAM``.

    :param strategy: ``forward``: the old code goes on from the last commit; ``undo``: back to the handover, with the
        sinks undone; by default the first of them that is exact. (templated)
    :param snapshot_id: go back to this older snapshot, with the code that it was taken of, and every sink undone to it.
        (templated)
    :param max_snapshot_age_seconds: refuse that snapshot where it is older. (templated)
    :param accept_duplicates: rows may come twice on sinks that cannot be undone. (templated)
    :param warm: launch the driver of the version before, before the current one is stopped; not where there is no room
        for two. (templated)
    :param accept_lost_input: queries that may go on although input behind their offsets is lost. (templated)
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
        return hook.client.upgrades.begin_rollback(self._request(), request_id, lease_seconds=LEASE_SECONDS)

    def _request(self) -> RollbackRequest:
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
