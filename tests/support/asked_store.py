"""A store in memory that records its reads, and may wait, refuse or be silent first."""

from __future__ import annotations

import threading
from collections.abc import Callable

from airflow_streamstate.store.memory import MemoryStore
from support.fake_clock import FakeClock


class AskedStore(MemoryStore):
    """Reads parts of objects, as a place of a fetch.

    Attributes:
        asked: (key, first byte, how many bytes) of every piece.
        before: called with the key before each is given.
    """

    def __init__(self, name: str = "first") -> None:
        super().__init__(name)
        self.asked: list[tuple[str, int, int]] = []
        self.before: Callable[[str], None] = lambda _key: None

    def read_range(self, key: str, start: int, size_bytes: int) -> bytes | None:
        self.asked.append((key, start, size_bytes))
        self.before(key)
        stored = self.get(key)
        return None if stored is None else stored.body[start : start + size_bytes]

    @property
    def later_pieces(self) -> int:
        """How many pieces were not the first of their file: 0 where every file came as one."""
        return sum(1 for _, start, _ in self.asked if start)

    def fall_silent(self, clock: FakeClock, seconds: float) -> Callable[[], None]:
        """Let so much time pass at the first piece, and answer no more. Returns what ends the silence."""
        ended, lock, passed = threading.Event(), threading.Lock(), []

        def hang(_key: str) -> None:
            with lock:
                if not passed:
                    passed.append(seconds)
                    clock.advance(seconds)
            ended.wait(60)

        self.before = hang
        return ended.set
