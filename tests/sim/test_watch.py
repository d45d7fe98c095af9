"""Supervised restart in the simulator: watchers that die at any call, several at once, with clocks that differ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.faulty_store import KILL_POINTS, SimulatedCrash
from support.sim_processes import Process
from support.sim_strikes import reads_of, writes_of
from support.sim_watchers import POLICY, HangingLife, WatchedLife, hanging, watched, world_of
from support.sim_world import Strike

Sweep = Callable[..., None]
HOUR_SECONDS = 3600.0


@pytest.fixture(scope="module")
def calm(folder: Path) -> WatchedLife:
    """A life in which no watcher dies."""
    return watched(folder)


def restarted_once_each(life: WatchedLife) -> None:
    """One attempt for each death of a driver, each of one process, and none before its backoff has ended."""
    attempts = sorted(int(key.rpartition("a")[2]) for key in life.world.machine)
    assert attempts == list(range(1, len(life.died_at) + 2)), (attempts, life.died_at)
    register = life.world.control.need_register().value
    assert register.restarts is None or len(register.restarts.ages_seconds) <= len(life.died_at)
    for attempt, died_at in life.died_at.items():
        waited = life.begun_at.get(attempt + 1, life.world.schedule.now_seconds) - died_at
        assert waited >= POLICY["initial_backoff_seconds"], (attempt, waited)


def test_a_driver_that_is_killed_is_restarted_once_each_time(calm: WatchedLife) -> None:
    """Each death is followed by one attempt, after its backoff, and each row is counted once (Laws 1, 2, 14)."""
    restarted_once_each(calm)
    assert len(calm.died_at) == 2


@pytest.mark.timeout(900)
def test_the_watcher_may_die_at_every_write_and_launch(folder: Path, calm: WatchedLife, sweep: Sweep) -> None:
    """Killed before or after any write or launch, or its reply lost, and started again: each failure is restarted once,
    no two drivers run, and each row is counted once (Laws 1, 2, 8, 14; 1a.8)."""
    sweep(
        writes_of(calm.world, "watcher", *KILL_POINTS), lambda _, strike: restarted_once_each(watched(folder, strike))
    )


@pytest.mark.timeout(900)
def test_the_watcher_may_die_at_every_read(folder: Path, calm: WatchedLife, sweep: Sweep) -> None:
    """Or its read is not answered: it continues when the store does. What it had seen is in no memory but its own; the
    next one looks again (Laws 1, 2)."""
    deaths = [Strike("watcher", call.number) for call in calm.world.calls["watcher"] if not call.writes]
    strikes = [*deaths, *reads_of(calm.world, "watcher")]
    sweep(strikes, lambda _, strike: restarted_once_each(watched(folder, strike)), every=3)


@pytest.mark.timeout(900)
def test_driver_and_watcher_may_die_together_at_every_call(folder: Path, calm: WatchedLife, sweep: Sweep) -> None:
    """A machine that loses both at once: the next watcher restarts what is dead, once (Laws 1, 2, 14; 1a.8)."""

    def live(_: int, number: int) -> None:
        life: list[WatchedLife] = []

        def both(_process: Process) -> None:
            life[0].kill_driver()
            raise SimulatedCrash("the machine lost power")

        life.append(WatchedLife(world_of(folder, Strike("watcher", number, fault=None, meanwhile=both))))
        restarted_once_each(life[0].live())

    sweep(range(1, len(calm.world.calls["watcher"]) + 1), live, every=7)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("wrong_seconds", [0.0, -HOUR_SECONDS, HOUR_SECONDS])
def test_two_watchers_restart_once_whatever_their_clocks_say(folder: Path, wrong_seconds: float) -> None:
    """Neither restarts before the backoff has ended, although by one's clock that was long ago, or is far away; the
    second loses the compare-and-swap (Laws 1, 2, 4)."""
    restarted_once_each(watched(folder, watchers={"first": 0.0, "second": wrong_seconds}, deaths=3))


@pytest.fixture(scope="module")
def unstopped(folder: Path) -> HangingLife:
    """A life in which the driver works until it is drained."""
    return hanging(folder)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("actor", ["driver", "spark"])
def test_a_driver_that_hangs_anywhere_is_ended_and_restarted_once(
    folder: Path, unstopped: HangingLife, sweep: Sweep, actor: str
) -> None:
    """It hangs at any call, or with Spark before any claim, state, sink or commit, and its launcher reports that it
    lives: it is silent, then ended, and only then comes the next attempt; each row is counted once (Laws 1, 2, 14;
    1a.8)."""

    def live(_: int, strike: Strike) -> None:
        life = hanging(folder, strike)
        register = life.world.control.need_register().value
        assert register.attempt == 2, [line.text for line in life.lines[-5:]]
        assert "silent" in life.seen_states
        assert any("hung: its driver lived" in line.text for line in life.lines)

    numbers = range(unstopped.opened[actor] + 1, unstopped.closing[actor] + 1)
    sweep([Strike(actor, number, None) for number in numbers], live, every=5)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("wrong_seconds", [-HOUR_SECONDS, HOUR_SECONDS])
def test_no_driver_that_works_is_ended_whatever_the_clocks_say(folder: Path, wrong_seconds: float) -> None:
    """Two watchers, one with a clock that is an hour wrong: what it has seen itself counts."""
    life = hanging(folder, watchers={"first": 0.0, "second": wrong_seconds})
    assert life.world.control.need_register().value.attempt == 1
    assert not any("hung" in line.text for line in life.lines)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("wrong_seconds", [0.0, HOUR_SECONDS])
def test_the_window_holds_whatever_the_clocks_say(folder: Path, wrong_seconds: float) -> None:
    """After the given number of restarts the stream stays failed, and reports why, until a person starts it (Law 2)."""
    policy = {**POLICY, "max_restarts": 2, "initial_backoff_seconds": 0.5}
    with pytest.raises(AssertionError, match="attempt 3 was not restarted") as refused:
        watched(folder, watchers={"first": 0.0, "second": wrong_seconds}, deaths=3, policy=policy)
    assert "2 restarts within 3600 s did not help" in str(refused.value)
