"""The way back to the old version, in the first way that is exact, with drivers that do what a test specifies."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.controller.upgrade import backward
from airflow_streamstate.controller.upgrade.backward import MAX_REHEARSALS, PATIENCE_SECONDS
from airflow_streamstate.controller.upgrade.forward import WARM_SECONDS
from airflow_streamstate.controller.upgrade.steps import SILENCE_SECONDS
from airflow_streamstate.controller.upgrade.upgrade_views import UpgradeView
from airflow_streamstate.errors import ConflictError, InvalidRequestError, UnavailableError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.commands import StopRequest
from airflow_streamstate.protocol.events import Drained, DrainFailed, Draining, Stopped, Undone
from airflow_streamstate.protocol.ids import launch_key_for
from airflow_streamstate.protocol.positions import QueryBeat, SourceIdentity
from airflow_streamstate.protocol.records import DeploymentSpec, Intent
from airflow_streamstate.protocol.terms.order import UpgradeTerms
from support.built_plans import plan
from support.scripted_rehearsal import keep_plan
from support.sim_stage import STREAM, Stage
from support.snapshots import plan_stateful
from support.upgrade_stage import FILES, SOCKET, UpgradeStage

pytestmark = pytest.mark.fast


def runs_the_old_code(upgraded: UpgradeStage, deployment_id: str) -> bool:
    def code(spec: DeploymentSpec) -> object:
        return spec.version.application, spec.version.arguments, spec.version.conf, spec.version.code_digest

    return code(upgraded.stage.spec(deployment_id)) == code(upgraded.stage.spec("d-0001"))


def given_up_alive(upgraded: UpgradeStage, last: int, **asked: Any) -> UpgradeView:
    """A new version that is cancelled while it runs, with batches up to this one; its rollback has started."""
    view = upgraded.to_started(warm=True, **asked)
    upgraded.new_runs(last)
    upgraded.upgrades.cancel(STREAM, view.upgrade_id, after_stop="rollback")
    return upgraded.advance(view)


def orders(upgraded: UpgradeStage, deployment_id: str = "d-0002") -> int:
    return len(upgraded.stage.control.journal(deployment_id).commands())


@pytest.mark.parametrize("way", ["handover", "forward", "undo"])
def test_the_old_driver_waits_before_the_bad_one_is_stopped(upgraded: UpgradeStage, way: str) -> None:
    """In each way: rehearsed on what it will start from, and at its first start; only then the bad version is ordered
    to stop, and its successor is that driver. The journal reports it."""
    upgraded.sink = FILES
    view = given_up_alive(upgraded, 3 if way == "handover" else 5)
    if way == "undo":
        view = upgraded.rehearsed(view, refused=True)
    assert (view.state.phase, orders(upgraded)) == ("trying", 0)
    rehearsal_id = upgraded.rehearsal(view).run_id
    start = upgraded.stage.control.spec(rehearsal_id).start
    assert start.snapshot_id == (rehearsal_id if way == "forward" else "d-0001-stopped-000001")
    assert runs_the_old_code(upgraded, rehearsal_id)
    view = upgraded.rehearsed(view, waits=True)
    assert (view.state.phase, view.state.way, view.to_json()["driver"]) == ("returning", way, "waits")
    assert orders(upgraded) == 1
    assert any("starts next to the abandoned version" in line for line in upgraded.told)
    assert any("the new version ends, and a driver waits" in line for line in upgraded.told)
    upgraded.stops("d-0002")
    view = upgraded.advance(view)
    assert view.state.phase == "returned"
    assert upgraded.is_warm("d-0003", rehearsal_id)
    start = upgraded.stage.spec("d-0003").start
    assert (start.snapshot_id == "d-0001-stopped-000001", start.undoes is not None) == (way != "forward", way == "undo")
    upgraded.new_runs(7, "d-0003")
    view = upgraded.advance(view)
    assert (view.outcome, view.to_json()["driver"]) == ("given_up", "waits")


def with_a_driver_for_the_way_back(upgraded: UpgradeStage) -> tuple[UpgradeView, str]:
    """A new version that was handed over, alongside a driver of the old one that waits; and the latter's rehearsal."""
    view = upgraded.begin(warm=True, warm_return=True)
    upgraded.advance(view)
    view = upgraded.rehearsed(view, waits=True)
    standby_id = str(view.state.standby_id)
    assert (view.state.phase, orders(upgraded, "d-0001")) == ("waiting", 0)
    assert runs_the_old_code(upgraded, standby_id)
    view = upgraded.rehearsed(view, waits=True, rehearsal_id=standby_id)
    assert (view.state.phase, view.to_json()["driver"]) == ("stopping", "waits")
    assert "the new driver waits; a driver of the old version waits for the rollback" in upgraded.texts(view)
    upgraded.stops()
    return upgraded.advance(view), standby_id


def fails_warm(upgraded: UpgradeStage, view: UpgradeView) -> None:
    """The new version fails, in the driver that had waited."""
    upgraded.stage.launcher.states[launch_key_for(upgraded.rehearsal(view).run_id, 1)] = "exited"
    upgraded.fails()


@pytest.mark.parametrize("end", ["fails", "is abandoned"])
def test_a_driver_that_was_kept_ready_replaces_a_version_that_committed_nothing(
    upgraded: UpgradeStage, end: str
) -> None:
    """It has waited since before the stop: no rehearsal and no launch is between the failure and its handover."""
    view, standby_id = with_a_driver_for_the_way_back(upgraded)
    if end == "fails":
        fails_warm(upgraded, view)
    else:
        upgraded.new_runs(3)
        upgraded.upgrades.cancel(STREAM, view.upgrade_id, after_stop="rollback")
        upgraded.advance(view)
        upgraded.stops("d-0002")
    rehearsals = len(upgraded.stage.control.scratch_ids())
    view = upgraded.advance(view)
    assert (view.state.phase, view.state.way, view.to_json()["driver"]) == ("returned", "handover", "waits")
    assert upgraded.is_warm("d-0003", standby_id)
    assert len(upgraded.stage.control.scratch_ids()) == rehearsals
    upgraded.new_runs(5, "d-0003")
    view = upgraded.advance(view)
    assert view.outcome == "given_up"


@pytest.mark.parametrize("left", ["planned", "planned of another source", "committed"])
def test_a_driver_that_was_kept_ready_goes_on_with_a_batch_that_was_only_planned(tmp_path: Path, left: str) -> None:
    """The state is the one that the old code was rehearsed on, so no rehearsal delays the way forward; where the batch
    is of a different source, or another batch was committed, there is one."""
    upgraded = UpgradeStage(Stage(tmp_path, identities=(SourceIdentity("file", "file:/in"),))).runs()
    view, standby_id = with_a_driver_for_the_way_back(upgraded)
    if left == "planned of another source":
        upgraded.stage.identities = (SourceIdentity("file", "file:/elsewhere"),)
    last = 4 if left == "committed" else 3
    upgraded.new_runs(last)
    plan_stateful(upgraded.stage.checkpoint("counts", "d-0002"), last + 1)
    fails_warm(upgraded, view)
    view = upgraded.advance(view)
    if left == "planned":
        assert (view.state.phase, view.state.way, view.to_json()["driver"]) == ("returned", "forward", "waits")
        assert upgraded.is_warm("d-0003", standby_id)
    else:
        assert (view.state.phase, view.state.is_way_decided) == ("trying", False)


def test_a_driver_that_was_kept_ready_also_goes_back_to_the_handover(upgraded: UpgradeStage) -> None:
    """The new version committed, and the old code cannot read what it left: its output is undone, without a launch."""
    upgraded.sink = FILES
    view, standby_id = with_a_driver_for_the_way_back(upgraded)
    upgraded.new_runs(5)
    fails_warm(upgraded, view)
    view = upgraded.advance(view)
    assert (view.state.phase, view.state.is_way_decided) == ("trying", False)
    view = upgraded.rehearsed(view, refused=True)
    assert (view.state.phase, view.state.way, view.to_json()["driver"]) == ("returned", "undo", "waits")
    assert upgraded.is_warm("d-0003", standby_id)


def test_where_the_standby_is_refused_the_old_code_is_rehearsed_on_what_was_left(tmp_path: Path) -> None:
    """Another way may be exact, so a refusal is no end: the same is tried as without it."""
    upgraded = UpgradeStage(Stage(tmp_path, identities=(SourceIdentity("file", "file:/in"),)), sink=FILES).runs()
    view, _ = with_a_driver_for_the_way_back(upgraded)
    upgraded.new_runs(3)
    plan_stateful(upgraded.stage.checkpoint("counts", "d-0002"), 4)
    upgraded.stage.launcher.complaint = InvalidRequestError("no such file on this machine")
    fails_warm(upgraded, view)
    view = upgraded.advance(view)
    texts = upgraded.texts(view)
    assert any("boom; not by the driver that was kept ready: no such file on this machine" in text for text in texts)
    assert view.state.standby_id is None


@pytest.mark.parametrize("strike", ["fresh", "store is away"])
def test_why_no_standby_waits_is_said(upgraded: UpgradeStage, strike: str) -> None:
    """Also where none is of use, and where a store does not answer for long: it only saves time."""
    view = upgraded.begin(warm=True, warm_return=True, mode="fresh" if strike == "fresh" else "auto")
    upgraded.advance(view)
    if strike == "store is away":
        upgraded.stage.launcher.refusals = [UnavailableError("the machine does not answer")] * 9
        with pytest.raises(UnavailableError):
            upgraded.rehearsed(view, waits=True)
        upgraded.stage.clock.advance(WARM_SECONDS + 60.0)
        view = upgraded.advance(view)
    else:
        view = upgraded.rehearsed(view, waits=True)
    assert view.state.phase == "stopping"
    assert any(
        text.startswith(("the new driver waits; no driver", "no driver is kept")) for text in upgraded.texts(view)
    )


def test_a_driver_that_was_kept_ready_ends_once_the_new_version_is_healthy(upgraded: UpgradeStage) -> None:
    """Nothing of it is left."""
    view, standby_id = with_a_driver_for_the_way_back(upgraded)
    upgraded.new_runs(4)
    upgraded.advance(view)
    upgraded.new_runs(6)
    view = upgraded.advance(view)
    assert view.outcome == "upgraded"
    assert f"kill {launch_key_for(standby_id, 1)}" in upgraded.stage.launcher.calls
    assert upgraded.stage.control.handover(standby_id) is None


@pytest.mark.parametrize("strike", ["cannot be launched", "ends", "not accepted"])
def test_an_upgrade_goes_on_without_a_driver_for_the_way_back(upgraded: UpgradeStage, strike: str) -> None:
    """It only saves time; a step reports why none waits, and the rollback is cold."""
    view = upgraded.begin(warm=True, warm_return=True)
    upgraded.advance(view)
    if strike == "cannot be launched":
        upgraded.stage.launcher.refusal = InvalidRequestError("no more drivers on this machine")
    view = upgraded.rehearsed(view, waits=True)
    standby_id = str(view.state.standby_id)
    if strike == "ends":
        upgraded.stage.launcher.states[launch_key_for(standby_id, 1)] = "exited"
        view = upgraded.advance(view)
    elif strike == "not accepted":
        view = upgraded.rehearsed(view, refused=True, rehearsal_id=standby_id)
    assert (view.state.phase, view.to_json()["driver"]) == ("stopping", "waits")
    assert any("for the rollback" in text and "no driver" in text for text in upgraded.texts(view))
    upgraded.stops()
    view = upgraded.advance(view)
    fails_warm(upgraded, view)
    view = upgraded.advance(view)
    assert view.state.phase == "returned"
    assert "launch d-0003-a0001" in upgraded.stage.launcher.calls


@pytest.mark.parametrize(
    ("strike", "reason"),
    [
        ("no room", "its driver has ended"),
        ("never there", "its rehearsal was not over at its deadline"),
        ("not accepted", "its rehearsal was not accepted: [STATE_STORE_VALUE_SCHEMA"),
        ("bad one dies", "the abandoned version does not run"),
    ],
)
def test_where_no_old_driver_waits_the_way_back_is_cold_and_says_why(
    upgraded: UpgradeStage, strike: str, reason: str
) -> None:
    """There is no room for two, it does not come up, or the bad version ends by itself: the rollback continues."""
    view = given_up_alive(upgraded, 3)
    assert (view.state.phase, view.state.way) == ("trying", "handover")
    if strike == "no room":
        upgraded.stage.launcher.states[f"{upgraded.rehearsal(view).run_id}-a0001"] = "exited"
    elif strike == "never there":
        upgraded.stage.clock.advance(1_000.0)
    elif strike == "not accepted":
        upgraded.rehearsed(view, refused=True)
    else:
        upgraded.fails()
    view = upgraded.advance(view)
    assert reason in (view.to_json()["driver"] or "")
    assert any(f"no driver waits: {reason}" in line for line in upgraded.told)
    if view.state.phase == "returning":
        upgraded.stops("d-0002")
        view = upgraded.advance(view)
    assert view.state.phase == "returned"
    assert "launch d-0003-a0001" in upgraded.stage.launcher.calls


def test_where_the_old_driver_cannot_be_launched_beside_the_bad_one_the_way_back_is_cold(
    upgraded: UpgradeStage,
) -> None:
    """What is in its way is the reason; the bad version is ordered to stop at once."""
    view = upgraded.to_started(warm=True)
    upgraded.new_runs(3)
    upgraded.advance(view)
    upgraded.upgrades.cancel(STREAM, view.upgrade_id, after_stop="rollback")
    upgraded.stage.launcher.complaint = InvalidRequestError("no more drivers on this machine")
    view = upgraded.advance(view)
    assert (view.state.phase, view.state.way, orders(upgraded)) == ("returning", "handover", 1)
    assert "no more drivers" in (view.to_json()["driver"] or "")


def test_a_driver_that_waits_for_a_way_that_is_not_taken_is_ended(upgraded: UpgradeStage) -> None:
    """The bad version ran a batch while it was being ended: the old code is rehearsed on that, and the driver that
    waited for the handover makes room first."""
    view = given_up_alive(upgraded, 3)
    waiting = upgraded.rehearsal(view).run_id
    view = upgraded.rehearsed(view, waits=True)
    assert view.state.phase == "returning"
    upgraded.stage.run_batches(5, deployment_id="d-0002")
    upgraded.stops("d-0002")
    view = upgraded.advance(view)
    assert (view.state.phase, view.state.is_way_decided) == ("trying", False)
    assert upgraded.stage.launcher.states[f"{waiting}-a0001"] == "gone"
    view = upgraded.rehearsed(view, waits=True)
    assert (view.state.phase, view.state.way) == ("returned", "forward")
    assert upgraded.is_warm("d-0003", upgraded.rehearsal(view).run_id)


@pytest.mark.parametrize("last", [3, 5])
def test_a_batch_that_the_bad_version_only_began_is_not_called_its_own(upgraded: UpgradeStage, last: int) -> None:
    """It planned one more before it died; the old version runs that again over the same bounds, and its output is the
    old version's."""
    view = upgraded.to_started()
    upgraded.new_runs(last)
    plan_stateful(upgraded.stage.checkpoint("counts", "d-0002"), last + 1)
    upgraded.fails()
    view = upgraded.rehearsed(upgraded.advance(view))
    assert (view.state.phase, view.state.way) == ("returned", "forward")
    upgraded.new_runs(last + 1, "d-0003")
    view = upgraded.advance(view)
    assert view.outcome == "given_up"
    told = view.to_json()
    assert (told["bad_batches"], told["begun_batches"]) == (
        {"counts": [4, 5]} if last == 5 else {}, {"counts": last + 1},
    )  # fmt: skip


def test_what_was_begun_and_taken_out_of_the_sink_is_still_only_begun(upgraded: UpgradeStage) -> None:
    """Its sink held some of it, and reports it when it is undone."""
    upgraded.sink = FILES
    view = upgraded.to_started()
    upgraded.new_runs(3)
    plan_stateful(upgraded.stage.checkpoint("counts", "d-0002"), 4)
    upgraded.fails()
    view = upgraded.rehearsed(upgraded.advance(view), refused=True)
    assert (view.state.phase, view.state.way) == ("returned", "undo")
    upgraded.stage.come_to_life("d-0003", queries=("counts",))
    upgraded.stage.say(
        Undone, "d-0003", query_name="counts", sink="/out", means="undo", to_batch_id=3, first_batch_id=4,
        last_batch_id=4,
    )  # fmt: skip
    upgraded.new_runs(5, "d-0003")
    view = upgraded.advance(view)
    assert (view.outcome, view.state.bad_batches, view.state.begun_batches) == (
        "given_up", {}, {"counts": 4},
    )  # fmt: skip


def test_where_the_old_code_cannot_read_it_nothing_is_touched(upgraded: UpgradeStage) -> None:
    """No way is exact: it is reported, with the reason, and the data stays as it is."""
    view = failed_after_batch_5(upgraded)
    before = upgraded.outside()
    view = upgraded.rehearsed(view, refused=True)
    assert (view.outcome, upgraded.held_by()) == ("failed", None)
    assert view.state.text.startswith("no rollback is exact, so the stream was not changed: ")
    assert "STATE_STORE_VALUE_SCHEMA" in view.state.text
    assert "cannot be undone" in view.state.text
    assert "the new version was abandoned: it is failed: ValueError: boom" in view.state.text
    assert upgraded.outside() == before


def test_a_version_that_stands_still_is_given_up(upgraded: UpgradeStage) -> None:
    """Its health is decided within ``within_seconds``; it is stopped only after the rehearsal of the old code."""
    view = upgraded.to_started(healthy_batches=9, healthy_deadline_seconds=50.0)
    upgraded.new_runs(5)
    upgraded.advance(view)
    committed_at = upgraded.stage.clock.now()
    upgraded.stage.clock.advance(60.0)
    upgraded.stage.beat("d-0002", counts=QueryBeat(5, committed_at, is_active=True))
    view = upgraded.advance(view)
    assert (view.state.phase, orders(upgraded)) == ("trying", 0)
    view = upgraded.rehearsed(view)
    assert view.state.phase == "returning"
    assert isinstance(upgraded.order("d-0002"), StopRequest)


def never_ending(upgraded: UpgradeStage) -> UpgradeView:
    """A new version with its own batch, that was ordered to end PATIENCE_SECONDS ago and has not."""
    view = upgraded.to_started()
    upgraded.new_runs(4)
    upgraded.advance(view)
    upgraded.upgrades.cancel(STREAM, view.upgrade_id, after_stop="rollback")
    upgraded.advance(view)
    view = upgraded.rehearsed(view)
    assert view.state.phase == "returning"
    upgraded.stage.clock.advance(PATIENCE_SECONDS)
    upgraded.beats(4)
    return view


def test_a_driver_that_does_not_end_is_killed_and_no_other(upgraded: UpgradeStage) -> None:
    """After PATIENCE_SECONDS; its last batch runs again over the same bounds."""
    view = upgraded.advance(never_ending(upgraded))
    assert view.state.phase == "returned"
    assert [call for call in upgraded.stage.launcher.calls if call.startswith("kill d-")] == ["kill d-0002-a0001"]


def test_a_driver_that_cannot_be_killed_fails_the_upgrade(upgraded: UpgradeStage) -> None:
    """Law 6: every wait has an end, also that for a driver that does not die."""
    view = never_ending(upgraded)
    upgraded.stage.launcher.dies_when_killed = False
    with pytest.raises(ConflictError, match="cannot be ended"):
        upgraded.advance(view)
    upgraded.stage.clock.advance(PATIENCE_SECONDS)
    upgraded.beats(4)
    view = upgraded.advance(view)
    assert view.outcome == "failed"
    assert "cannot be ended" in view.state.text


@pytest.mark.parametrize("waits", [False, True])
def test_a_batch_that_runs_while_the_old_driver_comes_up_turns_the_handover_into_forward(
    upgraded: UpgradeStage, *, waits: bool
) -> None:
    """It is found before the bad version is stopped, which then runs on while the old code is rehearsed once more."""
    upgraded.sink = FILES
    view = given_up_alive(upgraded, 3)
    assert (view.state.phase, view.state.way) == ("trying", "handover")
    first_id = upgraded.rehearsal(view).run_id
    upgraded.new_runs(5)
    view = upgraded.rehearsed(view, waits=True) if waits else upgraded.advance(view)
    assert (view.state.phase, view.state.is_way_decided, orders(upgraded)) == ("trying", False, 0)
    assert upgraded.stage.launcher.states[launch_key_for(first_id, 1)] == "gone"
    assert upgraded.rehearsal(view).run_id != first_id
    assert upgraded.stage.controller.status(STREAM).state == "running"
    view = upgraded.rehearsed(view, waits=True)
    assert (view.state.phase, view.state.way, view.to_json()["driver"]) == ("returning", "forward", "waits")
    upgraded.stops("d-0002")
    upgraded.advance(view)
    upgraded.new_runs(7, "d-0003")
    view = upgraded.advance(view)
    assert view.outcome == "given_up"
    assert "cancelled by tests; it has run a batch while the old driver started" in view.state.text


def test_a_log_that_does_not_answer_while_the_old_driver_comes_up_holds_nothing_up(
    upgraded: UpgradeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the bad version has run a batch is decided by its end, then (Law 6)."""
    view = given_up_alive(upgraded, 3)

    def silent(*_: object) -> bool:
        raise UnavailableError("no answer", next_step="Try again.")

    monkeypatch.setattr(backward, "has_run_batches", silent)
    view = upgraded.rehearsed(view, waits=True)
    assert (view.state.phase, view.state.way, orders(upgraded)) == ("returning", "handover", 1)


def test_the_patience_of_a_second_way_back_is_its_own(upgraded: UpgradeStage) -> None:
    """What the first one took is not counted against it."""
    view = upgraded.to_started()
    upgraded.stage.come_to_life("d-0002", queries=("counts",))
    upgraded.upgrades.cancel(STREAM, view.upgrade_id, after_stop="rollback")
    upgraded.advance(view)
    upgraded.stage.clock.advance(PATIENCE_SECONDS * 3)
    keep_plan(upgraded.stage.control, "d-0002", "counts")
    upgraded.stage.run_batches(4, deployment_id="d-0002")
    upgraded.stops("d-0002")
    view = upgraded.advance(view)
    assert view.state.phase == "trying"
    intent = Intent("r-9", "d-0003", upgraded.stage.clock.now(), "ada")
    upgraded.stage.control.update_register(lambda now: replace(now, intent=intent), by="test")
    with pytest.raises(ConflictError, match="requested_by=ada"):
        upgraded.rehearsed(view)  # and not: it could not be started again
    upgraded.stage.control.update_register(lambda now: replace(now, intent=None), by="test")
    assert upgraded.advance(view).state.phase == "returned"


def test_a_drained_old_version_is_deployed_anew(upgraded: UpgradeStage) -> None:
    """A drained deployment is never resumed: its code continues at the drained offsets (Law 11), and it is deployed
    once, also where the step was not recorded (Laws 1 and 2)."""
    view = upgraded.to_ready(mode="drain")
    upgraded.drains()
    upgraded.upgrades.cancel(STREAM, view.upgrade_id, after_stop="rollback")
    view = upgraded.advance(view)
    assert (view.state.phase, view.state.way) == ("returned", "resume")
    start = upgraded.stage.spec("d-0002").start
    assert (start.mode, start.snapshot_id) == ("seed", "d-0001-drained-000001")
    assert runs_the_old_code(upgraded, "d-0002")
    key = max(info.key for info in upgraded.stage.store.list_objects(f"{STREAM}/upgrades/{view.upgrade_id}/steps/"))
    upgraded.stage.store.delete(key)
    again = upgraded.advance(view)
    assert (again.state.phase, again.state.returned_deployment_id) == ("returned", "d-0002")
    assert upgraded.stage.control.deployment_ids() == ["d-0001", "d-0002"]


def test_a_drain_that_leaves_state_is_undone(upgraded: UpgradeStage) -> None:
    """Nothing can be seeded over state that is left (Law 16), and a drained deployment never runs again (Law 11): its
    code continues from before the drain, with what the flush wrote undone."""
    upgraded.sink = FILES
    keep_plan(upgraded.stage.control, "d-0001", "counts", plan(sink=FILES))
    view = upgraded.to_ready(mode="drain")
    upgraded.drains(state_rows_left=7)
    view = upgraded.advance(view)
    assert (view.state.phase, view.state.way) == ("returned", "undo")
    assert view.state.bad_batches == {"counts": (4, 4)}
    start = upgraded.stage.spec("d-0002").start
    assert (start.mode, start.snapshot_id, start.undoes) == ("restore", "d-0001-pre-drain-000001", "d-0001")
    assert runs_the_old_code(upgraded, "d-0002")
    upgraded.new_runs(6, "d-0002")
    view = upgraded.advance(view)
    assert view.outcome == "given_up"
    assert view.state.text.count("could not flush all state") == 1


def test_a_drain_that_leaves_state_and_cannot_be_undone_fails(upgraded: UpgradeStage) -> None:
    """With what was left, and with both ways that a person has."""
    view = upgraded.to_ready(mode="drain")
    keep_plan(upgraded.stage.control, "d-0001", "counts", plan(sink=upgraded.sink))
    upgraded.drains(state_rows_left=7)
    before = upgraded.outside()
    view = upgraded.advance(view)
    assert (view.outcome, upgraded.held_by()) == ("failed", None)
    assert "--allow-state-loss" in view.state.text
    assert "rollback" in view.state.text
    assert "cannot be undone" in view.state.text
    assert upgraded.outside() == before


def test_an_old_version_that_comes_back_and_dies_is_started_once_more(upgraded: UpgradeStage) -> None:
    """A second death fails the upgrade."""
    view = upgraded.to_started()
    upgraded.fails()
    view = upgraded.advance(view)
    upgraded.fails("d-0003")
    view = upgraded.advance(view)
    assert (view.state.phase, upgraded.stage.control.need_register().value.attempt) == ("returned", 2)
    upgraded.fails("d-0003", 2)
    view = upgraded.advance(view)
    assert (view.outcome, upgraded.held_by()) == ("failed", None)
    assert "the old version is back, and is not healthy" in view.state.text


def test_an_old_version_that_does_not_come_to_life_is_told_in_time(upgraded: UpgradeStage) -> None:
    """It was started, and did not become healthy within ``within_seconds``."""
    view = upgraded.to_started()
    upgraded.fails()
    upgraded.advance(view)
    upgraded.stage.clock.advance(120.0)
    view = upgraded.advance(view)
    assert view.outcome == "failed"
    assert "is not healthy yet" in view.state.text


# rollbacks that are asked for


@pytest.mark.parametrize("phase", ["begun", "trying"])
def test_a_rollback_that_is_cancelled_before_it_ends_anything_never_was(upgraded: UpgradeStage, phase: str) -> None:
    """The current version never notices."""
    upgraded.to_upgraded()
    before = upgraded.outside()
    view = upgraded.begin_rollback()
    if phase == "trying":
        view = upgraded.advance(view)
    assert view.state.phase == phase
    upgraded.upgrades.cancel(STREAM, view.upgrade_id, after_stop="rollback")
    view = upgraded.advance(view)
    assert (view.outcome, upgraded.held_by()) == ("refused", None)
    assert upgraded.outside() == before


def failed_after_batch_5(upgraded: UpgradeStage) -> UpgradeView:
    """A new version that committed batches 4 and 5 and failed; the old code is being rehearsed."""
    view = upgraded.to_started()
    upgraded.new_runs(5)
    upgraded.fails()
    view = upgraded.advance(view)
    assert view.state.phase == "trying"
    return view


def test_law_14_what_the_old_code_cannot_read_is_undone_where_the_sink_can_be(upgraded: UpgradeStage) -> None:
    """Back to the handover, recorded as such: the driver undoes the sink before it runs a batch under an old id."""
    upgraded.sink = FILES
    view = upgraded.rehearsed(failed_after_batch_5(upgraded), refused=True)
    assert (view.state.phase, view.state.way) == ("returned", "undo")
    start = upgraded.stage.spec("d-0003").start
    assert (start.mode, start.snapshot_id, start.undoes) == ("restore", "d-0001-stopped-000001", "d-0002")
    assert view.state.bad_batches == {"counts": (4, 5)}
    assert "not forward" in view.state.text


def test_a_rollback_by_undo_rehearses_nothing(upgraded: UpgradeStage) -> None:
    """It goes back to its own state; the command that undoes is recorded with it."""
    upgraded.sink = FILES
    upgraded.to_upgraded()
    view = upgraded.begin_rollback(strategy="undo", undo_command=("undo.sh", "--all"))
    upgraded.advance(view)
    upgraded.stops("d-0002")
    view = upgraded.advance(view)
    assert (view.state.phase, view.state.way) == ("returned", "undo")
    start = upgraded.stage.spec("d-0003").start
    assert (start.snapshot_id, start.undoes, start.undo_command) == (
        "d-0001-stopped-000001", "d-0002", ("undo.sh", "--all"),
    )  # fmt: skip
    assert "trying" not in upgraded.steps(view)


def test_law_5_a_version_that_began_with_nothing_and_ran_nothing_leaves_the_old_state(upgraded: UpgradeStage) -> None:
    """A fresh version that fails at once: the old one continues from where it had ended, not from the nothing of the
    new one."""
    view = upgraded.to_started(mode="fresh")
    upgraded.fails()
    view = upgraded.advance(view)
    assert (view.state.phase, view.state.way) == ("returned", "handover")
    start = upgraded.stage.spec("d-0003").start
    assert (start.mode, start.snapshot_id) == ("restore", "d-0001-stopped-000001")


def test_law_5_where_the_old_end_was_not_kept_it_is_said(upgraded: UpgradeStage) -> None:
    """A fresh version over an old one that had failed: nothing would be what the old code started with."""
    upgraded.fails("d-0001")
    view = upgraded.to_ready(mode="fresh")
    upgraded.fails()
    view = upgraded.advance(view)
    assert (view.outcome, upgraded.stage.control.deployment_ids()) == ("failed", ["d-0001", "d-0002"])
    assert "was not kept" in view.state.text


def test_a_controller_that_wakes_up_at_a_kill_ends_no_other_driver(upgraded: UpgradeStage) -> None:
    """It had seen a version that would not end; by now the old one runs again (Law 4)."""
    view = never_ending(upgraded)
    tools, state = upgraded.upgrades._tools(STREAM, view.upgrade_id)
    sleeper = upgraded.upgrades._next(tools, state)
    view = upgraded.advance(view)
    upgraded.new_runs(5, "d-0003")
    assert upgraded.advance(view).outcome == "given_up"
    sleeper.do()  # type: ignore[union-attr]
    assert upgraded.stage.launcher.states["d-0003-a0001"] == "running"


def test_a_lost_driver_is_not_replaced(upgraded: UpgradeStage) -> None:
    """It is unknown whether the new one has ended: no second driver is started alongside it (1a.8)."""
    view = upgraded.to_started()
    upgraded.new_runs(4)
    upgraded.advance(view)
    upgraded.stage.launcher.states["d-0002-a0001"] = "unknown"
    upgraded.stage.clock.advance(200.0)
    upgraded.advance(view)
    with pytest.raises(ConflictError, match="it is unknown"):
        upgraded.rehearsed(view)
    upgraded.stage.clock.advance(PATIENCE_SECONDS * 2)
    view = upgraded.advance(view)
    assert (view.outcome, upgraded.stage.control.deployment_ids()) == ("failed", ["d-0001", "d-0002"])
    assert upgraded.stage.control.need_register().value.intent is None


def test_a_rehearsal_on_the_way_back_that_dies_is_tried_some_more_times(upgraded: UpgradeStage) -> None:
    """MAX_REHEARSALS times; then the upgrade fails."""
    view = failed_after_batch_5(upgraded)
    for number in range(1, MAX_REHEARSALS):
        rehearsal_id = view.state.rehearsal_id
        upgraded.stage.launcher.states[f"{rehearsal_id}-a0001"] = "gone"
        view = upgraded.advance(view)
        assert (view.state.phase, number) == ("trying", upgraded.steps(view).count("trying") - 1)
        assert view.state.rehearsal_id != rehearsal_id
    upgraded.stage.launcher.states[f"{view.state.rehearsal_id}-a0001"] = "gone"
    assert upgraded.advance(view).outcome == "failed"


def test_an_old_version_whose_drain_is_only_finished_when_it_is_back_is_deployed_anew(upgraded: UpgradeStage) -> None:
    """One of its queries was flushed when the drain failed, so the resumed attempt drains the others, too (Law 11)."""
    stage = upgraded.stage
    view = upgraded.to_ready(mode="drain")
    command_id = upgraded.order().command_id
    stage.say(
        DrainFailed, command_id=command_id, command_number=1, query_name="counts", error="disk full", withdrawn=True
    )
    for slot in stage.control.journal("d-0001").commands():
        stage.store.delete(slot.key)
    manifest = stage.keep()
    stage.say(Stopped, snapshot_id=manifest.snapshot_id, queries={})
    stage.end()
    view = upgraded.advance(view)
    assert (view.state.phase, view.state.returned_deployment_id) == ("returned", "d-0001")
    stage.come_to_life("d-0001", 2)
    stage.flush()
    drained = stage.keep("drained", attempt=2, state_rows_left=0)
    stage.say(Drained, attempt=2, command_id=command_id, command_number=1, snapshot_id=drained.snapshot_id, queries={})
    stage.end("d-0001", 2)
    view = upgraded.advance(view)
    assert (view.state.phase, view.state.returned_deployment_id) == ("returned", "d-0002")
    start = stage.spec("d-0002").start
    assert (start.mode, start.snapshot_id) == ("seed", drained.snapshot_id)
    assert runs_the_old_code(upgraded, "d-0002")


def test_a_rollback_to_an_older_snapshot_runs_the_code_it_was_taken_of(upgraded: UpgradeStage) -> None:
    """More than the last version was wrong, or the checkpoint is lost; the driver undoes the sinks to the batch of that
    snapshot (Law 14)."""
    upgraded.sink = FILES
    upgraded.to_upgraded()
    stage = upgraded.stage
    stage.end("d-0002")
    damaged = f"{STREAM}/deployments/d-0002/checkpoints/counts/metadata"
    stage.store.put(damaged, b"half a fi")
    view = upgraded.begin_rollback(snapshot_id="d-0001-stopped-000001")
    assert view.state.upgrade.old_deployment_id == "d-0001"
    view = upgraded.advance(view)
    assert (view.state.phase, view.state.way) == ("returned", "undo")
    spec = stage.spec("d-0003")
    assert (spec.start.snapshot_id, spec.start.undoes) == ("d-0001-stopped-000001", "d-0002")
    assert spec.version.application == stage.spec("d-0001").version.application
    assert view.state.bad_batches == {}
    stage.come_to_life("d-0003", queries=("counts",))
    stage.say(
        Undone, "d-0003", query_name="counts", sink="/out", means="undo", to_batch_id=3, first_batch_id=4,
        last_batch_id=6,
    )  # fmt: skip
    upgraded.new_runs(7, "d-0003")
    view = upgraded.advance(view)
    assert (view.outcome, view.state.bad_batches) == ("rolled_back", {"counts": (4, 6)})  # the sink had them


def test_a_drain_that_was_a_mistake_is_taken_back_from_before_it(upgraded: UpgradeStage) -> None:
    """From the snapshot pre-drain, by a rollback alone: a deploy would run other rows under the batch id of the flush.
    The batch of the windows that came out early is named (Laws 11 and 14)."""
    upgraded.sink = FILES
    stage = upgraded.stage
    keep_plan(stage.control, "d-0001", "counts", plan(sink=FILES))
    kept = stage.keep("pre-drain")
    flush_batch_id = stage.flush()
    stage.say(Draining, command_id="c-1", snapshot_id=kept.snapshot_id, flush_batch_ids={"counts": flush_batch_id})
    drained = stage.keep("drained", state_rows_left=0)
    positions = {name: query.position for name, query in drained.queries.items()}
    stage.say(Drained, command_id="c-1", command_number=1, snapshot_id=drained.snapshot_id, queries=positions)
    stage.end()
    with pytest.raises(ConflictError, match=f"rollback {STREAM} --snapshot {kept.snapshot_id}"):
        stage.deploy("print('v1')\n", snapshot_id=kept.snapshot_id)
    view = upgraded.advance(upgraded.begin_rollback(snapshot_id=kept.snapshot_id))
    start = stage.spec("d-0002").start
    assert (start.mode, start.snapshot_id, start.undoes) == ("restore", kept.snapshot_id, "d-0001")
    assert view.state.bad_batches == {"counts": (flush_batch_id, flush_batch_id)}
    assert runs_the_old_code(upgraded, "d-0002")


def kept_elsewhere(tmp_path: Path) -> tuple[UpgradeStage, Path, str]:
    """A running version at batch 9, and a snapshot of batch 3 in another place than the home."""
    stage, place = Stage(tmp_path), tmp_path / "place"
    stage.deploy(snapshots=str(place))
    stage.come_to_life(queries=("counts",))
    stage.run_batches(3)
    keep_plan(stage.control, "d-0001", "counts", plan(sink=FILES))
    kept = stage.keep(kind="live")
    stage.run_batches(9)
    return UpgradeStage(stage, sink=FILES), place, kept.snapshot_id


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_snapshot_of_which_nothing_can_be_built_is_not_gone_back_to(tmp_path: Path, is_lost: bool) -> None:
    """Its place is lost, or a file of it: that is found while the version that will be abandoned still runs."""
    upgraded, place, kept_id = kept_elsewhere(tmp_path)
    stage = upgraded.stage
    shutil.rmtree(place if is_lost else place / layout.snapshot_data_folder(STREAM, kept_id, "counts"))
    view = upgraded.begin_rollback(snapshot_id=kept_id)
    if is_lost:
        with pytest.raises(UnavailableError):  # it may be there again in a moment
            upgraded.advance(view)
        stage.clock.advance(PATIENCE_SECONDS)
    view = upgraded.advance(view)
    assert (view.outcome, upgraded.held_by()) == ("failed", None)
    assert view.state.text.startswith("no rollback is exact, so the stream was not changed: ")
    assert stage.control.journal("d-0001").commands() == []


def test_a_place_that_falls_silent_on_the_way_back_holds_the_stream_only_so_long(tmp_path: Path) -> None:
    """The stream could not be deployed from anywhere else while the rollback holds it (Law 6)."""
    upgraded, place, kept_id = kept_elsewhere(tmp_path)
    stage = upgraded.stage
    view = upgraded.begin_rollback(snapshot_id=kept_id)
    upgraded.advance(view)
    stage.end("d-0001")
    shutil.rmtree(place)
    with pytest.raises(UnavailableError):
        upgraded.advance(view)
    stage.clock.advance(SILENCE_SECONDS)
    view = upgraded.advance(view)
    assert (view.outcome, upgraded.held_by()) == ("failed", None)
    assert stage.deploy("print('v2')\n", snapshots=str(tmp_path / "new")).deployment_id == "d-0002"


def test_the_old_code_keeps_its_snapshots_where_the_stream_keeps_them_now(tmp_path: Path) -> None:
    """Its own place may be lost by then, which is why the stream was given another one."""
    stage = Stage(tmp_path)
    upgraded = UpgradeStage(stage)
    stage.deploy(snapshots=str(tmp_path / "lost"))
    stage.stopped()
    stage.deploy("print('v2')\n", snapshots=str(tmp_path / "new"))
    shutil.rmtree(tmp_path / "lost")
    upgraded.new_runs(5)
    view = upgraded.rehearsed(upgraded.advance(upgraded.begin_rollback(strategy="forward")))
    upgraded.stops("d-0002")
    view = upgraded.advance(view)
    assert (view.state.phase, view.state.way) == ("returned", "forward")
    assert stage.spec("d-0003").version.snapshots == str(tmp_path / "new")


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("way", ["handover", "forward", "undo"])
def test_a_rollback_that_would_lose_input_is_refused_before_anything_is_stopped(
    tmp_path: Path, way: str, *, warm: bool
) -> None:
    """No start continues from an offset of a socket, in no way: the version that runs is left running (Law 5)."""
    upgraded = UpgradeStage(Stage(tmp_path, identities=(SOCKET,)), sink=FILES).runs()
    view = upgraded.to_started(change={"accept_lost_input": ("counts",)})
    upgraded.new_runs(3)
    if way == "handover":
        upgraded.stage.clock.advance(UpgradeTerms().healthy_deadline_seconds)
        upgraded.beats(3, idle_triggers=5, is_idle=True)
    else:
        upgraded.new_runs(6)
        upgraded.advance(view)
        upgraded.new_runs(8)
    assert upgraded.advance(view).outcome == "upgraded"
    wanted = {} if way == "handover" else {"strategy": way}
    view = upgraded.advance(upgraded.begin_rollback(warm=warm, **wanted))
    assert (view.outcome, orders(upgraded)) == ("failed", 0)
    assert "cannot be read again" in view.state.text
    assert "--accept-lost-input counts" in view.state.text
    assert upgraded.stage.controller.status(STREAM).state == "running"


def test_a_rollback_that_accepts_lost_input_goes_back(tmp_path: Path) -> None:
    """By name, as a deploy does."""
    upgraded = UpgradeStage(Stage(tmp_path, identities=(SOCKET,))).runs()
    view = upgraded.to_started(change={"accept_lost_input": ("counts",)})
    upgraded.new_runs(4)
    upgraded.advance(view)
    upgraded.new_runs(6)
    assert upgraded.advance(view).outcome == "upgraded"
    view = upgraded.advance(upgraded.begin_rollback(accept_lost_input=("counts",)))
    view = upgraded.rehearsed(view)
    upgraded.stops("d-0002")
    assert upgraded.advance(view).state.phase == "returned"


def test_a_bad_version_that_began_with_nothing_is_not_stopped_for_a_way_back_that_loses_input(tmp_path: Path) -> None:
    """``--mode fresh`` asks nothing of a socket, and the rollback from it would continue from an offset of it."""
    upgraded = UpgradeStage(Stage(tmp_path, identities=(SOCKET,))).runs()
    view = upgraded.to_started(mode="fresh")
    upgraded.new_runs(2)
    upgraded.upgrades.cancel(STREAM, view.upgrade_id, after_stop="rollback")
    view = upgraded.advance(view)
    assert (view.outcome, orders(upgraded)) == ("failed", 0)
    assert "--accept-lost-input counts" in view.state.text


def test_a_batch_that_runs_while_it_is_ended_turns_the_handover_into_forward(upgraded: UpgradeStage) -> None:
    """It was found to have run nothing, and ran a batch before it obeyed: from the handover other batches would run
    under ids that the sink may hold (Law 14)."""
    view = upgraded.to_started()
    upgraded.stage.come_to_life("d-0002", queries=("counts",))
    upgraded.upgrades.cancel(STREAM, view.upgrade_id, after_stop="rollback")
    view = upgraded.advance(view)
    assert (view.state.phase, view.state.way) == ("returning", "handover")
    keep_plan(upgraded.stage.control, "d-0002", "counts")
    upgraded.stage.run_batches(4, deployment_id="d-0002")
    upgraded.stops("d-0002")
    view = upgraded.advance(view)
    assert view.state.phase == "trying"
    view = upgraded.rehearsed(view)
    assert (view.state.way, view.state.bad_batches) == ("forward", {"counts": (4, 4)})
    assert upgraded.stage.spec("d-0003").start.snapshot_id == "d-0002-stopped-000001"


def test_a_way_back_over_an_altered_script_takes_no_number(upgraded: UpgradeStage) -> None:
    """The given-up version stays the current deployment, and the next start continues from its end. (Law 15)"""
    stage = upgraded.stage
    view = upgraded.rehearsed(given_up_alive(upgraded, 5))
    artifact = stage.spec("d-0001").version.application
    stage.store.put(layout.artifact_key(STREAM, artifact.sha256, artifact.name), b"other")
    upgraded.stops("d-0002")
    view = upgraded.advance(view)
    assert view.state.phase == "failed"
    assert "a pinned file is missing or altered" in view.state.text
    register = stage.control.need_register().value
    assert (register.deployment_id, register.fencing_token, register.intent) == ("d-0002", 2, None)
    assert stage.deploy("print('v3')\n").start.snapshot_id == "d-0002-stopped-000001"
