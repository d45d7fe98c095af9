"""``RollbackStreamOperator``: go back to the version before, in the first exact way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.driving import UpgradeOperatorBase
from airflow_streamstate.operators.term_fields import choices_of, names_of, rendered_terms, renderers_of
from airflow_streamstate.protocol.terms.declaration import Term, terms_of
from airflow_streamstate.protocol.terms.upgrade import RollbackTerms

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

    :param strategy: how it goes back: forward, the old code continues from the last commit; undo, it continues from the
        handover, with the sinks undone. By default the first of them that is exact. (templated)
    :param snapshot_id: go back to this older snapshot and its code, with the sinks undone to it; for a lost checkpoint,
        or for more than one wrong version. (templated)
    :param max_snapshot_age_seconds: refuse that snapshot if it is older. (templated)
    :param accept_duplicates: accept doubled rows on sinks that cannot be undone. (templated)
    :param accept_lost_input: queries that may continue although input after their offsets is lost at the source.
        (templated)
    :param warm: launch the next driver while the other runs, also on the way back: needs room for two. (templated)
    :param rehearsal_deadline_seconds: seconds until the rehearsal must have ended. (templated)
    :param healthy_batches: batches that each query must commit past the handover. Of a query with the trigger
        availableNow or once the end of its run counts instead. (templated)
    :param healthy_deadline_seconds: seconds from its launch until it must be healthy. After that it is given up.
        (templated)
    :param caught_up: healthy only when no input is left to read, or no more than the version before had left.
        (templated)
    :param undo_command: the command that undoes what a foreachBatch wrote, if there is no other way back. (templated)
    """

    taken: ClassVar[tuple[Term, ...]] = terms_of(RollbackTerms)
    template_fields: Sequence[str] = (*UpgradeOperatorBase.template_fields, *names_of(taken))
    template_fields_renderers: ClassVar[dict[str, str]] = renderers_of(taken)
    literal_choices: ClassVar[Mapping[str, Sequence[str]]] = {
        **UpgradeOperatorBase.literal_choices,
        **choices_of(taken),
    }

    def __init__(
        self,
        *,
        # terms
        strategy: str | None = None,
        snapshot_id: str | None = None,
        max_snapshot_age_seconds: float | str | None = None,
        accept_duplicates: bool | str = False,
        accept_lost_input: Sequence[str] | str | None = (),
        warm: bool | str = True,
        rehearsal_deadline_seconds: float | str = 300.0,
        healthy_batches: int | str = 3,
        healthy_deadline_seconds: float | str = 300.0,
        caught_up: bool | str = False,
        undo_command: Sequence[str] | str | None = (),
        # end of terms
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # terms
        self.strategy = strategy
        self.snapshot_id = snapshot_id
        self.max_snapshot_age_seconds = max_snapshot_age_seconds
        self.accept_duplicates = accept_duplicates
        self.accept_lost_input = accept_lost_input
        self.warm = warm
        self.rehearsal_deadline_seconds = rehearsal_deadline_seconds
        self.healthy_batches = healthy_batches
        self.healthy_deadline_seconds = healthy_deadline_seconds
        self.caught_up = caught_up
        self.undo_command = undo_command
        # end of terms
        self._built = True

    def request_digest(self) -> str:
        return self._request().digest

    def begin(self, hook: StreamStateHook, request_id: str) -> UpgradeView:
        from airflow_streamstate.control.upgrades import LEASE_SECONDS

        return hook.client.upgrades.begin_rollback(self._request(), request_id, lease_seconds=LEASE_SECONDS)

    def _request(self) -> RollbackRequest:
        from airflow_streamstate.controller.upgrade.requests import RollbackRequest

        terms = rendered_terms(RollbackTerms, self, self.taken)
        return RollbackRequest(str(self.stream_id), terms, str(self.reason))
