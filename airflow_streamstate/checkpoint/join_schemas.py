"""Makes the state schemas of joins accept null in every column, after an empty first batch of ours.

Spark 4.2 and older plan an empty batch otherwise than one with input: what a filter such as ``ts is not null`` says of
a column is in one plan and not in the other. So the first batch with input would be refused by the schema that the
empty one left (``STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE``). A schema that accepts null fits both, and a row of state
is the same bytes under either. Spark 4.3 writes such schemas itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from airflow_streamstate.checkpoint.log import Checkpoint, delete_with_crc
from airflow_streamstate.errors import DataError

_SCHEMA = re.compile(r"[0-9]+/0/(left|right)-[A-Za-z]+/_metadata/schema")
_VERSION = "v2"
_MOST = 65_535
"""Java's ``writeUTF`` takes so many bytes, and Spark writes longer texts in chunks."""


def accept_nulls(checkpoint: Checkpoint) -> None:
    """Exchange the schemas of the joins of a checkpoint that is being built, and that no query runs on.

    Raises:
        DataError: a schema is damaged.
    """
    prefix = checkpoint.key("state/")
    found = [info.key for info in checkpoint.store.list_objects(prefix) if _SCHEMA.fullmatch(info.key[len(prefix) :])]
    for key in found:
        stored = checkpoint.store.get(key)
        if stored is None:
            continue
        body = with_nulls(stored.body, key)
        if body != stored.body:
            delete_with_crc(checkpoint.store, key)
            checkpoint.store.put(key, body)


def with_nulls(body: bytes, key: str) -> bytes:
    """The content of a schema file, with every column nullable; as it is where its version is another than 2.

    Raises:
        DataError: it is damaged; names the key.
    """
    try:
        version, at = _text(body, 0)
        if version != _VERSION.encode():
            return body
        texts = []
        for _ in ("key", "value"):
            count, at = int.from_bytes(body[at : at + 4], "big"), at + 4
            chunks = []
            for _ in range(count):
                chunk, at = _text(body, at)
                chunks.append(chunk)
            texts.append(b"".join(chunks))
    except ValueError as error:
        raise DataError("the schema of a join's state is damaged", key=key) from error
    if at != len(body):
        raise DataError("the schema of a join's state is damaged", key=key)
    # Within a JSON text a quotation mark is escaped, so these words are never part of a name.
    nullable = (text.replace(b'"nullable":false', b'"nullable":true') for text in texts)
    return _framed(version) + b"".join(_in_chunks(text) for text in nullable)


def _text(body: bytes, at: int) -> tuple[bytes, int]:
    end = at + 2 + int.from_bytes(body[at : at + 2], "big")
    if end > len(body) or at + 2 > len(body):
        raise ValueError("it is too short")
    return body[at + 2 : end], end


def _in_chunks(text: bytes) -> bytes:
    chunks = [_framed(chunk) for chunk in _chunks(text)]
    return len(chunks).to_bytes(4, "big") + b"".join(chunks)


def _chunks(text: bytes) -> Iterator[bytes]:
    while len(text) > _MOST:
        cut = _MOST
        while text[cut] & 0xC0 == 0x80:  # in the middle of a character
            cut -= 1
        yield text[:cut]
        text = text[cut:]
    yield text


def _framed(text: bytes) -> bytes:
    return len(text).to_bytes(2, "big") + text
