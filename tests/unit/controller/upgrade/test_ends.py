"""The end of an upgrade: its last step, and what it leaves behind."""

from __future__ import annotations

import pytest

from airflow_streamstate.controller.upgrade import forward
from airflow_streamstate.controller.upgrade.forward import clear_up, finish
from airflow_streamstate.errors import UnavailableError
from support.sim_stage import STREAM
from support.upgrade_stage import UpgradeStage


def test_an_audit_that_is_not_answered_is_asked_again(upgraded: UpgradeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be read proves nothing about the chain; after some tries it is not known."""
    view = upgraded.to_started()
    tools, state = upgraded.upgrades._tools(STREAM, view.upgrade_id)
    asked: list[str] = []

    def silent(_: object, stream_id: str, **_how: object) -> object:
        asked.append(stream_id)
        raise UnavailableError("no answer", next_step="Try again.")

    monkeypatch.setattr(forward, "lineage_of", silent)
    finish(tools, state, "failed")
    assert upgraded.upgrades.view(STREAM, view.upgrade_id).state.audit_ok is None
    assert len(asked) == forward.AUDIT_TRIES


def test_one_that_is_not_over_is_not_cleared_up(upgraded: UpgradeStage) -> None:
    """Another worker recorded the step of this number, and continues: the stream stays held (Law 4)."""
    view = upgraded.begin()
    tools, state = upgraded.upgrades._tools(STREAM, view.upgrade_id)
    upgraded.advance(view)
    finish(tools, state, "refused", "too late")
    assert upgraded.upgrades.view(STREAM, view.upgrade_id).state.phase == "rehearsing"
    assert upgraded.held_by() == view.upgrade_id


def test_what_another_holds_is_not_let_go_of(upgraded: UpgradeStage) -> None:
    """Clearing up twice, or after another has started, is clearing up once."""
    view = upgraded.begin()
    tools, state = upgraded.upgrades._tools(STREAM, view.upgrade_id)
    finish(tools, state, "refused")
    other = upgraded.begin("up-2")
    clear_up(tools)
    assert upgraded.held_by() == other.upgrade_id


@pytest.mark.parametrize("is_started", [True, False])
def test_only_an_end_after_the_stop_is_audited(upgraded: UpgradeStage, *, is_started: bool) -> None:
    """Before the stop the stream was not touched. Either way it is let go of."""
    view = upgraded.to_started() if is_started else upgraded.begin()
    tools, state = upgraded.upgrades._tools(STREAM, view.upgrade_id)
    finish(tools, state, "failed" if is_started else "refused", "no")
    found = upgraded.upgrades.view(STREAM, view.upgrade_id)
    assert (found.state.audit_ok is not None, upgraded.held_by()) == (is_started, None)
