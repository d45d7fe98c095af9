"""Azure Blob Storage: by key, signature, service principal or the machine's identity; versions by entity tag."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from email.utils import format_datetime
from typing import Any
from urllib.parse import quote, urlsplit

from obstore.store import AzureStore

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.store.obstore import (
    CREDENTIALS_AWAY,
    NO_CREDENTIALS,
    TRY_ONCE,
    TRY_PARTS,
    ObstoreClient,
    check_endpoint,
    client_options,
    moment_in,
    obstore_errors,
)
from airflow_streamstate.store.options import AZURE_KEY_VARIABLES, AZURE_SAS_VARIABLES, AzureOptions, SparkSettings
from airflow_streamstate.store.server import FoundObject, RequestFailure, ServerAnswer, ServerStore, reported
from airflow_streamstate.store.transfer import UPLOAD_PART_BYTES

API_VERSION = "2021-12-02"
SCOPE = "https://storage.azure.com/.default"
FRESH_SECONDS = 300
ACCOUNT_VARIABLES = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
ENDPOINT_VARIABLES = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
PRINCIPAL_PROVIDER = "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider"
_SPARK = "spark.hadoop.fs.azure.account"
_QUOTE = '"'


class AzureClient(ObstoreClient):
    """One container.

    Args:
        options: what they leave out comes from the environment.
        uri: None for ``az://container``.
        signing_clock: for the time of signatures.

    Raises:
        InvalidRequestError: the options cannot be used, or name no account.
    """

    service = "Azure Blob"

    def __init__(
        self,
        container: str,
        options: AzureOptions,
        uri: str | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        signing_clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.clock = clock
        self.uri = uri or f"az://{container}"
        self.container = container
        self.timeout_seconds = options.read_timeout_seconds
        self._signing_clock = signing_clock
        environ = {} if options.has_credentials else os.environ
        self._options = options
        self._key = options.account_key or _said(AZURE_KEY_VARIABLES, environ)
        self._sas = "" if self._key else (options.sas_token or _said(AZURE_SAS_VARIABLES, environ)).lstrip("?")
        self._tokens = None if self._key or self._sas else _AzureTokens(signing_clock, options)
        with reported(self, "open"), obstore_errors():
            self.account = options.account_name or _said(ACCOUNT_VARIABLES, os.environ)
            if not self.account:
                raise RequestFailure(
                    ServerAnswer.REFUSED, 0, "NoAccount", "neither the environment nor the URI names it"
                )
            self.endpoint_url = (
                options.endpoint_url
                or _said(ENDPOINT_VARIABLES, os.environ)
                or f"https://{self.account}.blob.core.windows.net"
            ).rstrip("/")
            check_endpoint(self.endpoint_url, has_token=not self._key)
            self._store, self._parts_store = self._open(options)

    def _open(self, options: AzureOptions) -> tuple[AzureStore, AzureStore]:
        said = {"account_name": self.account, "account_key": self._key}
        said |= {"endpoint": self.endpoint_url}
        config: Any = {name: value for name, value in said.items() if value}
        # obstore would take a key of the environment before a signature of its configuration, not before a provider's.
        provider: Any = None if self._tokens is None else self._tokens.current
        if self._sas:
            provider = self._signature_given
        limits = client_options(self.endpoint_url, options.connect_timeout_seconds, options.read_timeout_seconds)

        def store(tries: Any) -> AzureStore:
            return AzureStore(
                self.container, config=config, client_options=limits, retry_config=tries, credential_provider=provider
            )

        return store(TRY_ONCE), store(TRY_PARTS)

    def _signature_given(self) -> dict[str, Any]:
        return {"sas_token": self._sas, "expires_at": None}

    def for_spark(self) -> SparkSettings:
        if not self.uri.startswith(("abfs://", "abfss://")):
            reason = f"use abfss://{self.container}@{self.account}.dfs.core.windows.net/prefix"
            raise RequestFailure(ServerAnswer.REFUSED, 0, "NoSparkName", reason)
        host = self.uri.rpartition("@")[2]
        if self._key:
            return SparkSettings({}, {f"{_SPARK}.key.{host}": self._key})
        if self._options.sas_token:
            secrets = {f"spark.hadoop.fs.azure.sas.fixed.token.{host}": self._sas}
            return SparkSettings({f"{_SPARK}.auth.type.{host}": "SAS"}, secrets)
        if self._options.client_secret:
            authority = os.environ.get("AZURE_AUTHORITY_HOST") or "login.microsoftonline.com"
            login = f"https://{authority.removeprefix('https://').rstrip('/')}/{self._options.tenant_id}/oauth2/token"
            conf = {
                f"{_SPARK}.auth.type.{host}": "OAuth",
                f"{_SPARK}.oauth.provider.type.{host}": PRINCIPAL_PROVIDER,
                f"{_SPARK}.oauth2.client.endpoint.{host}": login,
                f"{_SPARK}.oauth2.client.id.{host}": str(self._options.client_id),
            }
            return SparkSettings(conf, {f"{_SPARK}.oauth2.client.secret.{host}": self._options.client_secret})
        return SparkSettings({}, {})

    def make_ready(self) -> None:
        if self._tokens is not None:
            self._tokens.current()

    def version_in(self, answer: Mapping[str, Any]) -> str:
        # Lists leave the quotes out.
        return str(answer.get("e_tag") or "").strip(_QUOTE)

    def condition_of(self, version: str) -> Mapping[str, str]:
        return {"e_tag": f'"{version}"'}

    def found_in(self, headers: Mapping[str, str]) -> FoundObject:
        version = headers.get("etag", "").strip(_QUOTE)
        # For a blob that was put in blocks Azure keeps the writer's MD5, and hadoop-azure's is wrong. For one that was
        # put whole, as here, it computes its own.
        write_id = headers.get(f"x-ms-meta-{self.write_id_name}", "")
        md5 = headers.get("content-md5", "") if write_id else ""
        return FoundObject(
            size_bytes=int(headers.get("content-length") or 0),
            version=version,
            checksum=f"md5:{base64.b64decode(md5).hex()}" if md5 else f"etag:{version}",
            modified_at=moment_in(headers),
            is_copied=headers.get("x-ms-copy-status", "success") == "success",
            write_id=write_id,
        )

    def request_for(self, method: str, name: str, version: str | None) -> tuple[str, Mapping[str, str]]:
        url = f"{self.endpoint_url}/{quote(self.container)}/{quote(name)}"
        headers = {"x-ms-date": _http_date(self._signing_clock.now()), "x-ms-version": API_VERSION}
        if version is not None:
            headers["If-Match"] = f'"{version}"'
        if self._sas:
            return f"{url}?{self._sas}", headers
        if self._tokens is not None:
            return url, {**headers, "Authorization": f"Bearer {self._tokens.current()['token']}"}
        return url, {**headers, "Authorization": self._signature(method, url, headers)}

    def _signature(self, method: str, url: str, headers: Mapping[str, str]) -> str:
        """Azure's "Shared Key" for a request without a body and without a query."""
        signed = "\n".join(f"{name}:{headers[name]}" for name in sorted(headers) if name.startswith("x-ms-"))
        condition = headers.get("If-Match", "")
        # In order: encoding, language, length, MD5, type, date, modified, match, none match, unmodified, range.
        plain = ["", "", "", "", "", "", "", condition, "", "", ""]
        text = "\n".join([method, *plain, signed, f"/{self.account}{urlsplit(url).path}"])
        try:
            key = base64.b64decode(self._key, validate=True)
        except binascii.Error:
            raise RequestFailure(
                ServerAnswer.REFUSED, 0, "AuthenticationFailed", "the account key is not base64"
            ) from None
        digest = hmac.new(key, text.encode(), hashlib.sha256).digest()
        return f"SharedKey {self.account}:{base64.b64encode(digest).decode()}"


class _AzureTokens:
    """Access tokens of a service principal, else of azure-identity's chain, each until shortly before its end."""

    def __init__(self, clock: Clock, options: AzureOptions) -> None:
        self._clock = clock
        self._options = options
        self._lock = threading.Lock()
        self._ask: Callable[[str], Any] | None = None
        self._token: dict[str, Any] | None = None

    def current(self) -> dict[str, Any]:
        """The token as obstore wants it; raises RequestFailure."""
        with self._lock:
            if self._token is None or (self._token["expires_at"] - self._clock.now()).total_seconds() < FRESH_SECONDS:
                self._token = self._fetched()
            return self._token

    def _fetched(self) -> dict[str, Any]:
        # Imported only here: keys and signatures do not need it.
        try:
            from azure.core.exceptions import AzureError, ClientAuthenticationError
            from azure.identity import ClientSecretCredential, CredentialUnavailableError, DefaultAzureCredential
        except ModuleNotFoundError:
            reason = f"set {AZURE_KEY_VARIABLES[0]} or {AZURE_SAS_VARIABLES[0]}, or install azure-identity"
            raise RequestFailure(ServerAnswer.REFUSED, 0, NO_CREDENTIALS, reason) from None
        try:
            if self._ask is None and self._options.client_secret:
                principal = self._options
                self._ask = ClientSecretCredential(
                    str(principal.tenant_id), str(principal.client_id), str(principal.client_secret)
                ).get_token
            elif self._ask is None:
                self._ask = DefaultAzureCredential().get_token
            token = self._ask(SCOPE)
        except CredentialUnavailableError as error:
            raise RequestFailure(ServerAnswer.REFUSED, 0, NO_CREDENTIALS, str(error)[:300]) from None
        except ClientAuthenticationError as error:
            raise RequestFailure(ServerAnswer.REFUSED, 0, "AuthenticationFailed", str(error)[:300]) from None
        except ValueError as error:  # a tenant that cannot be one
            raise RequestFailure(ServerAnswer.REFUSED, 0, "AuthenticationFailed", str(error)[:300]) from None
        except (OSError, AzureError) as error:
            raise RequestFailure(ServerAnswer.NOT_DONE, 0, CREDENTIALS_AWAY, str(error)[:300]) from None
        return {"token": token.token, "expires_at": datetime.fromtimestamp(token.expires_on, timezone.utc)}


def _said(names: tuple[str, ...], environ: Mapping[str, str]) -> str:
    return next((value for value in map(environ.get, names) if value), "")


def _http_date(moment: datetime) -> str:
    return format_datetime(moment.astimezone(timezone.utc), usegmt=True)


def azure_store(
    container: str,
    prefix: str = "",
    options: AzureOptions | None = None,
    uri: str | None = None,
    *,
    clock: Clock = SYSTEM_CLOCK,
    upload_part_bytes: int = UPLOAD_PART_BYTES,
) -> ServerStore:
    """The store of one prefix of a container; arguments and errors as ``AzureClient`` and ``ServerStore``."""
    client = AzureClient(container, options or AzureOptions(), uri, clock=clock)
    return ServerStore(client, prefix, upload_part_bytes=upload_part_bytes)
