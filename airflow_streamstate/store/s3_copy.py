"""Copies on S3, all by the server: one, a large one part by part, and many side by side. No byte comes through us.

A copy may be done twice, so one whose answer was lost is simply sent again. The checksum of what was copied comes with
the answer, so that a list of copies costs one request per object and no other.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from airflow_streamstate.store.answers import Answer, RequestFailure
from airflow_streamstate.store.pieces import part_bytes_of
from airflow_streamstate.store.rounds import side_by_side
from airflow_streamstate.store.s3_client import Requests

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
