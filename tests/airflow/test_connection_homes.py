"""The test button of the connection for each kind of home, by the hook, on servers; and the same home for a driver."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk._shared.secrets_masker import redact

from airflow_streamstate.controller.home import Home, HomeConfig
from airflow_streamstate.driver.config import DriverConfig
from airflow_streamstate.errors import StoreRefusedError
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.provider_info import get_provider_info
from airflow_streamstate.store.options import SECRET_VARIABLES
from support import azurite, gcs_server
from support.google_tokens import point, service_account, tokens
from support.s3_server import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, StrikingProxy, striking_proxy
from support.sts_server import ASKER_KEY, ASKER_SECRET, EXTERNAL_ID, ROLE, StsServer, sts_server

pytestmark = pytest.mark.named
VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST")
AZURES = f"az://{azurite.CONTAINER}/button"
OF_ROLE: dict[str, Any] = {
    "role_arn": ROLE,
    "role_external_id": EXTERNAL_ID,
    "role_session_name": "nightly",
    "role_duration_seconds": 1800,
    "login": ASKER_KEY,
    "password": ASKER_SECRET,
}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, *SECRET_VARIABLES):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def sts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StsServer]:
    """Gives the keys of the S3 server. It speaks no HTTPS, so checkpoints are in a folder."""
    monkeypatch.setitem(OF_ROLE, "checkpoints_uri", str(tmp_path / "checkpoints"))
    with sts_server(ACCESS_KEY, SECRET_KEY) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.endpoint_url)
        yield server


class Form:
    """A connection as it is filled in.

    Args:
        secrets: what may be in no answer.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        login: str | None = None,
        password: str | None = None,
        secrets: tuple[str, ...] = (),
        **extra: Any,
    ) -> None:
        said = {"conn_type": "streamstate", "login": login, "password": password, "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_STREAMSTATE_DEFAULT", json.dumps(said))
        self.secrets = (password, *secrets)

    def pressed(self) -> tuple[bool, str]:
        """The answer of the test button; it is one line, without a secret."""
        works, words = StreamStateHook().test_connection()
        assert [secret for secret in self.secrets if secret and secret in words] == []
        assert "\n" not in words
        assert "Traceback" not in words
        return works, words

    @property
    def config(self) -> HomeConfig:
        """What the hook reads of it."""
        return StreamStateHook().home_config


def opened_by_a_driver(config: HomeConfig, monkeypatch: pytest.MonkeyPatch) -> str:
    """The answer of a check by nothing but what a driver is given: its file, and its environment."""
    said = {**config.options.settings(), "home_uri": config.home_uri, "checkpoints_uri": config.home_uri}
    said |= {"stream_id": "s", "deployment_id": "d-0001", "attempt": 1, "launch_key": "k", "application": "a.py"}
    for name, value in config.options.credentials().items():
        monkeypatch.setenv(name, value)
    driver = DriverConfig.from_json(json.loads(json.dumps(said)))
    return Home(HomeConfig(driver.home_uri, config.checkpoints_uri, options=driver.store_options)).check()


def test_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It works where it can be written, and leaves nothing; a file in its place is named."""
    form = Form(monkeypatch, home_uri=str(tmp_path / "home"))
    works, words = form.pressed()
    assert works, words
    assert "conditional writes hold in" in words
    assert "conditional writes hold in" in opened_by_a_driver(form.config, monkeypatch)
    (tmp_path / "file").write_text("x")
    works, words = Form(monkeypatch, home_uri=str(tmp_path / "file")).pressed()
    assert not works
    assert str(tmp_path / "file") in words


def s3_form(monkeypatch: pytest.MonkeyPatch, url: str, **more: Any) -> Form:
    said: dict[str, Any] = {"login": ACCESS_KEY, "password": SECRET_KEY, "home_uri": f"s3://{BUCKET}/button"}
    return Form(monkeypatch, **{**said, "region": REGION, "endpoint_url": url, **more})


@pytest.mark.s3
def test_s3(monkeypatch: pytest.MonkeyPatch, real_url: str) -> None:
    """With keys; a wrong secret, an unknown key and a missing bucket are each reported as that."""
    form = s3_form(monkeypatch, real_url)
    works, words = form.pressed()
    assert works, words
    assert "conditional writes hold" in opened_by_a_driver(form.config, monkeypatch)
    works, words = s3_form(monkeypatch, real_url, password="wrong-secret").pressed()
    assert (works, words.partition(".")[0]) == (False, "S3 did not accept the signature")
    works, words = s3_form(monkeypatch, real_url, login="unknown").pressed()
    assert (works, words.partition(".")[0]) == (False, "S3 does not know this access key")
    works, words = s3_form(monkeypatch, real_url, home_uri="s3://nowhere/x").pressed()
    assert (works, words.partition(".")[0]) == (False, "there is no such bucket")


def keys_seen(proxy: StrikingProxy) -> set[tuple[str, str]]:
    """Access keys and session tokens of the requests that came."""
    named = re.compile("Credential=([^/]+)/")
    found = {
        (named.search(one.headers["authorization"]), one.headers.get("x-amz-security-token")) for one in proxy.seen
    }
    return {(key[1], str(token)) for key, token in found if key is not None}


def test_a_role_on_s3(monkeypatch: pytest.MonkeyPatch, moto_url: str, sts: StsServer) -> None:
    """Controller and driver each ask for the role, in the words of the form, and S3 sees no other key."""
    with striking_proxy(moto_url) as proxy:
        form = s3_form(monkeypatch, proxy.endpoint_url, **OF_ROLE)
        works, words = form.pressed()
        assert works, words
        asked = {name: sts.asked[0][name] for name in ("RoleArn", "ExternalId", "RoleSessionName", "DurationSeconds")}
        assert asked == {
            "RoleArn": ROLE,
            "ExternalId": EXTERNAL_ID,
            "RoleSessionName": "nightly",
            "DurationSeconds": "1800",
        }
        assert keys_seen(proxy) == {(ACCESS_KEY, "session-1")}  # all requests of one process share one set
        assert "conditional writes hold" in opened_by_a_driver(form.config, monkeypatch)
        assert keys_seen(proxy) == {(ACCESS_KEY, "session-1"), (ACCESS_KEY, "session-2")}


def test_credentials_of_a_role_are_renewed_before_they_end(
    monkeypatch: pytest.MonkeyPatch, moto_url: str, sts: StsServer
) -> None:
    """What ends in nine minutes is asked for again before the next request; a refusal then is reported."""
    form = s3_form(monkeypatch, moto_url, **OF_ROLE)
    home = Home(form.config)
    sts.seconds_left = 540
    assert not home.is_there()
    before = len(sts.asked)
    sts.is_refusing = True
    with pytest.raises(StoreRefusedError, match="the role may not be assumed"):
        home.is_there()
    sts.is_refusing, sts.seconds_left = False, 3600
    home.check()
    assert len(sts.asked) == before + 1
    home.check()
    assert len(sts.asked) == before + 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"role_arn": "arn:aws:iam::123456789012:role/other"}, "the role may not be assumed"),
        ({"role_external_id": "wrong"}, "the role may not be assumed"),
        ({"login": "unknown"}, "the credentials that ask for the role are not accepted"),
    ],
)
def test_a_role_that_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    moto_url: str,
    sts: StsServer,
    change: Mapping[str, str],
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As another mistake than a refusal of S3, and without a traceback in the log."""
    works, words = s3_form(monkeypatch, moto_url, **{**OF_ROLE, **change}).pressed()
    assert (works, words.partition(".")[0]) == (False, said)
    assert sts.asked == []
    assert "Traceback" not in caplog.text


def test_another_server_gives_roles_at_the_same_address(
    monkeypatch: pytest.MonkeyPatch, moto_url: str, tmp_path: Path
) -> None:
    """As MinIO, Ceph and moto do. Where Spark has to ask there, too, HTTPS is needed, and the button reports that."""
    works, words = s3_form(monkeypatch, moto_url, role_arn=ROLE, checkpoints_uri=str(tmp_path)).pressed()
    assert works, words
    works, words = s3_form(monkeypatch, moto_url, role_arn=ROLE).pressed()
    assert (works, words.partition(".")[0]) == (
        False,
        "Spark's S3A asks for the credentials of a role by HTTPS only",
    )


def gcs_form(monkeypatch: pytest.MonkeyPatch, url: str, **more: Any) -> Form:
    return Form(monkeypatch, **{"home_uri": f"gs://{gcs_server.BUCKET}/button", "gcs_endpoint_url": url, **more})


@pytest.mark.objects
def test_gcs(monkeypatch: pytest.MonkeyPatch, gcs_url: str, tmp_path: Path) -> None:
    """Without credentials on another server; a missing bucket, a key that is none, and a file that is not there."""
    form = gcs_form(monkeypatch, gcs_url)
    works, words = form.pressed()
    assert works, words
    assert "conditional writes hold" in opened_by_a_driver(form.config, monkeypatch)
    works, words = gcs_form(monkeypatch, gcs_url, home_uri="gs://nowhere/x").pressed()
    assert (works, words.partition(".")[0]) == (False, "there is no such bucket or container")
    bad = '{"private_key": "hidden-key"}'
    works, words = gcs_form(
        monkeypatch, gcs_url, secrets=("hidden-key",), gcs_service_account_key=bad, checkpoints_uri=str(tmp_path)
    ).pressed()
    assert (works, words.partition(".")[0]) == (False, "the key of the service account cannot be used")
    works, words = gcs_form(monkeypatch, gcs_url, gcs_service_account_key=bad).pressed()
    assert (works, words.partition(".")[0]) == (
        False,
        "checkpoints on GCS need the key of the service account as a file",
    )
    works, words = gcs_form(monkeypatch, gcs_url, gcs_key_path="/nowhere/key.json").pressed()
    assert not works
    assert "/nowhere/key.json: No such file or directory" in words


@pytest.mark.parametrize("has_file", [False, True])
@pytest.mark.objects
def test_gcs_with_the_key_of_a_service_account(
    monkeypatch: pytest.MonkeyPatch, gcs_url: str, tmp_path: Path, has_file: bool
) -> None:
    """As JSON and as a file: controller and driver ask for its tokens; a key that Google refuses is reported."""
    account = service_account(tmp_path / "key.json")
    key, secret = account.read_text(), json.loads(account.read_text())["private_key"]

    def form() -> Form:
        way = {"gcs_key_path": str(account)} if has_file else {"gcs_service_account_key": account.read_text()}
        place = {} if has_file else {"checkpoints_uri": str(tmp_path / "checkpoints")}
        return gcs_form(monkeypatch, gcs_url, secrets=(secret, key), **place, **way)

    with tokens(200) as (token_uri, asked):
        point(account, token_uri)
        filled = form()
        works, words = filled.pressed()
        assert works, words
        assert len(asked) == 1
        with monkeypatch.context() as of_driver:
            config = replace(filled.config, checkpoints_uri=str(tmp_path / "checkpoints"))
            assert opened_by_a_driver(config, of_driver)
            assert config.options.secrets() == (() if has_file else (account.read_text(), secret))
    with tokens(400) as (token_uri, _):
        point(account, token_uri)
        works, words = form().pressed()
    assert (works, words.partition(".")[0]) == (False, "GCS does not accept these credentials")


def azure_form(monkeypatch: pytest.MonkeyPatch, url: str, **more: Any) -> Form:
    said = {"home_uri": AZURES, "azure_account": azurite.ACCOUNT, "azure_endpoint_url": f"{url}/{azurite.ACCOUNT}"}
    secrets = tuple(str(more[name]) for name in ("azure_secret_key", "azure_sas_token") if name in more)
    return Form(monkeypatch, secrets=secrets, **{**said, "checkpoints_uri": "/tmp", **more})


@pytest.mark.objects
def test_azure(monkeypatch: pytest.MonkeyPatch, azure_url: str, tmp_path: Path) -> None:
    """By key and by signature, whatever the worker's own environment contains; wrong ones and a missing container."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "d29ya2Vy")
    place = {"checkpoints_uri": str(tmp_path / "c")}
    for way in ({"azure_secret_key": azurite.ACCOUNT_KEY}, {"azure_sas_token": f"?{azurite.account_signature()}"}):
        form = azure_form(monkeypatch, azure_url, **place, **way)
        works, words = form.pressed()
        assert works, words
        with monkeypatch.context() as of_driver:
            assert "conditional writes hold" in opened_by_a_driver(form.config, of_driver)
    works, words = azure_form(monkeypatch, azure_url, **place, azure_secret_key="aGlkZGVuLWtleQ==").pressed()
    assert (works, words.partition(".")[0]) == (False, "Azure Blob denied the request")
    right = {**place, "azure_secret_key": azurite.ACCOUNT_KEY}
    works, words = azure_form(monkeypatch, azure_url, home_uri="az://nowhere/x", **right).pressed()
    assert (works, words.partition(".")[0]) == (False, "there is no such bucket or container")


def test_a_service_principal_that_cannot_be_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Reported before anything is sent."""
    pytest.importorskip("azure.identity", reason="needs the extra `azure`")
    principal = {"azure_tenant_id": "no tenant!", "azure_client_id": "c", "azure_client_secret": "hidden-secret"}
    form = azure_form(monkeypatch, "http://127.0.0.1:9", checkpoints_uri=str(tmp_path), **principal)
    form.secrets += ("hidden-secret",)
    works, words = form.pressed()
    assert (works, words.partition(".")[0]) == (False, "Azure Blob does not accept these credentials")


def test_airflow_hides_each_field_that_is_secret() -> None:
    """In its API and on its page, by the name of the field; and no other field is hidden there."""
    (connection_type,) = get_provider_info()["connection-types"]  # type: ignore[misc]
    fields: Mapping[str, Any] = connection_type["conn-fields"]
    shown = redact(dict.fromkeys(fields, "value"))
    secret = {name for name, field in fields.items() if field["schema"].get("format") == "password"}
    assert {name for name, value in shown.items() if value == "***"} == secret
    keys = {"gcs_service_account_key", "azure_secret_key", "azure_sas_token", "azure_client_secret"}
    assert secret == {*keys, "signing_secret_key"}
