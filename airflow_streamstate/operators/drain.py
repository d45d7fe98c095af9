"""``DrainStreamOperator``: stop reading, flush all buffered state, and end the stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import StreamStateOperator
from airflow_streamstate.operators.lineage import TellsLineage
from airflow_streamstate.operators.term_fields import choices_of, names_of, rendered_terms, renderers_of, taken_terms
from airflow_streamstate.protocol.terms.declaration import Term, terms_of
from airflow_streamstate.protocol.terms.order import DeploymentChoice, DrainTerms, Expiry

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class DrainStreamOperator(TellsLineage, StreamStateOperator):
    """Order the drain of a stream, and wait for it only with ``wait_for_completion``.

    A drain writes open windows early: use it for upgrades that the state cannot survive, and a stop for all others. A
    stopped, finished or failed deployment is launched once more for the flush.

    Idempotent: a retry, or a cleared task, finds its order and the order's result.

    Returns ``{stream_id, deployment_id, command_id, key, state}``; with ``wait_for_completion`` also
    ``{snapshot_id, end_offsets, watermark_at, state_rows_left}`` and no key.

    :param deployment_id: which deployment; by default the current one. (templated)
    :param mode: what is flushed: default flushes all state of the queries, event_time only moves the watermark.
        (templated)
    :param rehearse: first try the flush on a fork of the state, while the stream runs: the driver rejects a drain that
        would leave state, or whose flush would fail. (templated)
    :param allow_state_loss: accept state that the flush leaves: the next version drops it. (templated)
    :param batches_deadline_seconds: seconds from the order until the batches in flight must be committed. By default
        there is no limit. (templated)
    :param on_batches_deadline: at ``batches_deadline_seconds``: fail withdraws the drain, and the stream continues;
        stop stops it with its state; kill cuts the batch, and the next start runs it again. (templated)
    :param flush_deadline_seconds: seconds from the start of the flush until it must be committed. By default there is
        no limit. (templated)
    :param on_flush_deadline: at ``flush_deadline_seconds``: fail, stop or kill, as for ``on_batches_deadline``.
        (templated)
    :param leave_queries: queries that the script does not start: the drain leaves their state for the next deployment,
        and without their names it is refused. (templated)
    :param expires_in_seconds: the driver ignores an order that it reads later than this. By default there is no limit.
        (templated)

    :param wait_for_completion: wait until the stream is drained, for ``timeout_seconds`` at most.
    """

    taken: ClassVar[tuple[Term, ...]] = taken_terms(terms_of(DeploymentChoice), terms_of(DrainTerms), terms_of(Expiry))
    template_fields: Sequence[str] = (*StreamStateOperator.template_fields, *names_of(taken))
    template_fields_renderers: ClassVar[dict[str, str]] = renderers_of(taken)
    literal_choices: ClassVar[Mapping[str, Sequence[str]]] = choices_of(taken)

    def __init__(
        self,
        *,
        # terms
        deployment_id: str | None = None,
        mode: str = "default",
        rehearse: bool | str = True,
        allow_state_loss: bool | str = False,
        batches_deadline_seconds: float | str | None = None,
        on_batches_deadline: str = "fail",
        flush_deadline_seconds: float | str | None = None,
        on_flush_deadline: str = "fail",
        leave_queries: Sequence[str] | str | None = (),
        expires_in_seconds: float | str | None = None,
        # end of terms
        wait_for_completion: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # terms
        self.deployment_id = deployment_id
        self.mode = mode
        self.rehearse = rehearse
        self.allow_state_loss = allow_state_loss
        self.batches_deadline_seconds = batches_deadline_seconds
        self.on_batches_deadline = on_batches_deadline
        self.flush_deadline_seconds = flush_deadline_seconds
        self.on_flush_deadline = on_flush_deadline
        self.leave_queries = leave_queries
        self.expires_in_seconds = expires_in_seconds
        # end of terms
        self.wait_for_completion = wait_for_completion

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:
        order = self.give_order(
            context,
            hook,
            "drain",
            terms=rendered_terms(DrainTerms, self, self.taken),
            **vars(rendered_terms(DeploymentChoice, self, self.taken)),
            **vars(rendered_terms(Expiry, self, self.taken)),
        )
        return self.end_of(hook, order, waits=self.wait_for_completion)
