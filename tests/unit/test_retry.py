"""The one way to try again: bounds, pauses, and what is passed on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_streamstate.retry import Retry
from support.fake_clock import FakeClock


class LateError(Exception):
    """Another try may succeed."""


def failing(times: int, clock: FakeClock | None = None, seconds: float = 0.0) -> Callable[[], str]:
    """An act that fails this often, and takes the given time at each try."""
    left = [LateError(str(number)) for number in range(times)]

    def act() -> str:
        if clock is not None:
            clock.advance(seconds)
        if left:
            raise left.pop(0)
        return "done"

    return act


def test_pauses_grow_to_a_bound() -> None:
    """Between tries only; each failure that is followed by a try is reported."""
    clock, told = FakeClock(), list[str]()
    retry = Retry(tries=5, pause_seconds=1.0, growth=2, most_pause_seconds=3.0)
    assert retry.call(clock, failing(4), LateError, lambda error: told.append(str(error))) == "done"
    assert clock.slept_seconds == [1.0, 2.0, 3.0, 3.0]
    assert told == ["0", "1", "2", "3"]


def test_the_last_failure_is_raised() -> None:
    """After the last try, and at once where no other try is in order."""
    clock = FakeClock()
    with pytest.raises(LateError, match="2"):
        Retry(tries=3).call(clock, failing(9), LateError)
    with pytest.raises(LateError, match="0"):
        Retry(tries=3).call(clock, failing(9), KeyError)
    with pytest.raises(LateError, match="1"):
        Retry(tries=3).call(clock, failing(9), lambda error: str(error) == "0")


def test_no_try_begins_when_its_time_is_over() -> None:
    """However many tries are left. (Law 6)"""
    clock = FakeClock()
    act = failing(100, clock, seconds=4.0)
    begun = clock.monotonic_seconds()
    with pytest.raises(LateError):
        Retry(for_seconds=10.0, pause_seconds=1.0).call(clock, act, LateError)
    assert clock.monotonic_seconds() - begun == pytest.approx(14.0)


def test_a_loop_knows_its_last_try() -> None:
    """It ends after that one by itself."""
    rounds = [(one.number, one.is_last) for one in Retry(tries=3).begin()]
    assert rounds == [(1, False), (2, False), (3, True)]


def test_a_failure_may_end_the_tries() -> None:
    """What the report of a failure raises goes to the caller."""

    def give_up(_error: Exception) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        Retry(tries=3).call(FakeClock(), failing(1), LateError, give_up)
