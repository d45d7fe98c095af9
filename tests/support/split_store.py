"""Two stores as one: control objects in the home, Spark's files and snapshot data in the other."""

from __future__ import annotations

import re
from collections.abc import Iterator

from airflow_streamstate.store.base import ObjectInfo, Store, StoredObject

_DATA = re.compile(
    r"/(checkpoints|building|trials|gathered)(/|$)|/scratch/[^/]+/forks(/|$)|/snapshots/[^/]+/data(-[0-9]+)?(/|$)"
)


class SplitStore:
    """What ``checkpoints_uri`` is for, under one name: a simulation has one store for all.

    Args:
        data: for checkpoints and the data of snapshots.
    """

    def __init__(self, home: Store, data: Store) -> None:
        self._home = home
        self._data = data

    @property
    def uri(self) -> str:
        return self._data.uri

    def _of(self, key: str) -> Store:
        return self._data if _DATA.search(key) else self._home

    def get(self, key: str) -> StoredObject | None:
        return self._of(key).get(key)

    def head(self, key: str) -> ObjectInfo | None:
        return self._of(key).head(key)

    def create(self, key: str, body: bytes) -> str:
        return self._of(key).create(key, body)

    def replace(self, key: str, body: bytes, version: str) -> str:
        return self._of(key).replace(key, body, version)

    def put(self, key: str, body: bytes) -> str:
        return self._of(key).put(key, body)

    def list_objects(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._of(prefix).list_objects(prefix)

    def list_folders(self, folder: str) -> list[str]:
        return self._of(folder).list_folders(folder)

    def copy(self, source_key: str, target_key: str) -> None:
        self._of(target_key).copy(source_key, target_key)

    def link(self, source_key: str, target_key: str) -> bool:
        return self._of(target_key).link(source_key, target_key)

    def delete(self, key: str, version: str | None = None) -> None:
        self._of(key).delete(key, version)
