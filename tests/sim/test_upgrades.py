"""Whole upgrades and rollbacks with crashes anywhere: the old version runs as before, or the new one is healthy.

After a crash of any actor at any call the others continue from the stores alone; each row comes once, no law is
broken, and the lineage is complete. ``STREAMSTATE_SIM=full`` leaves out nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from support.faulty_store import KILL_POINTS, Fault
from support.sim_laws import assert_laws
from support.sim_life import Recovery, Step
from support.sim_processes import Process
from support.sim_strikes import deaths_of_drivers, failures_of_batches, writes_of
from support.sim_upgrades import CLIMBS, Ascent, make_ascent
from support.sim_world import Strike, World

RECOVERIES: tuple[Recovery, ...] = ("resume", "takeover", "redeploy")
Sweep = Callable[..., None]
PAUSES_SECONDS = (0.3, 1.1, 2.7, 7.9)
LIFE_AFTER = (Step("upgrade", "v3.py"), Step("grow"), Step("drain"))
EXPECTED = {
    "restore": ["upgraded"],
    "drain": ["upgraded"],
    "handover": ["given_up"],
    "forward": ["given_up"],
    "rollback": ["upgraded", "rolled_back"],
    "rescale": ["upgraded", "rolled_back"],
}
"""How the upgrades of each climb end where nothing happens to them."""
WARM = {
    "restore": [],
    "drain": ["d-0002-a0001"],
    "handover": [],
    "forward": ["d-0002-a0001", "d-0003-a0001"],
    "rollback": ["d-0003-a0001"],
    "rescale": ["d-0003-a0001"],
}
"""The attempts whose driver had waited, then."""


def climbed(folder: Path, climb: str, *strikes: Strike, recovery: Recovery = "resume") -> World:
    """A life with one upgrade, and the laws at its end."""
    world = make_ascent(folder)
    world.strikes = strikes
    Ascent(world, recovery, steps=CLIMBS[climb]).live()
    assert_laws(world)
    return world


@pytest.fixture(scope="module")
def calm(folder: Path) -> dict[str, World]:
    """Each climb, with nothing that happens to it."""
    return {climb: climbed(folder, climb) for climb in CLIMBS}


def struck(folder: Path, climb: str) -> Callable[[int, Strike], World]:
    """A climb with one strike, which it comes to; the ways to recover take turns."""

    def live(number: int, strike: Strike) -> World:
        world = climbed(folder, climb, strike, recovery=RECOVERIES[number % 3])
        assert world.has_come_to(strike), "nothing was struck"
        return world

    return live


def test_a_life_of_upgrades_loses_nothing(folder: Path) -> None:
    """Restored, drained, rolled back by the handover and forward, and by hand: each ends as it must, and every row
    comes once (Laws 5, 9, 11, 14)."""
    world = make_ascent(folder)
    life = Ascent(world)
    life.live()
    assert_laws(world)
    assert life.refusals == []
    ends = [(view.outcome, view.state.mode, view.state.way) for view in life.seen]
    assert ends == [
        ("upgraded", "restore", None),
        ("upgraded", "drain", None),
        ("given_up", "restore", "handover"),
        ("given_up", "restore", "forward"),
        ("upgraded", "restore", None),
        ("rolled_back", None, "forward"),
    ]
    assert [view.state.audit_ok for view in life.seen] == [True] * 6
    failed = life.seen[3].state
    bad, begun = failed.bad_batches, failed.begun_batches
    assert f"batch {begun['counts']} failed" in failed.text  # the old version ran it again: it is not a bad one
    assert {name: batches[-1] + 1 for name, batches in bad.items()} == begun
    assert [view.state.begun_batches for view in life.seen if view is not life.seen[3]] == [{}] * 5


@pytest.mark.parametrize("climb", CLIMBS)
def test_each_climb_ends_as_it_must(folder: Path, climb: str) -> None:
    """Where nothing is struck."""
    life = Ascent(make_ascent(folder), steps=CLIMBS[climb])
    life.live()
    assert_laws(life.world)
    assert [view.outcome for view in life.seen] == EXPECTED[climb]
    assert life.world.warm == WARM[climb]
    assert (life.seen[-1].to_json()["driver"] == "waits") is bool(WARM[climb])


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("climb", CLIMBS)
def test_the_controller_may_die_at_every_write_and_launch(
    folder: Path, calm: dict[str, World], sweep: Sweep, climb: str
) -> None:
    """Before, after, or with the reply lost: the next controller continues the upgrade from its journal (Laws 1, 2,
    4, 5, 8, 14)."""
    sweep(writes_of(calm[climb], "controller", *KILL_POINTS), struck(folder, climb), every=41)


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("climb", CLIMBS)
def test_old_and_new_driver_may_die_in_every_durable_state(
    folder: Path, calm: dict[str, World], sweep: Sweep, climb: str
) -> None:
    """The old driver before and in its end, the rehearsing one, the new one, the one that comes back: the upgrade has
    an end, and no row is lost (Laws 9, 11, 12, 14)."""
    sweep(deaths_of_drivers(calm[climb]), struck(folder, climb), every=37)


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("climb", CLIMBS)
def test_every_batch_may_fail(folder: Path, calm: dict[str, World], sweep: Sweep, climb: str) -> None:
    """A query that fails in any batch of the old or the new version (Laws 12 and 13)."""
    sweep(failures_of_batches(calm[climb]), struck(folder, climb), every=43)


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("climb", CLIMBS)
def test_controller_and_driver_may_both_die(folder: Path, calm: dict[str, World], sweep: Sweep, climb: str) -> None:
    """A driver dies, and the controller that finds it, too (Law 1)."""
    deaths = list(deaths_of_drivers(calm[climb]))[::17]
    writes = list(writes_of(calm[climb], "controller", Fault.CRASH_AFTER))[::13]

    def live(number: int, pair: tuple[Strike, Strike]) -> World:
        return climbed(folder, climb, *pair, recovery=RECOVERIES[number % 3])

    sweep(product(deaths, writes), live, every=131)


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("climb", CLIMBS)
def test_a_controller_that_wakes_up_after_another_finished_the_upgrade_harms_nothing(
    folder: Path, calm: dict[str, World], sweep: Sweep, climb: str
) -> None:
    """It is paused at any write; another finishes the upgrade, and a second one after it; what the sleeper then
    still does is refused, or was done (Laws 1, 2 and 4)."""
    # The drain at the end of the climb comes after what follows it.
    steps = (*CLIMBS[climb][:-1], *LIFE_AFTER)

    def live(_: int, strike: Strike) -> None:
        world = make_ascent(folder)
        life = Ascent(world, steps=steps)

        def take_over(process: Process) -> None:
            progress = dataclasses.replace(life.progress, tries=dict(life.progress.tries))
            successor = Ascent(world, steps=steps, progress=progress)
            other = world.schedule.start(
                "successor", lambda other: successor.drive(other, world.calm_controller(other))
            )
            while not other.has_ended:
                process.pause_until(process.clock.monotonic_seconds() + 5.0)
            life.progress.step, life.gives_up = len(life.steps) - 1, True  # nothing comes after its step
            life.is_late = True
            if other.error is not None:
                raise other.error

        world.strikes = (dataclasses.replace(strike, meanwhile=take_over),)
        life.live()
        assert_laws(world, orders_may_lie=True)

    strikes = [Strike("controller", call.number, None) for call in calm[climb].calls["controller"] if call.writes]
    sweep(strikes, live, every=47)


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("climb", CLIMBS)
def test_two_controllers_that_go_on_at_once_are_as_good_as_one(
    folder: Path, calm: dict[str, World], sweep: Sweep, climb: str
) -> None:
    """One is paused at any write for a moment, in which another with the same requests starts to continue; then both
    do (Laws 1, 2 and 4)."""

    def live(number: int, strike: Strike) -> None:
        world = make_ascent(folder)
        life = Ascent(world, steps=CLIMBS[climb])
        others: list[Process] = []

        def join(process: Process) -> None:
            progress = dataclasses.replace(life.progress, tries=dict(life.progress.tries))
            other = Ascent(world, steps=life.steps, progress=progress, is_late=True)
            others.append(world.schedule.start("other", lambda one: other.drive(one, world.calm_controller(one))))
            life.is_late = True
            process.pause_until(process.clock.monotonic_seconds() + PAUSES_SECONDS[number % len(PAUSES_SECONDS)])

        world.strikes = (dataclasses.replace(strike, meanwhile=join),)
        life.live()
        world.schedule.run_until(lambda: all(other.has_ended for other in others))
        assert [other.error for other in others if other.error is not None] == []
        assert_laws(world, orders_may_lie=True)

    strikes = [Strike("controller", call.number, None) for call in calm[climb].calls["controller"] if call.writes]
    sweep(strikes, live, every=37)
