"""What died between two polls and was replaced before the second one; and alerts while an upgrade holds the stream."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.alerts.conftest import Alerted, staged

from airflow_streamstate.control.upgrade_journal import LEASE_SECONDS
from airflow_streamstate.protocol.events import Failed, QueryFailed, Stopped
from support.sim_stage import STREAM, Stage
from support.upgrade_stage import UpgradeStage


@pytest.fixture
def upgraded(tmp_path: Path) -> UpgradeStage:
    """A stream that runs, with a feed."""
    return UpgradeStage(staged(tmp_path)).runs()


@pytest.fixture
def alerted(upgraded: UpgradeStage) -> Alerted:
    """A watch of it that has looked."""
    made = Alerted(upgraded.stage, runs=True)
    assert made.look() == []
    return made


def taken_over(upgraded: UpgradeStage) -> None:
    """An upgrade that finds the old version dead, and becomes healthy."""
    view = upgraded.begin("up-9")
    upgraded.advance(view)
    upgraded.rehearsed(view)
    upgraded.new_runs(4)
    upgraded.advance(view)
    upgraded.new_runs(6)
    assert upgraded.advance(view).outcome == "upgraded"


@pytest.mark.parametrize("remembers", [True, False])
def test_a_driver_killed_before_an_upgrade_between_two_looks_is_told_and_resolved(
    upgraded: UpgradeStage, alerted: Alerted, *, remembers: bool
) -> None:
    """The next poll finds a healthy new version, and reports the death all the same."""
    watch = alerted.another("airflow", remembers=remembers)
    assert alerted.look(5, watch) == []
    upgraded.stage.end(state="gone")
    taken_over(upgraded)
    assert alerted.look(5, watch) == ["raised driver_dead"]
    assert alerted.text == "attempt 1 of d-0001 has ended since the last poll: without a last event"
    assert alerted.look(5, watch) == ["resolved driver_dead"]
    alerted.stage.clock.advance(600)
    upgraded.beats(6)
    assert alerted.look(0, watch) == []


def test_the_words_of_a_driver_that_failed_are_told_with_its_secrets_hidden(stage: Stage) -> None:
    """As ``status`` would have reported them. (Law 13)"""
    alerted = Alerted(stage, environment={"DB_PASSWORD": "hunter22"}, allow_literal_secrets=True)
    alerted.look()
    stage.say(Failed, error="OperationalError: no login with hunter22", traceback="…", query_name="")
    stage.end()
    stage.controller.resume(STREAM)
    stage.come_to_life(attempt=2, queries=("counts",))
    alerted.beat(attempt=2)
    assert alerted.look(5) == ["raised driver_dead"]
    assert "OperationalError: no login with ***" in alerted.text
    assert alerted.look(5) == ["resolved driver_dead"]


def test_a_death_is_told_although_the_upgrade_is_still_under_way(upgraded: UpgradeStage, alerted: Alerted) -> None:
    """Looked at while the new version is not healthy yet; over with its health."""
    upgraded.stage.end(state="gone")
    view = upgraded.begin()
    upgraded.advance(view)
    upgraded.rehearsed(view)
    assert upgraded.upgrades.view(STREAM, view.upgrade_id).state.phase == "started"
    assert alerted.look(5) == ["raised driver_dead"]
    upgraded.new_runs(4)
    upgraded.advance(view)
    assert alerted.look(5) == []
    upgraded.new_runs(6)
    assert upgraded.advance(view).outcome == "upgraded"
    assert alerted.look(5) == ["resolved driver_dead"]


def test_a_death_that_was_told_before_its_successor_came_is_told_once(upgraded: UpgradeStage, alerted: Alerted) -> None:
    """The raised alert is about it."""
    upgraded.stage.end(state="gone")
    assert alerted.look(5) == ["raised driver_dead"]
    taken_over(upgraded)
    assert alerted.look(5) == ["resolved driver_dead"]
    assert alerted.look(60) == []


def test_a_version_that_was_told_to_end_has_not_died(upgraded: UpgradeStage, alerted: Alerted) -> None:
    """An upgrade between two polls, whose old driver obeyed."""
    upgraded.to_upgraded()
    assert alerted.look(5) == []


def test_a_new_version_that_was_given_up_is_the_failure_of_its_upgrade(
    upgraded: UpgradeStage, alerted: Alerted
) -> None:
    """And no death of a driver that anybody relied on."""
    view = upgraded.to_started()
    alerted.look(5)
    upgraded.fails()
    upgraded.advance(view)
    upgraded.new_runs(4, "d-0003")
    upgraded.advance(view)
    upgraded.new_runs(6, "d-0003")
    upgraded.stage.clock.advance(60)
    upgraded.beats(8, "d-0003")
    assert upgraded.advance(view).outcome == "given_up"
    assert alerted.look(5) == ["raised upgrade_failed"]


def test_a_query_that_failed_before_a_restart_between_two_looks_is_told_and_resolved(stage: Stage) -> None:
    """The driver ran on without it, was stopped by a person, and started again."""
    alerted = Alerted(stage)
    alerted.look()
    stage.say(
        QueryFailed, query_name="counts", query_id="id", query_run_id="run", batch_id=3, planned_batch_id=4,
        error="ValueError: row 7 is bad",
    )  # fmt: skip
    stage.controller.order("stop", STREAM)
    command = stage.control.journal("d-0001").commands()[0].command
    assert command is not None
    kept = stage.keep("stopped")
    stage.say(Stopped, snapshot_id=kept.snapshot_id, queries={}, command_id=command.command_id, command_number=1)
    stage.end()
    stage.controller.resume(STREAM)
    stage.come_to_life(attempt=2, queries=("counts",))
    alerted.beat(attempt=2)
    assert alerted.look(5) == ["raised query_died"]
    assert alerted.text == "query counts has failed: ValueError: row 7 is bad"
    assert alerted.look(5) == ["resolved query_died"]


def test_a_driver_that_dies_while_an_upgrade_waits_for_an_answer_is_told(
    upgraded: UpgradeStage, alerted: Alerted
) -> None:
    """Nothing of the stream is moved until somebody approves."""
    view = upgraded.begin(needs_approval=True)
    upgraded.advance(view)
    upgraded.rehearsed(view)
    upgraded.stage.clock.advance(2 * LEASE_SECONDS)
    upgraded.stage.end(state="gone")
    assert alerted.look(5) == ["raised driver_dead"]


def test_an_upgrade_that_nobody_drives_hides_nothing_and_is_an_alert_of_its_own(
    upgraded: UpgradeStage, alerted: Alerted
) -> None:
    """While its caller gives signs of life, a dead new version is its matter; then it is everybody's."""
    view = upgraded.upgrades.begin(upgraded.request(), "up-1", lease_seconds=LEASE_SECONDS)
    upgraded.advance(view)
    upgraded.rehearsed(view)
    upgraded.stops()
    upgraded.advance(view)
    upgraded.new_runs(4)
    upgraded.upgrades.hold(STREAM, view.upgrade_id, LEASE_SECONDS)
    upgraded.stage.end("d-0002", state="gone")
    assert alerted.look(5) == []
    assert sorted(alerted.look(LEASE_SECONDS)) == ["raised driver_dead", "raised upgrade_abandoned"]
    abandoned = next(one.alert for one in alerted.changes if one.alert.rule == "upgrade_abandoned")
    assert abandoned.subject == view.upgrade_id
    assert f"{view.upgrade_id} started" in abandoned.text
    assert "is gone since" in abandoned.text
    upgraded.upgrades.keeps_lease(STREAM, view.upgrade_id)()
    assert alerted.look(5) == ["resolved upgrade_abandoned"]


def test_an_upgrade_that_was_given_up_for_want_of_its_caller_is_a_failed_upgrade(
    upgraded: UpgradeStage, alerted: Alerted
) -> None:
    """No person has cancelled it."""
    view = upgraded.upgrades.begin(upgraded.request(), "up-1", lease_seconds=LEASE_SECONDS)
    upgraded.advance(view)
    alerted.look(5)
    upgraded.stage.clock.advance(LEASE_SECONDS)
    upgraded.beats(3, "d-0001")
    assert upgraded.upgrades.take_over(STREAM, view.upgrade_id).outcome == "refused"
    assert alerted.look(5) == ["raised upgrade_failed"]
