"""The results of a DAG run in the database of the test session's Airflow."""

from __future__ import annotations

from typing import Any

from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import select


def states(dag_run: Any) -> dict[str, str]:
    """State per task."""
    return {ti.task_id: str(ti.state) for ti in dag_run.get_task_instances()}


def mapped_states(dag_run: Any, task_id: str) -> list[str]:
    """State of each of a mapped task's instances, in order."""
    found = [ti for ti in dag_run.get_task_instances() if ti.task_id == task_id]
    return [str(ti.state) for ti in sorted(found, key=lambda ti: ti.map_index)]


def returned(dag_run: Any, task_id: str) -> Any:
    """What a task returned; None where it returned nothing."""
    query = select(XComModel.value).where(
        XComModel.dag_id == dag_run.dag_id,
        XComModel.run_id == dag_run.run_id,
        XComModel.task_id == task_id,
        XComModel.key == "return_value",
    )
    with create_session() as session:
        return session.scalars(query).first()
