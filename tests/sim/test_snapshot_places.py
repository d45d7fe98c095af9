"""Whole lives of a stream with snapshots at another place, or without any: a crash of any actor at any call.

``STREAMSTATE_SIM=full`` leaves out nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.terms.version import NO_SNAPSHOTS
from airflow_streamstate.store.base import Store
from support.faulty_store import KILL_POINTS, Fault
from support.sim_laws import assert_laws
from support.sim_life import WHOLE_LIFE, Life, Recovery, make_world
from support.sim_strikes import deaths_of_drivers, reads_of, writes_of
from support.sim_world import Strike, World
from support.simulated_driver import STREAM

RECOVERIES: tuple[Recovery, ...] = ("resume", "takeover", "redeploy")
PLACE = "memory://place"
Sweep = Callable[..., None]
Case = tuple[Strike, Recovery]


def lived(folder: Path, snapshots: str, *strikes: Strike, recovery: Recovery = "resume") -> World:
    """A life, and the laws at its end."""
    world = make_world(folder)
    world.snapshots, world.strikes = snapshots, strikes
    steps = tuple(step for step in WHOLE_LIFE if snapshots != NO_SNAPSHOTS or step.verb != "snapshot")
    Life(world, recovery, steps=steps).live()
    assert_laws(world)
    return world


@pytest.fixture(scope="module", params=[PLACE, NO_SNAPSHOTS])
def calm(folder: Path, request: pytest.FixtureRequest) -> World:
    """A life to which nothing happens."""
    return lived(folder, request.param)


def data_in(store: Store) -> list[str]:
    return [info.key for info in store.list_objects(f"{layout.snapshots_folder(STREAM)}/") if "/data/" in info.key]


def test_snapshots_lie_where_they_are_to_and_nowhere_else(calm: World) -> None:
    """Rows in are rows out; next to the checkpoints there is nothing of them."""
    assert data_in(calm.store) == []
    assert bool(data_in(calm.place)) == (calm.snapshots == PLACE)


@pytest.mark.timeout(900)
def test_the_controller_may_die_at_every_write_and_launch(calm: World, folder: Path, sweep: Sweep) -> None:
    """The same request ids continue where it was (Laws 1, 2, 3, 5, 8, 14)."""

    def live(number: int, strike: Strike) -> World:
        return lived(folder, calm.snapshots, strike, recovery=RECOVERIES[number % 3])

    sweep(writes_of(calm, "controller", *KILL_POINTS), live, every=5)


@pytest.mark.timeout(900)
def test_the_driver_may_die_in_every_durable_state(calm: World, folder: Path, sweep: Sweep) -> None:
    """Half copied, copied and without a manifest, or with one: nothing is lost or doubled (Laws 3, 5, 9, 11, 14)."""

    def live(_: int, case: Case) -> World:
        return lived(folder, calm.snapshots, case[0], recovery=case[1])

    sweep(product(deaths_of_drivers(calm), RECOVERIES), live, every=13)


@pytest.mark.timeout(900)
def test_every_reply_to_the_driver_may_be_lost(calm: World, folder: Path, sweep: Sweep) -> None:
    """A place that does not answer is asked again; what landed is not done twice (Laws 2 and 8)."""

    def live(_: int, strike: Strike) -> World:
        return lived(folder, calm.snapshots, strike)

    sweep([*writes_of(calm, "driver", Fault.REPLY_LOST), *reads_of(calm, "driver")], live, every=17)
