"""Both sides of a lease: the holder moves its end on while it lives; after the end others may take it.

The lease itself is part of a record that the others read: an adoption, a snapshot's reader or writer, an upgrade.
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
        seconds: how long it lasts without being renewed.
        is_held: the caller has just written it; else it is due at once.
    """

    def __init__(self, clock: Clock, seconds: float, *, is_held: bool = False) -> None:
        self._clock = clock
        self.seconds = seconds
        self._since: tuple[float, datetime] | None = self._now() if is_held else None

    @contextmanager
    def renewed(self) -> Iterator[datetime]:
        """Renew it: the caller records the new end, which this yields, within the block.

        It lasts from before the write, however long that took; if the write raises, nothing changes.
        """
        since = self._now()
        yield since[1] + timedelta(seconds=self.seconds)
        self._since = since

    def is_due(self, share: float = RENEW_SHARE) -> bool:
        """Whether this share of it has passed since it was last written."""
        return self.age_seconds >= self.seconds * share

    @property
    def age_seconds(self) -> float:
        """Since it was last written, by both clocks: one may stand still while a machine sleeps, the other be set."""
        if self._since is None:
            return float("inf")
        (waited_seconds, moment), (began_seconds, began_at) = self._now(), self._since
        return max(waited_seconds - began_seconds, (moment - began_at).total_seconds())

    def _now(self) -> tuple[float, datetime]:
        return self._clock.monotonic_seconds(), self._clock.now()


class Unchanged:
    """Since when a sign of life of somebody else is the same, by the clock of this process alone: clocks that differ do
    not matter, and a process that has just begun knows of no silence."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sign = ""
        self._since_seconds = 0.0

    def seconds(self, sign: str) -> float:
        """For how long this process has seen this sign, and no other."""
        now_seconds = self._clock.monotonic_seconds()
        if sign != self._sign:
            self._sign, self._since_seconds = sign, now_seconds
        return now_seconds - self._since_seconds
