"""A part of an object, with every store: where the store can give one, no other byte of it is read."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from airflow_streamstate.store.interface import Store


@runtime_checkable
class ReadsRanges(Protocol):
    """A store that reads parts of objects."""

    def read_range(self, key: str, start: int, size_bytes: int) -> bytes | None:
        """So many bytes from ``start`` on, fewer where the object ends before; None where there is no object."""


def read_range(store: Store, key: str, start: int, size_bytes: int) -> bytes | None:
    """As ``ReadsRanges.read_range``; raises what ``Store.get`` raises."""
    if isinstance(store, ReadsRanges):
        return store.read_range(key, start, size_bytes)
    stored = store.get(key)
    return None if stored is None else stored.body[start : start + size_bytes]
