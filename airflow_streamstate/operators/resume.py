"""``ResumeStreamOperator``: start the current deployment again, on its own checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import request_id_of
from airflow_streamstate.operators.launching import LaunchingOperator
from airflow_streamstate.operators.term_fields import names_of, rendered_values, taken_terms
from airflow_streamstate.protocol.terms.declaration import Term, terms_of
from airflow_streamstate.protocol.terms.start import StartTerms

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class ResumeStreamOperator(LaunchingOperator):
    """Start the current deployment of a stream again, with its recorded code, whatever the path holds by now.

    Idempotent: a retry, or a cleared task, finds the attempt that it began. If that attempt failed before its first
    commit, or with ``wait_until="finished"`` at any time, the retry starts the next one.

    Returns ``{stream_id, deployment_id, attempt, state, start: {mode, snapshot_id}}``.

    :param wait_until: see ``DeployStreamOperator``. (templated)
    :param if_stopped: see ``DeployStreamOperator``. (templated)
    :param on_kill_action: see ``DeployStreamOperator``.

    :param assume_dead: continue although the launcher cannot tell whether the old driver is dead. (templated)
    :param accept_hazards: accept a ``hazardous`` plan; a difference that needs a drain still needs it. (templated)
    """

    taken: ClassVar[tuple[Term, ...]] = taken_terms(terms_of(StartTerms, "resume"))
    template_fields: Sequence[str] = (*LaunchingOperator.template_fields, *names_of(taken))

    def __init__(
        self,
        *,
        # terms
        assume_dead: bool | str = False,
        accept_hazards: bool | str = False,
        # end of terms
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # terms
        self.assume_dead = assume_dead
        self.accept_hazards = accept_hazards
        # end of terms

    def act(self, context: Context, hook: StreamStateHook) -> Mapping[str, Any]:
        view = hook.client.resume(
            str(self.stream_id),
            request_id=request_id_of(context),
            reason=str(self.reason),
            until_finished=self.until_finished,
            **rendered_values(self, self.taken, StartTerms),
        )
        return self.wait_for_launched(context, hook, view)
