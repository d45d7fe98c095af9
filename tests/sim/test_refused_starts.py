"""A start that the comparison of plans refuses, with a crash of any actor in and around it (Law 17)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from airflow_streamstate.protocol.events import Failed, QueryStarted
from airflow_streamstate.protocol.layout import checkpoints_folder
from support.faulty_store import KILL_POINTS, Fault
from support.sim_laws import assert_laws
from support.sim_life import OTHER_RULE, Life, Recovery, Step, make_world
from support.sim_strikes import deaths_of_drivers, reads_of, writes_of
from support.sim_world import Strike, World
from support.simulated_driver import STREAM

RECOVERIES: tuple[Recovery, ...] = ("resume", "takeover")
STEPS = (
    Step("deploy", "v1.py"),
    Step("grow"),
    Step("stop"),
    Step("deploy", OTHER_RULE, is_refused=True),
    Step("deploy", "v2.py"),
    Step("grow"),
    Step("drain"),
)
Sweep = Callable[..., None]


def lived(folder: Path, *strikes: Strike, recovery: Recovery = "resume") -> World:
    """A life with a refused start in its middle, and the laws at its end."""
    world = make_world(folder)
    world.strikes = strikes
    Life(world, recovery, steps=STEPS).live()
    assert_laws(world)
    assert_refused(world)
    return world


def assert_refused(world: World) -> None:
    """The other rule has started nothing, and built nothing."""
    control = world.control
    refused = [one for one in control.deployment_ids() if control.spec(one).version.version_label == OTHER_RULE]
    assert refused
    for deployment_id in refused:
        events = [one.event for one in control.journal(deployment_id).events()]
        assert not any(isinstance(event, QueryStarted) for event in events)
        assert any(isinstance(event, Failed) and event.refuses_start for event in events)
        folder = checkpoints_folder(STREAM, deployment_id)
        assert list(control.cells.store.list_objects(f"{folder}/")) == []


@pytest.fixture(scope="module")
def calm(folder: Path) -> World:
    return lived(folder)


def test_a_refused_start_changes_nothing(calm: World) -> None:
    """The version after it continues where the one before it stopped. (Law 17)"""
    assert len(calm.plans["counts"].sink.batches) > 4


@pytest.mark.timeout(900)
@pytest.mark.parametrize("actor", ["controller", "driver"])
def test_a_crash_in_and_around_a_refused_start_changes_nothing(
    folder: Path, calm: World, sweep: Sweep, actor: str
) -> None:
    """Each write lost, or its reply; each driver dead at any of its moments: no state is touched by the other rule, and
    each row is counted once. (Law 17)"""

    def live(_: int, case: tuple[Strike, Recovery]) -> None:
        lived(folder, case[0], recovery=case[1])

    faults = KILL_POINTS if actor == "controller" else (Fault.REPLY_LOST,)
    strikes = [*writes_of(calm, actor, *faults), *list(reads_of(calm, actor))[::9]]
    if actor == "driver":
        strikes += deaths_of_drivers(calm)
    sweep(product(strikes, RECOVERIES), live, every=5)
