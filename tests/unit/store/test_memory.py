"""What only a store in memory has."""

from __future__ import annotations

import pytest

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.store.memory import MemoryStore


def test_what_is_stored_is_the_stores_own() -> None:
    """A buffer that its owner changes after the write changes nothing that is stored."""
    store = MemoryStore()
    body = bytearray(b"1")
    store.put("a", body)
    body[:] = b"2"
    assert store.get("a").body == b"1"


def test_equal_bytes_have_equal_versions() -> None:
    """Versions are digests, as on a disk, so a simulation sees what a real store would show."""
    store = MemoryStore()
    assert store.put("a", b"1") == store.create("b", b"1") != store.put("c", b"2")


def test_a_name_is_an_object_or_a_folder() -> None:
    """What a disk would refuse is refused here, too, and room is made by deleting."""
    store = MemoryStore()
    store.put("a/b", b"")
    store.put("x", b"")
    for key in ("a", "a/b/c", "x/y/z"):
        for act in (lambda key=key: store.put(key, b""), lambda key=key: store.copy("x", key)):
            with pytest.raises(InvalidRequestError, match="cannot have the same name"):
                act()
    store.delete("a/b")
    store.put("a", b"")
    assert [info.key for info in store.list_objects("")] == ["a", "x"]
