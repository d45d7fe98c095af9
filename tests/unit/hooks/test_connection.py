"""From a connection to a home."""

from __future__ import annotations

import json
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_streamstate.allowed import Allowed
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.hooks.connection import Fetched, aws_conn_id_of, home_config
from airflow_streamstate.provider_info import _CONNECTION_TYPE
from airflow_streamstate.store.options import S3Role


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
    assert (config.options.s3.region, config.options.s3.endpoint_url) == ("eu-west-1", "http://x")
    assert (config.options.s3.access_key_id, config.options.s3.secret_access_key) == ("key", "secret")


def test_an_empty_field_is_a_field_that_is_not_given() -> None:
    """The form saves empty texts for what was left out."""
    config = home_config(fetched("", "", home_uri=" /srv/streams ", checkpoints_uri="", region="", aws_conn_id=""))
    assert config.home_uri == "/srv/streams"
    assert config.checkpoints_uri is None
    assert config.options.s3.access_key_id is None
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
    assert (config.options.s3.access_key_id, config.options.s3.secret_access_key) == ("aws-key", "aws-secret")
    assert (config.options.s3.region, config.options.s3.endpoint_url) == ("us-east-2", "http://s3")


def test_what_the_first_connection_says_itself_wins() -> None:
    """The more specific connection decides."""
    aws = fetched(
        None, None, aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-2", endpoint_url="o"
    )
    config = home_config(fetched("key", "secret", home_uri="s3://b", region="eu-west-1", endpoint_url="mine"), aws)
    s3 = config.options.s3
    assert (s3.access_key_id, s3.region, s3.endpoint_url) == ("key", "eu-west-1", "mine")


def test_a_role_of_the_aws_connection_is_assumed() -> None:
    """With the amazon provider's names; a role of the first connection wins."""
    said = {"ExternalId": "x-1", "DurationSeconds": 1800}
    aws = fetched(role_arn="arn:aws:iam::1:role/x", assume_role_method="assume_role", assume_role_kwargs=said)
    found = home_config(fetched(home_uri="s3://b"), aws).options.s3.role
    assert found == S3Role("arn:aws:iam::1:role/x", "x-1", "streamstate", 1800)
    mine = home_config(fetched(home_uri="s3://b", role_arn="arn:mine"), aws).options.s3.role
    assert mine == S3Role("arn:mine")


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"assume_role_method": "assume_role_with_saml"}, "assume_role_method"),
        ({"assume_role_kwargs": {"Policy": "{}"}}, "Policy"),
        ({"assume_role_kwargs": "x"}, "assume_role_kwargs"),
    ],
)
def test_other_ways_to_a_role_are_refused_by_name(extra: dict[str, Any], field: str) -> None:
    """Without them the credentials would be those of a different identity."""
    with pytest.raises(InvalidRequestError, match=f"fields={field}"):
        home_config(fetched(home_uri="s3://b"), fetched(role_arn="arn:aws:iam::1:role/x", **extra))


def test_each_field_of_the_form_is_read_and_reaches_the_options() -> None:
    """What the form asks for is what is opened; a field that nothing reads would be a promise without an act."""
    values: dict[str, Any] = {name: f"v-{name}" for name in _CONNECTION_TYPE["conn-fields"]}  # type: ignore[attr-defined]
    values["allowed"] = {"secrets": ["v-allowed"]}
    values |= {"role_duration_seconds": 7200, "gcs_key_path": "", "azure_sas_token": "", "azure_secret_key": ""}
    values |= {"signing_secret_key": "of at least thirty-two characters".replace(" ", "-")}
    config = home_config(fetched("login", "password", **values))
    one_way = {"gcs_key_path": "v-path", "gcs_service_account_key": "", "azure_sas_token": "v-sas"}
    no_principal = dict.fromkeys(("azure_tenant_id", "azure_client_id", "azure_client_secret"), "")
    others = home_config(fetched(**{**values, **one_way, **no_principal}))
    key = home_config(fetched(**{**values, **no_principal, "azure_secret_key": "v-key"}))
    assert config.options.s3.role == S3Role("v-role_arn", "v-role_external_id", "v-role_session_name", 7200)
    shown = f"{asdict(config)} {asdict(others)} {asdict(key)}"
    read = [name for name in values if f"v-{name}'" in shown]
    elsewhere = {"aws_conn_id", "role_duration_seconds", "gcs_key_path", "azure_sas_token", "azure_secret_key"}
    elsewhere |= {"signing_secret_key"}
    assert config.keys is not None
    assert config.keys.texts == (values["signing_secret_key"],)
    assert set(values) - set(read) == elsewhere
    assert others.options.gcs.key_path == "v-path"
    assert others.options.azure.sas_token == "v-sas"
    assert key.options.azure.account_key == "v-key"


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"role_external_id": "x"}, "describes a role and does not name it"),
        ({"role_arn": "a", "role_duration_seconds": 900}, "given=900 least=1800 most=43200"),
        ({"role_arn": "a", "role_duration_seconds": "soon"}, "given=soon"),
        ({"gcs_service_account_key": "hidden-1", "gcs_key_path": "/k"}, "two credentials for one service"),
        ({"azure_secret_key": "hidden-1", "azure_sas_token": "hidden-2"}, "azure_secret_key, azure_sas_token"),
        ({"azure_client_secret": "hidden-1"}, "azure_tenant_id, azure_client_id"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(extra: dict[str, Any], said: str) -> None:
    """In one sentence, with the connection and the fields, without a value that is secret."""
    with pytest.raises(InvalidRequestError, match=said) as raised:
        home_config(fetched(home_uri="s3://b", **extra))
    assert "conn_id=c" in str(raised.value)
    assert "hidden" not in str(raised.value)


NEW, OLD = "n" * 32, "o" * 32


def test_the_signing_key_is_the_connections_before_that_of_the_process() -> None:
    """A worker may have the key in its environment; a rotation lists the new one first."""
    environ = {"STREAMSTATE_SIGNING_KEY": OLD}
    own = home_config(fetched(home_uri="s3://b", signing_secret_key=f"{NEW}, {OLD}"), environ=environ)
    inherited = home_config(fetched(home_uri="s3://b"), environ=environ)
    assert own.keys is not None
    assert inherited.keys is not None
    assert (own.keys.texts, inherited.keys.texts) == ((NEW, OLD), (OLD,))
    assert home_config(fetched(home_uri="s3://b"), environ={}).keys is None
    assert NEW not in repr(own)


def test_a_short_signing_key_is_refused_and_not_shown() -> None:
    """Who can guess the key can sign."""
    with pytest.raises(InvalidRequestError, match="too short") as raised:
        home_config(fetched(home_uri="s3://b", signing_secret_key=f"{NEW} hunter2"))
    assert "least=32" in str(raised.value)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(("login", "password"), [("key", None), (None, "secret-value")])
def test_half_a_credential_is_refused_and_not_shown(login: str | None, password: str | None) -> None:
    """boto3 would use its own chain, as another identity."""
    with pytest.raises(InvalidRequestError, match="half a credential") as raised:
        home_config(fetched(login, password, home_uri="s3://b"))
    assert "secret-value" not in str(raised.value)


def test_no_secret_is_in_the_text_of_a_configuration() -> None:
    """Configurations end up in logs."""
    assert "hidden" not in repr(home_config(fetched("key", "hidden-one", home_uri="s3://b")))
    secrets = {"gcs_service_account_key": "hidden", "azure_tenant_id": "t", "azure_client_id": "i"}
    assert "hidden" not in repr(home_config(fetched(home_uri="s3://b", azure_client_secret="hidden", **secrets)))
    assert "hidden" not in repr(home_config(fetched(home_uri="s3://b", azure_secret_key="hidden")))
    assert "hidden" not in repr(home_config(fetched(home_uri="s3://b", azure_sas_token="hidden")))


def test_a_profile_of_the_aws_connection_is_taken_unless_keys_are_given() -> None:
    """It may assume a role, and renews what it gets: for controllers and drivers alike."""
    of_profile = home_config(fetched(home_uri="s3://b"), fetched(profile_name="streams"))
    assert of_profile.options.s3.profile_name == "streams"
    keys = {"aws_access_key_id": "AK", "aws_secret_access_key": "SK"}
    with_keys = home_config(fetched(home_uri="s3://b"), fetched(profile_name="streams", **keys))
    assert (with_keys.options.s3.profile_name, with_keys.options.s3.access_key_id) == (None, "AK")


def test_the_connection_says_what_its_home_may_name() -> None:
    """As an object or as its text; a malformed one names the connection."""
    said = {"secrets": ["env://PG_*"], "launchers": [{"launcher": "yarn"}]}
    for given in (said, json.dumps(said)):
        assert home_config(fetched(home_uri="h", allowed=given)).allowed == Allowed.parse(said)
    assert home_config(fetched(home_uri="h")).allowed == Allowed()
    with pytest.raises(InvalidRequestError, match="field allowed of the connection"):
        home_config(fetched(home_uri="h", allowed="env://PG_*"))


def test_a_signing_key_where_airflow_would_show_it_is_refused() -> None:
    """It would be taken for no key, and the home for an unsigned one."""
    with pytest.raises(InvalidRequestError) as refused:
        home_config(fetched(home_uri="s3://b", signing_key=NEW))
    assert "signing_secret_key" in str(refused.value)
    assert NEW not in str(refused.value)
