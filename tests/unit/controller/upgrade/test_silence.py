"""Upgrades and a driver that lives and gives no sign of life."""

from __future__ import annotations

import pytest

from airflow_streamstate.errors import ConflictError
from support.sim_stage import STREAM
from support.upgrade_stage import UpgradeStage


def test_an_upgrade_of_a_silent_stream_is_refused_at_once_and_works_after_a_kill(upgraded: UpgradeStage) -> None:
    """Nothing is recorded of it; the refusal names the way, and that works."""
    stage = upgraded.stage
    upgraded.beats(3, "d-0001")
    stage.clock.advance(90)
    with pytest.raises(ConflictError, match="the stream is silent") as refused:
        upgraded.begin()
    assert "streamstate kill orders" in refused.value.next_step
    assert upgraded.held_by() is None
    stage.controller.kill(STREAM, grace_seconds=1.0)
    view = upgraded.begin("up-2")
    upgraded.advance(view)
    view = upgraded.rehearsed(view)
    assert view.state.phase == "started"
    assert stage.seen().deployment_id == "d-0002"


@pytest.mark.parametrize("wakes", [True, False])
def test_an_old_version_that_falls_silent_holds_the_upgrade_until_it_wakes_or_has_ended(
    upgraded: UpgradeStage, *, wakes: bool
) -> None:
    """No order that it would not obey, no new version alongside it; what is waited for is reported. (1a.8)"""
    stage = upgraded.stage
    view = upgraded.begin()
    upgraded.advance(view)
    upgraded.beats(3, "d-0001")
    stage.clock.advance(90)
    view = upgraded.rehearsed(view)
    assert view.state.phase == "ready"
    assert "has given no sign of life for 90 s" in view.waits_for
    assert "streamstate kill orders" in view.waits_for
    if wakes:
        upgraded.beats(3, "d-0001")
        view = upgraded.advance(view)
        upgraded.stops()
    else:
        stage.controller.kill(STREAM, grace_seconds=1.0)
    assert upgraded.advance(view).state.phase == "started"


def test_a_new_version_that_falls_silent_is_ended_and_the_old_one_comes_back(upgraded: UpgradeStage) -> None:
    """It is not healthy in time, would obey no stop, and is not taken for dead: it is killed first. (1a.8)"""
    stage = upgraded.stage
    view = upgraded.to_started()
    upgraded.new_runs(4)
    upgraded.advance(view)
    stage.clock.advance(10_000)
    view = upgraded.advance(view)
    assert view.state.phase == "trying"  # the old code, on a fork of its state
    upgraded.rehearsed(view)
    view = upgraded.advance(view)
    assert "kill d-0002-a0001" in stage.launcher.calls
    assert stage.control.journal("d-0002").commands() == []
    assert (upgraded.phases(view)[-1], stage.seen().deployment_id) == ("returned", "d-0003")
