"""Credentials and words of GCS, without Google."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.store.gcs import EMULATOR_VARIABLE, GCSClient, gcs_store
from airflow_streamstate.store.options import GCS_KEY_VARIABLE, GCSOptions
from support.google_tokens import point, service_account, tokens

HEADERS = {
    "x-goog-generation": "17",
    "x-goog-stored-content-length": "5",
    "x-goog-hash": "crc32c=mnG7TA==,md5=XUFAKrxLKna5cZ2REBfFkg==",
    "last-modified": "Sun, 22 Nov 2026 18:32:36 GMT",
}


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A key that the environment names."""
    path = service_account(tmp_path / "account.json")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    monkeypatch.delenv(EMULATOR_VARIABLE, raising=False)
    return path


def test_a_service_account_signs_its_requests(account: Path) -> None:
    """One token is fetched, kept until shortly before its end, and sent with the condition of a delete."""
    with tokens(200) as (token_uri, asked):
        point(account, token_uri)
        client = GCSClient("b", GCSOptions())
        url, headers = client.request_for("DELETE", "a b/ü.1", "17")
        client.request_for("HEAD", "c", None)
    assert url == "https://storage.googleapis.com/b/a%20b%2F%C3%BC.1"
    assert headers == {"Authorization": "Bearer token-1", "x-goog-if-generation-match": "17"}
    assert len(asked) == 1


def test_credentials_that_google_does_not_take_are_a_mistake(account: Path) -> None:
    """Reported at the first request, before anything is sent to the bucket."""
    with tokens(400) as (token_uri, _):
        point(account, token_uri)
        store = gcs_store("b")
        with pytest.raises(InvalidRequestError, match="does not accept these credentials"):
            store.get("a")


def test_no_credentials_are_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A named file that is not there is reported as Google's library words it."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    monkeypatch.delenv(EMULATOR_VARIABLE, raising=False)
    store = gcs_store("b")
    with pytest.raises(InvalidRequestError, match="no credentials for GCS"):
        store.create("a", b"1")


@pytest.mark.parametrize("said", ["127.0.0.1:4443", "http://127.0.0.1:4443", "http://127.0.0.1:4443/"])
def test_an_emulator_is_asked_where_one_is_named(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    """As Google's own clients read the variable; it is asked without credentials."""
    monkeypatch.setenv(EMULATOR_VARIABLE, said)
    client = GCSClient("b", GCSOptions())
    client.make_ready()
    assert client.request_for("HEAD", "a", None)[0] == "http://127.0.0.1:4443/b/a"


def test_headers_tell_size_generation_and_checksum() -> None:
    """MD5 where Google keeps one, since the standard library can compare with it; else CRC-32C; else the generation."""
    client = GCSClient("b", GCSOptions(endpoint_url="http://127.0.0.1:9"))
    found = client.found_in(HEADERS)
    assert (found.size_bytes, found.version) == (5, "17")
    assert found.checksum == "md5:5d41402abc4b2a76b9719d911017c592"
    assert found.modified_at == datetime(2026, 11, 22, 18, 32, 36, tzinfo=timezone.utc)
    assert client.found_in({**HEADERS, "x-goog-hash": "crc32c=mnG7TA=="}).checksum == "crc32c:9a71bb4c"
    assert client.found_in({**HEADERS, "x-goog-hash": ""}).checksum == "etag:17"


def test_an_endpoint_with_a_password_is_refused() -> None:
    """Before any request."""
    with pytest.raises(InvalidRequestError) as caught:
        GCSClient("b", GCSOptions(endpoint_url="http://user:hidden@host"))
    assert "hidden" not in str(caught.value)


def test_spark_is_given_the_file_and_the_endpoint() -> None:
    """A key as JSON it cannot take; without either its connector finds the default credentials."""
    found = GCSClient("b", GCSOptions("http://127.0.0.1:9", key_path="/key.json")).for_spark()
    assert found.conf == {
        "spark.hadoop.fs.gs.storage.root.url": "http://127.0.0.1:9",
        "spark.hadoop.fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE",
        "spark.hadoop.fs.gs.auth.service.account.json.keyfile": "/key.json",
    }
    assert GCSClient("b", GCSOptions()).for_spark().conf == {}
    with pytest.raises(InvalidRequestError, match="Give gcs_key_path") as raised:
        gcs_store("b", "", GCSOptions(service_account_key="hidden")).for_spark()
    assert "hidden" not in str(raised.value)


def test_a_key_of_the_environment_comes_before_the_default_credentials(
    account: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver is given it so."""
    other = service_account(tmp_path / "other.json")
    with tokens(200) as (token_uri, asked):
        point(other, token_uri)
        monkeypatch.setenv(GCS_KEY_VARIABLE, other.read_text())
        GCSClient("b", GCSOptions()).make_ready()
    assert len(asked) == 1
