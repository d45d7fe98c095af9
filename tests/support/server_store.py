"""A store in memory with the abilities of a server (batches, checksums); it counts reads."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from airflow_streamstate.store.base import Link, StoredObject
from airflow_streamstate.store.memory import MemoryStore


class ServerStore(MemoryStore):
    """See the module.

    Args:
        kind: of its checksums: ``crc32``, or ``etag`` as of one that keeps no checksum of the bytes.
    """

    def __init__(self, kind: str = "crc32") -> None:
        super().__init__()
        self.kind = kind
        self.read_keys: list[str] = []
        self.asked_keys: list[str] = []
        self.lists: list[int] = []

    def get(self, key: str) -> StoredObject | None:
        self.read_keys.append(key)
        return super().get(key)

    def link_many(self, links: Sequence[Link]) -> list[str]:
        self.lists.append(len(links))
        for link in links:
            self.copy(link.source_key, link.target_key)
        return [self._checksum(link.target_key) or "" for link in links]

    def delete_many(self, keys: Sequence[str]) -> None:
        self.lists.append(-len(keys))
        for key in keys:
            self.delete(key)

    def checksum_of(self, key: str) -> str | None:
        self.asked_keys.append(key)
        return self._checksum(key)

    def checksums_of(self, keys: Sequence[str]) -> list[str | None]:
        return [self.checksum_of(key) for key in keys]

    def _checksum(self, key: str) -> str | None:
        stored = MemoryStore.get(self, key)
        if stored is None:
            return None
        salt = key if self.kind == "etag" else ""
        return f"{self.kind}:{zlib.crc32(stored.body + salt.encode()):08x}"
