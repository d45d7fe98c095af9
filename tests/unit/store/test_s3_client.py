"""boto3's errors as answers, its clients, and what it resolves options to."""

from __future__ import annotations

from pathlib import Path

import boto3
import pytest
from botocore import exceptions as boto
from botocore.parsers import ResponseParserError

from airflow_streamstate.store.options import ResolvedS3, S3Options
from airflow_streamstate.store.s3 import boto_errors, make_clients, resolve
from airflow_streamstate.store.s3_errors import as_error
from airflow_streamstate.store.server import Answer, RequestFailure
from support.s3_server import options_for

NAMES = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_MAX_ATTEMPTS",
    "AWS_RETRY_MODE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_ARN",
]


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (boto.EndpointConnectionError(endpoint_url="u"), Answer.NOT_DONE),
        (boto.ConnectTimeoutError(endpoint_url="u"), Answer.NOT_DONE),
        (boto.ReadTimeoutError(endpoint_url="u"), Answer.UNKNOWN),
        (boto.ConnectionClosedError(endpoint_url="u"), Answer.UNKNOWN),
        (boto.ResponseStreamingError(error="cut"), Answer.UNKNOWN),
        (boto.IncompleteReadError(actual_bytes=1, expected_bytes=2), Answer.UNKNOWN),
        (boto.FlexibleChecksumError(error_msg="other bytes"), Answer.UNKNOWN),
        (ResponseParserError("no XML"), Answer.UNKNOWN),
        (boto.SSLError(endpoint_url="u", error="bad"), Answer.UNKNOWN),
        (boto.SSLError(endpoint_url="u", error="[SSL: CERTIFICATE_VERIFY_FAILED]"), Answer.REFUSED),
        (boto.CredentialRetrievalError(provider="process", error_msg="busy"), Answer.NOT_DONE),
        (boto.MetadataRetrievalError(error_msg="no answer"), Answer.NOT_DONE),
        (boto.NoCredentialsError(), Answer.REFUSED),
        (boto.ProfileNotFound(profile="none"), Answer.REFUSED),
        (boto.ParamValidationError(report="bad bucket"), Answer.REFUSED),
    ],
)
def test_each_client_error_becomes_an_answer(error: Exception, answer: Answer) -> None:
    """Only where nothing can have been sent is a write certainly not done."""
    with pytest.raises(RequestFailure) as caught, boto_errors():
        raise error
    assert caught.value.answer is answer
    assert caught.value.status == 0


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        ({"Code": "PermanentRedirect", "Region": "eu-west-1"}, {}),
        ({"Code": "301"}, {"x-amz-bucket-region": "eu-west-1"}),
    ],
)
def test_the_region_that_a_server_names_is_told(error: dict[str, str], headers: dict[str, str]) -> None:
    """A redirect tells where the bucket lies, in its body or in its head."""
    response = {"Error": error, "ResponseMetadata": {"HTTPStatusCode": 301, "HTTPHeaders": headers}}
    with pytest.raises(RequestFailure) as caught, boto_errors():
        raise boto.ClientError(response, "HeadObject")
    assert caught.value.region == "eu-west-1"


def test_every_request_is_sent_once_and_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """No client has retries of its own, whatever the environment asks for (Law 8), and none waits for ever (Law 6)."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "7")
    monkeypatch.setenv("AWS_RETRY_MODE", "adaptive")
    for client in make_clients(options_for("http://127.0.0.1:9")):
        assert client.meta.config.retries["total_max_attempts"] == 1
        assert 0 < client.meta.config.connect_timeout <= 10
        assert 0 < client.meta.config.read_timeout <= 300


def test_options_come_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a connection says wins, and what it leaves out is the environment's."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://env:1")
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "env-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "env-secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "env-token")
    assert resolve(S3Options()) == ResolvedS3("eu-north-1", "http://env:1", "env-key", "env-secret", "env-token")
    said = S3Options("eu-west-3", "http://said:2", "said-key", "said-secret")
    assert resolve(said) == ResolvedS3("eu-west-3", "http://said:2", "said-key", "said-secret", None)


@pytest.mark.parametrize(
    ("environment", "endpoint_url", "region"),
    [
        ({"AWS_ENDPOINT_URL": "http://all:1", "AWS_DEFAULT_REGION": "r-1"}, "http://all:1", "r-1"),
        ({"AWS_ENDPOINT_URL": "http://all:1", "AWS_ENDPOINT_URL_S3": "http://s3:2"}, "http://s3:2", "us-east-1"),
        ({"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "eu-west-2"}, None, "eu-west-1"),
        ({"AWS_ENDPOINT_URL_S3": "http://s3:2", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}, None, "us-east-1"),
        ({}, None, "us-east-1"),
    ],
)
def test_the_usual_variables_are_honoured(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], endpoint_url: str | None, region: str
) -> None:
    """Endpoint and region come from AWS's own variables, the one for S3 before the one for all, as documented."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    resolved = resolve(S3Options())
    assert (resolved.endpoint_url, resolved.region) == (endpoint_url, region)
    assert resolved.access_key_id is None


@pytest.mark.parametrize("url", ["http://ada:hunter2@h:9000", "http://hunter2@h", "no//u:hunter2@h"])
def test_an_endpoint_with_a_password_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """It would be in errors and in Spark's settings, wherever it came from."""
    for ask in (lambda: resolve(S3Options(endpoint_url=url)), lambda: make_clients(S3Options())):
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
        with pytest.raises(RequestFailure) as caught:
            ask()
        assert caught.value.answer is Answer.REFUSED
        assert "hunter2" not in str(as_error(caught.value, action="s3:GetObject", bucket="b", key="k"))


def test_profiles_are_honoured(monkeypatch: pytest.MonkeyPatch, tmp_path: pytest.TempPathFactory) -> None:
    """AWS_PROFILE gives keys, region and endpoint; one that is not there is refused."""
    config, keys = tmp_path / "config", tmp_path / "credentials"  # type: ignore[operator]
    config.write_text(
        "[profile mine]\nregion = eu-south-1\nservices = own\n[services own]\ns3 =\n  endpoint_url = http://f:3\n"
    )
    keys.write_text("[mine]\naws_access_key_id = file-key\naws_secret_access_key = file-secret\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    assert resolve(S3Options()) == ResolvedS3("eu-south-1", "http://f:3", "file-key", "file-secret")
    monkeypatch.setenv("AWS_PROFILE", "none")
    with pytest.raises(RequestFailure) as caught:
        make_clients(S3Options())
    assert (caught.value.answer, caught.value.code) == (Answer.REFUSED, "ProfileNotFound")


def test_credentials_that_renew_themselves_are_not_taken_out() -> None:
    """Keys of a role end; handed over they would end in the middle, so nobody gets them."""
    session = boto3.Session(region_name="eu-west-3")
    session._session.set_credentials("k", "s", "t")
    session._session.get_credentials().method = "assume-role"
    assert resolve(S3Options(session=session)) == ResolvedS3(region="eu-west-3")


def test_resolved_options_show_no_credential() -> None:
    """Resolved options that end up in a log hold no secret there."""
    shown = repr(ResolvedS3("eu-west-1", None, "AKIA", "hidden", "hidden"))
    assert "AKIA" not in shown
    assert "hidden" not in shown


def test_a_profile_is_that_of_the_machines_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name, before keys of the environment; one that is not there is a mistake."""
    files = tmp_path / "credentials"
    files.write_text("[streams]\naws_access_key_id = AK-OF-PROFILE\naws_secret_access_key = SK\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(files))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AK-OF-ENVIRONMENT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SK")
    assert resolve(S3Options(region="r", profile_name="streams")).access_key_id == "AK-OF-PROFILE"
    with pytest.raises(RequestFailure) as raised:
        resolve(S3Options(region="r", profile_name="nobody"))
    assert raised.value.answer is Answer.REFUSED
