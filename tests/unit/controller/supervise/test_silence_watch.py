"""For how long one watcher has seen a driver silent, by its own looks alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.controller.supervise.supervision import MOST_PAUSE_SECONDS, SilenceWatch
from support.fake_clock import FakeClock
from support.sim_stage import Stage

Look = Callable[[Observation, float], float]


@pytest.fixture
def silent(tmp_path: Path) -> Observation:
    """A driver that lives, as its launcher reports, and gives no sign of life."""
    stage = Stage(tmp_path)
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.beat()
    stage.clock.advance(3_600)
    seen = stage.seen()
    assert seen.state == "silent"
    return seen


@pytest.fixture
def look() -> Look:
    """Polls the given number of seconds after the poll before."""
    clock = FakeClock()
    watch = SilenceWatch(clock)

    def at(seen: Observation, after_seconds: float) -> float:
        clock.advance(after_seconds)
        return watch.seconds(seen)

    return at


def test_a_silence_counts_from_the_first_look_at_it(silent: Observation, look: Look) -> None:
    """However old the heartbeat is: the watcher's clock or its view of the home may be wrong. (Law 6)"""
    assert [look(silent, 0), look(silent, 10), look(silent, 20)] == [0, 10, 30]


def test_a_pause_between_two_looks_is_no_silence(silent: Observation, look: Look) -> None:
    """While the watcher or the home was away, the driver may have worked."""
    assert look(silent, 0) == 0
    assert look(silent, MOST_PAUSE_SECONDS) == MOST_PAUSE_SECONDS
    assert look(silent, MOST_PAUSE_SECONDS + 1) == 0
    assert look(silent, 5) == 5


def test_a_sign_of_life_ends_a_silence(silent: Observation, look: Look) -> None:
    """Also where the next poll finds the driver silent once more, or another attempt of it."""
    assert [look(silent, 0), look(silent, 50)] == [0, 50]
    assert silent.heartbeat is not None
    later = replace(silent.heartbeat, at=silent.heartbeat.at + timedelta(seconds=60))
    assert [look(replace(silent, heartbeat=later), 50), look(replace(silent, heartbeat=later), 10)] == [0, 10]
    assert look(replace(silent, attempt=2), 10) == 0


def test_a_driver_that_works_is_not_silent(silent: Observation, look: Look) -> None:
    """What was seen before it counts for nothing."""
    assert [look(silent, 0), look(silent, 50)] == [0, 50]
    working = replace(silent, heartbeat_age_seconds=0.0)
    assert working.state != "silent"
    assert [look(working, 1), look(silent, 1), look(silent, 9)] == [0, 0, 9]
