"""The CRC-32 of a whole file from those of its chunks: a file is held against them by one checksum of all its bytes.

A CRC is linear: behind ``n`` more bytes the one of what came before is M(crc), M of ``n`` alone, and the one of both
parts is M(crc of the first) xor (crc of the second). All chunks are joined in pairs, then the pairs, and so on; each
round is some table look-ups over all of them at once, as translations of bytes.
"""

from __future__ import annotations

import zlib
from functools import lru_cache

_BITS = 32
_BYTES = 4


def crc32_of_whole(crc32s: bytes, chunk_bytes: int, size_bytes: int) -> int | None:
    """The CRC-32 of a file of which these are the checksums, chunk for chunk.

    Args:
        crc32s: big-endian, one behind the other.
        chunk_bytes: what each covers; the last may cover less.
        size_bytes: of the file.

    Returns:
        None where there are more or fewer of them than a file of this size has.
    """
    chunks = -(-size_bytes // chunk_bytes)
    if len(crc32s) != chunks * _BYTES:
        return None
    if not chunks:
        return 0
    last = int.from_bytes(crc32s[-_BYTES:], "big")
    before = _joined(crc32s[:-_BYTES], chunk_bytes)
    return _behind(before, bytes(size_bytes - (chunks - 1) * chunk_bytes)) ^ last


def _joined(crc32s: bytes, chunk_bytes: int) -> int:
    """Of full chunks alone."""
    count = len(crc32s) // _BYTES
    rounds = max(count - 1, 0).bit_length()
    whole = bytes(((1 << rounds) - count) * _BYTES) + crc32s  # zeros in front change nothing
    planes = [whole[plane::_BYTES] for plane in range(_BYTES)]
    for number in range(rounds):
        tables = _tables(chunk_bytes, number)
        moved = [
            [int.from_bytes(firsts.translate(table), "big") for table in row]
            for firsts, row in zip((plane[0::2] for plane in planes), tables, strict=True)
        ]
        pairs = len(planes[0]) // 2
        seconds = [int.from_bytes(plane[1::2], "big") for plane in planes]
        planes = [
            (moved[0][one] ^ moved[1][one] ^ moved[2][one] ^ moved[3][one] ^ seconds[one]).to_bytes(pairs, "big")
            for one in range(_BYTES)
        ]
    return int.from_bytes(b"".join(planes), "big")


def _behind(crc32: int, zeros: bytes) -> int:
    """M(crc32) for so many bytes, whatever they are."""
    return zlib.crc32(zeros, crc32) ^ zlib.crc32(zeros)


@lru_cache(maxsize=64)
def _columns(chunk_bytes: int, number: int) -> tuple[int, ...]:
    """M of what a round moves its firsts by, bit by bit."""
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
    """For each byte of a CRC, and each byte of what becomes of it, the table of the one for the other."""
    columns = _columns(chunk_bytes, number)
    rows = []
    for plane in range(_BYTES):
        shift = 8 * (_BYTES - 1 - plane)
        values = [_times(columns, byte << shift).to_bytes(_BYTES, "big") for byte in range(256)]
        rows.append(tuple(bytes(value[one] for value in values) for one in range(_BYTES)))
    return tuple(rows)
