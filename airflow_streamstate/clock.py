"""Time, sleep, unique ids and randomness, in one place so that a simulation can replace all four.

Borrowed idea: SlateDB's linter bans direct use of clock and random; ``ruff``'s banned-api list does that here.
"""

from __future__ import annotations

import random
import time
import uuid
from datetime import datetime, timezone
from typing import Protocol


class Clock(Protocol):
    """The package's source of time and chance."""

    def now(self) -> datetime:
        """The wall clock: aware, UTC, whole milliseconds."""

    def monotonic_seconds(self) -> float:
        """A clock that never goes back, for waits inside one process."""

    def sleep(self, seconds: float) -> None:
        """Block for that many seconds."""

    def new_uuid(self) -> str:
        """A random uuid in its canonical lower-case form."""

    def jitter(self) -> float:
        """A random number in [0, 1), for spreading retries."""


class SystemClock:
    """The clock of the machine."""

    def now(self) -> datetime:
        return whole_milliseconds(datetime.now(timezone.utc))

    def monotonic_seconds(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))

    def new_uuid(self) -> str:
        return str(uuid.uuid4())

    def jitter(self) -> float:
        return random.random()


def whole_milliseconds(moment: datetime) -> datetime:
    """The moment without its microseconds, as it is written in a message."""
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


SYSTEM_CLOCK = SystemClock()
