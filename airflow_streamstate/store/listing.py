"""The keys below a prefix, with every store, without sizes: a disk tells a size by a look at each file.

A checkpoint keeps a hundred versions of its state, and a snapshot takes the last of them.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from airflow_streamstate.store.interface import ObjectInfo, Store


@runtime_checkable
class ListsKeys(Protocol):
    """A store that lists names for less than sizes."""

    def list_keys(self, prefix: str) -> list[str]:
        """The keys of ``Store.list_objects``, in its order."""


def keys_below(store: Store, prefix: str) -> list[str]:
    """The keys of ``Store.list_objects``, in its order; raises what it raises."""
    if isinstance(store, ListsKeys):
        return store.list_keys(prefix)
    return [info.key for info in store.list_objects(prefix)]


def versions_below(store: Store, prefix: str) -> dict[str, ObjectInfo]:
    """The objects of ``Store.list_objects`` by key, where that tells versions; {} where it does not, as on a disk.

    A store that lists names for less than sizes is not asked: to tell a version it would have to read.
    """
    if isinstance(store, ListsKeys):
        return {}
    return {info.key: info for info in store.list_objects(prefix) if info.version}
