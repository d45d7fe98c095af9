"""The CRC-32 of a file from those of its chunks."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_streamstate.snapshot.checksums import crc32_of_whole


def checksums(data: bytes, chunk_bytes: int) -> bytes:
    found = [zlib.crc32(data[at : at + chunk_bytes]) for at in range(0, len(data), chunk_bytes)]
    return struct.pack(f">{len(found)}I", *found)


@given(st.binary(max_size=3000), st.integers(1, 700))
def test_it_is_what_zlib_says_of_all_bytes(data: bytes, chunk_bytes: int) -> None:
    """Whatever the chunks, and however many."""
    assert crc32_of_whole(checksums(data, chunk_bytes), chunk_bytes, len(data)) == zlib.crc32(data)


@pytest.mark.parametrize("size_bytes", [0, 1, 511, 512, 513, 1024, 1 << 20, 1_000_003])
def test_it_holds_for_the_chunks_that_hadoop_makes(size_bytes: int) -> None:
    """Of 512 bytes each, up to files of some size."""
    data = bytes(number * 7 % 251 for number in range(size_bytes))
    assert crc32_of_whole(checksums(data, 512), 512, size_bytes) == zlib.crc32(data)


@given(st.binary(min_size=1, max_size=3000), st.data())
def test_one_altered_checksum_is_seen(data: bytes, draw: st.DataObject) -> None:
    """So is an altered chunk: one bit of any of them makes another whole."""
    found = bytearray(checksums(data, 64))
    found[draw.draw(st.integers(0, len(found) - 1))] ^= 1 << draw.draw(st.integers(0, 7))
    assert crc32_of_whole(bytes(found), 64, len(data)) != zlib.crc32(data)


@pytest.mark.parametrize("size_bytes", [0, 512, 1025])
def test_checksums_of_another_size_are_none(size_bytes: int) -> None:
    """Two checksums are of more than one chunk and of no more than two."""
    assert crc32_of_whole(bytes(8), 512, size_bytes) is None
