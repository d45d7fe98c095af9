"""Upgrades for operators and the trigger."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.control.upgrade_journal import ABANDONED, UpgradeJournal
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.request.requests import change_request
from airflow_streamstate.controller.upgrade.upgrade_views import UpgradeView
from airflow_streamstate.controller.upgrade.upgrades import UpgradeRequest
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.errors import StreamNotFoundError
from airflow_streamstate.hooks.task_upgrades import (
    advance_upgrade,
    end_watched,
    give_up,
    give_up_from_afar,
    stands_for_nothing,
    upgrade_of,
    what_remains,
)
from airflow_streamstate.protocol.terms.order import UpgradeTerms
from airflow_streamstate.protocol.upgrades import Cancellation
from support import scripted_driver
from support.airflow_streams import NamedHome
from support.airflow_upgrades import phases, run_first_version
from support.sim_stage import STREAM, Stage
from support.upgrade_stage import UpgradeStage


@pytest.fixture
def running(named: NamedHome, tmp_path: Path) -> Controller:
    """A stream that runs."""
    run_first_version(named, tmp_path)
    return named.hook().client


def begun(controller: Controller, folder: Path, word: str, *, healthy_deadline_seconds: float = 30.0) -> UpgradeView:
    change = change_request("flights", application=scripted_driver.script(folder, word, name=f"{word}.py"))
    request = UpgradeRequest(change, UpgradeTerms(warm=False, healthy_deadline_seconds=healthy_deadline_seconds))
    return controller.upgrades.begin(request, "asked")


def brought_to(controller: Controller, view: UpgradeView, phase: str, told: list[str] | None = None) -> UpgradeView:
    told = [] if told is None else told
    for _ in range(400):
        told_number = view.state.last.number
        view = advance_upgrade(
            controller, view, told=told_number, hold_seconds=30, on_step=told.append, on_progress=lambda _: None
        )
        if view.state.phase == phase:
            return view
        controller.clock.sleep(0.05)
    raise AssertionError(view)


def test_an_upgrade_is_found_by_its_request(running: Controller, tmp_path: Path) -> None:
    """And none where it became none yet."""
    assert upgrade_of(running, "flights", "asked") is None
    view = begun(running, tmp_path, "proves")
    found = upgrade_of(running, "flights", "asked")
    assert found is not None
    assert found.upgrade_id == view.upgrade_id
    with pytest.raises(StreamNotFoundError):
        upgrade_of(running, "nobody", "asked")


def test_the_worker_stays_while_the_stream_may_stand_still(running: Controller, tmp_path: Path) -> None:
    """It comes back with a wait only where a version runs; each step is reported once."""
    view = begun(running, tmp_path, "stalls")
    told: list[str] = []
    view = brought_to(running, view, "started", told)
    words = [line.partition(":")[0] for line in told]
    assert list(dict.fromkeys(words)) == ["rehearsing", "planned", "ready", "stopping", "ended", "started"]
    assert words.count("rehearsing") == 1


def test_it_stays_no_longer_than_it_is_told_to(running: Controller, tmp_path: Path) -> None:
    """A batch may take hours."""
    view = brought_to(running, begun(running, tmp_path, "stalls", healthy_deadline_seconds=300), "started")
    running.upgrades.cancel("flights", view.upgrade_id, after_stop="rollback")
    view = advance_upgrade(running, view, told=0, hold_seconds=0.0, on_step=lambda _: None, on_progress=lambda _: None)
    assert view.state.phase in ("returning", "trying", "returned")
    assert not view.is_over


@pytest.mark.parametrize(("word", "phase"), [("hangs", "rehearsing"), ("stalls", "started")])
def test_from_afar_it_is_over_before_the_stop_and_recorded_after_it(
    named: NamedHome, running: Controller, tmp_path: Path, word: str, phase: str
) -> None:
    """No driver is started or ended by a process that may not see it."""
    view = brought_to(running, begun(running, tmp_path, word), phase)
    before = phases(named, view.upgrade_id)
    watch = WaitCondition("upgrade", "flights", deployment_id=view.upgrade_id)
    line = end_watched(running, "rollback", watch)
    after = running.upgrades.view("flights", view.upgrade_id)
    if phase == "rehearsing":
        assert after.outcome == "refused"
        assert stands_for_nothing(running, after)
        assert "has ended: refused" in line
    else:
        assert phases(named, view.upgrade_id) == before
        assert "`streamstate continue flights`" in line
        ended = give_up(running, "flights", view.upgrade_id, "finish", 30)
        assert ended.outcome == "given_up"  # what was reported first counts
        assert give_up_from_afar(running, "flights", view.upgrade_id, "finish").outcome == "given_up"
    assert running.status("flights").state in ("running", "launching")


def test_what_somebody_else_cancelled_was_not_given_up_with_its_task(running: Controller, tmp_path: Path) -> None:
    """A person's no counts; no try starts again against it."""
    view = brought_to(running, begun(running, tmp_path, "hangs"), "rehearsing")
    assert not stands_for_nothing(running, view)
    running.upgrades.cancel("flights", view.upgrade_id, after_stop="finish", reason="no")
    assert not stands_for_nothing(running, running.upgrades.advance("flights", view.upgrade_id))


def test_a_wait_that_ends_says_where_the_upgrade_stands(running: Controller, tmp_path: Path) -> None:
    """By its phase (Law 6)."""
    view = brought_to(running, begun(running, tmp_path, "hangs"), "rehearsing")
    watch = WaitCondition("upgrade", "flights", deployment_id=view.upgrade_id)
    assert "phase rehearsing" in str(running.out_of_time(watch, "2026-03-01T10:00:05.000Z"))
    assert "phase rehearsing" in what_remains(view, "finish")


def test_a_version_that_failed_before_its_task_was_taken_for_gone_was_tried(tmp_path: Path) -> None:
    """A watcher may record that the task is gone right after the task's next step has won."""
    upgraded = UpgradeStage(Stage(tmp_path)).runs()
    view = upgraded.to_started()
    clock, journal = upgraded.stage.clock, UpgradeJournal(upgraded.stage.control)
    journal.cancel(
        Cancellation(STREAM, view.upgrade_id, "finish", "tests", clock.now(), clock.new_uuid(), reason=ABANDONED)
    )
    upgraded.fails()
    view = upgraded.advance(view)
    upgraded.new_runs(4, "d-0003")
    view = upgraded.advance(view)
    assert view.outcome == "given_up"
    assert not stands_for_nothing(upgraded.stage.controller, view)
