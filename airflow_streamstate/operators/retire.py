"""``RetireStreamOperator``: retire a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import StreamStateOperator
from airflow_streamstate.operators.term_fields import names_of, rendered_terms, taken_terms
from airflow_streamstate.protocol.terms.declaration import Term, terms_of
from airflow_streamstate.protocol.terms.order import RetireTerms

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class RetireStreamOperator(StreamStateOperator):
    """Mark an ended stream as retired; with ``delete`` remove it.

    A running stream is refused: stop or drain it first. Idempotent: a retry continues a deletion that was cut short; if
    the stream is gone already, the retry reports that. The task does not wait, so ``deferrable`` and
    ``timeout_seconds`` have no effect.

    Returns ``{stream_id, retired_at, retired_by, reason, deleted, objects}``.

    :param delete: remove the whole stream, with all snapshots, pinned ones too. This cannot be undone. (templated)
    """

    taken: ClassVar[tuple[Term, ...]] = taken_terms(terms_of(RetireTerms))
    template_fields: Sequence[str] = (*StreamStateOperator.template_fields, *names_of(taken))

    def __init__(
        self,
        *,
        # terms
        delete: bool | str = False,
        # end of terms
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # terms
        self.delete = delete
        # end of terms

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:  # noqa: ARG002 - asks for no id
        deletes = rendered_terms(RetireTerms, self, self.taken).delete
        return hook.client.retention.retire(str(self.stream_id), reason=str(self.reason), deletes=deletes).to_json()
