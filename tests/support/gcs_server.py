"""Google Cloud Storage on loopback: fake-gcs-server, and a front with what it lacks of the XML API.

fake-gcs-server keeps the objects, their generations, and the conditions of uploads. It does not know the XML API's
writes (put, copy, uploads in parts) with their conditions, nor conditions of a delete, nor the API's error codes;
obstore asks for all of these. The front translates them into calls of the JSON API, which the server knows, one delete
at a time; parts it keeps itself until their upload is completed.
"""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode
from xml.sax.saxutils import escape

from support.go_program import find_or_build
from support.loopback import QuietHandler, free_port, served
from support.versitygw import die_with_the_test

VERSION = "v1.56.1"
MODULE = f"github.com/fsouza/fake-gcs-server@{VERSION}"
BUCKET = "streams"
START_SECONDS = 30
FORWARD_SECONDS = 60
_META = "x-goog-meta-"


@contextmanager
def gcs_server() -> Iterator[str | None]:
    """A running server with BUCKET in it; gives the address of its front, or None on a machine without Go."""
    program = find_or_build("fake-gcs-server", VERSION, MODULE)
    if program is None:
        yield None
        return
    with _fake_gcs_server(program) as address:
        front = ThreadingHTTPServer(("127.0.0.1", 0), _Front)
        front.server_address_behind = address  # type: ignore[attr-defined]
        front.lock = threading.Lock()  # type: ignore[attr-defined]
        front.uploads = {}  # type: ignore[attr-defined]
        with served(front):
            _ask(address, "POST", "/storage/v1/b?project=tests", json.dumps({"name": BUCKET}).encode())
            yield f"http://127.0.0.1:{front.server_port}"


@contextmanager
def _fake_gcs_server(program: Path) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="fake-gcs-") as place:
        port = free_port()
        address = f"127.0.0.1:{port}"
        with (Path(place) / "log").open("w") as log:
            process = subprocess.Popen(
                [
                    *(str(program), "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1"),
                    *("-port", str(port), "-public-host", address, "-log-level", "warn"),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=die_with_the_test,
            )
        try:
            until = time.monotonic() + START_SECONDS  # noqa: TID251 - a real process
            while True:
                try:
                    _ask(address, "GET", "/storage/v1/b")
                    break
                except OSError:
                    if time.monotonic() > until or process.poll() is not None:  # noqa: TID251
                        raise RuntimeError((Path(place) / "log").read_text()[-2000:]) from None
                    time.sleep(0.05)  # noqa: TID251
            yield address
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()


Answer = tuple[int, dict[str, str], bytes]


def _ask(
    address: str, method: str, path: str, body: bytes | None = None, content_type: str = "application/json"
) -> Answer:
    connection = http.client.HTTPConnection(address, timeout=FORWARD_SECONDS)
    try:
        connection.request(method, path, body=body, headers={"Content-Type": content_type} if body is not None else {})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


@dataclass
class _Upload:
    """One upload in parts."""

    metadata: dict[str, str]
    content_type: str
    parts: dict[int, bytes] = field(default_factory=dict)
    is_over: bool = False


class _Front(QuietHandler):
    """The XML API over the JSON API."""

    def handle_any(self) -> None:
        body = self.body()
        if self.path.startswith(("/storage/", "/upload/", "/download/", "/batch/", "/_internal/", "/resumable")):
            self._answer(self._ask(self.command, self.path, body or None, self.headers.get("Content-Type", "")))
            return
        path, _, query = self.path.partition("?")
        bucket, _, name = path.lstrip("/").partition("/")
        bucket, name = unquote(bucket), unquote(name)
        asked = parse_qs(query, keep_blank_values=True)
        if not name:
            self._answer(self._list(bucket, query))
        elif "uploads" in asked:
            self._answer(self._begin_upload(bucket))
        elif "uploadId" in asked:
            self._answer(self._upload(bucket, name, asked["uploadId"][0], asked.get("partNumber", [""])[0], body))
        elif self.command == "PUT" and (source := self.headers.get("x-goog-copy-source")):
            self._answer(self._copy(bucket, name, unquote(source)))
        elif self.command == "PUT":
            self._answer(self._put(bucket, name, body, self._metadata(), self.headers.get("Content-Type", "")))
        elif self.command == "DELETE":
            self._answer(self._delete(bucket, name))
        else:
            self._answer(self._get(bucket, name))

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = do_PATCH = handle_any  # noqa: N815 - the base class's names

    # each in the words of the JSON API

    def _begin_upload(self, bucket: str) -> Answer:
        if self._missing(bucket) == "NoSuchBucket":
            return _error(404, "NoSuchBucket")
        with self.server.lock:  # type: ignore[attr-defined]
            uploads: dict[str, _Upload] = self.server.uploads  # type: ignore[attr-defined]
            upload_id = f"upload-{len(uploads)}"
            uploads[upload_id] = _Upload(self._metadata(), self.headers.get("Content-Type", ""))
        text = f"<InitiateMultipartUploadResult><UploadId>{upload_id}</UploadId></InitiateMultipartUploadResult>"
        return 200, {"content-type": "application/xml"}, text.encode()

    def _upload(self, bucket: str, name: str, upload_id: str, part_number: str, body: bytes) -> Answer:
        uploads: dict[str, _Upload] = self.server.uploads  # type: ignore[attr-defined]
        upload = uploads.get(upload_id)
        if upload is None or upload.is_over:
            return _error(404, "NoSuchUpload")
        if self.command == "PUT":
            upload.parts[int(part_number)] = body
            return 200, {"etag": f'"{part_number}"'}, b""
        upload.is_over = True
        if self.command == "DELETE":
            return 204, {}, b""
        numbers = [int(found) for found in re.findall(r"<PartNumber>(\d+)</PartNumber>", body.decode())]
        whole = b"".join(upload.parts[number] for number in numbers)
        status, headers, answer = self._put(bucket, name, whole, upload.metadata, upload.content_type)
        if status != 200:
            return status, headers, answer
        text = f"<CompleteMultipartUploadResult><ETag>{escape(headers['etag'])}</ETag></CompleteMultipartUploadResult>"
        return 200, {"content-type": "application/xml", **headers}, text.encode()

    def _metadata(self) -> dict[str, str]:
        return {
            header[len(_META) :].lower(): value
            for header, value in self.headers.items()
            if header.lower().startswith(_META)
        }

    def _put(self, bucket: str, name: str, body: bytes, metadata: dict[str, str], content_type: str) -> Answer:
        condition = self.headers.get("x-goog-if-generation-match")
        query = {"uploadType": "multipart", "name": name}
        if condition is not None:
            query["ifGenerationMatch"] = condition
        about = {"name": name, "metadata": metadata, "contentType": content_type}
        edge = b"front-boundary-7b1f0c"
        parts = b"".join(
            b"--%s\r\nContent-Type: %s\r\n\r\n%s\r\n" % (edge, kind, part)
            for kind, part in ((b"application/json", json.dumps(about).encode()), (b"application/octet-stream", body))
        )
        status, _, answer = self._ask(
            "POST",
            f"/upload/storage/v1/b/{quote(bucket, safe='')}/o?{urlencode(query)}",
            parts + b"--%s--\r\n" % edge,
            f"multipart/related; boundary={edge.decode()}",
        )
        if status != 200:
            return _error(status, "NoSuchBucket" if status == 404 else "")
        return 200, _headers_of(json.loads(answer)), b""

    def _copy(self, bucket: str, name: str, source: str) -> Answer:
        source_bucket, _, source_name = source.partition("/")
        if source_bucket == bucket and source_name == name:
            status, headers, _ = self._get(bucket, name)
            return (status, headers, b"") if status == 200 else _error(404, "NoSuchKey")
        status, _, answer = self._ask(
            "POST",
            f"{_object(source_bucket, source_name)}/rewriteTo/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}",
        )
        if status != 200:
            return _error(status, self._missing(source_bucket))
        return 200, _headers_of(json.loads(answer)["resource"]), b""

    def _delete(self, bucket: str, name: str) -> Answer:
        condition = self.headers.get("x-goog-if-generation-match")
        with self.server.lock:  # type: ignore[attr-defined]
            status, _, found = self._ask("GET", _object(bucket, name))
            if status != 200:
                return _error(404, self._missing(bucket))
            generation = str(json.loads(found)["generation"])
            if condition is not None and condition != generation:
                return _error(412, "PreconditionFailed")
            # Of this generation alone: a put may come between, and does not pass through this lock.
            status, _, _ = self._ask("DELETE", f"{_object(bucket, name)}?generation={generation}")
        if status == 404:
            return _error(412, "PreconditionFailed") if condition is not None else _error(503, "ServiceUnavailable")
        return (204, {}, b"") if status < 300 else _error(status, "")

    def _get(self, bucket: str, name: str) -> Answer:
        for _ in range(20):
            status, _, found = self._ask("GET", _object(bucket, name))
            if status != 200:
                return _error(404, self._missing(bucket))
            about = json.loads(found)
            if self.command == "HEAD":
                return 200, {**_headers_of(about), "content-length": str(about["size"])}, b""
            generation = f"generation={about['generation']}"
            status, _, body = self._ask("GET", f"{_object(bucket, name)}?alt=media&{generation}")
            if status == 200:
                break
        return _part_of(body, _headers_of(about), self.headers.get("Range", ""))

    def _list(self, bucket: str, query: str) -> Answer:
        asked = {key: values[0] for key, values in parse_qs(query).items()}
        words = {
            "prefix": asked.get("prefix", ""),
            "delimiter": asked.get("delimiter", ""),
            "pageToken": asked.get("continuation-token", ""),
            "maxResults": asked.get("max-keys", "1000"),
        }
        told = urlencode({key: value for key, value in words.items() if value})
        status, _, answer = self._ask("GET", f"/storage/v1/b/{quote(bucket, safe='')}/o?{told}")
        if status != 200:
            return _error(status, "NoSuchBucket" if status == 404 else "")
        return 200, {"content-type": "application/xml"}, _listing(json.loads(answer))

    def _missing(self, bucket: str) -> str:
        status, _, _ = self._ask("GET", f"/storage/v1/b/{quote(bucket, safe='')}")
        return "NoSuchKey" if status == 200 else "NoSuchBucket"

    def _ask(self, method: str, path: str, body: bytes | None = None, content_type: str = "") -> Answer:
        return _ask(self.server.server_address_behind, method, path, body, content_type)  # type: ignore[attr-defined]

    def _answer(self, answer: Answer) -> None:
        status, headers, body = answer
        self.send_response_only(status)
        for name, value in headers.items():
            if name not in ("connection", "transfer-encoding", "content-length", "content-encoding"):
                self.send_header(name, value)
        if status != 204:
            self.send_header(
                "Content-Length", headers.get("content-length", "") if self.command == "HEAD" else str(len(body))
            )
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()


def _part_of(body: bytes, headers: dict[str, str], wanted: str) -> Answer:
    if not wanted:
        return 200, headers, body
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    start, end = int(first), min(int(last), len(body) - 1)
    if start > end:
        return _error(416, "InvalidRange")
    return 206, {**headers, "content-range": f"bytes {start}-{end}/{len(body)}"}, body[start : end + 1]


def _object(bucket: str, name: str) -> str:
    return f"/storage/v1/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}"


def _headers_of(about: dict[str, Any]) -> dict[str, str]:
    moment = time.strptime(about["updated"][:19], "%Y-%m-%dT%H:%M:%S")
    headers = {
        "etag": f'"{about["etag"]}"',
        "last-modified": time.strftime("%a, %d %b %Y %H:%M:%S GMT", moment),
        "x-goog-generation": str(about["generation"]),
        "x-goog-stored-content-length": str(about["size"]),
        "x-goog-hash": f"crc32c={about['crc32c']},md5={about['md5Hash']}",
        "content-type": about.get("contentType") or "application/octet-stream",
    }
    return headers | {f"{_META}{name}": value for name, value in about.get("metadata", {}).items()}


def _error(status: int, code: str) -> Answer:
    return (
        status,
        {"content-type": "application/xml", "content-length": "0"},
        (f"<?xml version='1.0'?><Error><Code>{code or 'Error'}</Code><Message>no</Message></Error>".encode()),
    )


def _listing(found: dict[str, Any]) -> bytes:
    objects = "".join(
        f"<Contents><Key>{escape(item['name'])}</Key><Generation>{item['generation']}</Generation>"
        f"<LastModified>{item['updated']}</LastModified><ETag>{escape(item['etag'])}</ETag>"
        f"<Size>{item['size']}</Size></Contents>"
        for item in found.get("items", ())
    )
    folders = "".join(
        f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in found.get("prefixes", ())
    )
    token = found.get("nextPageToken", "")
    more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{escape(token)}</NextContinuationToken>"
    return (
        f"<?xml version='1.0' encoding='UTF-8'?><ListBucketResult>{more if token else ''}{objects}{folders}"
        "</ListBucketResult>"
    ).encode()
