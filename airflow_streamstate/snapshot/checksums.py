"""The checksum file ``.NAME.crc`` that Hadoop's local file system keeps alongside every file that Spark writes.

Format, as measured on Spark 4.2: ``crc`` and a zero byte, the chunk length as a big-endian 32-bit integer, then one
big-endian CRC-32 (zlib's) per chunk. With it altered bytes are found before a snapshot is sealed.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Mapping
from functools import lru_cache

from airflow_streamstate.errors import DataError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.older_python import zipped
from airflow_streamstate.protocol.manifest import FileEntry, QuerySnapshot

# The CRC-32 of a whole file from those of its chunks: so a file is compared by one checksum of all its bytes.
#
# A CRC is linear: the CRC of two parts is M(crc of the first) xor (crc of the second), where M depends only on the
# length of the second. All chunks are joined in pairs, then the pairs, and so on; each round is a few table look-ups
# over all of them at once, as translations of bytes.

_BITS = 32
_BYTES = 4


def crc32_of_whole(crc32s: bytes, chunk_bytes: int, size_bytes: int) -> int | None:
    """The CRC-32 of a file with these checksums (big-endian, one per chunk); None where their number is wrong."""
    chunks = -(-size_bytes // chunk_bytes)
    if len(crc32s) != chunks * _BYTES:
        return None
    if not chunks:
        return 0
    last = int.from_bytes(crc32s[-_BYTES:], "big")
    before = _joined(crc32s[:-_BYTES], chunk_bytes)
    return _behind(before, bytes(size_bytes - (chunks - 1) * chunk_bytes)) ^ last


def _joined(crc32s: bytes, chunk_bytes: int) -> int:
    """The CRC-32 of full chunks."""
    count = len(crc32s) // _BYTES
    rounds = max(count - 1, 0).bit_length()
    whole = bytes(((1 << rounds) - count) * _BYTES) + crc32s  # zeros in front change nothing
    planes = [whole[plane::_BYTES] for plane in range(_BYTES)]
    for number in range(rounds):
        tables = _tables(chunk_bytes, number)
        moved = [
            [int.from_bytes(firsts.translate(table), "big") for table in row]
            for firsts, row in zipped((plane[0::2] for plane in planes), tables)
        ]
        pairs = len(planes[0]) // 2
        seconds = [int.from_bytes(plane[1::2], "big") for plane in planes]
        planes = [
            (moved[0][one] ^ moved[1][one] ^ moved[2][one] ^ moved[3][one] ^ seconds[one]).to_bytes(pairs, "big")
            for one in range(_BYTES)
        ]
    return int.from_bytes(b"".join(planes), "big")


def _behind(crc32: int, zeros: bytes) -> int:
    """M(crc32) for a second part of this length."""
    return zlib.crc32(zeros, crc32) ^ zlib.crc32(zeros)


@lru_cache(maxsize=64)
def _columns(chunk_bytes: int, number: int) -> tuple[int, ...]:
    """M of a round, bit by bit."""
    if number == 0:
        zeros = bytes(chunk_bytes)
        return tuple(_behind(1 << bit, zeros) for bit in range(_BITS))
    half = _columns(chunk_bytes, number - 1)
    return tuple(_times(half, column) for column in half)


def _times(columns: tuple[int, ...], crc32: int) -> int:
    result = 0
    for bit in range(_BITS):
        if crc32 >> bit & 1:
            result ^= columns[bit]
    return result


@lru_cache(maxsize=64)
def _tables(chunk_bytes: int, number: int) -> tuple[tuple[bytes, ...], ...]:
    """For each byte of a CRC, and each byte of M of it, the table from the one to the other."""
    columns = _columns(chunk_bytes, number)
    rows = []
    for plane in range(_BYTES):
        shift = 8 * (_BYTES - 1 - plane)
        values = [_times(columns, byte << shift).to_bytes(_BYTES, "big") for byte in range(256)]
        rows.append(tuple(bytes(value[one] for value in values) for one in range(_BYTES)))
    return tuple(rows)


_MAGIC = b"crc\x00"
_HEADER_BYTES = 8
_MAX_CHUNK_BYTES = 1 << 26


def companion_of(path: str) -> str:
    """The path of the checksum file of a path, both relative to the same folder."""
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}.{name}.crc"


def is_of_bytes(checksum: str) -> bool:
    """Whether a server's checksum (``ManyAtOnce.checksum_of``) depends on the bytes alone."""
    return bool(checksum) and not checksum.startswith("etag:")


class ServerCheck:
    """Compares a file, as its bytes arrive, with the server's checksum (``ManyAtOnce.checksum_of``)."""

    def __init__(self, checksum: str) -> None:
        kind, _, self._wanted = checksum.partition(":")
        self._crc32 = 0
        self._digest = hashlib.new(kind, usedforsecurity=False) if kind in ("md5", "sha1", "sha256") else None
        self.is_known = kind == "crc32" or self._digest is not None
        """Whether the standard library can compute it."""

    def update(self, data: bytes) -> None:
        """The next bytes of the file."""
        if self._digest is not None:
            self._digest.update(data)
        elif self.is_known:
            self._crc32 = zlib.crc32(data, self._crc32)

    def differs(self) -> bool:
        """Whether the whole file differs; False where the checksum cannot be computed."""
        found = f"{self._crc32:08x}" if self._digest is None else self._digest.hexdigest()
        return self.is_known and found != self._wanted


@dataclass(frozen=True)
class SparkChecksums:
    """The content of one checksum file.

    Attributes:
        chunk_bytes: how many bytes of the file each checksum covers; the last chunk may be shorter.
        packed: one big-endian CRC-32 per chunk.
    """

    chunk_bytes: int
    packed: bytes

    @property
    def crc32s(self) -> tuple[int, ...]:
        """One per chunk."""
        return struct.unpack(f">{len(self.packed) // 4}I", self.packed)


def parse_checksums(body: bytes, *, key: str) -> SparkChecksums:
    """The checksums in these bytes; ``key`` is named in the error.

    Raises:
        DataError: it is no checksum file of Hadoop's.
    """
    count, rest = divmod(len(body) - _HEADER_BYTES, 4)
    chunk_bytes = int.from_bytes(body[4:_HEADER_BYTES], "big")
    if body[:4] != _MAGIC or count < 0 or rest or not 0 < chunk_bytes <= _MAX_CHUNK_BYTES:
        raise DataError("this is not a checksum file of Hadoop's", key=key, size_bytes=len(body))
    return SparkChecksums(chunk_bytes, body[_HEADER_BYTES:])


class WholeCheck:
    """Compares a file, as its bytes arrive, with its checksums, at the cost of one checksum of all bytes."""

    def __init__(self, checksums: SparkChecksums) -> None:
        self._checksums = checksums
        self._crc32 = self._size_bytes = 0

    def update(self, data: bytes) -> None:
        """The next bytes of the file."""
        self._crc32 = zlib.crc32(data, self._crc32)
        self._size_bytes += len(data)

    def differs(self) -> bool:
        """Whether the whole file differs; ``ChecksumCheck`` reports where."""
        return crc32_of_whole(self._checksums.packed, self._checksums.chunk_bytes, self._size_bytes) != self._crc32


class ChecksumCheck:
    """Compares a file, as its bytes arrive, with its checksums, and finds the first chunk that differs."""

    def __init__(self, checksums: SparkChecksums) -> None:
        self._checksums = checksums
        self._crc32s = checksums.crc32s
        self._next = 0
        self._rest = b""
        self.first_altered: int | None = None
        """Offset in bytes of the first chunk that differs; None while none does."""

    def update(self, data: bytes) -> None:
        """The next bytes of the file."""
        size = self._checksums.chunk_bytes
        if self._rest:
            data = self._rest + data
        whole = len(data) // size * size
        view = memoryview(data)
        self._compare([zlib.crc32(view[start : start + size]) for start in range(0, whole, size)])
        self._rest = data[whole:]

    def finish(self) -> int | None:
        """After the last bytes: the offset of the first chunk that differs, is missing or is extra; None if all fit."""
        if self._rest:
            self._compare([zlib.crc32(self._rest)])
            self._rest = b""
        if self.first_altered is None and self._next != len(self._crc32s):
            self.first_altered = self._next * self._checksums.chunk_bytes
        return self.first_altered

    def _compare(self, found: list[int]) -> None:
        expected = self._crc32s[self._next : self._next + len(found)]
        if self.first_altered is None and tuple(found) != expected:
            differing = (number for number, pair in enumerate(zip(found, expected)) if pair[0] != pair[1])
            self.first_altered = (self._next + next(differing, len(expected))) * self._checksums.chunk_bytes
        self._next += len(found)


def content_digest(queries: Mapping[str, QuerySnapshot]) -> str:
    """Hex sha256 over the position of each query and its items: path, size, checksums.

    A server's entity tag is of one key only, and is left out.
    """
    content = {
        name: {
            "batch_id": query.position.batch_id,
            "planned_batch_id": query.position.planned_batch_id,
            "end_offsets": list(query.position.end_offsets),
            "items": [_item(entry) for entry in query.files],
        }
        for name, query in queries.items()
    }
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def _item(entry: FileEntry) -> list[object]:
    checksum = entry.checksum if is_of_bytes(entry.checksum) else ""
    return [entry.path, entry.size_bytes, entry.spark_crc32, checksum]
