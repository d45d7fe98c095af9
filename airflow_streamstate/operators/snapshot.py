"""``SnapshotStreamOperator``: take a snapshot of a running stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import StreamStateOperator
from airflow_streamstate.operators.term_fields import names_of, rendered_terms, taken_terms
from airflow_streamstate.protocol.terms.declaration import Term, terms_of
from airflow_streamstate.protocol.terms.order import Expiry, SnapshotTerms

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class SnapshotStreamOperator(StreamStateOperator):
    """Take a snapshot of a committed batch of every query of a running stream.

    With ``requested_at="{{ dag_run.run_after }}"`` a run that comes too late takes no snapshot.

    Idempotent: a retry, or a cleared task, finds its snapshot. While the task waits, it repeats the order under the
    same request id if no driver takes it up, or if the driver was restarted or replaced.

    Returns ``{stream_id, deployment_id, command_id, snapshot_id, kind, files, bytes, queries}``; without
    ``wait_for_completion`` ``{stream_id, deployment_id, command_id, key, state, request_id}``.

    :param requested_at: the time of the request, with a time zone: a request that comes too late takes no snapshot. By
        default now, also when the order is repeated. (templated)
    :param ttl_seconds: the driver ignores a request that is older than this. By default the deployment's setting.
        (templated)
    :param consistent: hold all queries at one barrier while it is taken: they finish their batches, and then continue.
        (templated)
    :param expires_in_seconds: the driver ignores an order that it reads later than this. By default there is no limit.
        (templated)

    :param wait_for_completion: wait until the snapshot is complete, for ``timeout_seconds`` at most.
    """

    taken: ClassVar[tuple[Term, ...]] = taken_terms(terms_of(SnapshotTerms), terms_of(Expiry))
    template_fields: Sequence[str] = (*StreamStateOperator.template_fields, *names_of(taken))

    def __init__(
        self,
        *,
        # terms
        requested_at: datetime | str | None = None,
        ttl_seconds: float | str | None = None,
        consistent: bool | str = False,
        expires_in_seconds: float | str | None = None,
        # end of terms
        wait_for_completion: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # terms
        self.requested_at = requested_at
        self.ttl_seconds = ttl_seconds
        self.consistent = consistent
        self.expires_in_seconds = expires_in_seconds
        # end of terms
        self.wait_for_completion = wait_for_completion

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:
        terms, expiry = rendered_terms(SnapshotTerms, self, self.taken), rendered_terms(Expiry, self, self.taken)
        order = self.give_order(context, hook, "snapshot", terms=terms, **vars(expiry))
        return self.end_of(hook, order, waits=self.wait_for_completion)
