"""Processes of a simulation: each runs as it is written, in one thread, and time passes only while all of them sleep.

A process is a greenlet with its own clock over one common time: what its clock lets act (its agent, its queries)
acts while that process sleeps, and dies with it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from greenlet import getcurrent, greenlet

from support.acting_clock import ActingClock
from support.fake_clock import START_AT


class Schedule:
    """The common time, and the process that wakes up next.

    Args:
        limit_seconds: nothing simulated takes longer; a wait without an end so fails instead of hanging.
    """

    def __init__(self, limit_seconds: float) -> None:
        self.now_seconds = 0.0
        self.limit_seconds = limit_seconds
        self.main = getcurrent()
        self._waiting: list[tuple[float, int, Process]] = []
        self._count = 0

    def start(self, name: str, body: Callable[[Process], Any]) -> Process:
        """A new process, which starts now."""
        self._count += 1
        process = Process(self, name, self._count, body)
        self._push(self.now_seconds, process)
        return process

    def wait_until(self, moment_seconds: float) -> None:
        """Let the process that calls this sleep."""
        process: Process = getcurrent().process
        if process.is_dying:
            raise ProcessDyingError
        if moment_seconds > self.limit_seconds:
            raise AssertionError(f"{process.name} sleeps beyond {self.limit_seconds:g} s: a process waits for ever")
        self._push(max(moment_seconds, self.now_seconds), process)
        self.main.switch()

    def run_until(self, is_over: Callable[[], bool]) -> None:
        """Let all processes act until ``is_over`` is true, or none is left."""
        while self._waiting and not is_over():
            moment, _, process = heapq.heappop(self._waiting)
            self.now_seconds = max(self.now_seconds, moment)
            process.go_on()

    def _push(self, moment_seconds: float, process: Process) -> None:
        self._count += 1
        heapq.heappush(self._waiting, (moment_seconds, self._count, process))


class ProcessDyingError(BaseException):
    """A process that was killed tries to sleep in its last moment."""


class ProcessClock(ActingClock):
    """The clock of one process: the common time, and actors of its own.

    Attributes:
        wrong_seconds: how far its wall clock is ahead.
    """

    def __init__(self, schedule: Schedule, seed: int) -> None:
        super().__init__(seed=seed, limit_seconds=schedule.limit_seconds)
        self._schedule = schedule
        self.wrong_seconds = 0.0

    def now(self) -> datetime:
        return START_AT + timedelta(milliseconds=int((self._schedule.now_seconds + self.wrong_seconds) * 1000))

    def monotonic_seconds(self) -> float:
        return self._schedule.now_seconds

    def _move_to(self, moment_seconds: float) -> None:
        if moment_seconds > self._schedule.now_seconds:
            self._schedule.wait_until(moment_seconds)


class Process:
    """One process.

    Attributes:
        has_ended: whether nothing of it acts any more.
    """

    def __init__(self, schedule: Schedule, name: str, seed: int, body: Callable[[Process], Any]) -> None:
        self.schedule = schedule
        self.name = name
        self.clock = ProcessClock(schedule, seed)
        self.result: Any = None
        self.error: BaseException | None = None
        self.has_ended = False
        self.is_dying = False
        self._body = body
        self._greenlet = greenlet(self._run, schedule.main)
        self._greenlet.process = self

    def go_on(self) -> None:
        """Act until the next sleep."""
        if not self.has_ended:
            self._greenlet.switch()

    def pause_until(self, moment_seconds: float) -> None:
        """Called by the process itself: pause with everything in it, as after SIGSTOP."""
        self.schedule.wait_until(moment_seconds)

    def kill(self, error: BaseException) -> None:
        """End it where it is, at once."""
        if self.has_ended:
            return
        if getcurrent() is self._greenlet:
            raise error
        if self._greenlet:
            self.is_dying = True
            self._greenlet.parent = getcurrent()  # where its end comes back to
            self._greenlet.throw(error)
        self.has_ended = True

    def _run(self) -> None:
        try:
            self.result = self._body(self)
        except BaseException as error:
            self.error = error
        self.has_ended = True
