"""From a connection to a home."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.hooks.connection import Fetched, aws_conn_id_of, home_config


def fetched(login: str | None = None, password: str | None = None, **extra: Any) -> Fetched:
    return Fetched(SimpleNamespace(conn_id="c", login=login, password=password), extra)


def test_every_field_reaches_the_home() -> None:
    """What the form asks for is what the home is opened with."""
    config = home_config(
        fetched(
            "key",
            "secret",
            home_uri="s3://b/p",
            checkpoints_uri="/srv/c",
            region="eu-west-1",
            endpoint_url="http://x",
            work_dir="/srv/l",
        )
    )
    assert (config.home_uri, config.checkpoints_uri, config.work_dir) == ("s3://b/p", "/srv/c", "/srv/l")
    assert config.s3 is not None
    assert (config.s3.region, config.s3.endpoint_url) == ("eu-west-1", "http://x")
    assert (config.s3.access_key_id, config.s3.secret_access_key) == ("key", "secret")


def test_an_empty_field_is_a_field_that_is_not_given() -> None:
    """The form saves empty texts for what was left out."""
    config = home_config(fetched("", "", home_uri=" /srv/streams ", checkpoints_uri="", region="", aws_conn_id=""))
    assert config.home_uri == "/srv/streams"
    assert config.checkpoints_uri is None
    assert config.s3 is not None
    assert config.s3.access_key_id is None
    assert aws_conn_id_of(fetched(aws_conn_id="")) is None


def test_a_connection_without_a_home_is_refused_by_name() -> None:
    """The error names the connection and the field."""
    with pytest.raises(InvalidRequestError, match=r"names no home\. conn_id=c\. Set home_uri"):
        home_config(fetched())


def test_credentials_come_from_the_aws_connection_where_the_first_has_none() -> None:
    """aws_conn_id gives what is missing."""
    aws = fetched(
        "aws-key", "aws-secret", region_name="us-east-2", service_config={"s3": {"endpoint_url": "http://s3"}}
    )
    config = home_config(fetched(home_uri="s3://b", aws_conn_id="aws"), aws)
    assert config.s3 is not None
    assert (config.s3.access_key_id, config.s3.secret_access_key) == ("aws-key", "aws-secret")
    assert (config.s3.region, config.s3.endpoint_url) == ("us-east-2", "http://s3")


def test_what_the_first_connection_says_itself_wins() -> None:
    """The more specific connection decides."""
    aws = fetched(
        None, None, aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-2", endpoint_url="o"
    )
    config = home_config(fetched("key", "secret", home_uri="s3://b", region="eu-west-1", endpoint_url="mine"), aws)
    assert config.s3 is not None
    assert (config.s3.access_key_id, config.s3.region, config.s3.endpoint_url) == ("key", "eu-west-1", "mine")


def test_a_role_is_refused_by_name_and_not_passed_over() -> None:
    """Without the role the credentials would be those of another identity."""
    with pytest.raises(InvalidRequestError, match="fields=role_arn"):
        home_config(fetched(home_uri="s3://b"), fetched(role_arn="arn:aws:iam::1:role/x"))


@pytest.mark.parametrize(("login", "password"), [("key", None), (None, "secret-value")])
def test_half_a_credential_is_refused_and_not_shown(login: str | None, password: str | None) -> None:
    """boto3 would use its own chain, as another identity."""
    with pytest.raises(InvalidRequestError, match="half a credential") as raised:
        home_config(fetched(login, password, home_uri="s3://b"))
    assert "secret-value" not in str(raised.value)


def test_no_secret_is_in_the_text_of_a_configuration() -> None:
    """Configurations end up in logs."""
    assert "hidden-one" not in repr(home_config(fetched("key", "hidden-one", home_uri="s3://b")))


def test_a_profile_of_the_aws_connection_is_taken_unless_keys_are_given() -> None:
    """It may assume a role, and renews what it gets: for controllers and drivers alike."""
    of_profile = home_config(fetched(home_uri="s3://b"), fetched(profile_name="streams"))
    assert of_profile.s3 is not None
    assert of_profile.s3.profile_name == "streams"
    keys = {"aws_access_key_id": "AK", "aws_secret_access_key": "SK"}
    with_keys = home_config(fetched(home_uri="s3://b"), fetched(profile_name="streams", **keys))
    assert with_keys.s3 is not None
    assert (with_keys.s3.profile_name, with_keys.s3.access_key_id) == (None, "AK")
