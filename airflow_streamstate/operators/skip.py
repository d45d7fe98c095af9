"""``SkipBatchOperator``: skip a batch that always fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import StreamStateOperator, ordered, request_id_of
from airflow_streamstate.operators.term_fields import names_of, rendered_terms, rendered_values, taken_terms
from airflow_streamstate.protocol.terms.declaration import Term, terms_of
from airflow_streamstate.protocol.terms.order import SkipTerms
from airflow_streamstate.protocol.terms.start import StartTerms

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_streamstate.controller.deploy.skips import SkipView


class SkipBatchOperator(StreamStateOperator):
    """Commit a planned batch that always fails, without reading its rows, and continue after it.

    For a stream that has ended: the next attempt skips the batch before it starts the query. The state is unchanged;
    the skipped offsets are recorded as a gap. Idempotent: a retry, or a cleared task, finds its order and the order's
    result; another batch is another request.

    Returns ``{stream_id, command_id, deployment_id, query, batch_id, moves}``; without ``wait_for_completion``
    ``{stream_id, deployment_id, command_id, key, state}``.

    :param reason: required; kept with the gap. (templated)
    :param wait_for_completion: wait until the batch is skipped, for ``timeout_seconds`` at most.

    :param batch_id: the batch that the next start would run first. (templated)
    :param query_name: the query, if several have a batch of this number planned. (templated)
    :param accept_written_rows: skip it although the sink may hold some of its output, which stays. (templated)
    :param assume_dead: continue although the launcher cannot tell whether the old driver is dead. (templated)
    """

    taken: ClassVar[tuple[Term, ...]] = taken_terms(terms_of(SkipTerms), terms_of(StartTerms, "skip"))
    template_fields: Sequence[str] = (*StreamStateOperator.template_fields, *names_of(taken))

    def __init__(
        self,
        *,
        # terms
        batch_id: int | str,
        query_name: str | None = None,
        accept_written_rows: bool | str = False,
        assume_dead: bool | str = False,
        # end of terms
        wait_for_completion: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # terms
        self.batch_id = batch_id
        self.query_name = query_name
        self.accept_written_rows = accept_written_rows
        self.assume_dead = assume_dead
        # end of terms
        self.wait_for_completion = wait_for_completion

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:
        from airflow_streamstate.controller.deploy.skips import SkipOrder
        from airflow_streamstate.controller.wait.condition import WaitCondition

        terms = rendered_terms(SkipTerms, self, self.taken)
        request = SkipOrder(
            str(self.stream_id), terms, str(self.reason), **rendered_values(self, self.taken, StartTerms)
        )
        purpose = f"{terms.batch_id} {terms.query_name} {terms.accept_written_rows}"
        order = hook.client.skips.skip(request, request_id_of(context, purpose), self._say_what_is_passed_over)
        return self.wait_until_done(hook, WaitCondition.of(order)) if self.wait_for_completion else ordered(order)

    def _say_what_is_passed_over(self, view: SkipView) -> None:
        from airflow_streamstate.connectors.moving import describe

        for move in describe(view.moves):
            self.log.warning("Batch %s of query %s is passed over: %s", view.batch_id, view.query_name, move)
