"""A store in memory with a multipart upload that a killed process left."""

from __future__ import annotations

from datetime import datetime

from airflow_streamstate.store.memory import MemoryStore
from support.fake_clock import FakeClock


class UploadingStore(MemoryStore):
    """A server on which one upload was left, started at the beginning of everything."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.uploads = {folder: FakeClock().now()}

    def end_uploads(self, folder: str, before: datetime, *, is_dry: bool = False) -> int:
        stale = [found for found, begun_at in self.uploads.items() if found == folder and begun_at < before]
        for one in () if is_dry else stale:
            del self.uploads[one]
        return len(stale)
