"""obstore's client of one bucket or container, and the one place that translates its errors.

``gcs`` and ``azure`` make it. It tries once: every repetition is the store's own (``tries``), as on S3.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import obstore
from obstore.exceptions import BaseError

from airflow_streamstate.store.answers import Answer, RequestFailure
from airflow_streamstate.store.objects_errors import classify, failure_in
from airflow_streamstate.store.pieces import UPLOADS_AT_ONCE
from airflow_streamstate.store.s3a import SparkSettings
from airflow_streamstate.store.tries import TRIES, TRY_FOR_SECONDS

# One plain HTTP request without a body: for what the client library of an object store cannot ask.
#
# obstore knows neither a delete under a condition nor the checksums that a server keeps.

_CODE = re.compile(rb"<Code>\s*([\w.]+)\s*</Code>")
_MESSAGE = re.compile(rb"<Message>\s*([^<]{1,300})", re.DOTALL)
_MOST_BODY_BYTES = 65_536


def ask(method: str, url: str, headers: Mapping[str, str], timeout_seconds: float) -> Mapping[str, str]:
    """Send one request, once; the headers of its answer, by their names in lower case.

    Raises:
        RequestFailure: it was not answered with success. Its reason holds nothing of the address.
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
        body = error.read(_MOST_BODY_BYTES)
    except (OSError, http.client.HTTPException):
        body = b""
    finally:
        error.close()
    code = found[1].decode() if (found := _CODE.search(body)) else error.headers.get("x-ms-error-code", "")
    reason = found[1].decode(errors="replace").strip() if (found := _MESSAGE.search(body)) else str(error.reason)
    return RequestFailure(classify(error.code, code), error.code, code or str(error.code), reason)


def _of_connection(reason: object) -> RequestFailure:
    name = type(reason).__name__
    if isinstance(reason, ssl.SSLCertVerificationError):
        return RequestFailure(Answer.REFUSED, 0, "CertificateError", str(reason))
    if isinstance(reason, ConnectionRefusedError | socket.gaierror):
        return RequestFailure(Answer.NOT_DONE, 0, name, str(reason))
    return RequestFailure(Answer.UNKNOWN, 0, name, str(reason))


TRY_ONCE: Any = {"max_retries": 0}
TRY_PARTS: Any = {"max_retries": TRIES - 1, "retry_timeout": timedelta(seconds=TRY_FOR_SECONDS)}
"""Of an upload in parts, whose requests may all be sent twice; only the client library knows the parts."""


@dataclass(frozen=True)
class Found:
    """One object as the server describes it.

    Attributes:
        size_bytes: exact.
        version: changes with every write.
        checksum: as ``ManyAtOnce.checksum_of``.
        modified_at: by the server's clock.
        is_copied: False while the server still copies what was asked for.
        write_id: of the put that wrote it; "" where another program did.
    """

    size_bytes: int
    version: str
    checksum: str
    modified_at: datetime | None
    is_copied: bool = True
    write_id: str = ""


@contextmanager
def obstore_errors() -> Iterator[None]:
    """The one place where obstore's errors become the room's own."""
    try:
        yield
    except (BaseError, FileNotFoundError, PermissionError, NotImplementedError, ValueError) as error:
        raise failure_in(type(error).__name__, str(error)) from None


class ObjectsClient(ABC):
    """One bucket or container; names are whole keys of it. Every method raises RequestFailure.

    Attributes:
        service: how messages call it.
        uri: of the bucket or container.
        write_id_name: the metadata under which an object keeps the id of the put that wrote it.
        timeout_seconds: of a request without a body.
    """

    service: str
    uri: str
    write_id_name = "streamstatewrite"
    timeout_seconds: float
    _store: Any
    _parts_store: Any

    @abstractmethod
    def version_in(self, answer: Mapping[str, Any]) -> str:
        """The version in what obstore says of an object."""

    @abstractmethod
    def condition_of(self, version: str) -> Mapping[str, str]:
        """This version, as obstore takes it for the condition of a put; PRECONDITION where no object can have it."""

    @abstractmethod
    def found_in(self, headers: Mapping[str, str]) -> Found:
        """What the headers of an object say."""

    @abstractmethod
    def request_for(self, method: str, name: str, version: str | None) -> tuple[str, Mapping[str, str]]:
        """Address and headers of a plain request, under the condition of a version where there is one."""

    @abstractmethod
    def for_spark(self) -> SparkSettings:
        """With what Spark's connector reaches the same place, as far as it is ours to say."""

    @abstractmethod
    def make_ready(self) -> None:
        """Have credentials before a request is made, where they are ours to fetch."""

    def get(self, name: str) -> tuple[bytes, str, str]:
        """The bytes, their version, and the id of the put that wrote them ("" where another program did)."""
        with self._asking():
            found = obstore.get(self._store, name)
            attributes: Mapping[str, str] = found.attributes
            version = self.version_in(found.meta)
            return bytes(found.bytes()), version, str(attributes.get(self.write_id_name, ""))

    def get_range(self, name: str, start: int, size_bytes: int) -> bytes:
        """So many bytes from ``start`` on, fewer where the object ends before."""
        with self._asking():
            return bytes(obstore.get_range(self._store, name, start=start, length=size_bytes))

    def put(self, name: str, body: bytes, write_id: str, *, mode: Any) -> str:
        """Put under obstore's mode; the new version."""
        with self._asking():
            answer: Any = obstore.put(
                self._store, name, body, attributes={self.write_id_name: write_id}, mode=mode, use_multipart=False
            )
            return self.version_in(answer)

    def put_parts(self, name: str, parts: Iterable[bytes], write_id: str, part_bytes: int) -> str:
        """Put parts that come one after the other, whatever is there; the new version. Raises what ``parts`` raise."""
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

    def copy(self, source: str, target: str) -> None:
        """Ask the server to copy; ``head`` of the target says when it has."""
        with self._asking():
            obstore.copy(self._store, source, target)

    def pages(self, folder: str) -> Iterator[list[Mapping[str, Any]]]:
        """What lies below a folder ("" is everything), page by page, as obstore describes objects."""
        with self._asking():
            stream = iter(obstore.list(self._store, folder or None, chunk_size=1000))
        while True:
            with self._asking():
                page: Any = next(stream, None)
            if page is None:
                return
            yield list(page)

    def folders(self, folder: str) -> list[str]:
        """The whole names of the folders right below a folder."""
        with self._asking():
            return list(obstore.list_with_delimiter(self._store, folder or None)["common_prefixes"])

    def head(self, name: str) -> Found:
        """What the server says of an object without its bytes."""
        return self.found_in(self._plain("HEAD", name, None))

    def delete(self, name: str, version: str | None) -> None:
        """Delete, under the condition of a version where there is one; ABSENT where there is no object."""
        self._plain("DELETE", name, version)

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
    """When these bytes came to be, by the header that every server sends."""
    try:
        return parsedate_to_datetime(headers["last-modified"])
    except (KeyError, ValueError):
        return None


def client_options(endpoint_url: str | None, connect_timeout_seconds: float, read_timeout_seconds: float) -> Any:
    """obstore's words for the bounds of each request (Law 6)."""
    return {
        "allow_http": bool(endpoint_url and endpoint_url.startswith("http://")),
        "connect_timeout": timedelta(seconds=connect_timeout_seconds),
        "read_timeout": timedelta(seconds=read_timeout_seconds),
        "timeout": timedelta(seconds=max(300.0, read_timeout_seconds)),
        "user_agent": "airflow-streamstate",
    }


def check_endpoint(endpoint_url: str | None) -> None:
    """Refuse an endpoint that holds a user or a password: it would be in errors and in Spark's settings.

    Raises:
        RequestFailure: it does.
    """
    if endpoint_url and "@" in endpoint_url.partition("://")[2].partition("/")[0]:
        raise RequestFailure(Answer.REFUSED, 0, "EndpointWithUser", "the endpoint holds a user or a password")
