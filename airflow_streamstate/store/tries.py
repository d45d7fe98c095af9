"""Sending one request to a server until its answer is known: how often, how long, and with which pauses."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from airflow_streamstate.clock import Clock
from airflow_streamstate.errors import ConflictError, StreamStateError
from airflow_streamstate.store.answers import Answer, RequestFailure

Result = TypeVar("Result")

TRIES = 4
FIRST_PAUSE_SECONDS = 0.2
TRY_FOR_SECONDS = 30.0
"""After this long no other try is begun: a server that is silent must not hold up a deadline for minutes (Law 6)."""


class Tries:
    """The tries of one call.

    Args:
        clock: for pauses and their end.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until = clock.monotonic_seconds() + TRY_FOR_SECONDS
        self._made = 0

    def are_over(self) -> bool:
        """Count a try that was made; whether it was the last."""
        self._made += 1
        return self._made >= TRIES or self._clock.monotonic_seconds() >= self._until

    def pause(self) -> None:
        """Wait before the next try: twice as long each time, and never the same, so that many do not come at once."""
        self._clock.sleep(FIRST_PAUSE_SECONDS * 2 ** (self._made - 1) * (0.5 + self._clock.jitter()))


def until_answered(clock: Clock, send: Callable[[], Result]) -> Result:
    """Send a request that may be sent twice (a read, a copy), until there is an answer that lasts.

    Raises:
        RequestFailure: the answer is none that passes, or it did not pass within the tries.
    """
    tries = Tries(clock)
    while True:
        try:
            return send()
        except RequestFailure as failure:
            if not failure.answer.may_pass or tries.are_over():
                raise
        tries.pause()


def until_known(
    clock: Clock,
    send: Callable[[], str],
    read_back: Callable[[bool], str | None],
    conflict: ConflictError,
    report: Callable[[RequestFailure, bool], StreamStateError],
) -> str:
    """Send a write until its outcome is known, or its tries are over; the version that it left.

    Args:
        clock: for pauses between tries.
        send: one try, without any retry of its own.
        read_back: looks what is there; told whether a try of this write may have landed, it returns the version if one
            has, None if another try is in order, and else raises ``conflict``.
        conflict: what the caller is told when the condition does not hold.
        report: the package's error for a failure, and for whether a try may have landed.

    Raises:
        OutcomeUnknownError: a try may have landed, and it could not be read back (Law 8).
    """
    doubtful = False
    tries = Tries(clock)
    while True:
        try:
            return send()
        except RequestFailure as failure:
            last = failure
        doubtful = doubtful or last.answer is Answer.UNKNOWN
        if last.answer is Answer.REFUSED:
            break
        if not doubtful and last.answer in (Answer.PRECONDITION, Answer.ABSENT):
            raise conflict from last
        if doubtful or last.answer is Answer.BUSY:
            version = _read_back(read_back, report, last, doubtful)
            if version is not None:
                return version
        if tries.are_over():
            break
        tries.pause()
    if not doubtful and last.answer is Answer.BUSY:
        raise conflict from last
    raise report(last, doubtful) from last


def _read_back(
    read_back: Callable[[bool], str | None],
    report: Callable[[RequestFailure, bool], StreamStateError],
    last: RequestFailure,
    doubtful: bool,
) -> str | None:
    try:
        return read_back(doubtful)
    except ConflictError:
        raise
    except StreamStateError as error:
        # Neither written for certain nor readable: the caller must not take it for a loss.
        raise report(last, doubtful) from error
