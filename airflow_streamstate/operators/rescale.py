"""``RescaleStreamOperator``: give the state of a stream another number of partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.driving import UpgradeOperatorBase
from airflow_streamstate.operators.term_fields import (
    choices_of,
    names_of,
    rendered_terms,
    rendered_values,
    renderers_of,
    required,
    taken_terms,
)
from airflow_streamstate.protocol.records import StateRewrite
from airflow_streamstate.protocol.terms.declaration import Term, terms_of
from airflow_streamstate.protocol.terms.upgrade import UpgradeTerms

if TYPE_CHECKING:
    from airflow_streamstate.controller.upgrade.requests import UpgradeRequest
    from airflow_streamstate.controller.upgrade.views import UpgradeView


class RescaleStreamOperator(UpgradeOperatorBase):
    """Write the state of a stream anew in another number of partitions, without a lost or doubled row.

    The state is written anew on a fork, compared row by row with the old one, and rehearsed with real rows while the
    stream runs; if that cannot work, the task fails and nothing was touched. Then the stream is stopped, and its state
    written anew as it is by then. Needs Spark 4.2 or newer. Idempotent, with the result of ``UpgradeStreamOperator``;
    ``RollbackStreamOperator`` brings the old number back.

    :param partitions: write the state again in this number of partitions of each stateful operator: Spark keeps the
        number that a checkpoint began with. ``streamstate rescale --suggest`` suggests one. (templated)
    :param state_store: write the state again into this state store: rocksdb. (templated)
    :param roll_back_if_slower: give up a version that falls behind its input and is slower than the version before by
        this factor: 2 means that it reads half the rows per second. By default it is kept, with a warning that has both
        rates. (templated)
    :param warm_return: also keep a driver of the current version ready, from before its stop until the new version is
        healthy: one that fails before its first commit is replaced at once. Needs room for three drivers for a moment,
        then for two. (templated)
    :param rehearse_batches: this many of the newest batches of each query run again, with their rows and without a
        sink. (templated)
    :param rehearse_rows: about this many rows of these batches, at most. (templated)
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

    taken: ClassVar[tuple[Term, ...]] = taken_terms(
        required(terms_of(StateRewrite, "rescale"), "partitions"), terms_of(UpgradeTerms, "rescale")
    )
    template_fields: Sequence[str] = (
        *UpgradeOperatorBase.template_fields,
        *names_of(taken),
    )
    template_fields_renderers: ClassVar[dict[str, str]] = renderers_of(taken)
    literal_choices: ClassVar[Mapping[str, Sequence[str]]] = {
        **UpgradeOperatorBase.literal_choices,
        **choices_of(taken),
    }

    def __init__(
        self,
        *,
        # terms
        partitions: int | str,
        state_store: str | None = None,
        roll_back_if_slower: float | str | None = None,
        warm_return: bool | str = False,
        rehearse_batches: int | str = 1,
        rehearse_rows: int | str = 100_000,
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
        self.partitions = partitions
        self.state_store = state_store
        self.roll_back_if_slower = roll_back_if_slower
        self.warm_return = warm_return
        self.rehearse_batches = rehearse_batches
        self.rehearse_rows = rehearse_rows
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

        return hook.client.upgrades.begin(self._request(), request_id, lease_seconds=LEASE_SECONDS)

    def _request(self) -> UpgradeRequest:
        from airflow_streamstate.controller.request.requests import change_request
        from airflow_streamstate.controller.upgrade.requests import UpgradeRequest

        rewrite = rendered_values(self, self.taken, StateRewrite)
        change = change_request(str(self.stream_id), reason=str(self.reason), **rewrite)
        return UpgradeRequest(change, rendered_terms(UpgradeTerms, self, self.taken, mode="restore"))
