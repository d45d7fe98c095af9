"""Which homes a user of Airflow may see on the page.

Airflow's auth manager decides, for each home by one right: that to read the home's connection, or to read the DAG that
``page_dag_ids`` names for it. What holds rows and logs also needs the right for task logs. Without the right there is
nothing to see, and no answer says whether the page has such a home.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import ConnectionDetails, DagAccessEntity, DagDetails
from airflow.models.connection import Connection
from airflow.models.dag import DagModel
from starlette.exceptions import HTTPException

from airflow_streamstate.hooks.configuration import page_conn_ids, page_dag_ids

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser


class NoRightError(HTTPException):
    """Airflow's auth manager gives the user no right to this; says which one is asked for."""

    def __init__(self, message: str, right: str) -> None:
        super().__init__(403, message)
        self.next_step = f"Ask an administrator of Airflow for {right}."


def homes_of(user: BaseUser) -> tuple[str, ...]:
    """The connections of the homes that the user sees, in the order of the configuration."""
    return tuple(conn_id for conn_id in page_conn_ids() if _may_see(user, conn_id))


def need_home(user: BaseUser, conn_id: str) -> None:
    """The user may see the home of this connection, if the page shows it.

    Raises:
        NoRightError: the user may not.
    """
    if not _may_see(user, conn_id):  # the same words for a home that the page does not have
        right = "the right to read the connection of this home, or the DAG that page_dag_ids names for it"
        raise NoRightError("you may not see this home", right)


def _may_see(user: BaseUser, conn_id: str) -> bool:
    dag_id = page_dag_ids().get(conn_id)
    if dag_id is not None:
        return may_read_dag(user, dag_id)
    details = ConnectionDetails(conn_id=conn_id, team_name=Connection.get_team_name(conn_id))
    return bool(get_auth_manager().is_authorized_connection(method="GET", details=details, user=user))


def need_task_logs(user: BaseUser, conn_id: str) -> None:
    """The user may read the logs of tasks: of the DAG of this home, or in general where it has none.

    Raises:
        NoRightError: the user may not.
    """
    dag_id = page_dag_ids().get(conn_id)
    if not (may_read_dag(user, dag_id) and may_read_dag(user, dag_id, DagAccessEntity.TASK_LOGS)):
        of = "of this home's DAG" if dag_id else "of DAGs"
        raise NoRightError("you may not read logs, journals and rows of this home", f"the right to read task logs {of}")


def may_read_dag(user: BaseUser, dag_id: str | None, entity: DagAccessEntity | None = None) -> bool:
    """Whether the user may read a DAG, or that entity of it; None for DAGs in general."""
    details = None if dag_id is None else DagDetails(id=dag_id, team_name=team_of_dag(dag_id))
    return bool(get_auth_manager().is_authorized_dag(method="GET", access_entity=entity, details=details, user=user))


def may_run_dag(user: BaseUser, dag_id: str) -> bool:
    """Whether the user may trigger a DAG."""
    details = DagDetails(id=dag_id, team_name=team_of_dag(dag_id))
    return bool(
        get_auth_manager().is_authorized_dag(
            method="POST", access_entity=DagAccessEntity.RUN, details=details, user=user
        )
    )


def team_of_dag(dag_id: str) -> str | None:
    """The team of a DAG; None where there are no teams."""
    team: str | None = DagModel.get_team_name(dag_id)
    return team
