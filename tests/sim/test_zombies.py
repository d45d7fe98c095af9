"""Zombies: an actor is paused anywhere, the others continue to the end, and then it wakes up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from support.sim_laws import assert_laws
from support.sim_life import WHOLE_LIFE, Life, Step, make_world
from support.sim_processes import Process
from support.sim_world import Strike, World

Sweep = Callable[..., None]
LIFE_AFTER_LIFE = (*WHOLE_LIFE, Step("deploy", "v1.py"), Step("grow"), Step("drain"))
PAUSE_SECONDS = 1_200.0


@pytest.fixture(scope="module")
def calm(folder: Path) -> World:
    """The life without a zombie; what comes after it in ``LIFE_AFTER_LIFE`` is never struck."""
    world = make_world(folder)
    Life(world).live()
    assert_laws(world)
    return world


def paused_driver(folder: Path) -> Callable[[int, Strike], World]:
    """Live with a driver that is paused at the strike, out of reach, until everybody else is done."""

    def live(_: int, strike: Strike) -> World:
        world = make_world(folder)
        world.watched.zombies_live = True

        def pause(process: Process) -> None:
            world.unreachable.add(process.name)
            world.paused.add(process.name)
            process.pause_until(process.clock.monotonic_seconds() + PAUSE_SECONDS)
            world.unreachable.discard(process.name)

        world.strikes = (dataclasses.replace(strike, meanwhile=pause),)
        Life(world, assume_dead=True, timeout_seconds=40.0, steps=LIFE_AFTER_LIFE).live()
        assert_laws(world, woke_up=True)
        return world

    return live


@pytest.mark.timeout(900)
def test_a_driver_that_wakes_up_after_its_successors_harms_nothing(calm: World, sweep: Sweep, folder: Path) -> None:
    """A driver paused at any write, and taken for dead, wakes up when others have continued: it finds its log fenced
    and itself replaced, and what it still does touches its own keys only (Laws 4, 9, 11 and 14; 1a.8)."""
    writes = [Strike("driver", call.number, None) for call in calm.calls["driver"] if call.writes]
    sweep(writes, paused_driver(folder), every=5)


@pytest.mark.timeout(900)
def test_spark_that_wakes_up_after_its_successors_loses_nothing(calm: World, sweep: Sweep, folder: Path) -> None:
    """The same with Spark paused before any claim, state, sink or commit: a batch that it still runs had its bounds
    before, and its successor ran it over the same ones (Laws 9 and 14; 1a.6)."""
    steps = [Strike("spark", number, None) for number in range(1, len(calm.phases) + 1)]
    sweep(steps, paused_driver(folder), every=5)


@pytest.mark.timeout(900)
def test_an_orchestrator_that_wakes_up_after_another_finished_its_work_harms_nothing(
    calm: World, sweep: Sweep, folder: Path
) -> None:
    """A controller paused at any call, while another with the same request ids does everything to the end: what it
    still does is refused, or was done (Laws 1, 2 and 4; 1a.8)."""

    def live(_: int, strike: Strike) -> None:
        world = make_world(folder)
        life = Life(world)

        def take_over(process: Process) -> None:
            # The other one knows which step it is at; this one continues with its own, and then sees that it has ended.
            successor = Life(world, progress=dataclasses.replace(life.progress, tries=dict(life.progress.tries)))
            other = world.schedule.start(
                "successor", lambda other: successor.drive(other, world.calm_controller(other))
            )
            while not other.has_ended:
                process.pause_until(process.clock.monotonic_seconds() + 5.0)
            life.progress.step, life.gives_up = len(life.steps) - 1, True  # nothing comes after its step
            if other.error is not None:
                raise other.error

        world.strikes = (dataclasses.replace(strike, meanwhile=take_over),)
        life.live()
        assert_laws(world, orders_may_lie=True)

    strikes = [Strike("controller", call.number, None) for call in calm.calls["controller"] if call.writes]
    sweep(strikes, live)
