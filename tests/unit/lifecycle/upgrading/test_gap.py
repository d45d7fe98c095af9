"""The gap of an upgrade is what the audit tells of standstills."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_streamstate.lifecycle.auditing.custody import custody_of
from airflow_streamstate.lifecycle.auditing.standstills import Standstill
from airflow_streamstate.lifecycle.upgrading.gap import gap_of, gap_until_now
from airflow_streamstate.protocol.events import Noted
from support.fake_clock import FakeClock
from support.sim_stage import STREAM
from support.upgrade_stage import UpgradeStage


@pytest.mark.parametrize("began", [True, False])
def test_a_failed_upgrade_costs_what_the_audit_says(upgraded: UpgradeStage, began: bool) -> None:
    """Both standstills where the version that failed ran its queries, one long one where it never did; until the old
    version is back. Nothing that is said behind a last word shortens it."""
    stage = upgraded.stage
    view = upgraded.to_started()
    stage.clock.advance(10.0)
    stage.say(Noted, text="a copy is whole at a mirror")
    if began:
        upgraded.new_runs(4)
        view = upgraded.advance(view)
        assert view.state.last.gap_seconds == 10.0
        stage.clock.advance(100.0)
    upgraded.fails()
    stage.clock.advance(50.0)
    stage.say(Noted, "d-0002", text="the script ran on")
    view = upgraded.advance(view)
    if began:
        view = upgraded.rehearsed(view)
    upgraded.new_runs(6, "d-0003")
    stage.clock.advance(600.0)
    upgraded.beats(6, "d-0003")
    view = upgraded.advance(view)
    assert view.outcome == "rolled_back"
    found = [one for one in custody_of(stage.home, STREAM).standstills if one.until_at is not None]
    assert len(found) == (2 if began else 1)
    assert view.state.last.gap_seconds == 60.0
    assert view.state.last.gap_seconds == gap_until_now(stage.control, "d-0001", view.state.upgrade.created_at)


def test_only_what_came_to_its_end_since_it_was_asked_for_counts() -> None:
    """An older standstill is not of this upgrade; one that lasts has no length yet."""
    now = FakeClock().now()

    def still(from_seconds: float, until_seconds: float | None) -> Standstill:
        until_at = None if until_seconds is None else now + timedelta(seconds=until_seconds)
        return Standstill("one", "other", now + timedelta(seconds=from_seconds), until_at)

    older, dead_before, moved, lasting = still(-90, -80), still(-5, 2), still(10, 11.5), still(20, None)
    assert gap_of([older, dead_before, moved, lasting], now) == 8.5
    assert gap_of([older, lasting], now) is None
