"""The windows that a drain closes early."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_streamstate.driver.attempt.attempt import InBackground
from airflow_streamstate.driver.shutdown.flush import MAX_PATIENCE_SECONDS, PATIENCE_SECONDS, OpenWindows
from airflow_streamstate.protocol.commands import StopRequest
from airflow_streamstate.protocol.events import Stopped
from support.simulated_driver import SimulatedDriver, ended_by, make_plan


@pytest.fixture
def driver() -> SimulatedDriver:
    """A driver whose query has stopped; the snapshot of that stop serves as the ``pre-drain`` one."""
    return ended_by(StopRequest, make_plan(20))


def snapshot_id(driver: SimulatedDriver) -> str:
    return driver.stream.events_of(Stopped)[0].snapshot_id


def kept_in(later: list[Callable[[], None]]) -> InBackground:
    """Work that is done when the test does it."""

    def keep(work: Callable[[], None], *, gives_way: bool = True) -> None:
        assert not gives_way, "the drain waits for it"
        later.append(work)

    return keep


def test_the_bounds_are_read_from_the_snapshot(driver: SimulatedDriver) -> None:
    """Earliest start and latest end of the open windows, whatever the flush does to the checkpoint in the meantime."""
    driver.stream.checkpoints.delete(driver.queries[0].checkpoint.commit_key(0))
    bounds = OpenWindows(driver.attempt_life.attempt, snapshot_id(driver), driver.queries).of("counts")
    assert bounds is not None
    assert (bounds[0].timestamp(), bounds[1].timestamp()) == (4.0, 5.0)


def test_nothing_is_known_without_a_snapshot(driver: SimulatedDriver) -> None:
    """A deployment that never committed a batch has no open window."""
    assert OpenWindows(driver.attempt_life.attempt, None, driver.queries).of("counts") is None


def test_a_failure_to_read_them_is_no_failure_of_the_drain(driver: SimulatedDriver) -> None:
    """The log has the state reader's error, and the bounds stay unknown."""
    windows = OpenWindows(driver.attempt_life.attempt, "d-0001-stopped-000009", driver.queries)
    assert windows.of("counts") is None
    driver.startables[0].open_windows = None  # type: ignore[method-assign,assignment]
    windows = OpenWindows(driver.attempt_life.attempt, snapshot_id(driver), driver.queries)
    assert windows.of("counts") is None
    assert any("open windows of counts are not known" in line for line in driver.stream.said)


def test_a_drain_does_not_wait_long_for_them(driver: SimulatedDriver) -> None:
    """If the reader is slower than the flush, the bounds stay unknown; the drain waits once (Law 6)."""
    later: list[Callable[[], None]] = []
    driver.attempt_life.attempt.in_background = kept_in(later)
    windows = OpenWindows(driver.attempt_life.attempt, snapshot_id(driver), driver.queries)
    began = driver.clock.monotonic_seconds()
    assert windows.of("counts") is None
    assert windows.of("counts") is None
    assert driver.clock.monotonic_seconds() - began <= PATIENCE_SECONDS + 0.1
    later[0]()
    assert windows.of("counts") is not None


def test_the_slower_the_flush_the_longer_it_waits(driver: SimulatedDriver) -> None:
    """A busy machine or a large state slows both down; the wait stays bounded."""
    attempt, clock = driver.attempt_life.attempt, driver.clock
    attempt.in_background = kept_in([])
    for flush_seconds, waited_seconds in ((0.2, PATIENCE_SECONDS), (4.0, 4.0), (60.0, MAX_PATIENCE_SECONDS)):
        windows = OpenWindows(attempt, snapshot_id(driver), driver.queries)
        clock.sleep(flush_seconds)
        began = clock.monotonic_seconds()
        assert windows.of("counts") is None
        assert waited_seconds <= clock.monotonic_seconds() - began <= waited_seconds + 0.1
