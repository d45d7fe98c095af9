"""The one latch of an attempt (1a.11): once closed, no query reads new input any more.

It closes under the lock that every ``start()`` holds, so that a query either runs and gets its barrier, or is not
started at all.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from airflow_streamstate.clock import Clock
from airflow_streamstate.protocol.commands import Command

LatchState = Literal["open", "stop", "drain", "snapshot"]
EndedAs = Literal["stopped", "drained", "failed", "finished", "superfluous"]


@dataclass(frozen=True)
class Order:
    """What closed the latch.

    Attributes:
        command_id, command_number: the command; "" and 0 where it was none.
        command: its content; None where it was none, or is not known any more.
    """

    command_id: str = ""
    command_number: int = 0
    command: Command | None = None


def order_of(command: Command, number: int) -> Order:
    """The order that a command gives."""
    return Order(command.command_id, number, command)


class Latch:
    """Open while the script runs its queries; then closed for a stop or a drain, and released.

    Closed for a snapshot, or for a drain that is called off, it is opened again.

    Attributes:
        flush_has_begun: whether a drain has gone so far that a query which starts now is not run.
        is_failing: whether it was closed because a query failed.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._owner: int | None = None
        self.state: LatchState = "open"
        self.order = Order()
        self.outcome: EndedAs | None = None
        self.released_at_seconds: float | None = None
        self.flush_has_begun = False
        self.is_failing = False

    @contextmanager
    def held(self, *, wait: bool = True) -> Iterator[bool]:
        """The lock of ``start()``; the same thread may take it twice. Without ``wait``, False where another has it."""
        if not self._lock.acquire(blocking=wait):
            yield False
            return
        before, self._owner = self._owner, threading.get_ident()
        try:
            yield True
        finally:
            self._owner = before
            self._lock.release()

    @property
    def is_held_here(self) -> bool:
        """Whether this very thread is inside ``held``: with one thread for all, as in a simulation, that means wait."""
        return self._owner == threading.get_ident()

    @property
    def is_open(self) -> bool:
        """Whether queries may read input."""
        return self.state == "open"

    @property
    def is_released(self) -> bool:
        """Whether the ending is complete, so that every wait of the script returns."""
        return self.released_at_seconds is not None

    def close(self, state: Literal["stop", "drain", "snapshot"], order: Order) -> bool:
        """Close it, unless somebody was first; whether this call did it."""
        with self.held():
            if not self.is_open:
                return False
            self.state, self.order = state, order
            return True

    def reopen(self) -> None:
        """What was ordered cannot be done, and nothing was done yet: the queries run after all."""
        with self.held():
            self.state, self.order, self.flush_has_begun = "open", Order(), False

    def begin_flush(self) -> None:
        """A drain flushes the queries that are there now."""
        self.flush_has_begun = True

    def note_failing(self) -> None:
        """The ending under way is that of a query which failed."""
        self.is_failing = True

    def release(self, outcome: EndedAs) -> None:
        """The ending is complete: flush, snapshot and event are done."""
        self.outcome = outcome
        if self.released_at_seconds is None:
            self.released_at_seconds = self._clock.monotonic_seconds()
