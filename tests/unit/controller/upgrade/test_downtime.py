"""What an upgrade costs is what the audit reports: downtimes, and the time in which no query ran."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_streamstate.controller.observe.handovers import NotRunning
from airflow_streamstate.controller.observe.lineage import lineage_of
from airflow_streamstate.controller.upgrade.forward import cost_until_now, downtimes_since, not_running_seconds
from airflow_streamstate.controller.upgrade.upgrade_views import downtime_words, end_lines
from airflow_streamstate.protocol.events import Noted
from airflow_streamstate.protocol.positions import Downtime, Mark, downtime_by_query, downtime_seconds
from support.clocked_store import ClockedStore
from support.fake_clock import FakeClock
from support.sim_stage import STREAM, Stage
from support.upgrade_stage import UpgradeStage

COST = ("downtime_seconds", "downtime_by_query", "downtimes", "not_running_seconds")


@pytest.mark.parametrize("began", [True, False])
def test_a_failed_upgrade_costs_what_the_audit_says(upgraded: UpgradeStage, began: bool) -> None:
    """Both periods where the version that failed ran its queries, one long one where it never did; until the old
    version is back. Nothing that is reported after a last event shortens it."""
    stage = upgraded.stage
    view = upgraded.to_started()
    stage.clock.advance(10.0)
    stage.say(Noted, text="a copy is whole at a mirror")
    if began:
        upgraded.new_runs(4)
        view = upgraded.advance(view)
        assert view.state.not_running_seconds == 10.0
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
    assert view.outcome == "given_up"
    found = [one for one in lineage_of(stage.home, STREAM).not_running if one.until_at is not None]
    assert len(found) == (2 if began else 1)
    assert view.state.not_running_seconds == 60.0
    told, _ = cost_until_now(stage.home, STREAM, "d-0001", view.state.upgrade.created_at)
    assert view.state.not_running_seconds == told


def test_only_what_came_to_its_end_since_it_was_asked_for_counts() -> None:
    """An older period is not of this upgrade; one that lasts has no length yet."""
    now = FakeClock().now()

    def still(from_seconds: float, until_seconds: float | None) -> NotRunning:
        until_at = None if until_seconds is None else now + timedelta(seconds=until_seconds)
        return NotRunning("one", "other", now + timedelta(seconds=from_seconds), until_at)

    older, dead_before, moved, lasting = still(-90, -80), still(-5, 2), still(10, 11.5), still(20, None)
    assert not_running_seconds([older, dead_before, moved, lasting], now) == 8.5
    assert not_running_seconds([older, lasting], now) is None
    assert not_running_seconds([replace(dead_before, between_runs=True), moved], now) == 3.5


def test_the_downtime_of_an_upgrade_is_from_commit_to_commit(tmp_path: Path) -> None:
    """Longer than no query ran: the old version commits before it ends, and the new one after it has started."""
    clock = FakeClock()
    upgraded = UpgradeStage(Stage(tmp_path, ClockedStore(clock.now), clock)).runs()
    view = upgraded.to_ready()
    clock.advance(2.0)  # the batch was committed by then
    upgraded.stops()
    view = upgraded.advance(view)
    clock.advance(1.5)
    upgraded.stage.come_to_life("d-0002")
    upgraded.stage.start_query("counts", "d-0002", batch_id=3, how="restored")
    clock.advance(4.0)
    upgraded.new_runs(4)
    view = upgraded.advance(view)
    assert view.state.phase == "started"
    told = view.to_json()
    assert (told["not_running_seconds"], told["downtime_seconds"]) == (1.5, 7.5)
    assert told["downtime_by_query"] == {"counts": 7.5}
    clock.advance(100.0)
    upgraded.beats(6)
    ended = upgraded.advance(view)
    assert ended.outcome == "upgraded"
    assert {key: ended.to_json()[key] for key in COST} == {key: told[key] for key in COST}


def test_the_figure_of_the_stream_is_that_of_its_worst_query() -> None:
    """Per query all its downtimes together: that of a failed version, and that of the rollback. A query that has no
    commit since has no figure yet."""
    now = FakeClock().now()

    def down(name: str, to: str, seconds: float | None) -> Downtime:
        until_at = None if seconds is None else now + timedelta(seconds=seconds)
        return Downtime(name, "d-0001", to, now, until_at, seconds)

    moved = [down("raw", "d-0002", 1.0), down("counts", "d-0002", 3.0), down("counts", "d-0003", 4.0)]
    assert downtime_by_query(moved) == {"counts": 7.0, "raw": 1.0}
    assert downtime_seconds(moved) == 7.0
    assert downtime_words(moved) == "7 s (counts), 1 s (raw)"
    waiting = [*moved, down("raw", "d-0003", None)]
    assert downtime_by_query(waiting) == {"counts": 7.0, "raw": None}
    assert downtime_words(waiting) == "no new batch yet (raw), 7 s (counts)"
    assert (downtime_seconds([]), downtime_words([])) == (None, None)
    assert downtimes_since(waiting, now + timedelta(seconds=3.5)) == (waiting[2], waiting[3])


def test_a_downtime_that_ended_at_a_time_not_known_is_told_as_such() -> None:
    """It is no commit that is missing; and it counts for the upgrade in which the new deployment was started."""
    now = FakeClock().now()
    started_at = now + timedelta(seconds=5)
    unseen = Downtime(
        "raw", "d-0001", "d-0002", now, marks=(Mark("first_start", started_at, "driver"),), has_ended=True
    )
    assert downtime_words([unseen]) == "not known (raw: its commit has no time)"
    assert (downtime_seconds([unseen]), downtime_by_query([unseen])) == (None, {"raw": None})
    assert downtime_words([unseen, Downtime("raw", "d-0002", "d-0003", now)]) == "no new batch yet (raw)"
    assert downtimes_since([unseen], started_at - timedelta(seconds=1)) == (unseen,)
    assert downtimes_since([unseen], started_at + timedelta(seconds=1)) == ()


def test_the_log_of_an_upgrade_ends_with_what_came_of_it(upgraded: UpgradeStage) -> None:
    """One line each: the outcome, the verdict, the mode, the downtime; of one that was refused what there is."""
    ended, now = upgraded.to_upgraded(), FakeClock().now()
    down = Downtime("counts", "d-0001", "d-0002", now, now + timedelta(seconds=7), 7.0)
    known = replace(ended, state=replace(ended.state, downtimes=(down,)))
    assert list(end_lines(known)) == ["outcome: upgraded", "plan: same", "mode: restore", "downtime: 7 s (counts)"]
    view = upgraded.begin("up-2", text="print('v3')\n")
    upgraded.upgrades.cancel(STREAM, view.upgrade_id, after_stop="finish", reason="not tonight")
    (line,) = end_lines(upgraded.advance(view))
    assert line.startswith("outcome: refused: cancelled by ")
