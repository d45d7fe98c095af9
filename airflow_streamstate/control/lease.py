"""Holding something for a time: the holder moves the end on while it lives; behind the end others may take it.

What is held, and until when, stands in a record or register that the others read: an adoption, a snapshot that is read
or taken, an upgrade that a task drives. This is the holder's own side of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from airflow_streamstate.clock import Clock

RENEW_SHARE = 0.25
"""A lease is renewed once this share of it has passed, so that a loop may ask for it at every step."""


class Lease:
    """What this process holds, and for how long it can be sure of it.

    Args:
        clock: of this process.
        seconds: how long it lasts without being renewed.
        is_held: whether it was written just now, by the caller; else it is due at once.
    """

    def __init__(self, clock: Clock, seconds: float, *, is_held: bool = False) -> None:
        self._clock = clock
        self.seconds = seconds
        self._since: tuple[float, datetime] | None = self._now() if is_held else None

    @contextmanager
    def renewed(self) -> Iterator[datetime]:
        """Renew it: the caller records the new end, which this yields, within the block.

        It lasts from before the write, however long that took; where the write raises, as before.
        """
        since = self._now()
        yield since[1] + timedelta(seconds=self.seconds)
        self._since = since

    def is_due(self, share: float = RENEW_SHARE) -> bool:
        """Whether this share of it has passed since it was last written."""
        return self.age_seconds >= self.seconds * share

    @property
    def age_seconds(self) -> float:
        """Since it was last written, by both clocks: the one may stand still while a machine sleeps, the other be
        set."""
        if self._since is None:
            return float("inf")
        (waited_seconds, moment), (began_seconds, began_at) = self._now(), self._since
        return max(waited_seconds - began_seconds, (moment - began_at).total_seconds())

    def _now(self) -> tuple[float, datetime]:
        return self._clock.monotonic_seconds(), self._clock.now()
