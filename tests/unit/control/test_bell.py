"""Bells, on real files and a simulated clock."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_streamstate.control.objects import LISTENS_EVERY_SECONDS, OF_DRIVER, TO_DRIVER, Bell
from support.acting_clock import ActingClock


@pytest.fixture
def clock() -> ActingClock:
    return ActingClock()


def bell(folder: Path, name: str = TO_DRIVER) -> Bell:
    """The bell of a driver that was launched in this folder."""
    return Bell.of_launch({"folder": str(folder)}, name)


def paused_seconds(clock: ActingClock, heard: Bell, seconds: float = 2.0) -> float:
    """How long a pause lasted."""
    begun = clock.monotonic_seconds()
    heard.pause(clock, seconds)
    return clock.monotonic_seconds() - begun


def ring(folder: Path, at_ns: int, name: str = TO_DRIVER) -> None:
    """Ring at a time that differs from that of any ring before, however coarse the times of the file system are."""
    bell(folder, name).ring()
    os.utime(folder / name, ns=(at_ns, at_ns))


def test_a_pause_ends_when_the_bell_rings(clock: ActingClock, tmp_path: Path) -> None:
    """Each ring ends one pause; without one it lasts its time."""
    heard = bell(tmp_path)
    assert paused_seconds(clock, heard) == pytest.approx(2.0)
    clock.after(0.5, lambda: ring(tmp_path, 1_000))
    assert paused_seconds(clock, heard) == pytest.approx(0.5, abs=2 * LISTENS_EVERY_SECONDS)
    assert paused_seconds(clock, heard) == pytest.approx(2.0)


def test_a_ring_between_two_pauses_is_heard_at_once(clock: ActingClock, tmp_path: Path) -> None:
    """It may have arrived between a poll and the pause after it."""
    heard = bell(tmp_path)
    ring(tmp_path, 1_000)
    assert paused_seconds(clock, heard) == 0
    ring(tmp_path, 2_000)
    assert paused_seconds(clock, heard) == 0


def test_the_two_bells_of_a_driver_are_apart(clock: ActingClock, tmp_path: Path) -> None:
    """A driver does not hear its own."""
    heard = bell(tmp_path, TO_DRIVER)
    ring(tmp_path, 1_000, OF_DRIVER)
    assert paused_seconds(clock, heard) == pytest.approx(2.0)


def test_a_bell_that_is_heard_nowhere_costs_the_pause_alone(clock: ActingClock, tmp_path: Path) -> None:
    """No folder is named, or it is gone, or it cannot be written: nothing is raised, and no folder is made."""
    for silent in (Bell(None), Bell.of_launch(None, TO_DRIVER), Bell.of_launch({"pid": 7}, TO_DRIVER)):
        silent.ring()
        assert paused_seconds(clock, silent) == 2.0
    gone = bell(tmp_path / "gone")
    gone.ring()
    assert not (tmp_path / "gone").exists()
    assert paused_seconds(clock, gone) == pytest.approx(2.0)
