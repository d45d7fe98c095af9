"""Credentials and words of GCS, without Google."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.store.gcs import EMULATOR_VARIABLE, GCSClient, gcs_store
from airflow_streamstate.store.options import GCSOptions

HEADERS = {
    "x-goog-generation": "17",
    "x-goog-stored-content-length": "5",
    "x-goog-hash": "crc32c=mnG7TA==,md5=XUFAKrxLKna5cZ2REBfFkg==",
    "last-modified": "Sun, 22 Nov 2026 18:32:36 GMT",
}


@contextmanager
def tokens(status: int) -> Iterator[tuple[str, list[str]]]:
    """A server that gives out tokens, or does not; the grants that it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None: ...

        def do_POST(self) -> None:
            asked.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            good = {"access_token": f"token-{len(asked)}", "expires_in": 3600, "token_type": "Bearer"}
            body = json.dumps(good if status == 200 else {"error": "invalid_grant"}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/token", asked
    server.shutdown()
    thread.join(10)
    server.server_close()


@pytest.fixture
def service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a service account whose tokens come from elsewhere; the test says from where."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = tmp_path / "account.json"
    about = {
        "type": "service_account",
        "project_id": "p",
        "private_key": pem.decode(),
        "client_email": "streams@p.iam.gserviceaccount.com",
    }
    path.write_text(json.dumps(about))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    monkeypatch.delenv(EMULATOR_VARIABLE, raising=False)
    return path


def point(account: Path, token_uri: str) -> None:
    account.write_text(json.dumps({**json.loads(account.read_text()), "token_uri": token_uri}))


def test_a_service_account_signs_its_requests(service_account: Path) -> None:
    """One token is fetched, kept until shortly before its end, and sent with the condition of a delete."""
    with tokens(200) as (token_uri, asked):
        point(service_account, token_uri)
        client = GCSClient("b", GCSOptions())
        url, headers = client.request_for("DELETE", "a b/ü.1", "17")
        client.request_for("HEAD", "c", None)
    assert url == "https://storage.googleapis.com/b/a%20b%2F%C3%BC.1"
    assert headers == {"Authorization": "Bearer token-1", "x-goog-if-generation-match": "17"}
    assert len(asked) == 1


def test_credentials_that_google_does_not_take_are_a_mistake(service_account: Path) -> None:
    """Told at the first request, before anything is sent to the bucket."""
    with tokens(400) as (token_uri, _):
        point(service_account, token_uri)
        store = gcs_store("b")
        with pytest.raises(InvalidRequestError, match="does not accept these credentials"):
            store.get("a")


def test_no_credentials_are_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A named file that is not there says so, as Google's library words it."""
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
    assert found.modified_at == datetime(2026, 11, 22, 18, 32, 36, tzinfo=UTC)
    assert client.found_in({**HEADERS, "x-goog-hash": "crc32c=mnG7TA=="}).checksum == "crc32c:9a71bb4c"
    assert client.found_in({**HEADERS, "x-goog-hash": ""}).checksum == "etag:17"


def test_an_endpoint_with_a_password_is_refused() -> None:
    """Before any request."""
    with pytest.raises(InvalidRequestError) as caught:
        GCSClient("b", GCSOptions(endpoint_url="http://user:hidden@host"))
    assert "hidden" not in str(caught.value)
