"""A container's log in the file in which YARN keeps the logs of one node after the end (TFile, not compressed).

Hadoop's client for it is not among the jars that Spark brings. The layout is that of ``AggregatedLogFormat``: a record
per container, its key the container's id, its value in chunks; in it the logs, each as name, length and bytes.
"""

from __future__ import annotations

_BIG = (4, 5, 6, 7, 8)


def log_in(aggregated: bytes, container: str, name: str) -> bytes:
    """The log of this name of a container; b"" where the file has none that can be read."""
    key = _text(container)
    at = aggregated.find(key)
    while at >= 0:
        try:
            found = _logs(_value(aggregated, at + len(key)))
        except (IndexError, ValueError):
            found = {}
        if name in found:
            return found[name]
        at = aggregated.find(key, at + 1)
    return b""


def _text(text: str) -> bytes:
    body = text.encode()
    return len(body).to_bytes(2, "big") + body


def _value(data: bytes, at: int) -> bytes:
    """The value that begins there: chunks, each behind its length, which is negative for all but the last."""
    chunks = []
    while True:
        size, at = _number(data, at)
        chunk = data[at : at + abs(size)]
        if len(chunk) != abs(size):
            raise ValueError(size)
        chunks.append(chunk)
        at += abs(size)
        if size >= 0:
            return b"".join(chunks)


def _logs(value: bytes) -> dict[str, bytes]:
    found, at = {}, 0
    while at < len(value):
        name, at = _read_text(value, at)
        size, at = _read_text(value, at)
        found[name] = value[at : at + int(size)]
        at += int(size)
    return found


def _read_text(value: bytes, at: int) -> tuple[str, int]:
    end = at + 2 + int.from_bytes(value[at : at + 2], "big")
    return value[at + 2 : end].decode(), end


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number as TFile writes it, and where it ends."""
    first = data[at] - 256 if data[at] > 127 else data[at]
    if first >= -32:
        return first, at + 1
    kind = (first + 128) // 8
    if kind == 0:
        size = _BIG[first + 128] if first + 128 < len(_BIG) else 0
        return int.from_bytes(data[at + 1 : at + 1 + size], "big", signed=True), at + 1 + size
    size, base = (1, 52) if kind >= 7 else (2, 88) if kind >= 3 else (3, 112)
    return ((first + base) << (8 * size)) | int.from_bytes(data[at + 1 : at + 1 + size], "big"), at + 1 + size
