"""A store in memory that reports the times of its objects, as disks and servers do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from airflow_streamstate.store.base import ObjectInfo, StoredObject
from airflow_streamstate.store.memory import MemoryStore


class ClockedStore(MemoryStore):
    """A ``MemoryStore`` with its own clock.

    Args:
        now: the time of day at the store.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__()
        self._now = now
        self._modified: dict[str, datetime] = {}

    def put(self, key: str, body: bytes) -> str:
        version = super().put(key, body)
        self._modified[key] = self._now()
        return version

    def link(self, source_key: str, target_key: str) -> bool:
        shared = super().link(source_key, target_key)
        self._modified[target_key] = self._modified[source_key]
        return shared

    def get(self, key: str) -> StoredObject | None:
        found = super().get(key)
        return None if found is None else replace(found, modified_at=self._modified.get(key))

    def head(self, key: str) -> ObjectInfo | None:
        found = super().head(key)
        return None if found is None else replace(found, modified_at=self._modified.get(key))
