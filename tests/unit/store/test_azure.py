"""Credentials and words of Azure Blob, without Azure; on Azurite they are tried in ``tests/contract/store``."""

from __future__ import annotations

import pytest

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.redaction import is_secret_name
from airflow_streamstate.store.azure import (
    ACCOUNT_VARIABLES,
    ENDPOINT_VARIABLES,
    AzureClient,
    azure_store,
)
from airflow_streamstate.store.options import AZURE_KEY_VARIABLES, AZURE_SAS_VARIABLES, AzureOptions
from support.fake_clock import FakeClock

KEYED = AzureOptions(account_name="acc", account_key="a2V5")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*ACCOUNT_VARIABLES, *AZURE_KEY_VARIABLES, *AZURE_SAS_VARIABLES, *ENDPOINT_VARIABLES):
        monkeypatch.delenv(name, raising=False)


def test_a_key_signs_the_condition_too() -> None:
    """The address is Azure's own, encoded; the key itself is nowhere."""
    client = AzureClient("c", KEYED, clock=FakeClock())
    url, headers = client.request_for("DELETE", "a b/ü.1", "0x1")
    assert url == "https://acc.blob.core.windows.net/c/a%20b/%C3%BC.1"
    assert headers["If-Match"] == '"0x1"'
    assert headers["Authorization"].startswith("SharedKey acc:")
    other = client.request_for("DELETE", "a b/ü.1", "0x2")[1]
    assert other["Authorization"] != headers["Authorization"]
    assert "a2V5" not in repr((url, headers, client))


def test_a_shared_access_signature_is_in_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """With or without its question mark; the account comes from the environment, too."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acc")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "?sv=2021-12-02&sig=s")
    url, headers = AzureClient("c", AzureOptions()).request_for("HEAD", "a", None)
    assert url == "https://acc.blob.core.windows.net/c/a?sv=2021-12-02&sig=s"
    assert "Authorization" not in headers


def test_no_account_is_a_mistake() -> None:
    """It is reported when the store is opened, with the variable to set."""
    with pytest.raises(InvalidRequestError) as caught:
        AzureClient("c", AzureOptions())
    assert "AZURE_STORAGE_ACCOUNT_NAME" in str(caught.value)


def test_a_key_that_is_none_is_refused() -> None:
    """When the store is opened, without repeating it."""
    with pytest.raises(InvalidRequestError) as caught:
        AzureClient("c", AzureOptions("acc", "hidden!"))
    assert "hidden" not in str(caught.value)


def test_headers_tell_size_tag_checksum_and_copies() -> None:
    """An MD5 counts where the blob was put at once, by us; a copy that is under way is not there yet."""
    client = AzureClient("c", KEYED)
    headers = {"etag": '"0x1"', "content-length": "5", "content-md5": "XUFAKrxLKna5cZ2REBfFkg=="}
    assert client.found_in(headers).checksum == "etag:0x1"
    headers["x-ms-meta-streamstatewrite"] = "id"
    found = client.found_in(headers)
    assert (found.size_bytes, found.version, found.is_copied) == (5, "0x1", True)
    assert found.checksum == "md5:5d41402abc4b2a76b9719d911017c592"
    assert client.found_in({"etag": '"0x1"'}).checksum == "etag:0x1"
    assert not client.found_in({**headers, "x-ms-copy-status": "pending"}).is_copied


def test_versions_are_the_same_in_every_answer() -> None:
    """Lists leave out the quotes that other answers have."""
    client = AzureClient("c", KEYED)
    assert client.version_in({"e_tag": '"0x1"'}) == client.version_in({"e_tag": "0x1"}) == "0x1"
    assert client.condition_of("0x1") == {"e_tag": '"0x1"'}


def test_spark_is_given_the_key_of_a_named_account() -> None:
    """As a secret, and only under a URI that Spark can read; for an ``az`` URI the error names the right one."""
    named = AzureClient("c", KEYED, "abfss://c@acc.dfs.core.windows.net")
    assert named.for_spark().secret_conf == {"spark.hadoop.fs.azure.account.key.acc.dfs.core.windows.net": "a2V5"}
    assert not named.for_spark().conf
    with pytest.raises(InvalidRequestError) as caught:
        azure_store("c", "", KEYED).for_spark()
    assert "abfss://c@acc.dfs.core.windows.net" in str(caught.value)


HOST = "acc.dfs.core.windows.net"
SPARK = "spark.hadoop.fs.azure.account"


@pytest.mark.parametrize(
    ("options", "conf", "secret"),
    [
        (
            AzureOptions("acc", sas_token="?sv=1&sig=hidden"),
            {f"{SPARK}.auth.type.{HOST}": "SAS"},
            {f"spark.hadoop.fs.azure.sas.fixed.token.{HOST}": "sv=1&sig=hidden"},
        ),
        (
            AzureOptions("acc", tenant_id="t", client_id="i", client_secret="hidden"),
            {
                f"{SPARK}.auth.type.{HOST}": "OAuth",
                f"{SPARK}.oauth.provider.type.{HOST}": "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider",
                f"{SPARK}.oauth2.client.endpoint.{HOST}": "https://login.microsoftonline.com/t/oauth2/token",
                f"{SPARK}.oauth2.client.id.{HOST}": "i",
            },
            {f"{SPARK}.oauth2.client.secret.{HOST}": "hidden"},
        ),
        (AzureOptions("acc"), {}, {}),
    ],
    ids=["signature", "principal", "neither"],
)
def test_spark_has_the_same_credentials(options: AzureOptions, conf: dict[str, str], secret: dict[str, str]) -> None:
    """Under names that Spark hides; without any of them its connector finds its own."""
    settings = AzureClient("c", options, f"abfss://c@{HOST}").for_spark()
    assert (settings.conf, settings.secret_conf) == (conf, secret)
    assert all(is_secret_name(name) for name in settings.secret_conf)
    assert "hidden" not in repr((settings, options))


def test_credentials_of_the_options_come_before_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's own key is not the connection's."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    url, headers = AzureClient("c", AzureOptions("acc", sas_token="sig=s")).request_for("HEAD", "a", None)
    assert url.endswith("?sig=s")
    assert "Authorization" not in headers
