"""GCS and Azure Blob by obstore: the part that ``gcs`` and ``azure`` share, and the meaning of errors."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import urllib.error
import urllib.request
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from itertools import chain
from typing import Any

import obstore
from obstore.exceptions import BaseError

from airflow_streamstate.errors import (
    InvalidRequestError,
    OutcomeUnknownError,
    StoreRefusedError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.store.base import is_key
from airflow_streamstate.store.open import is_readable_on_its_way
from airflow_streamstate.store.server import (
    REQUEST,
    TRIES,
    TRY_FOR_SECONDS,
    FoundObject,
    GotObject,
    RequestFailure,
    ServerAnswer,
    ServerClient,
    TooLarge,
    WriteCondition,
)
from airflow_streamstate.store.transfer import UPLOADS_AT_ONCE, Feed, part_bytes_of

# The meaning of answers of GCS and Azure Blob, decided from plain values, without a client library.

NO_CREDENTIALS = "NoCredentials"
CREDENTIALS_AWAY = "CredentialsAway"
BAD_KEY = "BadKey"
NO_KEY_FILE = "NoKeyFile"
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>\s*([\w.]+)\s*</Code>")
_MESSAGE = re.compile(r"<Message>\s*([^<]{1,300})", re.DOTALL)
_KIND = re.compile(r"HttpError \{\s*kind: (\w+)")
_URL = re.compile(r"https?://\S+")
_TAKEN = ("BlobAlreadyExists", "ConditionNotMet", "UpdateConditionNotMet", "TargetConditionNotMet")
_NO_PLACE = ("NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted", "ResourceNotFound", "AccountNotFound")
_BAD_CREDENTIALS = ("AuthenticationFailed", "InvalidAuthenticationInfo")
_OVERTAKEN = ("InvalidBlockList",)
"""Blocks of this put are gone: this put, or another one of the same object, was completed in the meantime."""
_SLOW_DOWN = ("ServerBusy", "SlowDown", "TooManyRequests", "RateLimitExceeded")


def classify(status: int, code: str) -> ServerAnswer:
    """The meaning of a response that is no success."""
    if status == 412 or code in _TAKEN:
        return ServerAnswer.PRECONDITION
    if status == 404:
        return ServerAnswer.REFUSED if code in _NO_PLACE else ServerAnswer.ABSENT
    if status == 409 or code in _OVERTAKEN:
        return ServerAnswer.REFUSED if code in _NO_PLACE else ServerAnswer.BUSY
    if status == 429 or code in _SLOW_DOWN:
        return ServerAnswer.NOT_DONE
    if status in (501, 505):  # not implemented: it never will be
        return ServerAnswer.REFUSED
    if status >= 500 or status == 408:
        return ServerAnswer.UNKNOWN
    return ServerAnswer.REFUSED


def said_in(body: str) -> tuple[str, str]:
    """Code and message in the XML of an answer; "" for each that is not there."""
    code, message = _CODE.search(body), _MESSAGE.search(body)
    return "" if code is None else code[1], "" if message is None else message[1].strip().partition("\n")[0]


def failure_in(kind: str, text: str) -> RequestFailure:
    """The failure in an error of the client library, by the name of its class and its text.

    The reason is without addresses, which may hold a signature.
    """
    said = text.partition("\n\nDebug source")[0]
    if "token request" in said or "managed identity" in said.lower():
        return RequestFailure(ServerAnswer.NOT_DONE, 0, CREDENTIALS_AWAY, _URL.sub("…", said)[:300])
    if "Wanted range starting at" in said:  # from the client itself, for an object that ends before
        return RequestFailure(ServerAnswer.REFUSED, 416, "InvalidRange", said[:300])
    status = int(found[1]) if (found := _STATUS.search(said)) else 0
    code, reason = said_in(said)
    reason = reason or _URL.sub("…", said)[:300]
    if kind in ("AlreadyExistsError", "PreconditionError"):
        return RequestFailure(ServerAnswer.PRECONDITION, status or 412, code or kind, reason)
    if status:
        return RequestFailure(classify(status, code), status, code or str(status), reason)
    if kind == "FileNotFoundError":
        return RequestFailure(ServerAnswer.ABSENT, 404, "404", reason)
    if kind in ("PermissionDeniedError", "UnauthenticatedError"):
        return RequestFailure(
            ServerAnswer.REFUSED, 0, NO_CREDENTIALS if kind == "UnauthenticatedError" else kind, reason
        )
    connection = found[1] if (found := _KIND.search(text)) else ""
    if connection == "Connect":
        answer = ServerAnswer.REFUSED if "certificate" in text.lower() else ServerAnswer.NOT_DONE
        return RequestFailure(
            answer, 0, "CertificateError" if answer is ServerAnswer.REFUSED else "ConnectError", reason
        )
    if connection or "HTTP error" in said:
        return RequestFailure(ServerAnswer.UNKNOWN, 0, f"{connection or 'Http'}Error", reason)
    return RequestFailure(ServerAnswer.REFUSED, 0, kind, reason)


def as_error(
    failure: RequestFailure, *, service: str, action: str, place: str, key: str, doubtful: bool = False
) -> StreamStateError:
    """The package's error for a failure.

    Args:
        service: "GCS" or "Azure Blob".
        action: the request, in one word.
        place: the URI of the bucket or container.
        key: the key in the store; "" without one.
        doubtful: whether a write of this call may have landed.
    """
    facts: dict[str, Any] = {"action": action, "place": place, "key": key}
    facts |= {"code": failure.code, "reason": failure.reason}
    if doubtful:
        return OutcomeUnknownError(f"{service} did not say whether the write landed", **facts)
    if failure.answer is not ServerAnswer.REFUSED:
        message, next_step = _obstacle(failure, service)
        return UnavailableError(message, next_step=next_step, **facts)
    message, next_step = _refusal(failure, service)
    kind = StoreRefusedError if _is_no_access(failure) else InvalidRequestError
    return kind(message, next_step=next_step, **facts)


def _is_no_access(failure: RequestFailure) -> bool:
    """Whether the whole bucket or container is refused or missing, whatever the request."""
    codes = (
        *_NO_PLACE,
        NO_CREDENTIALS,
        BAD_KEY,
        "PermissionDeniedError",
        "AuthenticationFailed",
        "InvalidAuthenticationInfo",
    )
    return failure.status in (401, 403) or failure.code in codes


def _obstacle(failure: RequestFailure, service: str) -> tuple[str, str]:
    if failure.answer is ServerAnswer.NOT_DONE and failure.status:
        return f"{service} asks for fewer requests", "Try again in a moment."
    if failure.code == CREDENTIALS_AWAY:
        return (
            f"the credentials for {service} could not be fetched",
            "Try again in a moment; look at where they come from.",
        )
    if failure.status:
        return f"{service} cannot serve the request now", "Try again in a moment."
    if failure.code == "TimeoutError":
        return f"{service} did not answer in time", "Try again in a moment; look at the network and the endpoint."
    return f"{service} cannot be reached", "Try again in a moment; look at the network and the endpoint."


_REFUSALS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(_NO_PLACE, ("there is no such bucket or container", "Create it, or correct the URI.")),
    "NoSparkName": (
        "Spark reaches Azure only under a URI that names the account",
        "Give the abfss URI for checkpoints.",
    ),
    "NoAccount": (
        "no storage account is named",
        "Set azure_account in the connection or AZURE_STORAGE_ACCOUNT_NAME, or give an abfss URI, which names it.",
    ),
    BAD_KEY: ("the key of the service account cannot be used", "Give the JSON file that Google made, unchanged."),
    NO_KEY_FILE: (
        "checkpoints on GCS need the key of the service account as a file",
        "Give gcs_key_path, a file that drivers and executors see, in place of gcs_service_account_key.",
    ),
}


def _refusal(failure: RequestFailure, service: str) -> tuple[str, str]:
    if failure.code in _REFUSALS:
        return _REFUSALS[failure.code]
    if failure.code == "PlainHttp":
        return (
            f"the endpoint of {service} is plain http on another machine, and a token would go there",
            "Give an https endpoint, or one on this machine.",
        )
    if failure.code == "EndpointWithUser":
        return f"the endpoint of {service} holds a user or a password", "Give the endpoint without it."
    if failure.code == NO_CREDENTIALS:
        return (
            f"there are no credentials for {service}",
            "Set them in the connection or in the environment, or give this machine a role.",
        )
    if failure.code == "CertificateError":
        return f"the certificate of the {service} server is not trusted", "Install its authority's certificate here."
    if failure.status == 401 or failure.code in _BAD_CREDENTIALS:
        return (
            f"{service} does not accept these credentials",
            "Correct them; a wrong clock of this machine has the same effect.",
        )
    if failure.status == 403 or failure.code == "PermissionDeniedError":
        return f"{service} denied the request", "Allow reading, writing, listing and deleting there."
    return f"{service} refused the request", ""


COPY_SECONDS = 300.0
COPY_PAUSE_SECONDS = 0.5

_MOST_BODY_BYTES = 65_536


# obstore has neither a conditional delete nor the checksums that a server keeps: these are plain HTTP requests.


def ask(method: str, url: str, headers: Mapping[str, str], timeout_seconds: float) -> Mapping[str, str]:
    """Send one request without a body, once; the headers of its answer, by their names in lower case.

    Raises:
        RequestFailure: the answer is no success. Its reason has nothing of the address.
    """
    request = urllib.request.Request(url, method=method, headers=dict(headers))  # noqa: S310 - the store's own endpoint
    try:
        with urllib.request.urlopen(request, timeout=timeout_seconds) as answer:  # noqa: S310
            answer.read()
            return {name.lower(): value for name, value in answer.headers.items()}
    except urllib.error.HTTPError as error:
        raise _of_answer(error) from None
    except urllib.error.URLError as error:
        raise _of_connection(error.reason) from None
    except (OSError, http.client.HTTPException) as error:
        raise _of_connection(error) from None


def _of_answer(error: urllib.error.HTTPError) -> RequestFailure:
    try:
        body = error.read(_MOST_BODY_BYTES).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        body = ""
    finally:
        error.close()
    code, reason = said_in(body)
    code = code or error.headers.get("x-ms-error-code", "")
    return RequestFailure(classify(error.code, code), error.code, code or str(error.code), reason or str(error.reason))


def _of_connection(reason: object) -> RequestFailure:
    name = type(reason).__name__
    if isinstance(reason, ssl.SSLCertVerificationError):
        return RequestFailure(ServerAnswer.REFUSED, 0, "CertificateError", str(reason))
    if isinstance(reason, (ConnectionRefusedError, socket.gaierror)):
        return RequestFailure(ServerAnswer.NOT_DONE, 0, name, str(reason))
    return RequestFailure(ServerAnswer.UNKNOWN, 0, name, str(reason))


TRY_ONCE: Any = {"max_retries": 0}
TRY_PARTS: Any = {"max_retries": TRIES - 1, "retry_timeout": timedelta(seconds=TRY_FOR_SECONDS)}
"""For an upload in parts, whose requests may all be sent twice."""


@contextmanager
def obstore_errors() -> Iterator[None]:
    """Translate obstore's errors of the block into RequestFailure."""
    try:
        yield
    except (BaseError, FileNotFoundError, PermissionError, NotImplementedError, ValueError) as error:
        raise failure_in(type(error).__name__, str(error)) from None


class ObstoreClient(ServerClient):
    """One bucket or container of either service.

    Attributes:
        service: its name in messages.
        write_id_name: the metadata with the id of the put that wrote an object.
        timeout_seconds: of a request without a body.
    """

    service: str
    write_id_name = "streamstatewrite"
    timeout_seconds: float
    _store: Any
    _parts_store: Any

    @abstractmethod
    def version_in(self, answer: Mapping[str, Any]) -> str:
        """The version in obstore's description of an object."""

    @abstractmethod
    def condition_of(self, version: str) -> Mapping[str, str]:
        """This version as obstore's condition of a put; PRECONDITION where no object can have it."""

    @abstractmethod
    def found_in(self, headers: Mapping[str, str]) -> FoundObject:
        """The description of an object in its headers."""

    @abstractmethod
    def request_for(self, method: str, name: str, version: str | None) -> tuple[str, Mapping[str, str]]:
        """Address and headers of a plain request, on condition of a version if there is one."""

    @abstractmethod
    def make_ready(self) -> None:
        """Have credentials before a request is made, where they are ours to fetch."""

    def error_of(self, failure: RequestFailure, act: str, key: str, doubtful: bool) -> StreamStateError:
        return as_error(failure, service=self.service, action=act, place=self.uri, key=key, doubtful=doubtful)

    def get(self, name: str, most_bytes: int | None = None) -> GotObject:
        return self.answered(lambda: self._got(name, most_bytes))

    def get_range(self, name: str, start: int, size_bytes: int) -> bytes:
        def send() -> bytes:
            with self._asking():
                return bytes(obstore.get_range(self._store, name, start=start, length=size_bytes))

        return self.answered(send)

    def head(self, name: str, *, checksum: bool = False) -> FoundObject:  # noqa: ARG002 - these servers report it anyway
        return self.answered(lambda: self.look(name))

    def describe(self, name: str, *, checksum: bool = False) -> FoundObject:
        self.get(name)
        return self.head(name, checksum=checksum)

    def objects(self, start: str) -> Iterator[tuple[str, int, str]]:
        # In the order of names, whatever the server's: one with folders of its own lists them in another.
        folder = start.rpartition("/")[0]
        listed = self.answered(lambda: list(chain.from_iterable(self.pages(folder))))
        found = [(str(item["path"]), int(item["size"]), self.version_in(item)) for item in listed]
        yield from self._without_markers(sorted(one for one in found if one[0].startswith(start)))

    def folders(self, start: str) -> list[str]:
        def send() -> list[str]:
            with self._asking():
                listed = obstore.list_with_delimiter(self._store, start.removesuffix("/") or None)
                return list(listed["common_prefixes"])

        return self.answered(send)

    def put(self, name: str, body: bytes, write_id: str, condition: WriteCondition | None) -> str:
        mode: Any = "overwrite" if condition is None else "create"
        if condition is not None and condition.version is not None:
            mode = self.condition_of(condition.version)
        with self._asking():
            answer: Any = obstore.put(
                self._store, name, body, attributes={self.write_id_name: write_id}, mode=mode, use_multipart=False
            )
            return self.version_in(answer)

    def put_parts(self, name: str, pieces: Iterable[bytes], size_bytes: int, part_bytes: int) -> str:
        """Each part is tried again by obstore, and the whole only before its first byte was asked for."""
        part_bytes = part_bytes_of(size_bytes, part_bytes)
        with Feed(pieces, part_bytes) as feed:
            return self._put_feed(name, feed, part_bytes)

    def _put_feed(self, name: str, feed: Feed, part_bytes: int) -> str:
        write_id = self.clock.new_uuid()
        last = RequestFailure(ServerAnswer.UNKNOWN, 0, "NoVersion", "the server did not report the version")
        for attempt in REQUEST.begin(self.clock):
            try:
                version = self.send_parts(name, feed, write_id, part_bytes)
                if version:
                    return version
            except RequestFailure as failure:
                last = failure
            if feed.failure is not None:
                raise feed.failure
            if feed.is_begun or not last.answer.may_pass or attempt.is_last:
                break
        if not feed.is_ended:  # not completed: no reader sees it
            raise replace(last, answer=ServerAnswer.NOT_DONE) if last.answer is ServerAnswer.UNKNOWN else last
        found = self._looked_up(name)
        if found is not None and found.write_id == write_id:
            return found.version
        if found is not None and last.answer is ServerAnswer.REFUSED:  # mostly of a part, reported late
            raise last
        raise replace(last, answer=ServerAnswer.UNKNOWN)  # it may land yet, or was overwritten since (Law 8)

    def copy(self, source: str, target: str, size_bytes: int | None) -> str:  # noqa: ARG002 - of any size at once
        self.answered(lambda: self.order_copy(source, target))
        # Azure may continue after its answer.
        until = self.clock.monotonic_seconds() + COPY_SECONDS
        while True:
            found = self.head(target)
            if found.is_copied:
                return found.checksum
            if self.clock.monotonic_seconds() >= until:
                raise RequestFailure(ServerAnswer.UNKNOWN, 0, "CopyPending", "the server is still copying")
            self.clock.sleep(COPY_PAUSE_SECONDS)

    def delete(self, name: str, version: str | None) -> None:
        try:
            self._plain("DELETE", name, version)
        except RequestFailure as failure:
            # Azure reports an absent blob as one of a different version.
            is_gone = failure.answer is ServerAnswer.PRECONDITION and self._looked_up(name) is None
            if failure.answer is not ServerAnswer.ABSENT and not is_gone:
                raise

    # one request, once

    def look(self, name: str) -> FoundObject:
        """HEAD."""
        return self.found_in(self._plain("HEAD", name, None))

    def send_parts(self, name: str, parts: Iterable[bytes], write_id: str, part_bytes: int) -> str:
        """Put an object in parts, whatever is there; the new version. Raises what ``parts`` raise."""
        with self._asking():
            answer: Any = obstore.put(
                self._parts_store,
                name,
                parts,
                attributes={self.write_id_name: write_id},
                use_multipart=True,
                chunk_size=part_bytes,
                max_concurrency=UPLOADS_AT_ONCE,
            )
            return self.version_in(answer)

    def order_copy(self, source: str, target: str) -> None:
        """Ask the server to copy; ``look`` at the target reports when it has."""
        with self._asking():
            obstore.copy(self._store, source, target)

    def pages(self, folder: str) -> Iterator[list[Mapping[str, Any]]]:
        """obstore's descriptions of all objects below a folder ("" for all), page by page."""
        with self._asking():
            stream = iter(obstore.list(self._store, folder or None, chunk_size=1000))
        while True:
            with self._asking():
                page: Any = next(stream, None)
            if page is None:
                return
            yield list(page)

    def _got(self, name: str, most_bytes: int | None) -> GotObject:
        with self._asking():
            found = obstore.get(self._store, name)
            if most_bytes is not None and found.meta["size"] > most_bytes:
                raise TooLarge(found.meta["size"], most_bytes)
            attributes: Mapping[str, str] = found.attributes
            version = self.version_in(found.meta)
            write_id, written_at = str(attributes.get(self.write_id_name, "")), found.meta["last_modified"]
            return GotObject(bytes(found.bytes()), version, write_id, written_at)

    def _looked_up(self, name: str) -> FoundObject | None:
        try:
            return self.head(name)
        except RequestFailure:
            return None

    def _without_markers(self, found: Sequence[tuple[str, int, str]]) -> Iterator[tuple[str, int, str]]:
        """Without markers: Hadoop's connectors put empty objects for folders; obstore drops the slash at their end."""
        folders = {name.rpartition("/")[0] for name, _, _ in found}
        for name, size_bytes, version in found:
            if size_bytes == 0 and is_key(name) and (name in folders or not self._is_there(name)):
                continue
            yield name, size_bytes, version

    def _is_there(self, name: str) -> bool:
        try:
            self.head(name)
        except RequestFailure as failure:
            if failure.answer is not ServerAnswer.ABSENT:
                raise
            return False
        return True

    def _plain(self, method: str, name: str, version: str | None) -> Mapping[str, str]:
        self.make_ready()
        with obstore_errors():
            url, headers = self.request_for(method, name, version)
        return ask(method, url, headers, self.timeout_seconds)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        self.make_ready()
        with obstore_errors():
            yield


def moment_in(headers: Mapping[str, str]) -> datetime | None:
    """When the object was written, by the header that every server sends."""
    try:
        return parsedate_to_datetime(headers["last-modified"])
    except (KeyError, ValueError):
        return None


def client_options(endpoint_url: str | None, connect_timeout_seconds: float, read_timeout_seconds: float) -> Any:
    """The bounds of each request, as obstore's options (Law 6)."""
    return {
        "allow_http": bool(endpoint_url and endpoint_url.startswith("http://")),
        "connect_timeout": timedelta(seconds=connect_timeout_seconds),
        "read_timeout": timedelta(seconds=read_timeout_seconds),
        "timeout": timedelta(seconds=max(300.0, read_timeout_seconds)),
        "user_agent": "airflow-streamstate",
    }


def check_endpoint(endpoint_url: str | None, *, has_token: bool) -> None:
    """Refuse an endpoint with a user or a password, which would show in errors and in Spark's settings.

    Refused is also one to which a token would go in plain text.

    Args:
        has_token: requests carry one, which is good for everybody who reads it.

    Raises:
        RequestFailure: see above.
    """
    if endpoint_url and has_token and is_readable_on_its_way(endpoint_url):
        raise RequestFailure(
            ServerAnswer.REFUSED, 0, "PlainHttp", "a token would go over http, where everybody reads it"
        )
    if endpoint_url and "@" in endpoint_url.partition("://")[2].partition("/")[0]:
        raise RequestFailure(ServerAnswer.REFUSED, 0, "EndpointWithUser", "the endpoint holds a user or a password")
