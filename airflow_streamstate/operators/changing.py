"""Base of the operators that change what a stream runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from airflow_streamstate.operators.base import StreamStateOperator
from airflow_streamstate.operators.masking import MasksSecrets
from airflow_streamstate.operators.term_fields import (
    choices_of,
    kept,
    names_of,
    rendered_values,
    renderers_of,
    taken_terms,
)
from airflow_streamstate.protocol.records import StateRewrite
from airflow_streamstate.protocol.terms.declaration import Term, terms_of
from airflow_streamstate.protocol.terms.start import HandoverTerms
from airflow_streamstate.protocol.terms.version import LiteralSecretTerms, Version

if TYPE_CHECKING:
    from airflow_streamstate.controller.request.requests import ChangeRequest


class ChangingOperator(MasksSecrets, StreamStateOperator):
    """Base of ``PlanUpgradeOperator`` and ``UpgradeStreamOperator``, whose ``taken`` begins with these terms."""

    taken: ClassVar[tuple[Term, ...]] = taken_terms(
        kept(terms_of(Version, "change")),
        terms_of(HandoverTerms),
        terms_of(LiteralSecretTerms),
        terms_of(StateRewrite),
    )
    template_fields: Sequence[str] = (*StreamStateOperator.template_fields, *names_of(taken))
    template_fields_renderers: ClassVar[dict[str, str]] = renderers_of(taken)
    literal_choices: ClassVar[Mapping[str, Sequence[str]]] = choices_of(taken)

    def change(self) -> ChangeRequest:
        """The rendered change; raises InvalidRequestError if a field is invalid."""
        from airflow_streamstate.controller.request.requests import change_request

        given = rendered_values(self, self.taken, Version, HandoverTerms, LiteralSecretTerms, StateRewrite)
        return change_request(str(self.stream_id), reason=str(self.reason), **given)
