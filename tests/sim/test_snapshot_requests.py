"""The driver or the requester of a snapshot crashes before it is ready: one snapshot, and no row lost.

Another process restarts a dead driver, or lets the next version take over. A wait goes by its request id alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal

import pytest

from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.observe.views import Outcome
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.protocol.manifest import SnapshotManifest
from support.faulty_store import KILL_POINTS
from support.sim_laws import assert_laws
from support.sim_life import Life, Step, make_world
from support.sim_processes import Process
from support.sim_strikes import deaths_of_drivers, writes_of
from support.sim_world import Strike, World
from support.simulated_driver import STREAM

Sweep = Callable[..., None]
Care = Literal["resume", "redeploy"]
REQUEST = "step-2"
ASKING_LIFE = (Step("deploy", "v1.py"), Step("grow"), Step("snapshot"), Step("grow"), Step("drain"))
LOOKS_EVERY_SECONDS = 1.3


@dataclass
class AskingLife(Life):
    """A life in which another process restarts dead drivers.

    Attributes:
        care: what he does.
        outcome: what the request came to.
    """

    care: Care = "resume"
    outcome: Outcome | None = None

    def live(self) -> None:
        self.world.schedule.start("watchman", self._look_after)
        super().live()

    def _look_after(self, process: Process) -> None:
        controller = self.world.calm_controller(process)
        while self.progress.step < len(self.steps) - 1:
            process.clock.sleep(LOOKS_EVERY_SECONDS)
            with contextlib.suppress(StreamStateError):  # another one was first, or there is nothing yet
                if controller.status(STREAM).state != "failed":
                    continue
                if self.care == "resume":
                    controller.resume(STREAM)
                else:
                    controller.deploy(self.request("v2.py", "watchman"))

    def _order(self, controller: Controller, step: Step, lasting_id: str, request_id: str) -> None:
        if step.verb != "snapshot":
            super()._order(controller, step, lasting_id, request_id)
            return
        controller.order("snapshot", STREAM, request_id=lasting_id)
        self.outcome = controller.wait(
            WaitCondition("snapshot", STREAM, "", request_id=lasting_id), self.timeout_seconds
        ).end


def lived(folder: Path, *strikes: Strike, care: Care = "resume") -> tuple[World, AskingLife]:
    """A life, and the laws at its end: the request has become one snapshot, which its asker was given."""
    world = make_world(folder)
    world.strikes = strikes
    life = AskingLife(world, steps=ASKING_LIFE, care=care)
    life.live()
    assert_laws(world, orders_may_lie=True)
    (kept,) = taken(world)
    assert life.outcome is not None
    assert (life.outcome.outcome, life.outcome.snapshot_id) == ("snapshot_ready", kept.snapshot_id)
    return world, life


def taken(world: World) -> list[SnapshotManifest]:
    """The snapshots of the request."""
    control = world.control
    found = [control.readable_manifest(snapshot_id) for snapshot_id in control.snapshot_ids()]
    return [manifest for manifest in found if manifest is not None and manifest.request_id == REQUEST]


@pytest.fixture(scope="module")
def calm(folder: Path) -> World:
    """A life to which nothing happens."""
    return lived(folder)[0]


def between(world: World, actor: str, first: str, last: str) -> range:
    """The calls of an actor from the first write to one key to the first write to another."""
    begin, end = (
        next(call.number for call in world.calls[actor] if call.writes and call.key.endswith(key))
        for key in (first, last)
    )
    return range(begin, end + 1)


@pytest.mark.timeout(900)
def test_a_driver_may_die_anywhere_between_request_and_ready(calm: World, folder: Path, sweep: Sweep) -> None:
    """Around each of its writes in between: the next attempt, or the next version, is asked again under the same id; or
    the manifest that it has left answers (Laws 2, 3; 1a.13)."""
    window = between(calm, "driver", "/events/00000005.json", "/commands/00000001.json")
    deaths = [one for one in deaths_of_drivers(calm) if one.actor == "driver" and one.number in window]
    assert len(deaths) > 10

    def live(_: int, case: tuple[Strike, Care]) -> None:
        world, _life = lived(folder, case[0], care=case[1])
        assert world.has_come_to(case[0]), "nothing was struck"

    sweep(product(deaths, ("resume", "redeploy")), live)


@pytest.mark.timeout(900)
def test_whoever_asks_may_die_anywhere_in_between(calm: World, folder: Path, sweep: Sweep) -> None:
    """At each of its writes: its next life continues under the same id (Laws 1, 2, 8)."""
    window = between(calm, "controller", f"/idempotency/{REQUEST}.json", "/commands/00000001.json")
    strikes = [one for one in writes_of(calm, "controller", *KILL_POINTS) if one.number in window]
    assert strikes
    sweep(strikes, lambda _, strike: lived(folder, strike))
