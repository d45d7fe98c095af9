"""Hadoop's checksum files."""

from __future__ import annotations

import contextlib
import struct
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_streamstate.errors import DataError
from airflow_streamstate.protocol.manifest import FileEntry, QuerySnapshot
from airflow_streamstate.protocol.positions import QueryPosition
from airflow_streamstate.snapshot.checksums import (
    ChecksumCheck,
    WholeCheck,
    companion_of,
    content_digest,
    crc32_of_whole,
    parse_checksums,
)
from support.hadoop_checksums import format_checksums

# What Spark 4.2 wrote on a local disk: commits/0, and the .0.crc alongside it.
SPARK_COMMIT = b'v1\n{"nextBatchWatermarkMs":1704067140000}'
SPARK_COMMIT_CRC = b"crc\x00\x00\x00\x02\x00\xbbJ\x18\x93"
pieces = st.lists(st.binary(max_size=1500), max_size=5)


def first_altered(checksums: bytes, *data: bytes) -> int | None:
    check = ChecksumCheck(parse_checksums(checksums, key="k"))
    for piece in data:
        check.update(piece)
    return check.finish()


def test_the_format_is_the_one_that_spark_writes() -> None:
    """A real file of Spark's and its real checksum file belong together, and ours are the same bytes."""
    assert format_checksums(SPARK_COMMIT) == SPARK_COMMIT_CRC
    assert first_altered(SPARK_COMMIT_CRC, SPARK_COMMIT) is None
    assert first_altered(SPARK_COMMIT_CRC, SPARK_COMMIT.replace(b"1704", b"1705")) == 0


@given(pieces, st.integers(1, 700))
def test_a_file_matches_its_own_checksums_in_whatever_pieces_it_comes(data: list[bytes], chunk_bytes: int) -> None:
    """The check does not depend on how the bytes are cut into pieces."""
    assert first_altered(format_checksums(b"".join(data), chunk_bytes), *data) is None


@given(pieces, st.binary(max_size=1500), st.integers(1, 700))
def test_the_check_of_the_whole_says_the_same(data: list[bytes], other: bytes, chunk_bytes: int) -> None:
    """Of a file, of a different one, in whatever pieces."""
    body = b"".join(data)
    checksums = parse_checksums(format_checksums(body, chunk_bytes), key="k")
    own, others = WholeCheck(checksums), WholeCheck(checksums)
    for piece in data:
        own.update(piece)
    others.update(other)
    assert not own.differs()
    assert others.differs() == (other != body)


@given(st.binary(min_size=1, max_size=2000), st.data())
def test_one_altered_byte_is_found_where_it_is(data: bytes, draw: st.DataObject) -> None:
    """The offset is that of the chunk in which the altered byte is."""
    at = draw.draw(st.integers(0, len(data) - 1))
    altered = data[:at] + bytes([data[at] ^ draw.draw(st.integers(1, 255))]) + data[at + 1 :]
    assert first_altered(format_checksums(data), altered) == at // 512 * 512


@given(st.binary(min_size=1, max_size=2000), st.integers(1, 2000))
def test_bytes_cut_off_or_added_are_found(data: bytes, count: int) -> None:
    """A file that is shorter or longer than its checksums state is altered."""
    checksums = format_checksums(data)
    assert first_altered(checksums, data[: max(0, len(data) - count)]) is not None
    assert first_altered(checksums, data + b"x" * count) is not None


@pytest.mark.parametrize(
    "body",
    [b"", b"crc\x00", b"crc\x00\x00\x00\x02", b"CRC\x00\x00\x00\x02\x00", b"crc\x00\x00\x00\x00\x00",
     b"crc\x00\xff\xff\xff\xff", b"crc\x00\x00\x00\x02\x00abc", b'{"crc":1}'],
)  # fmt: skip
def test_anything_else_is_refused(body: bytes) -> None:
    """A checksum file that is cut short, or none of Hadoop's, proves nothing and reports it."""
    with pytest.raises(DataError):
        parse_checksums(body, key="some/.0.crc")


@given(st.binary(max_size=64))
def test_reading_damaged_checksums_raises_nothing_but_a_data_error(body: bytes) -> None:
    """Whatever is there, reading it ends in checksums or in a DataError (Law 7)."""
    with contextlib.suppress(DataError):
        parse_checksums(body, key="k")


def test_the_companion_lies_beside_its_file() -> None:
    """``.NAME.crc`` in the same folder, also at the top."""
    assert companion_of("offsets/7") == "offsets/.7.crc"
    assert companion_of("metadata") == ".metadata.crc"


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


FILE = FileEntry("offsets/3", 10, "0a0b", "crc32:1")
POSITION = QueryPosition(3, ('{"logOffset":3}',))
QUERY = QuerySnapshot("id", POSITION, (FILE, FileEntry("state/0/0/4.delta", 20)))
DIGEST = content_digest({"counts": QUERY})


@pytest.mark.parametrize(
    "other",
    [
        replace(QUERY, files=QUERY.files[:1]),
        replace(QUERY, files=(replace(FILE, path="offsets/4"), *QUERY.files[1:])),
        replace(QUERY, files=(replace(FILE, size_bytes=11), *QUERY.files[1:])),
        replace(QUERY, files=(replace(FILE, spark_crc32="ff"), *QUERY.files[1:])),
        replace(QUERY, files=(replace(FILE, checksum="crc32:2"), *QUERY.files[1:])),
        replace(QUERY, position=replace(POSITION, batch_id=4)),
        replace(QUERY, position=replace(POSITION, planned_batch_id=4)),
        replace(QUERY, position=replace(POSITION, end_offsets=("5",))),
    ],
)
def test_what_holds_something_else_has_another_digest(other: QuerySnapshot) -> None:
    """Positions and items: paths, sizes, checksums; and the names of the queries."""
    assert content_digest({"counts": other}) != DIGEST
    assert content_digest({"counts": QUERY, "rows": other}) != DIGEST
    assert content_digest({"rows": QUERY}) != DIGEST


def test_what_differs_each_time_is_not_in_it() -> None:
    """Rows that were counted in the meantime, an entity tag of one key, the order in which queries were looked at."""
    counted = replace(QUERY, position=replace(POSITION, state_rows_left=7, rows_dropped=1))
    assert content_digest({"counts": counted}) == DIGEST
    tags = [content_digest({"q": replace(QUERY, files=(replace(FILE, checksum=f"etag:{one}"),))}) for one in "ab"]
    assert tags[0] == tags[1]
    assert content_digest({"a": QUERY, "b": counted}) == content_digest({"b": counted, "a": QUERY})
