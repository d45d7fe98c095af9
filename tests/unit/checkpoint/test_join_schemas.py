"""The state schemas of joins, after an empty first batch."""

from __future__ import annotations

import pytest

from airflow_streamstate.checkpoint.log import crc_key_of
from airflow_streamstate.checkpoint.state_files import accept_nulls, with_nulls
from airflow_streamstate.errors import DataError
from support.checkpoints import memory_checkpoint


def framed(text: str) -> bytes:
    return len(text.encode()).to_bytes(2, "big") + text.encode()


def schema(key: str, value: str, version: str = "v2") -> bytes:
    """As Spark writes it, of short texts."""
    return framed(version) + b"".join(b"\0\0\0\1" + framed(text) for text in (key, value))


KEY = '{"type":"struct","fields":[{"name":"k","type":"string","nullable":%s,"metadata":{}}]}'
VALUE = '{"type":"struct","fields":[{"name":"ß","type":"timestamp","nullable":%s,"metadata":{}}]}'
STRICT, OPEN = (schema(KEY % word, VALUE % word) for word in ("false", "true"))


def test_the_schemas_of_joins_alone_accept_nulls() -> None:
    """Without the checksums that Hadoop would compare them with; a second time changes nothing."""
    checkpoint = memory_checkpoint()
    join, other = (checkpoint.key(f"state/0/0/{store}_metadata/schema") for store in ("left-keyWithIndexToValue/", ""))
    for key in (join, other):
        checkpoint.store.put(key, STRICT)
        checkpoint.store.put(crc_key_of(key), b"crc")
    for _ in range(2):
        accept_nulls(checkpoint)
        found = {key: stored.body for key in (join, other) if (stored := checkpoint.store.get(key)) is not None}
        assert found == {join: OPEN, other: STRICT}
    assert checkpoint.store.get(crc_key_of(join)) is None
    assert checkpoint.store.get(crc_key_of(other)) is not None


def test_long_schemas_are_written_in_chunks() -> None:
    """Cut between two characters."""
    field = '{"name":"ß","type":"string","nullable":false,"metadata":{}}'
    text = '{"type":"struct","fields":[' + ",".join([field] * 1_600) + "]}"
    chunks = [text[:40_000], text[40_000:80_000], text[80_000:]]
    body = framed("v2") + b"\0\0\0\1" + framed("{}") + b"\0\0\0\3" + b"".join(map(framed, chunks))
    found = with_nulls(body, "key")
    at = len(framed("v2") + b"\0\0\0\1" + framed("{}")) + 4
    texts = []
    while at < len(found):
        size = int.from_bytes(found[at : at + 2], "big")
        texts.append(found[at + 2 : at + 2 + size].decode())
        at += 2 + size
    assert "".join(texts) == text.replace("false", "true")
    assert len(texts) == 2


def test_other_versions_are_left_alone_and_damage_is_named() -> None:
    """Nothing is guessed."""
    assert with_nulls(schema("{}", "{}", "v3"), "key") == schema("{}", "{}", "v3")
    for damaged in (STRICT[:-1], STRICT + b"x", b"", b"\0"):
        with pytest.raises(DataError, match="damaged"):
            with_nulls(damaged, "the key")
