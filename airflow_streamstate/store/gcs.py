"""Google Cloud Storage: its credentials by google-auth, its versions by generation."""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

import google.auth
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError
from google.auth.transport.requests import Request
from google.oauth2 import service_account
from obstore.store import GCSStore

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.store.obstore import (
    BAD_KEY,
    CREDENTIALS_AWAY,
    NO_CREDENTIALS,
    NO_KEY_FILE,
    TRY_ONCE,
    TRY_PARTS,
    ObstoreClient,
    check_endpoint,
    client_options,
    moment_in,
    obstore_errors,
)
from airflow_streamstate.store.options import GCS_KEY_VARIABLE, GCSOptions, SparkSettings
from airflow_streamstate.store.server import FoundObject, RequestFailure, ServerAnswer, ServerStore, reported
from airflow_streamstate.store.transfer import UPLOAD_PART_BYTES

ENDPOINT_URL = "https://storage.googleapis.com"
SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
KEY_FILE = "SERVICE_ACCOUNT_JSON_KEYFILE"
_SPARK = "spark.hadoop.fs.gs"
EMULATOR_VARIABLE = "STORAGE_EMULATOR_HOST"


class GCSClient(ObstoreClient):
    """One bucket.

    Raises:
        InvalidRequestError: the options cannot be used.
    """

    service = "GCS"

    def __init__(self, bucket: str, options: GCSOptions, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock = clock
        self.uri = f"gs://{bucket}"
        self.bucket = bucket
        self.endpoint_url = options.endpoint_url or _emulator() or None
        self.timeout_seconds = options.read_timeout_seconds
        self._options = options
        # Another server than Google's is mostly an emulator, without credentials.
        has_key = bool(options.service_account_key or options.key_path)
        self._tokens = _GoogleTokens(options) if has_key or not self.endpoint_url else None
        provider: Any = self._credential
        config: Any = {"base_url": self.endpoint_url or ENDPOINT_URL}
        limits = client_options(self.endpoint_url, options.connect_timeout_seconds, options.read_timeout_seconds)
        with reported(self, "open"), obstore_errors():
            check_endpoint(self.endpoint_url, has_token=self._tokens is not None)
            self._store, self._parts_store = (
                GCSStore(bucket, config=config, client_options=limits, retry_config=tries, credential_provider=provider)
                for tries in (TRY_ONCE, TRY_PARTS)
            )

    def for_spark(self) -> SparkSettings:
        # Otherwise the cluster's connector finds the application default credentials itself.
        conf: dict[str, str] = {}
        if self._options.endpoint_url:
            conf[f"{_SPARK}.storage.root.url"] = self._options.endpoint_url
        if self._options.key_path:
            conf |= {
                f"{_SPARK}.auth.type": KEY_FILE,
                f"{_SPARK}.auth.service.account.json.keyfile": self._options.key_path,
            }
        elif self._options.service_account_key:
            reason = "Google's connector for Spark takes a key from a file only"
            raise RequestFailure(ServerAnswer.REFUSED, 0, NO_KEY_FILE, reason)
        return SparkSettings(conf, {})

    def make_ready(self) -> None:
        if self._tokens is not None:
            self._tokens.current()

    def version_in(self, answer: Mapping[str, Any]) -> str:
        return str(answer.get("version") or "")

    def condition_of(self, version: str) -> Mapping[str, str]:
        if not version.isdecimal():  # of a different store
            raise RequestFailure(ServerAnswer.PRECONDITION, 0, "NoGeneration", "the version is no generation")
        return {"version": version}

    def found_in(self, headers: Mapping[str, str]) -> FoundObject:
        version = headers.get("x-goog-generation", "")
        return FoundObject(
            size_bytes=int(headers.get("x-goog-stored-content-length") or headers.get("content-length") or 0),
            version=version,
            checksum=_checksum_in(headers.get("x-goog-hash", "")) or f"etag:{version}",
            modified_at=moment_in(headers),
            write_id=headers.get(f"x-goog-meta-{self.write_id_name}", ""),
        )

    def request_for(
        self,
        method: str,  # noqa: ARG002 - a token is good for every one
        name: str,
        version: str | None,
    ) -> tuple[str, Mapping[str, str]]:
        url = f"{self.endpoint_url or ENDPOINT_URL}/{quote(self.bucket, safe='')}/{quote(name, safe='')}"
        headers = {"Authorization": f"Bearer {self._credential()['token']}"}
        if version is not None:
            headers |= {"x-goog-if-generation-match": self.condition_of(version)["version"]}
        return url, headers

    def _credential(self) -> dict[str, Any]:
        if self._tokens is None:
            return {"token": "none", "expires_at": None}
        return self._tokens.current()


class _GoogleTokens:
    """Access tokens of a service account, else of Google's application default credentials.

    Each is used until shortly before its end.
    """

    def __init__(self, options: GCSOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._credentials: Any = None

    def current(self) -> dict[str, Any]:
        """The token as obstore wants it; raises RequestFailure."""
        with self._lock:
            try:
                if self._credentials is None:
                    self._credentials = self._found()
                if not self._credentials.token or self._credentials.token_state.name != "FRESH":
                    self._credentials.refresh(Request())
            except DefaultCredentialsError as error:
                raise RequestFailure(ServerAnswer.REFUSED, 0, NO_CREDENTIALS, str(error)[:300]) from None
            except TransportError as error:
                raise RequestFailure(ServerAnswer.NOT_DONE, 0, CREDENTIALS_AWAY, str(error)[:300]) from None
            except GoogleAuthError as error:
                answer = ServerAnswer.NOT_DONE if error.retryable else ServerAnswer.REFUSED
                code = CREDENTIALS_AWAY if error.retryable else "AuthenticationFailed"
                raise RequestFailure(answer, 0, code, str(error)[:300]) from None
            expiry: datetime | None = self._credentials.expiry
            ends_at = None if expiry is None else expiry.replace(tzinfo=timezone.utc)
            return {"token": str(self._credentials.token), "expires_at": ends_at}

    def _found(self) -> Any:
        key = self._options.service_account_key or ""
        if self._options.key_path:
            key = _read(self._options.key_path)
        elif not key:
            key = os.environ.get(GCS_KEY_VARIABLE, "")
        if not key:
            return google.auth.default(scopes=[SCOPE])[0]
        try:
            make: Any = service_account.Credentials.from_service_account_info  # without types
            return make(json.loads(key), scopes=[SCOPE])
        except (ValueError, TypeError, AttributeError, KeyError) as error:  # its text may hold the key
            reason = f"not the JSON of a service account with its private key ({type(error).__name__})"
            raise RequestFailure(ServerAnswer.REFUSED, 0, BAD_KEY, reason) from None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = f"{path}: {getattr(error, 'strerror', None) or type(error).__name__}"
        raise RequestFailure(ServerAnswer.REFUSED, 0, BAD_KEY, reason) from None


def _emulator() -> str:
    """The emulator that Google's own clients would use; "" if not set."""
    said = os.environ.get(EMULATOR_VARIABLE, "").strip().rstrip("/")
    return said if not said or "://" in said else f"http://{said}"


def _checksum_in(header: str) -> str:
    """The checksum in ``crc32c=…,md5=…``: MD5 if there is one, since the standard library can compute it."""
    found = dict(part.strip().partition("=")[::2] for part in header.split(","))
    for name in ("md5", "crc32c"):
        if found.get(name):
            return f"{name}:{base64.b64decode(found[name]).hex()}"
    return ""


def gcs_store(
    bucket: str,
    prefix: str = "",
    options: GCSOptions | None = None,
    *,
    clock: Clock = SYSTEM_CLOCK,
    upload_part_bytes: int = UPLOAD_PART_BYTES,
) -> ServerStore:
    """The store of one prefix of a bucket; arguments and errors as ``GCSClient`` and ``ServerStore``."""
    client = GCSClient(bucket, options or GCSOptions(), clock=clock)
    return ServerStore(client, prefix, upload_part_bytes=upload_part_bytes)
