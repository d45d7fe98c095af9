"""The checksum file of Hadoop's local file system, for files that tests write."""

from __future__ import annotations

import struct
import zlib


def format_checksums(data: bytes, chunk_bytes: int = 512) -> bytes:
    """The checksum file that Hadoop would write for this data."""
    chunks = range(0, len(data), chunk_bytes)
    crc32s = [zlib.crc32(data[start : start + chunk_bytes]) for start in chunks]
    return b"crc\x00" + struct.pack(f">I{len(crc32s)}I", chunk_bytes, *crc32s)
