"""A clock that only moves when it is asked to, and whose ids and randomness are the same in every run."""

from __future__ import annotations

import threading
import uuid
from datetime import datetime, timedelta, timezone

START_AT = datetime(2026, 3, 1, 10, 0, tzinfo=timezone.utc)


class FakeClock:
    """Sleeping moves the time at once; ids are counted.

    Args:
        seed: clocks of different seeds make different ids.
    """

    def __init__(self, now: datetime = START_AT, *, seed: int = 0) -> None:
        self._start = now
        self._seed = seed
        self._elapsed_seconds = 0.0
        self._ids = 0
        self._lock = threading.Lock()
        self.slept_seconds: list[float] = []

    def now(self) -> datetime:
        with self._lock:
            return self._start + timedelta(milliseconds=int(self._elapsed_seconds * 1000))

    def monotonic_seconds(self) -> float:
        with self._lock:
            return self._elapsed_seconds

    def sleep(self, seconds: float) -> None:
        self.slept_seconds.append(seconds)
        self.advance(max(0.0, seconds))

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        with self._lock:
            self._elapsed_seconds += seconds

    def new_uuid(self) -> str:
        with self._lock:
            self._ids += 1
            return str(uuid.UUID(int=(self._seed << 64) + self._ids, version=4))

    def jitter(self) -> float:
        return 0.5
