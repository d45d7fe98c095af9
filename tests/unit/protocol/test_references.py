"""References to secrets: what is one, and what only looks like one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.redaction import Reference, is_reference, parse_reference, split_argument


@pytest.mark.parametrize(
    ("text", "source", "key", "part"),
    [
        ("secret://airflow-connection/orders_db", "airflow-connection", "orders_db", "password"),
        ("secret://airflow-connection/orders_db#login", "airflow-connection", "orders_db", "login"),
        ("secret://airflow-connection/a.b-c#extra.sasl.password", "airflow-connection", "a.b-c", "extra.sasl.password"),
        ("secret://airflow-variable/orders/token", "airflow-variable", "orders/token", ""),
        ("env://DB_PASSWORD", "env", "DB_PASSWORD", ""),
    ],
)
def test_a_reference_says_where_the_secret_is(text: str, source: str, key: str, part: str) -> None:
    """The three forms, and the password of a connection where no part is named."""
    reference = parse_reference(text)
    assert reference == Reference(text, source, key, part)  # type: ignore[arg-type]
    assert is_reference(text)


@pytest.mark.parametrize(
    "text", ["", "plain", "s3://bucket/secret", "my-secret://x", "https://h/env:/x", "environ", "a.env://x"]
)
def test_other_values_are_none(text: str) -> None:
    """What does not hold a reference goes through as it is."""
    assert parse_reference(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "secret://vault/x", "secret://airflow-connection/", "secret://airflow-connection/x#uri", "env://", "env://A-B",
        "secret://airflow-connection/x#extra.", "secret://airflow-variable/", "secret://airflow-connection/a/b",
        "env://A b",
    ],
)  # fmt: skip
def test_a_malformed_reference_is_refused_by_name(text: str) -> None:
    """It would otherwise be handed over as the secret itself."""
    with pytest.raises(InvalidRequestError, match="no reference to a secret"):
        parse_reference(text)
    assert not is_reference(text)


def test_a_reference_within_other_text_is_refused_without_showing_the_text() -> None:
    """It would not be looked up; and what is around it may be secret."""
    with pytest.raises(InvalidRequestError, match="among other text") as raised:
        parse_reference('user="ada" pin="hunter2" password="secret://airflow-connection/x"')
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("argument", "name", "value"),
    [
        ("--password=env://P", "--password=", "env://P"),
        ("password=secret://airflow-variable/x", "password=", "secret://airflow-variable/x"),
        ("env://P", "", "env://P"),
        ("--url=http://h/?a=b", "", "--url=http://h/?a=b"),
        ("-p=env://P", "-p=", "env://P"),
    ],
)
def test_an_argument_may_have_its_name_in_front(argument: str, name: str, value: str) -> None:
    """``--name=REFERENCE`` is the usual way to write one."""
    assert split_argument(argument) == (name, value)


@given(st.text(max_size=60))
def test_any_text_is_a_reference_a_value_or_refused(text: str) -> None:
    """Whatever a user passes: no other error; and an argument taken apart is complete again."""
    try:
        parse_reference(text)
    except InvalidRequestError:
        assert "://" in text
    assert "".join(split_argument(text)) == text
