"""The one loop under every wait."""

from __future__ import annotations

import pytest

from airflow_streamstate.controller.wait.waiting import poll
from support.fake_clock import FakeClock


def test_what_comes_ends_the_wait() -> None:
    """The first thing to see is the result, and there is no pause after it."""
    clock, seen = FakeClock(), iter([None, None, "it"])
    assert poll(clock, lambda: next(seen), timeout_seconds=60, pause_seconds=lambda: 2.0) == "it"
    assert clock.slept_seconds == [2.0, 2.0]


@pytest.mark.parametrize(("timeout_seconds", "looks"), [(0, 1), (-5, 1), (5, 4)])
def test_every_wait_ends_and_looks_once_more_at_its_end(timeout_seconds: float, looks: int) -> None:
    """No wait is longer than its deadline, and what comes in the last pause is still seen (Law 6)."""
    clock, count = FakeClock(), []
    assert poll(clock, lambda: count.append(1), timeout_seconds=timeout_seconds, pause_seconds=lambda: 2.0) is None
    assert len(count) == looks
    assert sum(clock.slept_seconds) == max(0, timeout_seconds)
