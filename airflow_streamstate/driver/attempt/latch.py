"""The latch of an attempt (1a.11): once it is closed, no query reads new input.

It closes under the lock that every ``start()`` holds, so a query either runs and gets its barrier, or is not started.
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
        command_id, command_number: "" and 0 where it was no command.
        command: its content; None where it was no command, or its content is lost.
    """

    command_id: str = ""
    command_number: int = 0
    command: Command | None = None


def order_of(command: Command, number: int) -> Order:
    return Order(command.command_id, number, command)


class Latch:
    """Open while queries may read input; closed for a stop, drain or snapshot; released when the shutdown is complete.

    After a snapshot, or a drain that was called off, it is reopened.

    Attributes:
        flush_has_begun: a query that starts now is not run any more.
        is_failing: it was closed because a query failed.
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
        """The lock of ``start()``, reentrant per thread. Without ``wait``: yields False if another thread holds it."""
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
        """Whether this thread is inside ``held``; the simulator has one thread for all, and waits then."""
        return self._owner == threading.get_ident()

    @property
    def is_open(self) -> bool:
        """Whether queries may read input."""
        return self.state == "open"

    @property
    def is_released(self) -> bool:
        """Whether the shutdown is complete, so that every wait of the script returns."""
        return self.released_at_seconds is not None

    def close(self, state: Literal["stop", "drain", "snapshot"], order: Order) -> bool:
        """Close it; False if it was closed already."""
        with self.held():
            if not self.is_open:
                return False
            self.state, self.order = state, order
            return True

    def reopen(self) -> None:
        """The order cannot be obeyed, and nothing was done yet: the queries run on."""
        with self.held():
            self.state, self.order, self.flush_has_begun = "open", Order(), False

    def begin_flush(self) -> None:
        self.flush_has_begun = True

    def note_failing(self) -> None:
        self.is_failing = True

    def release(self, outcome: EndedAs) -> None:
        """Flush, snapshot and terminal event are done."""
        self.outcome = outcome
        if self.released_at_seconds is None:
            self.released_at_seconds = self._clock.monotonic_seconds()
