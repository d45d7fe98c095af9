"""Airflow's own form, where another person than the one who triggered the run has to approve."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, BaseOperator

from airflow_streamstate.operators.base import requester_of
from airflow_streamstate.operators.plan import ApprovalByAnotherOperator, answer_within
from airflow_streamstate.streams_dag import StreamsDag
from support.fake_clock import FakeClock


def answered(by: str | None, triggered_by: str | None, option: str = "Approve") -> Any:
    """What the task returns after an answer."""
    task = ApprovalByAnotherOperator(task_id="approve", subject="Upgrade?")
    user = None if by is None else {"id": "7", "name": by}
    event = {
        "chosen_options": [option], "params_input": {}, "responded_at": FakeClock().now(), "responded_by_user": user,
    }  # fmt: skip
    return task.execute_complete({"dag_run": SimpleNamespace(triggering_user_name=triggered_by)}, event)  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("by", "triggered_by", "word"),
    [("ada", "ada", "ada has triggered this run"), ("Ada", "ada", "Ada has"), (None, "ada", "nobody has answered")],
)
def test_who_triggered_the_run_may_not_approve(by: str | None, triggered_by: str, word: str) -> None:
    """The task fails, without another try, and reports what to do."""
    with pytest.raises(AirflowFailException, match=word) as error:
        answered(by, triggered_by)
    assert "Another user clears this task, and approves." in str(error.value)


@pytest.mark.parametrize(("by", "triggered_by"), [("bob", "ada"), ("ada", None)])
def test_another_user_approves(by: str, triggered_by: str | None) -> None:
    """Any user, of a scheduled run."""
    assert answered(by, triggered_by)["chosen_options"] == ["Approve"]


def test_who_triggered_the_run_may_reject() -> None:
    """As may anybody."""
    assert answered("ada", "ada", "Reject")["chosen_options"] == ["Reject"]


def test_a_dag_of_declared_streams_asks_another_person() -> None:
    """By ``approved_by_another`` alone, or together with ``needs_approval``."""
    dag = StreamsDag(".", dag_id="declared", approved_by_another=True)
    assert isinstance(dag.task_dict["approve"], ApprovalByAnotherOperator)
    assert dag.task_dict["apply"].upstream_task_ids >= {"approve"}


def test_the_user_who_has_triggered_the_run_is_recorded() -> None:
    """As Airflow's server has it; a scheduled run has none."""
    ti = SimpleNamespace(dag_id="dag", task_id="stop", run_id="manual__1")
    for user, text in (("ada", "ada (airflow dag.stop manual__1)"), (None, "airflow dag.stop manual__1")):
        context: Any = {"ti": ti, "dag_run": SimpleNamespace(triggering_user_name=user)}
        assert requester_of(context) == text


def test_an_answer_is_awaited_with_every_release_of_the_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of Airflow 3.1 has no ``response_timeout``, and takes the task's own."""
    day = timedelta(days=1)
    assert answer_within(day) == {"response_timeout": day}
    assert ApprovalByAnotherOperator(task_id="approve", subject="?", **answer_within(day)).response_timeout == day
    monkeypatch.setattr("airflow_streamstate.operators.plan.HITLOperator", BaseOperator)
    assert answer_within(day) == {"execution_timeout": day}
