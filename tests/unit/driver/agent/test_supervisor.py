"""One attempt; whole lives, killed and disturbed at every call, are in ``tests/sim``."""

from __future__ import annotations

import pytest

from airflow_streamstate.protocol.commands import DrainNotification
from airflow_streamstate.protocol.events import Started
from support.simulated_driver import (
    SimulatedDriver,
    SimulatedStream,
    assert_nothing_lost,
    waiting_script,
)
from support.simulated_query import Phase, SimulatedPlan, SimulatedRun

PHASES: tuple[Phase, ...] = ("initialise", "construct", "look", "rename", "run", "state", "sink", "commit")


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("batch", [0, 2])
def test_a_driver_may_die_at_any_step_of_a_batch(
    plan: SimulatedPlan, stream: SimulatedStream, phase: Phase, batch: int
) -> None:
    """Between plan, run, state, sink and commit: the planned batch is run again over the same bounds (1a.6)."""
    driver = SimulatedDriver(stream)

    def die(run: SimulatedRun, now: Phase) -> None:
        if now == phase and len(run.committed) == (0 if phase == "initialise" else batch):
            driver.kill()

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.startables[0].before_phase = die
        driver.await_all()

    assert driver.run(script) is None
    attempt = stream.next_attempt()
    stream.order_at(30.0, DrainNotification)
    assert stream.run(waiting_script(plan), attempt=attempt) == 0
    assert_nothing_lost(plan)


def test_the_session_is_told_once(stream: SimulatedStream) -> None:
    """A script that makes several sessions has one Started."""

    def script(driver: SimulatedDriver) -> None:
        driver.supervisor.session_started("4.2.0", "local-2")

    assert stream.run(script) == 0
    assert [event.application_id for event in stream.events_of(Started)] == ["local-1"]
