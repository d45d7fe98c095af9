"""A clock in real time whose actors are threads, for the same simulations."""

from __future__ import annotations

import threading
from collections.abc import Callable

from airflow_streamstate.clock import SystemClock
from support.acting_clock import ActingClock

HASTE = 25
"""Actors act this many times as often as they ask to: a batch of half a second ends after a few hundredths."""


class ThreadedClock(SystemClock, ActingClock):
    """Every registered actor acts in its own thread."""

    def __init__(self) -> None:
        self._is_over = threading.Event()

    def every(self, seconds: float, act: Callable[[], None]) -> Callable[[], None]:
        ended = threading.Event()

        def loop() -> None:
            while not ended.is_set() and not self._is_over.is_set():
                act()
                ended.wait(seconds / HASTE)

        threading.Thread(target=loop, daemon=True).start()
        return ended.set

    def after(self, seconds: float, act: Callable[[], None]) -> Callable[[], None]:
        timer = threading.Timer(seconds, act)
        timer.daemon = True
        timer.start()
        return timer.cancel

    def end(self) -> None:
        """All actors have ended."""
        self._is_over.set()
