"""Upgrades whose controller dies or sleeps at the worst moment, and cancellations in the meantime."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.controller.observe.health import QUIET_SECONDS
from airflow_streamstate.controller.upgrade.backward import PATIENCE_SECONDS
from airflow_streamstate.errors import UnavailableError
from airflow_streamstate.protocol import layout
from support.built_plans import plan
from support.scripted_rehearsal import keep_plan, with_an_aggregate_more
from support.sim_stage import STREAM
from support.upgrade_stage import FILES, UpgradeStage


def without_its_last_step(upgraded: UpgradeStage, upgrade_id: str) -> None:
    """As if the controller had died between the act and the step that records it."""
    key = max(info.key for info in upgraded.stage.store.list_objects(f"{STREAM}/upgrades/{upgrade_id}/steps/"))
    upgraded.stage.store.delete(key)


@pytest.mark.parametrize("is_launched", [True, False])
def test_cancelled_after_an_unrecorded_deploy_it_is_rolled_back(
    upgraded: UpgradeStage, monkeypatch: pytest.MonkeyPatch, *, is_launched: bool
) -> None:
    """The register has moved to the new version, and no step records it: the new version ends, and the old one comes
    back."""
    view = upgraded.to_ready()
    upgraded.stops()
    if is_launched:
        upgraded.advance(view)
        without_its_last_step(upgraded, view.upgrade_id)
    else:
        with monkeypatch.context() as patched:

            def dies(_request: object) -> None:
                raise UnavailableError("the controller dies here")

            patched.setattr(upgraded.stage.launcher, "launch", dies)
            with pytest.raises(UnavailableError):
                upgraded.advance(view)
    assert upgraded.stage.control.need_register().value.deployment_id == "d-0002"
    assert upgraded.phases(view)[-1] == "ended"
    upgraded.upgrades.cancel(STREAM, view.upgrade_id, after_stop="rollback")
    view = upgraded.advance(view)
    assert (view.state.way, view.state.new_deployment_id) == ("handover", "d-0002")
    if is_launched:
        assert view.state.phase == "returning"
        upgraded.stage.clock.advance(PATIENCE_SECONDS)
        view = upgraded.advance(view)
    assert (view.state.phase, view.state.returned_deployment_id) == ("returned", "d-0003")


def test_a_deploy_that_moves_the_stream_while_another_gives_up_is_rolled_back(upgraded: UpgradeStage) -> None:
    """One controller slept in its deploy while another gave the upgrade up with nothing deployed; then it moved the
    stream."""
    view = upgraded.to_started()
    without_its_last_step(upgraded, view.upgrade_id)
    tools, state = upgraded.upgrades._tools(STREAM, view.upgrade_id)
    tools.take(state, "unhealthy", "cancelled")
    view = upgraded.advance(view)
    assert (view.state.phase, view.state.way) == ("returning", "handover")
    assert view.state.new_deployment_id == "d-0002"


def test_a_new_checkpoint_that_is_damaged_does_not_hold_the_way_back_up(upgraded: UpgradeStage) -> None:
    """It counts as having run batches: the old code is rehearsed, or the batches are undone."""
    view = upgraded.to_started()
    upgraded.new_runs(5)
    folder = layout.checkpoint_folder(STREAM, "d-0002", "counts")
    upgraded.stage.store.put(f"{folder}/offsets/6", b"not an entry")
    upgraded.fails()
    view = upgraded.advance(view)
    assert view.outcome == "failed"
    assert "no rollback is exact" in view.state.text
    assert upgraded.held_by() is None


def test_law_5_forward_from_a_version_that_began_with_nothing_and_ran_nothing_is_refused(
    upgraded: UpgradeStage,
) -> None:
    """Also by name: the old code would start with empty state."""
    view = upgraded.to_started(mode="fresh")
    upgraded.stage.come_to_life("d-0002", 1)
    tools, state = upgraded.upgrades._tools(STREAM, view.upgrade_id)
    tools.take(state, "failed", "for this test")
    upgraded.fails()
    view = upgraded.advance(upgraded.begin_rollback(strategy="forward"))
    assert (view.outcome, upgraded.stage.control.deployment_ids()) == ("failed", ["d-0001", "d-0002"])
    assert "ran no batch" in view.state.text


def test_law_6_a_driver_lost_in_its_stop_holds_the_stream_until_it_is_given_up(upgraded: UpgradeStage) -> None:
    """Its end cannot be proven: cancelled with rollback, the upgrade lets go of the stream, so that a person can resume
    it with ``--assume-dead``."""
    view = upgraded.to_ready()
    upgraded.stage.launcher.states["d-0001-a0001"] = "unknown"
    upgraded.stage.clock.advance(600.0)
    view = upgraded.advance(view)
    assert view.state.phase == "stopping"
    upgraded.upgrades.cancel(STREAM, view.upgrade_id, after_stop="rollback")
    view = upgraded.advance(view)
    assert (view.outcome, upgraded.held_by()) == ("failed", None)
    assert "assume-dead" in view.state.text
    upgraded.stage.controller.resume(STREAM, assume_dead=True)
    assert upgraded.stage.control.need_register().value.attempt == 2


def test_law_16_a_drain_that_can_only_leave_state_is_refused_before_the_stop(upgraded: UpgradeStage) -> None:
    """Drained, it could neither be seeded nor resumed. By name the state may be dropped."""
    forever = replace(plan(), watermarks=())
    keep_plan(upgraded.stage.control, "d-0001", "counts", forever)
    before = upgraded.outside()
    view = upgraded.begin(allow_drain=True)
    upgraded.advance(view)
    view = upgraded.rehearsed(view, plan=with_an_aggregate_more())
    assert view.outcome == "refused"
    assert "a drain would leave state" in view.state.text
    assert upgraded.outside() == before
    view = upgraded.begin("up-2", allow_drain=True, change={"allow_state_loss": True})
    upgraded.advance(view)
    view = upgraded.rehearsed(view, plan=with_an_aggregate_more())
    assert (view.state.phase, view.state.mode) == ("stopping", "drain")


def test_law_16_what_a_drain_left_is_asked_about_before_anything_is_ended(upgraded: UpgradeStage) -> None:
    """A rollback to a handover whose state was dropped by name then, and is not now."""
    view = upgraded.begin(allow_drain=True, change={"allow_state_loss": True})
    upgraded.advance(view)
    view = upgraded.rehearsed(view, plan=with_an_aggregate_more())
    keep = upgraded.stage.keep
    upgraded.stage.keep = lambda *a, **k: keep(*a, **{**k, "state_rows_left": 7})  # type: ignore[method-assign]
    upgraded.drains()
    view = upgraded.advance(view)
    upgraded.stage.keep = keep
    assert view.state.phase == "started"
    upgraded.stage.come_to_life("d-0002", 1, ("counts",))
    upgraded.beats(None, idle_triggers=3)
    upgraded.advance(view)
    upgraded.stage.clock.advance(QUIET_SECONDS)
    assert upgraded.advance(view).outcome == "upgraded"
    view = upgraded.begin_rollback()
    before = upgraded.outside()
    view = upgraded.advance(view)
    assert view.outcome == "failed"
    assert "could not flush all state" in view.state.text
    assert upgraded.outside() == before  # the new version runs on


def test_law_5_a_handover_that_is_gone_is_never_replaced_by_another_start(upgraded: UpgradeStage) -> None:
    """An undo to a snapshot that was removed since: refused, and the new version runs on."""
    upgraded.sink = FILES
    upgraded.to_upgraded()
    upgraded.stage.store.delete(layout.manifest_key(STREAM, "d-0001-stopped-000001"))
    before = upgraded.outside()
    view = upgraded.advance(upgraded.begin_rollback(strategy="undo"))
    assert view.outcome == "failed"
    assert "is gone" in view.state.text
    assert upgraded.outside() == before
