"""The clients of launchers by Airflow connections."""

from __future__ import annotations

import json

import pytest

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.hooks.connection import CONNECT
from airflow_streamstate.hooks.connection import _refused as refused


@pytest.mark.parametrize("launcher", ["kubernetes", "emr-serverless", "emr-eks"])
def test_a_connection_that_is_not_there_is_one_sentence(launcher: str) -> None:
    """As is a provider that is not installed."""
    with pytest.raises(InvalidRequestError) as caught:
        CONNECT[launcher]("nosuch")
    assert caught.value.context["conn_id"] == "nosuch"
    assert caught.value.next_step.startswith(("Install it: pip install", "Create or correct it in Airflow"))


def test_an_aws_connection_gives_its_keys_and_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the amazon provider is installed."""
    pytest.importorskip("airflow.providers.amazon", reason="needs apache-airflow-providers-amazon")
    connection = {"conn_type": "aws", "login": "AKIAEXAMPLE", "password": "x", "extra": {"region_name": "eu-west-3"}}
    monkeypatch.setenv("AIRFLOW_CONN_OWN", json.dumps(connection))
    session = CONNECT["emr-serverless"]("own")
    assert (session.region_name, session.get_credentials().access_key) == ("eu-west-3", "AKIAEXAMPLE")


def test_whatever_a_providers_hook_raises_is_one_sentence() -> None:
    """They raise the errors of the clients that they wrap, of any kind."""

    class ConfigError(Exception):
        pass

    with (
        pytest.raises(InvalidRequestError, match="the connection cannot be used") as caught,
        refused("own", "cncf-kubernetes", "kubernetes"),
    ):
        raise ConfigError("Invalid kube-config file. No configuration found.")
    assert "No configuration found" in str(caught.value)
