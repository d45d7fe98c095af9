"""For how long one process has seen a driver silent, by nothing but its own clock."""

from __future__ import annotations

from datetime import datetime

from airflow_streamstate.clock import Clock
from airflow_streamstate.controller.observe.observation import Observation

MOST_PAUSE_SECONDS = 60.0
"""Two looks that are further apart prove nothing of the time between them: the home, or this process, was away."""


class SilenceWatch:
    """What is remembered of one stream."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sign: tuple[str, int, datetime | None] | None = None
        self._since = self._last = 0.0

    def seconds(self, seen: Observation) -> float:
        """Take in a look; since when the same attempt was silent at each of them, with the same last heartbeat."""
        if seen.state != "silent":
            self._sign = None
            return 0.0
        now = self._clock.monotonic_seconds()
        sign = (seen.deployment_id, seen.attempt, None if seen.heartbeat is None else seen.heartbeat.at)
        if sign != self._sign or now - self._last > MOST_PAUSE_SECONDS:
            self._sign, self._since = sign, now
        self._last = now
        return now - self._since
