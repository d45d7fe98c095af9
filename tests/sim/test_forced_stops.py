"""Whole lives in which every stop is forced and controllers crash: no row is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.commands.forced_stop import ForcedStop
from airflow_streamstate.errors import StreamStateError
from support.faulty_store import KILL_POINTS
from support.sim_laws import assert_laws
from support.sim_life import Life, Step, make_world
from support.sim_strikes import reads_of, writes_of
from support.sim_world import Strike, World
from support.simulated_driver import STREAM

Sweep = Callable[..., None]
FORCED_LIFE = (
    Step("deploy", "v1.py"),
    Step("grow"),
    Step("stop"),
    Step("deploy", "v2.py"),
    Step("grow"),
    Step("stop"),
    Step("resume"),
    Step("grow"),
    Step("stop"),
    Step("deploy", "v3.py"),
    Step("grow"),
    Step("drain"),
)
"""What a forced stop has left is deployed from, and resumed."""


@dataclass
class ForcedLife(Life):
    """A life whose stops have an end by their deadline.

    Attributes:
        stops_within_seconds: shorter than a batch.
        found: how each stop ended.
    """

    stops_within_seconds: float = 0.5
    found: list[ForcedStop] = field(default_factory=list)

    def _order(self, controller: Controller, step: Step, lasting_id: str, request_id: str) -> None:
        if step.verb != "stop":
            super()._order(controller, step, lasting_id, request_id)
            return
        forced = controller.forced_stops
        self.found.append(
            forced.stop(STREAM, deadline_seconds=self.stops_within_seconds, on_deadline="kill", request_id=lasting_id)
        )

    def _recover(self, controller: Controller, step: Step, number: int, error: StreamStateError) -> bool:
        # A stop that was refused is a stop that was not forced: the same again, and nothing else.
        return True if step.verb == "stop" else super()._recover(controller, step, number, error)


def lived(folder: Path, *strikes: Strike, within_seconds: float = 0.5) -> tuple[World, ForcedLife]:
    """A life, and the laws at its end."""
    world = make_world(folder)
    world.strikes = strikes
    life = ForcedLife(world, steps=FORCED_LIFE, stops_within_seconds=within_seconds)
    life.live()
    assert_laws(world, orders_may_lie=True)
    return world, life


def test_wherever_a_driver_is_ended_every_row_comes_once(folder: Path) -> None:
    """Before it has read the order, under its barrier, in the batch of one query or of both, or after its end: what was
    cut runs again over the same bounds, in the next deployment and in the next attempt (Laws 9, 12, 14; 1a.6, 1a.8)."""
    found = [
        (stop.outcome.outcome, *sorted(stop.cut_batches))
        for within_seconds in (0.1, 0.3, 0.5, 0.7, 0.9, 1.1, 1.3, 5.0)
        for stop in lived(folder, within_seconds=within_seconds)[1].found
    ]
    cuts = {("killed",), ("killed", "counts"), ("killed", "rows"), ("killed", "counts", "rows")}
    assert set(found) == {("stopped",), *cuts}


@pytest.mark.timeout(900)
def test_the_controller_may_die_at_every_write_and_kill(folder: Path, sweep: Sweep) -> None:
    """Killed before or after any write, launch or kill, or its reply lost: the same request continues, and the driver
    is ended once (Laws 1, 2, 3, 8; 1a.8)."""
    calm, _ = lived(folder)
    assert [call.method for call in calm.calls["controller"]].count("kill") == 3

    def live(_: int, strike: Strike) -> None:
        world, life = lived(folder, strike)
        assert world.has_come_to(strike), "nothing was struck"
        assert len({found.outcome.snapshot_id for found in life.found}) == 3

    sweep(writes_of(calm, "controller", *KILL_POINTS), live, every=3)


@pytest.mark.timeout(900)
def test_every_read_of_the_controller_may_go_unanswered(folder: Path, sweep: Sweep) -> None:
    """A read that the store does not answer changes nothing: the same request continues (Law 2)."""
    calm, _ = lived(folder)
    sweep(reads_of(calm, "controller"), lambda _, strike: lived(folder, strike), every=11)
