"""The state schemas of joins, after an empty batch and before one."""

from __future__ import annotations

import pytest

from airflow_streamstate.checkpoint.fork import crc_path, place_files
from airflow_streamstate.checkpoint.guards import ENCODING
from airflow_streamstate.checkpoint.log import Checkpoint, OffsetEntry, crc_key_of, format_offset_entry
from airflow_streamstate.checkpoint.repair import repair_before_start
from airflow_streamstate.checkpoint.state_files import accept_nulls, with_nulls
from airflow_streamstate.errors import DataError
from support.checkpoints import commit_batch, memory_checkpoint


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


@pytest.mark.parametrize(("pins", "found"), [({}, OPEN), ({ENCODING: "unsaferow"}, STRICT)])
def test_before_a_start_on_spark_3_joins_accept_nulls(pins: dict[str, str], found: bytes) -> None:
    """A stop entry, a drain and a rehearsal run an empty batch there, which the recorded schema refuses. Of newer
    Sparks, which pin an encoding, nothing is touched."""
    checkpoint = memory_checkpoint()
    checkpoint.store.put(checkpoint.metadata_key, b'{"id":"q"}')
    checkpoint.store.put(checkpoint.offset_key(0), format_offset_entry(OffsetEntry(0, 0, pins, ("-",))))
    commit_batch(checkpoint, 0)
    key = checkpoint.key("state/0/0/left-keyWithIndexToValue/_metadata/schema")
    checkpoint.store.put(key, STRICT)
    repair_before_start(checkpoint, "d-0001")
    stored = checkpoint.store.get(key)
    assert stored is not None
    assert stored.body == found


def test_a_fork_is_made_of_schemas_that_accept_nulls() -> None:
    """So that every Spark continues the state of a join; the source keeps its own, and no checksum of that is taken."""
    source = memory_checkpoint()
    paths = [f"state/0/0/{side}-keyToNumValues/_metadata/schema" for side in ("left", "right")]
    for path in paths:
        source.store.put(source.key(path), STRICT)
        source.store.put(crc_key_of(source.key(path)), b"crc")
    target = Checkpoint(source.store, "forked")
    files = {path: source.key(path) for path in paths}
    place_files(source.store, {**files, **{crc_path(path): crc_key_of(key) for path, key in files.items()}}, target)
    for path in paths:
        found = [source.store.get(checkpoint.key(path)) for checkpoint in (source, target)]
        assert [stored.body for stored in found if stored is not None] == [STRICT, OPEN]
        assert target.store.get(target.key(crc_path(path))) is None


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
