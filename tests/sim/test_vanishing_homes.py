"""The home vanishes for a while during lives and upgrades: no row is lost, and no new home is made.

``STREAMSTATE_SIM=full`` leaves out nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from airflow_streamstate.control.presence import HomePresence
from support.fake_clock import FakeClock
from support.sim_laws import assert_laws
from support.sim_life import Life, make_world
from support.sim_upgrades import CLIMBS, Ascent, make_ascent
from support.sim_world import Away, World
from support.vanishing_store import ABSENCES

Sweep = Callable[..., None]
AWAY_SECONDS = 7.0
STEP_SECONDS = 0.7


def lived(folder: Path, away: Away | None) -> World:
    world = make_world(folder)
    world.away = away
    Life(world).live()
    return world


def climbed(folder: Path, climb: str, away: Away | None) -> tuple[World, list[str | None]]:
    world = make_ascent(folder)
    world.away = away
    life = Ascent(world, steps=CLIMBS[climb])
    life.live()
    return world, [view.outcome for view in life.seen]


def assert_nothing_is_left(world: World) -> None:
    """The laws; no attempt was fenced by an absence; no home has come to be in its place."""
    assert world.away is not None
    assert world.schedule.now_seconds > world.away.at_seconds, "it vanished after the end"
    world.away = None
    assert_laws(world)
    # On a server a write within seconds of the last poll may land; by that no home is there.
    assert not HomePresence(world.mount_point, FakeClock()).is_there()


def moments(until_seconds: float) -> list[float]:
    """From the first deploy on, to the end of a life to which nothing happens."""
    return [1.0 + STEP_SECONDS * number for number in range(int((until_seconds - 1.0) / STEP_SECONDS))]


@pytest.mark.timeout(3_600)
def test_a_home_may_vanish_at_any_time_of_a_life(folder: Path, sweep: Sweep) -> None:
    """Unmounted, renamed, forbidden, read-only: drivers live on, the orchestrator tries again, every row comes once
    (Laws 4, 5, 9, 12, 14)."""
    end_seconds = lived(folder, None).schedule.now_seconds

    def live(_number: int, case: tuple[float, str]) -> World:
        world = lived(folder, Away(case[0], AWAY_SECONDS, case[1]))  # type: ignore[arg-type]
        assert_nothing_is_left(world)
        return world

    sweep(list(product(moments(end_seconds), ABSENCES)), live, every=5)


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("climb", ["restore", "drain"])
def test_a_home_may_vanish_at_any_time_of_an_upgrade(folder: Path, sweep: Sweep, climb: str) -> None:
    """It continues from its journal; nothing is fenced or rolled back by an absence (Laws 2, 4, 14)."""
    calm, expected = climbed(folder, climb, None)

    def live(_number: int, case: tuple[float, str]) -> World:
        world, outcomes = climbed(folder, climb, Away(case[0], AWAY_SECONDS, case[1]))  # type: ignore[arg-type]
        assert_nothing_is_left(world)
        assert outcomes == expected, outcomes
        return world

    sweep(list(product(moments(calm.schedule.now_seconds), ABSENCES)), live, every=9)
