"""Many acts side by side: their order, their first failure, and those that come again."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from airflow_streamstate.errors import InvalidRequestError, UnavailableError
from airflow_streamstate.store.transfer import in_rounds, side_by_side

DEADLINE_SECONDS = 20


def test_results_come_in_order() -> None:
    """However the acts overlap, each result is at its act's place."""
    together = threading.Barrier(4)

    def act(number: int) -> int:
        together.wait(DEADLINE_SECONDS)  # so four of them run at once
        return number

    assert side_by_side([partial(act, number) for number in range(8)], threads=4) == list(range(8))
    assert side_by_side([]) == []


def test_after_a_failure_nothing_goes_on() -> None:
    """Acts that had not begun never begin, and the failure comes when all that had are over."""
    begun: list[int] = []
    failing = threading.Event()

    def act(number: int) -> None:
        begun.append(number)
        if number == 0:
            failing.set()
            raise InvalidRequestError("no")
        assert failing.wait(DEADLINE_SECONDS)

    with pytest.raises(InvalidRequestError):
        side_by_side([partial(act, number) for number in range(1000)], threads=2)
    assert len(begun) < 1000
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("streamstate-s3")]


def test_what_outlasts_its_tries_comes_again() -> None:
    """Of many, some fail: these are done in another round, and none is done twice that was done."""
    done: list[int] = []
    failing = {3, 7, 11}

    def act(number: int) -> int:
        if number in failing:
            failing.remove(number)
            raise UnavailableError("not now")
        done.append(number)
        return number

    assert in_rounds([partial(act, number) for number in range(20)]) == list(range(20))
    assert sorted(done) == list(range(20))


def test_a_round_that_gets_nothing_done_is_the_last() -> None:
    """A server that is gone ends it after one more round. (Law 6)"""
    calls: list[int] = []

    def act(number: int) -> None:
        calls.append(number)
        if number:
            raise UnavailableError("gone")

    with pytest.raises(UnavailableError):
        in_rounds([partial(act, number) for number in range(3)])
    assert calls.count(0) == 1
