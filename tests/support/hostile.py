"""Objects that the package never writes: cut, flipped, of other types and versions, foreign, enormous."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from airflow_streamstate.protocol.codec import NEWEST_PROTOCOL

HUGE_BYTES = 10 << 20
HUGE_EVERY = 1_000
_WORDS: tuple[object, ...] = (
    None, True, False, -1, 0, 1, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 10**400, 0.5, -1e308, 1e308,
    "", " ", "x", "\x00", "é€😀", "\ud83d", "‮gnp", "../../etc/passwd", "/", "a/b", "%2e%2e", "A" * 300, "0" * 64,
    "9999-12-31T23:59:59.999-14:00", "0001-01-01T00:00:00+14:00", "2026-01-01T00:00:00", "2026-13-41T99:00:00Z",
    "253402300799999", "{}", "null", "NaN", [], {}, [[]], [None], {"": ""}, [{}], {"a": {"b": {"c": []}}},
)  # fmt: skip
_RAW: tuple[bytes, ...] = (
    b"", b" ", b"\n", b"\x00", b"\x00" * 512, b"null", b"true", b"0", b'""', b"[]", b"{}", b"[{}]", b"{", b"}",
    b"NaN",
    b'{"kind":', b"\xff\xfe", b"\xef\xbb\xbf{}", "{}".encode("utf-16"), b"\x1f\x8b\x08\x00", b"PK\x03\x04", b"<xml/>",
    b"[" * 5_000, b'{"a":' * 5_000, b"[" * 100_000 + b"]" * 100_000, b'"' + b"\\ud83d" * 3 + b'"', b"-" * 100, b"1e999",
    b"9" * 5_000, b'{"a":1,"a":2}', b"v1", b"v1\n", b"v2\n{}", b"v1\n{}\n-", b"v99\n{}\n{}", b"v1\n[]\n-",
)  # fmt: skip


def hostile_bytes(random: Random, good: bytes, others: Sequence[bytes]) -> tuple[str, bytes]:
    """A way of spoiling an object, and what comes of it; now and then it is still a good one.

    Args:
        others: objects of other kinds, deployments and streams.
    """
    if random.randrange(HUGE_EVERY) == 0:
        return "huge", _huge(random, good)
    way = random.choice(tuple(_WAYS))
    return way, _WAYS[way](random, good, others)


def _word(random: Random) -> object:
    """Each time another one: what is put into an object may be changed there."""
    return copy.deepcopy(random.choice(_WORDS))


def _huge(random: Random, good: bytes) -> bytes:
    if random.random() < 0.5:
        return good + b" " * HUGE_BYTES
    return json.dumps({"kind": "A" * HUGE_BYTES, "protocol": NEWEST_PROTOCOL}).encode()


def _cut(random: Random, good: bytes, _others: Sequence[bytes]) -> bytes:
    return good[: random.randrange(len(good) + 1)]


def _flipped(random: Random, good: bytes, _others: Sequence[bytes]) -> bytes:
    body = bytearray(good)
    for _ in range(random.choice((1, 1, 2, 8)) if body else 0):
        body[random.randrange(len(body))] ^= 1 << random.randrange(8)
    return bytes(body)


def _spliced(random: Random, good: bytes, others: Sequence[bytes]) -> bytes:
    other = random.choice(others)
    return good[: random.randrange(len(good) + 1)] + other[random.randrange(len(other) + 1) :]


def _raw(random: Random, _good: bytes, _others: Sequence[bytes]) -> bytes:
    return random.choice(_RAW)


def _noise(random: Random, _good: bytes, _others: Sequence[bytes]) -> bytes:
    return random.randbytes(random.choice((1, 16, 4_096)))


def _foreign(random: Random, _good: bytes, others: Sequence[bytes]) -> bytes:
    return random.choice(others)


def _newer(random: Random, good: bytes, _others: Sequence[bytes]) -> bytes:
    def change(raw: dict[str, Any]) -> None:
        raw["protocol"] = random.choice((0, -1, 2, 999, 2**70, "1", 1.0, True, None, [1]))

    return _changed(good, change)


def _other_kind(random: Random, good: bytes, _others: Sequence[bytes]) -> bytes:
    def change(raw: dict[str, Any]) -> None:
        raw["kind"] = random.choice(("Drained", "StopRequest", "nosuch", "", None, 1, ["Drained"], "a" * 10_000))

    return _changed(good, change)


def _retyped(random: Random, good: bytes, _others: Sequence[bytes]) -> bytes:
    """One to three values, anywhere, are something else."""

    def change(raw: dict[str, Any]) -> None:
        for _ in range(random.choice((1, 1, 1, 3))):
            place, key = _some_place(random, raw)
            place[key] = _word(random)

    return _changed(good, change)


def _lacking(random: Random, good: bytes, _others: Sequence[bytes]) -> bytes:
    def change(raw: dict[str, Any]) -> None:
        place, key = _some_place(random, raw)
        del place[key]

    return _changed(good, change)


def _enriched(random: Random, good: bytes, _others: Sequence[bytes]) -> bytes:
    """Unknown fields: still good, by Law 7."""

    def change(raw: dict[str, Any]) -> None:
        raw[random.choice(("later", "__class__", "self", "é", ""))] = _word(random)

    return _changed(good, change)


def _nested(random: Random, good: bytes, _others: Sequence[bytes]) -> bytes:
    def change(raw: dict[str, Any]) -> None:
        deep: object = "x"
        for _ in range(random.choice((50, 500))):
            deep = [deep] if random.random() < 0.5 else {"a": deep}
        place, key = _some_place(random, raw)
        place[key] = deep

    return _changed(good, change)


def _changed(good: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    try:
        raw = json.loads(good)
    except (ValueError, RecursionError):  # it was spoilt before
        return good[1:]
    if not isinstance(raw, dict) or not raw:
        return good[1:]
    change(raw)
    return json.dumps(raw).encode()


def _some_place(random: Random, raw: dict[str, Any]) -> tuple[Any, Any]:
    """A container somewhere in the object, and a key of it."""
    place: Any = raw
    while True:
        keys = list(place) if isinstance(place, Mapping) else list(range(len(place)))
        key = random.choice(keys)
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or random.random() < 0.3:
            return place, key
        place = inner


_WAYS: Mapping[str, Callable[[Random, bytes, Sequence[bytes]], bytes]] = {
    "cut": _cut,
    "flipped": _flipped,
    "spliced": _spliced,
    "raw": _raw,
    "noise": _noise,
    "foreign": _foreign,
    "newer": _newer,
    "other kind": _other_kind,
    "retyped": _retyped,
    "lacking": _lacking,
    "enriched": _enriched,
    "nested": _nested,
}
