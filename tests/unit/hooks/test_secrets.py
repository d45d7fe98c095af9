"""References to secrets, looked up in Airflow."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import redact

from airflow_streamstate.errors import InvalidRequestError, UnavailableError
from airflow_streamstate.hooks import connection
from airflow_streamstate.hooks.connection import airflow_secrets
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.protocol.redaction import parse_reference


def look_up(text: str, environ: dict[str, str] | None = None) -> str:
    reference = parse_reference(text)
    assert reference is not None
    return airflow_secrets(environ or {})(reference)


@pytest.fixture
def orders_db(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {
        "api_key": "hunter-extra",
        "sasl": {"password": "hunter-nested"},
        "a.b": "hunter-dotted",
        "n": "hunter-number-7",
    }
    connection: dict[str, Any] = {
        "conn_type": "generic", "login": "ada", "password": "hunter-db", "host": "db.example", "port": 5432,
        "schema": "orders", "extra": extra,
    }  # fmt: skip
    monkeypatch.setenv("AIRFLOW_CONN_ORDERS_DB", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW_CONN_EMPTY", json.dumps({"conn_type": "generic"}))
    monkeypatch.setenv("AIRFLOW_VAR_TOKEN", "hunter-variable")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("secret://airflow-connection/orders_db", "hunter-db"),
        ("secret://airflow-connection/orders_db#login", "ada"),
        ("secret://airflow-connection/orders_db#host", "db.example"),
        ("secret://airflow-connection/orders_db#port", "5432"),
        ("secret://airflow-connection/orders_db#schema", "orders"),
        ("secret://airflow-connection/orders_db#extra.api_key", "hunter-extra"),
        ("secret://airflow-connection/orders_db#extra.sasl.password", "hunter-nested"),
        ("secret://airflow-connection/orders_db#extra.a.b", "hunter-dotted"),
        ("secret://airflow-connection/orders_db#extra.n", "hunter-number-7"),
        ("secret://airflow-variable/token", "hunter-variable"),
        ("env://PIN", "hunter-pin"),
    ],
)
@pytest.mark.usefixtures("orders_db")
def test_each_kind_is_looked_up_and_hidden_from_then_on(text: str, value: str) -> None:
    """Connections part by part, variables, the worker's environment; Airflow's own logs hide what of it is secret."""
    assert look_up(text, {"PIN": "hunter-pin"}) == value
    assert (value in str(redact(f"it is {value}"))) == (not value.startswith("hunter"))


@pytest.mark.parametrize(
    "text",
    [
        "secret://airflow-connection/nowhere", "secret://airflow-connection/empty#password",
        "secret://airflow-connection/orders_db#extra.nothing", "secret://airflow-connection/orders_db#extra.sasl",
        "secret://airflow-connection/orders_db#extra.sasl.user.name", "secret://airflow-variable/nowhere",
    ],
)  # fmt: skip
@pytest.mark.usefixtures("orders_db")
def test_what_is_not_there_is_told_by_its_reference(text: str) -> None:
    """A missing connection, field or variable."""
    with pytest.raises(InvalidRequestError, match="no such secret in Airflow") as raised:
        look_up(text)
    assert raised.value.context == {"reference": text}


def test_a_backend_that_fails_may_be_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it raises: which error it was, and none of its words."""

    def fails(_key: str, **_more: Any) -> str:
        raise RuntimeError("cannot open with password hunter2")

    monkeypatch.setattr(connection.Variable, "get", fails)
    with pytest.raises(UnavailableError, match="could not look up a secret") as raised:
        look_up("secret://airflow-variable/token")
    assert raised.value.context["error"] == "RuntimeError"
    assert "hunter2" not in str(raised.value)
    assert raised.value.__suppress_context__


def test_the_credentials_of_a_home_are_hidden_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow masks the extra of a connection as a whole, which no text repeats; the hook masks each secret in it."""
    key = json.dumps({"private_key": "hunter-pem"})
    extra = {"home_uri": "gs://b", "gcs_service_account_key": key, "azure_sas_token": "sv=1&sig=hunter-signature"}
    extra["signing_secret_key"] = "hunter-key-of-the-controllers-new, hunter-key-of-the-controllers-old"
    connection = {"conn_type": "streamstate", "login": "AKIA", "password": "hunter-s3", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_STREAMSTATE_DEFAULT", json.dumps(connection))
    assert StreamStateHook().home_config.home_uri == "gs://b"
    signing = ("hunter-key-of-the-controllers-new", "hunter-key-of-the-controllers-old")
    for secret in ("hunter-pem", "hunter-signature", "hunter-s3", *signing):
        assert secret not in str(redact(f"it is {secret}"))
