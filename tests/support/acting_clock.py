"""A clock whose ``sleep`` lets others act: a whole simulation in one thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from support.fake_clock import START_AT, FakeClock


@dataclass(order=True)
class _Actor:
    due_seconds: float
    number: int
    act: Callable[[], None] = field(compare=False)
    every_seconds: float | None = field(compare=False)
    is_acting: bool = field(default=False, compare=False)


class ActingClock(FakeClock):
    """While a caller sleeps, every registered actor acts when it is due, one after the other, in a fixed order.

    An actor may sleep itself; the others then continue within its sleep, and it is not called again before it is back.

    Args:
        seed: clocks of different seeds make different ids.
        limit_seconds: nothing simulated takes longer; a wait without an end so fails instead of hanging.
    """

    def __init__(self, now: datetime = START_AT, *, seed: int = 0, limit_seconds: float = 3_600.0) -> None:
        super().__init__(now, seed=seed)
        self._limit_seconds = limit_seconds
        self._actors: list[_Actor] = []
        self._count = 0

    def every(self, seconds: float, act: Callable[[], None]) -> Callable[[], None]:
        """Let it act at intervals of this many seconds. Returns what ends that."""
        return self._add(seconds, seconds, act)

    def after(self, seconds: float, act: Callable[[], None]) -> Callable[[], None]:
        """Let it act once, this many seconds from now. Returns what calls that off."""
        return self._add(seconds, None, act)

    def sleep(self, seconds: float) -> None:
        self.slept_seconds.append(seconds)
        end = self.monotonic_seconds() + max(0.0, seconds)
        while (actor := self._next(end)) is not None:
            self._move_to(actor.due_seconds)
            if actor.every_seconds is None:
                self._actors.remove(actor)
            else:
                actor.due_seconds = self.monotonic_seconds() + actor.every_seconds
            actor.is_acting = True
            try:
                actor.act()
            finally:
                actor.is_acting = False
        self._move_to(end)

    def _add(self, seconds: float, every_seconds: float | None, act: Callable[[], None]) -> Callable[[], None]:
        self._count += 1
        actor = _Actor(self.monotonic_seconds() + seconds, self._count, act, every_seconds)
        self._actors.append(actor)

        def remove() -> None:
            if actor in self._actors:
                self._actors.remove(actor)

        return remove

    def _next(self, end: float) -> _Actor | None:
        due = [actor for actor in self._actors if actor.due_seconds <= end and not actor.is_acting]
        return min(due, default=None)

    def _move_to(self, moment_seconds: float) -> None:
        if moment_seconds > self._limit_seconds:
            raise AssertionError(f"more than {self._limit_seconds:g} simulated seconds: an actor waits for ever")
        self.advance(max(0.0, moment_seconds - self.monotonic_seconds()))
