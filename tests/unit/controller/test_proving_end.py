"""Proving an end."""

from __future__ import annotations

import pytest

from airflow_streamstate.control.registers import CLOCKS_DIFFER_SECONDS
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.errors import ConflictError
from support.sim_stage import Stage


def prove(stage: Stage, *, assume_dead: bool = False) -> None:
    """Prove the current attempt ended."""
    context = ControllerContext.of(stage.home, stage.launcher, stage.clock, "tests", None)
    context.endings.prove(stage.control, stage.seen(), assume_dead=assume_dead)


@pytest.mark.parametrize("state", ["exited", "gone"])
def test_exited_and_gone_are_proof(stage: Stage, state: str) -> None:
    """What the launcher saw end has ended; nothing is written. (1a.8)"""
    stage.deploy()
    stage.end(state=state)  # type: ignore[arg-type]
    prove(stage)
    assert stage.control.claim("d-0001", 1) is None


def test_what_runs_is_no_end(stage: Stage) -> None:
    """A driver that runs is not waited for when it has reported no last event. (1a.8)"""
    stage.deploy()
    with pytest.raises(ConflictError, match="still running"):
        prove(stage)
    assert stage.clock.slept_seconds == []


def test_a_launch_that_never_began_is_closed(stage: Stage) -> None:
    """A pending launch is closed for good, so that no driver comes of it later. (1a.8)"""
    stage.deploy()
    stage.end(state="pending")
    prove(stage)
    assert stage.launcher.calls[-1] == "kill d-0001-a0001"


def test_an_attempt_without_a_launch_is_closed_by_its_claim(stage: Stage) -> None:
    """Without any launch the claim is taken, so that a launch on its way ends at once. (1a.8)"""
    stage.deploy()
    stage.launcher.states.clear()
    stage.store.delete("orders/deployments/d-0001/launches/d-0001-a0001.json")
    prove(stage)
    claim = stage.control.claim("d-0001", 1)
    assert claim is not None
    assert claim.pid == 0
    prove(stage)  # twice is once


def test_a_driver_without_a_recorded_launch_is_unknown(stage: Stage) -> None:
    """Claimed, but launched by a controller that died before it recorded the launch: only by name. (1a.8)"""
    stage.deploy()
    stage.come_to_life()
    stage.launcher.states.clear()
    stage.store.delete("orders/deployments/d-0001/launches/d-0001-a0001.json")
    with pytest.raises(ConflictError, match="it is unknown"):
        prove(stage)
    prove(stage, assume_dead=True)


def test_a_lost_attempt_that_was_never_claimed_is_closed_when_it_is_assumed_dead(stage: Stage) -> None:
    """Taken for dead, it can at least never claim any more. (1a.8)"""
    stage.deploy()
    stage.end(state="unknown")
    prove(stage, assume_dead=True)
    assert stage.seen().is_closed


def test_a_reported_end_counts_after_the_silence(stage: Stage) -> None:
    """A cluster that reports "failed" may be wrong, so the controller waits until no sign of life comes. (1a.8)"""
    stage.deploy()
    stage.come_to_life()
    stage.end(state="unknown")
    stage.launcher.reported.add("d-0001-a0001")
    assert stage.seen().state == "running"
    before = stage.clock.now()
    prove(stage)
    waited_seconds = (stage.clock.now() - before).total_seconds()
    limit_seconds = stage.spec().version.settings.lost_after_seconds
    assert limit_seconds < waited_seconds < limit_seconds + 10
    assert stage.seen().state == "lost", "another process has not seen the silence"
    stage.clock.advance(CLOCKS_DIFFER_SECONDS)
    assert stage.seen().state == "failed", "no two clocks differ by that much"
    assert "no sign of life" in stage.seen().why


def test_a_reported_end_of_a_driver_that_writes_is_no_end(stage: Stage) -> None:
    """Batches that continue after the report are a driver that works, and no successor starts. (1a.8)"""
    stage.deploy()
    stage.come_to_life()
    stage.end(state="unknown")
    stage.launcher.reported.add("d-0001-a0001")
    sleep = stage.clock.sleep

    def beat_and_sleep(seconds: float) -> None:
        sleep(seconds)
        stage.beat()

    stage.clock.sleep = beat_and_sleep  # type: ignore[method-assign]
    with pytest.raises(ConflictError, match="it is unknown whether the old driver has ended"):
        prove(stage)
    prove(stage, assume_dead=True)
