"""The page's app in this process, over Airflow's own auth manager and its users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from airflow_streamstate.page.app import page_app
from airflow_streamstate.page.plugin import URL_PREFIX

CONN_ID = "streamstate_default"


@dataclass(frozen=True)
class PageSite:
    """Airflow's server with the page mounted, as far as the page needs it."""

    client: TestClient
    tokens: dict[str, str]

    def get(self, path: str, user: str | None = "viewer", **parameters: str) -> Any:
        """One request of a user; None for nobody."""
        headers = {} if user is None else {"Authorization": f"Bearer {self.tokens[user]}"}
        return self.client.get(f"{URL_PREFIX}/{path}", headers=headers, params=parameters, follow_redirects=False)

    def read(self, part: str, stream_id: str = "flights", **more: str) -> Any:
        """A part of the page of a stream that has to be there."""
        answer = self.get(f"api/{part}", conn_id=CONN_ID, stream_id=stream_id, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()


def page_site(monkeypatch: pytest.MonkeyPatch) -> PageSite:
    """The page with Airflow's simple auth manager: a ``viewer``, a ``user`` (may run DAGs), and one without a role."""
    from airflow.api_fastapi.app import create_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    monkeypatch.setenv(
        "AIRFLOW__API_AUTH__JWT_SECRET", "a secret of tests, long enough for its algorithm, 64 characters!!"
    )
    manager = create_auth_manager()
    users = [
        SimpleAuthManagerUser(username="viewer", role="viewer"),
        SimpleAuthManagerUser(username="user", role="user"),
        SimpleAuthManagerUser(username="nobody", role=None),
    ]
    server = FastAPI()
    server.mount(URL_PREFIX, page_app())
    return PageSite(TestClient(server), {user.username: manager.generate_jwt(user) for user in users})
