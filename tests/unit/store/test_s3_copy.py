"""Checksums in answers of S3."""

from __future__ import annotations

import base64
import zlib

import pytest

from airflow_streamstate.store.s3 import checksum_in


@pytest.mark.parametrize(
    ("answer", "checksum"),
    [
        ({"ChecksumCRC32": "NhCmhg==", "ETag": '"5d41402abc4b2a76b9719d911017c592"'}, "crc32:3610a686"),
        ({"ChecksumCRC64NVME": "M3eFcAZSQlc=", "ChecksumType": "FULL_OBJECT"}, "crc64nvme:3377857006524257"),
        ({"ETag": '"5d41402abc4b2a76b9719d911017c592"'}, "md5:5d41402abc4b2a76b9719d911017c592"),
        ({"ETag": '"5d41402abc4b2a76b9719d911017c592-3"'}, "etag:5d41402abc4b2a76b9719d911017c592-3"),
        ({"ChecksumCRC32": "NhCmhg==-3", "ETag": '"x-3"'}, "etag:x-3"),
        ({"ChecksumCRC32": "NhCmhg==", "ChecksumType": "COMPOSITE", "ETag": '"x-3"'}, "etag:x-3"),
        (
            {"ETag": '"5d41402abc4b2a76b9719d911017c592"', "ServerSideEncryption": "aws:kms"},
            "etag:5d41402abc4b2a76b9719d911017c592",
        ),
        (
            {"ETag": '"5d41402abc4b2a76b9719d911017c592"', "ServerSideEncryption": "AES256"},
            "md5:5d41402abc4b2a76b9719d911017c592",
        ),
    ],
)
def test_a_checksum_says_what_it_is(answer: dict[str, str], checksum: str) -> None:
    """Only what is over the bytes themselves is told as a checksum; an encrypted object's tag is no digest."""
    assert checksum_in(answer) == checksum


def test_the_standard_library_can_compare() -> None:
    """What S3 calls CRC32 is zlib's, so that bytes that are read can be held against it."""
    assert f"crc32:{zlib.crc32(b'hello'):08x}" == checksum_in({"ChecksumCRC32": "NhCmhg=="})
    assert base64.b64decode("NhCmhg==").hex() == f"{zlib.crc32(b'hello'):08x}"
