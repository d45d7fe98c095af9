"""Repeated tries: how many, for how long, with which pauses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar, Union, cast

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.frozen import dataclass

Result = TypeVar("Result")
Failure = TypeVar("Failure", bound=Exception)
Passing = Union[type[Failure], tuple[type[Failure], ...], Callable[[Exception], bool]]
"""The errors after which another try follows: classes, or a predicate."""


@dataclass(frozen=True)
class Retry:
    """Bounds and pauses of repeated tries.

    Attributes:
        tries: at most; None for no bound.
        for_seconds: no try starts later than this after the first; None for no bound (Law 6).
        pause_seconds: before the second try.
        growth: factor by which each pause is longer than the one before.
        most_pause_seconds: the longest pause.
        spreads: pauses vary by half, so that many callers do not come at once.
    """

    tries: int | None = None
    for_seconds: float | None = None
    pause_seconds: float = 0.0
    growth: float = 1.0
    most_pause_seconds: float = float("inf")
    spreads: bool = False

    def begin(self, clock: Clock = SYSTEM_CLOCK) -> Tries:
        """The tries of one act, for a loop: ``for attempt in RETRY.begin(clock)``."""
        return Tries(self, clock)

    def call(
        self,
        clock: Clock,
        act: Callable[[], Result],
        passing: Passing[Failure],
        on_failure: Callable[[Failure], None] = lambda _error: None,
    ) -> Result:
        """Call ``act``, which must be repeatable, until it succeeds.

        Args:
            passing: the errors after which it is tried again.
            on_failure: called with each error after which another try follows.

        Raises:
            Exception: an error of ``act`` that is not passing, or that of the last try.
        """
        for attempt in self.begin(clock):
            try:
                return act()
            except Exception as error:
                is_passing = isinstance(error, passing) if isinstance(passing, (type, tuple)) else passing(error)
                if not is_passing or attempt.is_last:
                    raise
                on_failure(cast(Failure, error))
        raise AssertionError("the last try neither returned nor raised")


class Tries:
    """The tries of one act; a loop over them pauses between rounds. ``number`` is that of the current one, from 1."""

    def __init__(self, retry: Retry, clock: Clock) -> None:
        self._retry = retry
        self._clock = clock
        self._begun_at = clock.monotonic_seconds()
        self.number = 0

    def __iter__(self) -> Iterator[Tries]:
        while self.number == 0 or not self.is_last:
            if self.number:
                self._pause()
            self.number += 1
            yield self

    @property
    def is_last(self) -> bool:
        """Whether no other try follows the current one."""
        retry = self._retry
        if retry.tries is not None and self.number >= retry.tries:
            return True
        return retry.for_seconds is not None and self._clock.monotonic_seconds() - self._begun_at >= retry.for_seconds

    def _pause(self) -> None:
        retry = self._retry
        seconds = min(retry.pause_seconds * retry.growth ** min(self.number - 1, 64), retry.most_pause_seconds)
        if seconds:
            self._clock.sleep(seconds * (0.5 + self._clock.jitter()) if retry.spreads else seconds)
