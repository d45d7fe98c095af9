"""Upgrades whose task or shell is gone: watchers bring them to their end, by what was recorded at their start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.control.upgrade_journal import ABANDONED, LEASE_SECONDS, UpgradeJournal
from airflow_streamstate.controller.supervise.watcher import Line, Watcher
from airflow_streamstate.controller.upgrade.upgrade_views import UpgradeView
from airflow_streamstate.hooks.task_upgrades import give_up_from_afar
from airflow_streamstate.protocol.positions import QueryBeat
from airflow_streamstate.protocol.upgrades import AfterStop
from support.sim_stage import STREAM, Stage
from support.upgrade_stage import UpgradeStage

pytestmark = pytest.mark.fast

A_MINUTE = 60.0


class Abandoned:
    """A stream under an upgrade whose caller may vanish, and a watcher of its home."""

    def __init__(self, folder: Path, **policy: Any) -> None:
        self.upgraded = UpgradeStage(Stage(folder)).runs()
        self.stage = self.upgraded.stage
        self.stage.controller.details.change_restart_policy(STREAM, {"on_failure": "restart", **policy})
        self.lines: list[Line] = []
        self.watcher = self.another()

    def another(self, **named: Any) -> Watcher:
        """Another watcher, which remembers nothing."""
        return self.stage.another_controller("watcher").watcher(self.lines.append, **named)

    def begin(self, if_abandoned: AfterStop = "finish", *, is_task: bool = True, **asked: Any) -> UpgradeView:
        """An upgrade of a task, or of a shell."""
        lease_seconds = LEASE_SECONDS if is_task else None
        request = self.upgraded.request(**asked)
        return self.upgraded.upgrades.begin(request, "up-1", lease_seconds=lease_seconds, if_abandoned=if_abandoned)

    def started(self, if_abandoned: AfterStop = "finish", *, is_task: bool = True) -> UpgradeView:
        """And its new version is launched, and has started."""
        view = self.begin(if_abandoned, is_task=is_task)
        self.upgraded.advance(view)
        self.upgraded.rehearsed(view)
        self.upgraded.stops()
        self.upgraded.advance(view)
        self.upgraded.new_runs(4)
        assert self.upgraded.advance(view).state.phase == "started"
        return view

    def watch(self, seconds: float, watcher: Watcher | None = None) -> None:
        """Let a watcher tick for the given time."""
        for _ in range(int(seconds)):
            (watcher or self.watcher).tick()
            self.stage.clock.advance(1.0)

    def view(self) -> UpgradeView:
        """The upgrade as it is."""
        (upgrade_id,) = UpgradeJournal(self.stage.control).ids()
        return self.upgraded.upgrades.view(STREAM, upgrade_id)

    @property
    def said(self) -> list[str]:
        return [line.sight for line in self.lines]


@pytest.fixture
def abandoned(tmp_path: Path) -> Abandoned:
    return Abandoned(tmp_path)


def test_a_task_that_a_user_ended_is_rolled_back_within_a_minute_as_it_asked(abandoned: Abandoned) -> None:
    """Deferred, marked failed after the stop, and its driver killed: the old version is back. (Issue 31, 10)"""
    view = abandoned.started("rollback")
    give_up_from_afar(abandoned.stage.controller, STREAM, view.upgrade_id, "rollback")
    abandoned.stage.end("d-0002", state="gone")
    abandoned.watch(A_MINUTE)
    abandoned.upgraded.rehearsed(abandoned.view())
    abandoned.watch(A_MINUTE)
    register = abandoned.stage.control.need_register().value
    assert register.deployment_id == "d-0003"
    assert (
        abandoned.stage.control.spec("d-0003").version.application
        == abandoned.stage.control.spec("d-0001").version.application
    )
    abandoned.upgraded.new_runs(6, "d-0003")
    abandoned.watch(A_MINUTE)
    abandoned.upgraded.new_runs(8, "d-0003")
    abandoned.watch(A_MINUTE)
    assert abandoned.view().outcome == "given_up"
    assert "upgrading" in abandoned.said


def test_a_task_that_a_user_ended_is_finished_where_it_asked_for_that(abandoned: Abandoned) -> None:
    """The new version continues to prove itself."""
    view = abandoned.started()
    give_up_from_afar(abandoned.stage.controller, STREAM, view.upgrade_id, "finish")
    abandoned.upgraded.new_runs(6)
    abandoned.watch(A_MINUTE)
    assert abandoned.view().outcome == "upgraded"
    assert abandoned.stage.control.need_register().value.upgrade_id is None


@pytest.mark.parametrize("is_task", [True, False])
def test_an_owner_that_vanished_is_waited_for_as_long_as_its_lease(tmp_path: Path, *, is_task: bool) -> None:
    """A worker or a shell that was killed reports nothing; until then its upgrade is its own."""
    abandoned = Abandoned(tmp_path)
    view = abandoned.started(is_task=is_task)
    abandoned.upgraded.upgrades.hold(STREAM, view.upgrade_id, LEASE_SECONDS)
    abandoned.upgraded.new_runs(6)
    abandoned.watch(LEASE_SECONDS - 10)
    assert not abandoned.view().is_over
    assert abandoned.said == ["held"]
    abandoned.upgraded.new_runs(7)
    abandoned.watch(A_MINUTE)
    assert abandoned.view().outcome == "upgraded"


def test_a_vanished_owner_that_asked_for_it_is_rolled_back_and_its_next_try_begins_anew(abandoned: Abandoned) -> None:
    """Nobody has cancelled it: the reason reports that its caller is gone."""
    view = abandoned.started("rollback")
    abandoned.upgraded.upgrades.hold(STREAM, view.upgrade_id, LEASE_SECONDS)
    abandoned.watch(LEASE_SECONDS + A_MINUTE)
    cancellation = UpgradeJournal(abandoned.stage.control).cancellation(view.upgrade_id)
    assert cancellation is not None
    assert (cancellation.reason, cancellation.after_stop) == (ABANDONED, "rollback")
    assert abandoned.view().state.is_cancelled
    assert abandoned.view().state.phase not in ("started", "upgraded")


def test_an_owner_that_gives_signs_of_life_is_left_alone_whatever_its_clock_says(abandoned: Abandoned) -> None:
    """Its clock is hours behind that of the watcher: each sign looks as if it were long over."""
    view = abandoned.started("rollback")
    journal = UpgradeJournal(abandoned.stage.control)
    for _ in range(10):
        abandoned.upgraded.upgrades.hold(STREAM, view.upgrade_id, LEASE_SECONDS)
        lease = journal.lease(view.upgrade_id)
        assert lease is not None
        journal.hold(type(lease)(**{**vars(lease), "until_at": lease.until_at.replace(year=2025)}))
        abandoned.upgraded.beats(4)
        abandoned.watch(30)
    assert journal.cancellation(view.upgrade_id) is None
    assert not journal.need_state(view.upgrade_id).is_cancelled


def test_an_owner_that_comes_back_goes_on_itself(abandoned: Abandoned) -> None:
    """What it holds again is left to it."""
    view = abandoned.started()
    abandoned.upgraded.upgrades.leave(STREAM, view.upgrade_id)
    abandoned.watch(20)
    assert abandoned.said[-1] == "upgrading"
    abandoned.upgraded.upgrades.keeps_lease(STREAM, view.upgrade_id)()
    abandoned.watch(20)
    assert abandoned.said[-1] == "held"


def test_a_single_pass_goes_by_the_clocks(abandoned: Abandoned) -> None:
    """It remembers nothing: cron runs it."""
    view = abandoned.started()
    abandoned.upgraded.upgrades.hold(STREAM, view.upgrade_id, LEASE_SECONDS)
    abandoned.upgraded.new_runs(6)
    abandoned.another(trusts_clocks=True).tick()
    assert not abandoned.view().is_over
    abandoned.stage.clock.advance(LEASE_SECONDS + 1)
    abandoned.upgraded.beats(6)
    abandoned.another(trusts_clocks=True).tick()
    assert abandoned.view().outcome == "upgraded"


def test_a_task_that_vanished_before_it_touched_the_stream_has_its_upgrade_ended(abandoned: Abandoned) -> None:
    """The stream runs on, and a driver that dies is followed by another attempt."""
    view = abandoned.begin("rollback")
    abandoned.upgraded.advance(view)
    abandoned.stage.end(state="gone")
    abandoned.watch(LEASE_SECONDS + A_MINUTE)
    assert abandoned.view().outcome == "refused"
    assert ABANDONED in abandoned.view().state.text
    register = abandoned.stage.control.need_register().value
    assert (register.deployment_id, register.attempt, register.upgrade_id) == ("d-0001", 2, None)


def test_a_shell_that_vanished_before_the_stop_has_its_upgrade_finished(abandoned: Abandoned) -> None:
    """As ``continue`` would: its caller asked for it, and nobody took that back."""
    view = abandoned.begin(is_task=False)
    abandoned.upgraded.advance(view)
    abandoned.watch(LEASE_SECONDS + A_MINUTE)
    abandoned.stage.beat(counts=QueryBeat(3, abandoned.stage.clock.now(), is_active=True))
    assert abandoned.view().state.phase == "rehearsing"
    abandoned.upgraded.rehearsed(view)
    assert abandoned.view().state.phase == "stopping"


def test_an_upgrade_that_waits_for_a_person_is_not_abandoned_and_its_stream_is_restarted(abandoned: Abandoned) -> None:
    """Whoever asked is long gone; the answer may come tomorrow."""
    view = abandoned.begin(is_task=False, needs_approval=True)
    abandoned.upgraded.advance(view)
    assert abandoned.upgraded.rehearsed(view).state.phase == "planned"
    abandoned.watch(LEASE_SECONDS + A_MINUTE)
    assert abandoned.view().state.phase == "planned"
    abandoned.stage.end(state="gone")
    abandoned.watch(3 * A_MINUTE)
    assert abandoned.stage.control.need_register().value.attempt == 2
    abandoned.stage.come_to_life(attempt=2, queries=("counts",))
    abandoned.stage.run_batches(5)
    abandoned.upgraded.beats(5, "d-0001", 2)
    abandoned.upgraded.upgrades.approve(STREAM, view.upgrade_id, is_approved=True)
    for _ in range(int((LEASE_SECONDS + A_MINUTE) / 30) + 1):
        abandoned.upgraded.beats(5, "d-0001", 2)
        abandoned.watch(30)
    abandoned.upgraded.stops(attempt=2)
    abandoned.watch(5)
    abandoned.upgraded.new_runs(7)
    abandoned.watch(20)
    abandoned.upgraded.new_runs(9)
    abandoned.watch(20)
    assert abandoned.view().outcome == "upgraded"


def test_the_advice_about_a_failed_stream_that_an_upgrade_holds_is_the_verb_that_works(abandoned: Abandoned) -> None:
    """A resume is refused then."""
    abandoned.started()
    abandoned.stage.end("d-0002", state="gone")
    status = abandoned.stage.controller.status(STREAM)
    assert status.state == "failed"
    assert f"`streamstate continue {STREAM}` finishes it, `cancel` gives it up" in status.next_step
    assert "resume" not in status.next_step


def test_a_watcher_on_another_machine_leaves_it_to_the_one_where_the_driver_runs(abandoned: Abandoned) -> None:
    """It would launch the driver where the stream's files are not."""
    view = abandoned.started("rollback")
    abandoned.upgraded.upgrades.leave(STREAM, view.upgrade_id)
    abandoned.stage.end("d-0002", state="unknown")
    abandoned.watch(A_MINUTE)
    assert abandoned.said == ["held"]
    assert UpgradeJournal(abandoned.stage.control).cancellation(view.upgrade_id) is None
