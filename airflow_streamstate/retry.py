"""Trying again: how often, for how long and with which pauses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar, cast

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock

Result = TypeVar("Result")
Failure = TypeVar("Failure", bound=Exception)
Passing = type[Failure] | tuple[type[Failure], ...] | Callable[[Exception], bool]
"""The errors after which another try is in order: their classes, or a function that tells."""


@dataclass(frozen=True)
class Retry:
    """Bounds and pauses of repeated tries.

    Attributes:
        tries: how many at most; None for no bound.
        for_seconds: no try is begun later than this after the first one; None for no bound (Law 6).
        pause_seconds: before the second try.
        growth: by what each pause is longer than the one before.
        most_pause_seconds: no pause is longer.
        spreads: whether pauses vary by half, so that many callers do not come at once.
    """

    tries: int | None = None
    for_seconds: float | None = None
    pause_seconds: float = 0.0
    growth: float = 1.0
    most_pause_seconds: float = float("inf")
    spreads: bool = False

    def begin(self, clock: Clock = SYSTEM_CLOCK) -> Tries:
        """The tries of one act, for a loop: ``for attempt in RETRY.begin(clock)``. Only pauses and ``for_seconds`` need
        the clock."""
        return Tries(self, clock)

    def call(
        self,
        clock: Clock,
        act: Callable[[], Result],
        passing: Passing[Failure],
        on_failure: Callable[[Failure], None] = lambda _error: None,
    ) -> Result:
        """Call ``act`` until it succeeds.

        Args:
            clock: for pauses and their bound.
            act: what is tried; it is repeatable.
            passing: the errors after which it is tried again.
            on_failure: told each of those after which another try follows.

        Raises:
            Exception: what ``act`` raised, if that is no such error, or by the last try.
        """
        for attempt in self.begin(clock):
            try:
                return act()
            except Exception as error:
                if not _is_passing(error, passing) or attempt.is_last:
                    raise
                on_failure(cast(Failure, error))
        raise AssertionError("the last try neither returned nor raised")


class Tries:
    """The tries of one act, one per round of a loop over it; it pauses between them.

    Attributes:
        number: of the try under way, from 1.
    """

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
        """Whether no other try follows the one under way."""
        retry = self._retry
        if retry.tries is not None and self.number >= retry.tries:
            return True
        return retry.for_seconds is not None and self._clock.monotonic_seconds() - self._begun_at >= retry.for_seconds

    def _pause(self) -> None:
        retry = self._retry
        seconds = min(retry.pause_seconds * retry.growth ** min(self.number - 1, 64), retry.most_pause_seconds)
        if seconds:
            self._clock.sleep(seconds * (0.5 + self._clock.jitter()) if retry.spreads else seconds)


def _is_passing(error: Exception, passing: Passing[Failure]) -> bool:
    if isinstance(passing, type | tuple):
        return isinstance(error, passing)
    return passing(error)
