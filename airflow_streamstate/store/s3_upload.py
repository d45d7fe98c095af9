"""Uploads to S3 in parts: of a large object only the parts that are just under way are held.

Nothing is at the target before all parts are there and the upload is completed, so a part may be sent twice. What
failed is aborted; the parts of a process that was killed stay, unseen, until they are collected or a rule of the bucket
ends them.
"""

from __future__ import annotations

import base64
import zlib
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from airflow_streamstate.store.answers import Answer, RequestFailure
from airflow_streamstate.store.pieces import UPLOADS_AT_ONCE, in_parts, part_bytes_of
from airflow_streamstate.store.s3_client import Requests
from airflow_streamstate.store.tries import Tries

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
