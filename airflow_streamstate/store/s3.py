"""A store on S3, or on a server that speaks its protocol.

A lost reply must not look like a conflict: a client that sends a conditional write again reports 412, as if someone
else had won. So each request is sent once here, and what is repeated, ``writing`` and ``tries`` repeat (Law 8).
Create-if-absent is a Put, never a Copy: servers ignore conditions on a copy's target.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.errors import ObjectMissingError, StreamStateError
from airflow_streamstate.store.answers import Answer, RequestFailure
from airflow_streamstate.store.interface import Link, ObjectInfo, StoredObject
from airflow_streamstate.store.keys import check_folder, check_key, check_prefix, is_key
from airflow_streamstate.store.options import S3Options
from airflow_streamstate.store.pieces import UPLOAD_PART_BYTES, UPLOADS_AT_ONCE, in_parts, part_bytes_of
from airflow_streamstate.store.rounds import in_rounds, side_by_side
from airflow_streamstate.store.s3_client import Requests, boto_errors, make_clients, resolve
from airflow_streamstate.store.s3_errors import as_error, classify
from airflow_streamstate.store.s3a import SparkSettings, s3a_settings
from airflow_streamstate.store.tries import Tries, until_answered
from airflow_streamstate.store.writing import PUT, Writes

# Uploads to S3 in parts: of a large object only the parts that are just under way are held.
#
# Nothing is at the target before all parts are there and the upload is completed, so a part may be sent twice. What
# failed is aborted; the parts of a process that was killed stay, unseen, until they are collected or a rule of the
# bucket ends them.

WRITE_ID = "streamstate-write"
"""The name of the metadata under which an object keeps the id of the put that wrote it."""


WHOLE_CRC32 = {"ChecksumAlgorithm": "CRC32", "ChecksumType": "FULL_OBJECT"}
"""As of what is put at once: with it the standard library can compare."""
_ENDED = "NoSuchUpload"


class Upload:
    """One upload of one object.

    Args:
        requests: about its bucket.
        patient: the same for what takes its time: a part, and the completion of many. A server that is silent is not
            waited for so long before the first, nor to abort what failed.
        target: its whole key.
        write_id: of this put; by it the object is known when it is read back.
    """

    def __init__(self, requests: Requests, patient: Requests, target: str, write_id: str) -> None:
        self._requests = requests
        self._patient = patient
        self._target = target
        self._write_id = write_id
        self._upload: dict[str, str] = {}

    def run(self, pieces: Iterable[bytes], size_bytes: int, part_bytes: int) -> str:
        """Put the pieces, which together have this size, in parts of that size or larger; the entity tag.

        Raises:
            RequestFailure: UNKNOWN where nobody knows whether it landed; otherwise nothing was changed.
            Exception: what ``pieces`` raised.
        """
        try:
            try:
                begun = self._send("create_multipart_upload", Metadata={WRITE_ID: self._write_id}, **WHOLE_CRC32)
                self._upload = {"UploadId": begun["UploadId"]}
                parts, crc32 = self._send_parts(pieces, part_bytes_of(size_bytes, part_bytes))
            except RequestFailure as failure:
                if failure.answer is Answer.UNKNOWN:  # of a part: nobody sees it
                    raise replace(failure, answer=Answer.NOT_DONE) from failure
                raise _gone_is_not_done(failure) from failure
            return self._complete(parts, crc32)
        except BaseException:
            if self._upload:
                with suppress(RequestFailure):  # what stays costs space only
                    abort_upload(self._requests, self._target, self._upload["UploadId"])
            raise

    def _send_parts(self, pieces: Iterable[bytes], part_bytes: int) -> tuple[list[dict[str, Any]], int]:
        """All parts, some at a time, in their order; with the CRC-32 of the whole."""
        sent: list[dict[str, Any]] = []
        crc32 = 0
        under_way: deque[Future[dict[str, Any]]] = deque()
        with ThreadPoolExecutor(UPLOADS_AT_ONCE, thread_name_prefix="streamstate-upload") as pool:
            try:
                for number, part in enumerate(in_parts(pieces, part_bytes), 1):
                    crc32 = zlib.crc32(part, crc32)
                    under_way.append(pool.submit(partial(self._send_part, number, part)))
                    if len(under_way) == UPLOADS_AT_ONCE:
                        sent.append(under_way.popleft().result())
                sent += [future.result() for future in under_way]
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
        return sent, crc32

    def _send_part(self, number: int, part: bytes) -> dict[str, Any]:
        answer = self._patient.send(
            "upload_part", Key=self._target, **self._upload, PartNumber=number, Body=part, ChecksumAlgorithm="CRC32"
        )
        checksum = {"ChecksumCRC32": answer["ChecksumCRC32"]} if answer.get("ChecksumCRC32") else {}
        return {"PartNumber": number, "ETag": answer["ETag"], **checksum}

    def _complete(self, parts: list[dict[str, Any]], crc32: int) -> str:
        whole = {}
        if all("ChecksumCRC32" in part for part in parts):  # the server keeps checksums, and compares them
            whole = {
                "ChecksumType": WHOLE_CRC32["ChecksumType"],
                "ChecksumCRC32": base64.b64encode(crc32.to_bytes(4, "big")).decode(),
            }
        request = {"Key": self._target, **self._upload, "MultipartUpload": {"Parts": parts}, **whole}
        tries, doubtful = Tries(self._requests.clock), False
        while True:
            try:
                return str(self._patient.send_once("complete_multipart_upload", **request)["ETag"])
            except RequestFailure as failure:
                last = failure
            doubtful = doubtful or last.answer is Answer.UNKNOWN
            landed = self._landed() if doubtful else None
            if landed is not None:
                return landed
            if not last.answer.may_pass or tries.are_over():
                break
            tries.pause()
        # It may land yet, or was written over since (Law 8).
        raise replace(last, answer=Answer.UNKNOWN) if doubtful else _gone_is_not_done(last)

    def _landed(self) -> str | None:
        """The entity tag of what a completion whose answer was lost has put there; None where it has not."""
        try:
            found = self._send("head_object")
        except RequestFailure:
            return None
        return str(found["ETag"]) if found.get("Metadata", {}).get(WRITE_ID) == self._write_id else None

    def _send(self, operation: str, **request: Any) -> Any:
        return self._requests.send(operation, Key=self._target, **request)


def _gone_is_not_done(failure: RequestFailure) -> RequestFailure:
    """An upload that somebody has ended meanwhile, as a rule of the bucket may: it can be begun anew."""
    return replace(failure, answer=Answer.NOT_DONE) if failure.code == _ENDED else failure


def left_uploads(requests: Requests, start: str, before: datetime) -> list[tuple[str, str]]:
    """Uploads that were begun before a moment and neither completed nor aborted: whole key and id of each.

    Args:
        requests: about their bucket.
        start: of their keys.
        before: the moment.

    Raises:
        RequestFailure: they cannot be listed.
    """
    found: list[tuple[str, str]] = []
    marker: dict[str, str] = {}
    while True:
        page = requests.send("list_multipart_uploads", Prefix=start, **marker)
        found += [(one["Key"], one["UploadId"]) for one in page.get("Uploads", ()) if one["Initiated"] < before]
        marker = {name: page[f"Next{name}"] for name in ("KeyMarker", "UploadIdMarker") if page.get(f"Next{name}")}
        if not page.get("IsTruncated") or not marker:
            return found


def abort_upload(requests: Requests, target: str, upload_id: str) -> None:
    """End an upload and free its parts; one that is gone is success. Raises RequestFailure."""
    try:
        requests.send("abort_multipart_upload", Key=target, UploadId=upload_id)
    except RequestFailure as failure:
        if failure.code != _ENDED:
            raise


# Copies on S3, all by the server: one, a large one part by part, and many side by side. No byte comes through us.
#
# A copy may be done twice, so one whose answer was lost is simply sent again. The checksum of what was copied comes
# with the answer, so that a list of copies costs one request per object and no other.

SINGLE_COPY_BYTES = 5 * 1024**3
"""S3 copies no larger object in one request."""
PART_BYTES = 256 * 1024**2
_CHECKSUMS = ("SHA256", "CRC64NVME", "CRC32C", "CRC32", "SHA1")


class Copier:
    """The copies of one bucket.

    Args:
        requests: with patience.
        single_copy_bytes: the largest object that the server copies in one request.
        part_bytes: the size of the parts of larger ones.
    """

    def __init__(
        self,
        requests: Requests,
        *,
        single_copy_bytes: int = SINGLE_COPY_BYTES,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._bucket = requests.bucket
        self._send = requests.send
        self._single_copy_bytes = single_copy_bytes
        self._part_bytes = part_bytes

    def copy(self, source: str, target: str, size_bytes: int | None = None) -> str:
        """Copy one object; gives its checksum as ``ManyAtOnce.checksum_of``.

        Args:
            source, target: whole keys of the bucket.
            size_bytes: of the source; None where unknown: then a refusal tells whether it was too large.

        Raises:
            RequestFailure: it was not copied; ABSENT where there is no source.
        """
        if size_bytes is not None and size_bytes > self._single_copy_bytes:
            return self._copy_parts(source, target)
        try:
            # CRC-32 is what the standard library can compare with; without a word AWS would choose another.
            answer = self._send("copy_object", CopySource=self._place(source), Key=target, ChecksumAlgorithm="CRC32")
        except RequestFailure as failure:
            if failure.answer is not Answer.REFUSED or not self._is_large(source):
                raise
            return self._copy_parts(source, target)
        return checksum_in({**answer, **answer["CopyObjectResult"]})

    def _is_large(self, source: str) -> bool:
        with suppress(RequestFailure):  # then the refusal that is told is the copy's
            return int(self._send("head_object", Key=source)["ContentLength"]) > self._single_copy_bytes
        return False

    def _copy_parts(self, source: str, target: str) -> str:
        """Part by part, all of one version of the source; nothing is at the target before all of them are copied."""
        found = self._send("head_object", Key=source)
        size_bytes, version = int(found["ContentLength"]), found["ETag"]
        part_bytes = part_bytes_of(size_bytes, self._part_bytes)
        # No checksum of the whole is asked for: versitygw 1.8 takes that of the source for the one of each part.
        upload = {"Key": target, "UploadId": self._send("create_multipart_upload", Key=target)["UploadId"]}

        def copy_part(number: int) -> dict[str, Any]:
            start = (number - 1) * part_bytes
            answer = self._send(
                "upload_part_copy",
                **upload,
                PartNumber=number,
                CopySource=self._place(source),
                CopySourceRange=f"bytes={start}-{min(start + part_bytes, size_bytes) - 1}",
                CopySourceIfMatch=version,
            )
            return {"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]}

        numbers = range(1, -(-size_bytes // part_bytes) + 1)
        parts: list[dict[str, Any]] = []
        try:
            parts = side_by_side([partial(copy_part, number) for number in numbers])
            self._send("complete_multipart_upload", **upload, MultipartUpload={"Parts": parts})
        except RequestFailure as failure:
            if failure.code != "NoSuchUpload" or not self._has_landed(target, parts):
                with suppress(RequestFailure):  # what stays costs space only; a lifecycle rule of the bucket removes it
                    self._send("abort_multipart_upload", **upload)
                raise
        return checksum_in(self._send("head_object", Key=target, ChecksumMode="ENABLED"))

    def _has_landed(self, target: str, parts: Sequence[Mapping[str, Any]]) -> bool:
        """Whether a completion whose answer was lost has put these parts at the target (Law 8).

        The entity tag of an object made of parts is a digest of the parts' own.
        """
        try:
            digests = b"".join(bytes.fromhex(part["ETag"].strip('"')) for part in parts)
            found = self._send("head_object", Key=target)["ETag"]
        except (ValueError, RequestFailure):
            return False
        return bool(found == f'"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(parts)}"')

    def _place(self, name: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": name}


def checksum_in(answer: Mapping[str, Any]) -> str:
    """The checksum of a whole object in an answer of S3, as ``ManyAtOnce.checksum_of`` describes it."""
    for name in _CHECKSUMS:
        value = str(answer.get(f"Checksum{name}") or "")
        # One over the checksums of parts says nothing about the bytes themselves; it ends in their number.
        if value and answer.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT" and "-" not in value:
            return f"{name.lower()}:{base64.b64decode(value).hex()}"
    tag = str(answer.get("ETag", "")).strip('"')
    is_encrypted = "SSECustomerAlgorithm" in answer or str(answer.get("ServerSideEncryption", "")).startswith("aws:kms")
    is_digest = len(tag) == 32 and not set(tag) - set("0123456789abcdef") and not is_encrypted
    return f"{'md5' if is_digest else 'etag'}:{tag}"


Result = TypeVar("Result")

DELETE_AT_ONCE = 1000


class S3Store:
    """Objects of one bucket below one prefix. Versions are entity tags.

    Args:
        bucket: its name.
        prefix: what every key is put under, without slashes at its ends; "" for the whole bucket.
        options: how to reach the server.
        clock: for pauses between tries.
        single_copy_bytes: the largest object that the server copies in one request.
        part_bytes: the size of the parts that larger ones are copied in.
        upload_part_bytes: the size of the parts that what comes in pieces is put in; what is not larger is put whole.

    Raises:
        InvalidRequestError: the prefix cannot begin a key, or boto3 takes the options for wrong.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        options: S3Options | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        single_copy_bytes: int = SINGLE_COPY_BYTES,
        part_bytes: int = PART_BYTES,
        upload_part_bytes: int = UPLOAD_PART_BYTES,
    ) -> None:
        self.bucket = bucket
        self.prefix = check_folder(prefix)
        self._start = f"{prefix}/" if prefix else ""
        self._clock = clock
        self._is_bucket_seen = False
        self._options = options or S3Options()
        with self._reported("CreateClient", ""):
            self._client, copying_client = make_clients(self._options)
        self._writes = Writes(clock, self._get, self._report)
        self._requests = Requests(self._client, bucket, clock)
        self._patient = Requests(copying_client, bucket, clock)
        self._copier = Copier(self._patient, single_copy_bytes=single_copy_bytes, part_bytes=part_bytes)
        self._upload_part_bytes = upload_part_bytes

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}" if self.prefix else f"s3://{self.bucket}"

    def for_spark(self) -> SparkSettings:
        with self._reported("CreateClient", ""):
            return s3a_settings(resolve(self._options), self.bucket)

    def get(self, key: str) -> StoredObject | None:
        found = self._get(key)
        return None if found is None else found[0]

    def read_range(self, key: str, start: int, size_bytes: int) -> bytes | None:
        name, wanted = self._name(key), f"bytes={start}-{start + size_bytes - 1}"

        def send() -> bytes:
            answer = self._client.get_object(Bucket=self.bucket, Key=name, Range=wanted)
            return bytes(answer["Body"].read())

        with self._reported("GetObject", key):
            try:
                return self._unless_absent(send)
            except RequestFailure as failure:
                if failure.status == 416:  # it ends before
                    return b""
                raise

    def head(self, key: str) -> ObjectInfo | None:
        answer = self._head(key)
        if answer is None:
            return None
        return ObjectInfo(key, answer["ContentLength"], answer["ETag"], answer.get("LastModified"))

    def checksum_of(self, key: str) -> str | None:
        answer = self._head(key, ChecksumMode="ENABLED")
        return None if answer is None else checksum_in(answer)

    def checksums_of(self, keys: Sequence[str]) -> list[str | None]:
        return in_rounds([partial(self.checksum_of, key) for key in keys])

    def create(self, key: str, body: bytes) -> str:
        return self._writes.create(key, body, self._putting(key, body, IfNoneMatch="*"))

    def replace(self, key: str, body: bytes, version: str) -> str:
        return self._writes.replace(key, body, version, self._putting(key, body, IfMatch=version))

    def put(self, key: str, body: bytes) -> str:
        return self._writes.put(key, body, self._putting(key, body))

    def put_pieces(self, key: str, pieces: Iterable[bytes], size_bytes: int) -> str:
        if size_bytes <= self._upload_part_bytes:
            return self.put(key, b"".join(pieces))
        upload = Upload(self._requests, self._patient, self._name(key), self._clock.new_uuid())
        with self._reported("PutObject", key, writes=True):
            return upload.run(pieces, size_bytes, self._upload_part_bytes)

    def list_objects(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        return self._listed(prefix)

    def list_folders(self, folder: str) -> list[str]:
        start = self._start + (f"{check_folder(folder)}/" if folder else "")
        names = (
            common["Prefix"][len(start) : -1]
            for page in self._pages(folder, Prefix=start, Delimiter="/")
            for common in page.get("CommonPrefixes", ())
        )
        return sorted(name for name in names if is_key(name))

    def copy(self, source_key: str, target_key: str) -> None:
        with self._reported("CopyObject", target_key, writes=True):
            self._copy(source_key, target_key)

    def link(self, source_key: str, target_key: str) -> bool:
        self.copy(source_key, target_key)  # by the server: no byte comes through us
        return True

    def link_many(self, links: Sequence[Link]) -> list[str]:
        def copy(link: Link) -> str:
            with self._reported("CopyObject", link.target_key, writes=True):
                return self._copy(link.source_key, link.target_key, link.size_bytes)

        for link in links:  # before the first of them is begun
            check_key(link.source_key), check_key(link.target_key)
        return in_rounds([partial(copy, link) for link in links])

    def delete(self, key: str, version: str | None = None) -> None:
        name = self._name(key)
        condition = {} if version is None else {"IfMatch": version}

        def send() -> str:
            try:
                with boto_errors():
                    self._client.delete_object(Bucket=self.bucket, Key=name, **condition)
            except RequestFailure as failure:
                if failure.answer is not Answer.ABSENT:
                    raise
            return ""

        self._writes.delete(key, version, send)

    def delete_many(self, keys: Sequence[str]) -> None:
        names = [self._name(key) for key in keys]
        for start in range(0, len(names), DELETE_AT_ONCE):
            self._delete_some(names[start : start + DELETE_AT_ONCE])

    def end_uploads(self, folder: str, before: datetime, *, is_dry: bool = False) -> int:
        start = f"{self._start}{check_folder(folder)}/"
        with self._reported("ListBucketMultipartUploads", folder):
            stale = left_uploads(self._requests, start, before)
        for name, upload_id in () if is_dry else stale:
            with self._reported("AbortMultipartUpload", name[len(self._start) :]):
                abort_upload(self._requests, name, upload_id)
        return len(stale)

    def delete_markers(self, folder: str, but: Collection[str] = ()) -> None:
        start = f"{self._start}{check_folder(folder)}/"
        found = [item["Key"] for page in self._pages(folder, Prefix=start) for item in page.get("Contents", ())]
        markers = [name for name in found if name.endswith("/") and name[len(start) :].partition("/")[0] not in but]
        # The inner ones first: a server that keeps folders removes none that holds another.
        names = sorted((name for name in markers if name != start or not but), reverse=True)
        for first in range(0, len(names), DELETE_AT_ONCE):
            self._delete_some(names[first : first + DELETE_AT_ONCE])

    def _delete_some(self, names: list[str]) -> None:
        key = names[0][len(self._start) :]
        left = names

        def send() -> None:
            nonlocal left
            some = {"Objects": [{"Key": name} for name in left], "Quiet": True}
            errors = self._client.delete_objects(Bucket=self.bucket, Delete=some).get("Errors", ())
            left = [error["Key"] for error in errors]
            if errors:
                code = str(errors[0].get("Code", ""))
                status = 503 if code in ("InternalError", "ServiceUnavailable") else 403 if "Denied" in code else 400
                raise RequestFailure(classify(status, code), status, code, str(errors[0].get("Message", "")))

        with self._reported("DeleteObject", key, writes=True):
            self._answered(send)

    # writing

    def _putting(self, key: str, body: bytes, **condition: str) -> Callable[[str], str]:
        name = self._name(key)

        def send(write_id: str) -> str:
            with boto_errors():
                answer = self._client.put_object(
                    Bucket=self.bucket, Key=name, Body=body, Metadata={WRITE_ID: write_id}, **condition
                )
                return str(answer["ETag"])

        return send

    def _report(self, act: str, key: str, failure: RequestFailure, doubtful: bool) -> StreamStateError:
        action = "PutObject" if act == PUT else "DeleteObject"
        return as_error(failure, action=action, bucket=self.bucket, key=key, doubtful=doubtful)

    def _copy(self, source_key: str, target_key: str, size_bytes: int | None = None) -> str:
        """The checksum of the copy; raises RequestFailure, and ObjectMissingError."""
        source, target = self._name(source_key), self._name(target_key)
        if source == target:
            # S3 refuses to copy an object onto itself.
            checksum = self.checksum_of(source_key)
            if checksum is None:
                raise _missing(source_key)
            return checksum
        try:
            return self._copier.copy(source, target, size_bytes)
        except RequestFailure as failure:
            if failure.answer is Answer.ABSENT:
                raise _missing(source_key) from None
            raise

    # reading

    def _listed(self, prefix: str) -> Iterator[ObjectInfo]:
        for page in self._pages(prefix, Prefix=self._start + prefix):
            for item in page.get("Contents", ()):
                key = item["Key"][len(self._start) :]
                # A key that ends in a slash is a directory marker of another program's.
                if is_key(key):
                    yield ObjectInfo(key, item["Size"], item["ETag"])

    def _pages(self, key: str, **request: str) -> Iterator[Mapping[str, Any]]:
        while True:
            with self._reported("ListBucket", key):
                page: Mapping[str, Any] = self._answered(
                    lambda: self._client.list_objects_v2(Bucket=self.bucket, **request)
                )
                if page.get("IsTruncated") and not page.get("NextContinuationToken"):
                    # Half a list must not be taken for the whole.
                    raise RequestFailure(
                        Answer.REFUSED, 200, "NoContinuationToken", "the server does not go on listing"
                    )
            yield page
            if not page.get("IsTruncated"):
                return
            request["ContinuationToken"] = page["NextContinuationToken"]

    def _get(self, key: str) -> tuple[StoredObject, str] | None:
        """The object, and the id of the put that wrote it ("" where another program did)."""
        name = self._name(key)

        def send() -> tuple[StoredObject, str]:
            answer = self._client.get_object(Bucket=self.bucket, Key=name)
            stored = StoredObject(key, answer["Body"].read(), answer["ETag"])
            return stored, str(answer.get("Metadata", {}).get(WRITE_ID, ""))

        with self._reported("GetObject", key):
            return self._unless_absent(send)

    def _head(self, key: str, **request: str) -> Mapping[str, Any] | None:
        name = self._name(key)
        with self._reported("HeadObject", key):
            try:
                answer: Mapping[str, Any] = self._answered(
                    lambda: self._client.head_object(Bucket=self.bucket, Key=name, **request)
                )
                return answer
            except RequestFailure as failure:
                if failure.answer is Answer.ABSENT and self._is_bucket_seen:
                    return None
                if not failure.is_mute or failure.answer not in (Answer.ABSENT, Answer.REFUSED):
                    raise
        # Answers to HEAD have no body: no bucket, an unknown access key, an expired token and no such object look the
        # same. A GET says which it is.
        with self._reported("GetObject", key):
            return self._unless_absent(lambda: self._opened(name))

    def _opened(self, name: str) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = self._client.get_object(Bucket=self.bucket, Key=name)
        answer["Body"].close()
        return answer

    def _unless_absent(self, send: Callable[[], Result]) -> Result | None:
        """The answer to a GET; None where there is no object, which means a bucket that is there."""
        try:
            return self._answered(send)
        except RequestFailure as failure:
            if failure.answer is not Answer.ABSENT:
                raise
            self._is_bucket_seen = True
            return None

    def _answered(self, send: Callable[[], Result]) -> Result:
        def translated() -> Result:
            with boto_errors():
                return send()

        result = until_answered(self._clock, translated)
        self._is_bucket_seen = True
        return result

    def _name(self, key: str) -> str:
        return self._start + check_key(key)

    @contextmanager
    def _reported(self, action: str, key: str, *, writes: bool = False) -> Iterator[None]:
        try:
            yield
        except RequestFailure as failure:
            doubtful = writes and failure.answer is Answer.UNKNOWN
            raise as_error(failure, action=action, bucket=self.bucket, key=key, doubtful=doubtful) from failure


def _missing(source_key: str) -> ObjectMissingError:
    return ObjectMissingError("there is no object to copy or link", key=source_key)
