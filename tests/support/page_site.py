"""The page's app in this process, over Airflow's own auth manager and its users."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from fastapi import FastAPI
from fastapi.testclient import TestClient

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.page.app import page_app
from airflow_streamstate.page.plugin import URL_PREFIX

CONN_ID = "streamstate_default"
OTHER_CONN_ID = "streamstate_eu"
CONNECTION_RIGHTS: Mapping[str, frozenset[str]] = {
    "reader of one": frozenset({CONN_ID}),
    "reader without logs": frozenset({CONN_ID}),
    "reader of both": frozenset({CONN_ID, OTHER_CONN_ID}),
}
DAG_RIGHTS: Mapping[str, frozenset[str]] = {
    "reader of one": frozenset({"anything"}),
    "reader of both": frozenset({"anything"}),
    "reader of flights": frozenset({"flights"}),
    "reader of taxis": frozenset({"taxis"}),
    "reader of flights without logs": frozenset({"flights"}),
}


class RightsOfEach(SimpleAuthManager):
    """Airflow's simple auth manager, with rights on single connections and DAGs, as FAB and Keycloak have them."""

    def is_authorized_connection(self, *, method: Any, user: Any, details: Any = None) -> bool:
        return method == "GET" and details is not None and details.conn_id in CONNECTION_RIGHTS.get(user.username, ())

    def is_authorized_dag(self, *, method: Any, user: Any, access_entity: Any = None, details: Any = None) -> bool:
        dag_ids = DAG_RIGHTS.get(user.username, frozenset())
        if method != "GET" or (access_entity is DagAccessEntity.TASK_LOGS and user.username.endswith("without logs")):
            return False
        return bool(dag_ids) if details is None or details.id is None else details.id in dag_ids


@dataclass(frozen=True)
class PageSite:
    """Airflow's server with the page mounted, as far as the page needs it."""

    client: TestClient
    tokens: dict[str, str]

    def get(self, path: str, user: str | None = "op", **parameters: str) -> Any:
        """One request of a user; None for nobody."""
        headers = {} if user is None else {"Authorization": f"Bearer {self.tokens[user]}"}
        return self.client.get(f"{URL_PREFIX}/{path}", headers=headers, params=parameters, follow_redirects=False)

    def read(self, part: str, stream_id: str = "flights", **more: str) -> Any:
        """A part of the page of a stream that has to be there."""
        answer = self.get(f"api/{part}", conn_id=CONN_ID, stream_id=stream_id, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()


def page_site(
    monkeypatch: pytest.MonkeyPatch,
    auth_manager: type[SimpleAuthManager] = SimpleAuthManager,
    clock: Clock = SYSTEM_CLOCK,
) -> PageSite:
    """The page with Airflow's simple auth manager: an ``op`` (may read connections), a ``viewer``, a ``user`` (may run
    DAGs), and one without a role; or with those of ``RightsOfEach``."""
    from airflow.api_fastapi.app import create_auth_manager, purge_cached_app

    monkeypatch.setenv(
        "AIRFLOW__API_AUTH__JWT_SECRET", "a secret of tests, long enough for its algorithm, 64 characters!!"
    )
    monkeypatch.setenv("AIRFLOW__CORE__AUTH_MANAGER", f"{auth_manager.__module__}.{auth_manager.__qualname__}")
    purge_cached_app()  # another one of a test before this
    manager = create_auth_manager()
    names = {"op": "op", "viewer": "viewer", "user": "user", "nobody": None}
    names |= dict.fromkeys([*CONNECTION_RIGHTS, *DAG_RIGHTS], "viewer")
    users = [SimpleAuthManagerUser(username=name, role=role) for name, role in names.items()]
    server = FastAPI()
    server.mount(URL_PREFIX, page_app(clock))
    return PageSite(TestClient(server), {user.username: manager.generate_jwt(user) for user in users})
