"""Lives in which a stream is upgraded again and again, and pruned after each time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.retention.pruning import Pruned
from airflow_streamstate.protocol.policies import RetentionPolicy
from support.sim_life import Step
from support.sim_upgrades import Ascent, make_ascent
from support.sim_world import World
from support.simulated_driver import STREAM

BETWEEN_SECONDS = 10.0
_NEVER_SECONDS = 1e9


@dataclass
class Years(Ascent):
    """One life with many upgrades.

    Attributes:
        policy: recorded before the first prune; each prune goes by what is recorded.
        rooms: after each prune, how many objects are in which room of the home, but for files of state: a simulated
            query never rewrites its state, so these are as many as its batches.
    """

    policy: RetentionPolicy = field(default_factory=lambda: RetentionPolicy(keep=3))
    pruned: list[Pruned] = field(default_factory=list)
    rooms: list[Counter[str]] = field(default_factory=list)

    def grow(self, controller: Controller, request_id: str) -> None:
        super().grow(controller, request_id)
        controller.clock.sleep(BETWEEN_SECONDS)
        if not self.pruned:
            controller.details.change_retention(STREAM, self.policy)
        self.pruned.append(controller.retention.prune(STREAM))
        keys = [info.key for info in self.world.store.list_objects(f"{STREAM}/") if "/state/" not in info.key]
        self.rooms.append(Counter(key.split("/")[1] for key in keys))


def years_of(folder: Path, upgrades: int) -> tuple[World, Years]:
    """Live through ``upgrades`` upgrades, with a prune after each."""
    world = make_ascent(folder)
    world.watched.may_prune = True
    world.schedule.limit_seconds = _NEVER_SECONDS
    steps = [Step("deploy", "v1.py"), Step("grow")]
    for number in range(upgrades):
        steps += [Step("upgrade", ("v2.py", "v3.py", "v1.py")[number % 3]), Step("grow")]
    life = Years(world, steps=(*steps, Step("drain")))
    life.live()
    return world, life
