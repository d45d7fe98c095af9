"""Another person approves: Airflow's own form, which refuses the user who has triggered the run."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.providers.standard.operators.hitl import ApprovalOperator, HITLOperator

from airflow_streamstate.protocol.requesters import is_same_person

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class ApprovalByAnotherOperator(ApprovalOperator):
    """As Airflow's ``ApprovalOperator``; an approval by the user who has triggered the run fails the task.

    A rejection may come from anybody. A run that no user has triggered, e.g. a scheduled one, may be approved by any
    user. After a failure another user clears the task and answers.

    Its parameters are those of ``ApprovalOperator``.
    """

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        if self.APPROVE in (event.get("chosen_options") or ()):
            problem = problem_of_answer(event.get("responded_by_user"), context.get("dag_run"))
            if problem:
                raise AirflowFailException(problem)
        return super().execute_complete(context, event)


def answer_within(timeout: timedelta) -> dict[str, Any]:
    """The arguments by which an ``ApprovalOperator`` waits so long for an answer, in every release of its provider."""
    knows = "response_timeout" in inspect.signature(HITLOperator.__init__).parameters
    # The standard provider of Airflow 3.1 takes the timeout of the task for that of the answer.
    return {"response_timeout" if knows else "execution_timeout": timeout}


def problem_of_answer(answered_by: Any, dag_run: Any) -> str:
    """Why this user's approval of a run does not count; "" where it does.

    Args:
        answered_by: the user as Airflow's form gives it, with an id and a name; None where nobody has answered.
    """
    name = answered_by.get("name") if isinstance(answered_by, dict) else getattr(answered_by, "name", None)
    user = getattr(dag_run, "triggering_user_name", None) or ""
    step = "Another user clears this task, and approves."
    if not name:
        return f"another person has to approve this, and nobody has answered. {step}"
    if user and is_same_person(str(name), user):
        return f"{name} has triggered this run, and another person has to approve it. {step}"
    return ""
