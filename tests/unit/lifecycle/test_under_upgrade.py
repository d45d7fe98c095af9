"""Who may move a stream while an upgrade holds it, and when it holds it no more."""

from __future__ import annotations

import pytest

from airflow_streamstate.errors import ConflictError
from airflow_streamstate.lifecycle.under_upgrade import NotHeldError, refuse_another_upgrade, refuse_during_upgrade
from airflow_streamstate.lifecycle.upgrading.tools import Tools
from airflow_streamstate.protocol import layout
from support.sim_stage import STREAM
from support.upgrade_stage import UpgradeStage


def test_nobody_is_held_up_by_no_upgrade(upgraded: UpgradeStage) -> None:
    """Nor is a stream that never was."""
    control = upgraded.stage.control
    refuse_during_upgrade(control, control.need_register().value, None)
    refuse_during_upgrade(control, None, None)
    refuse_another_upgrade(control, None, "u-000000000000")


def test_the_one_that_holds_it_moves_it_alone(upgraded: UpgradeStage) -> None:
    """All others are told whose it is."""
    view, control = upgraded.begin(), upgraded.stage.control
    register = control.need_register().value
    refuse_during_upgrade(control, register, view.upgrade_id)
    refuse_another_upgrade(control, register, view.upgrade_id)
    for other in (None, "u-000000000000"):
        with pytest.raises(ConflictError, match=r"under way|does not hold"):
            refuse_during_upgrade(control, register, other)
        with pytest.raises(ConflictError, match="under way"):
            refuse_another_upgrade(control, register, other)


def late(upgraded: UpgradeStage) -> Tools:
    """The tools of a controller that slept until its upgrade was over."""
    view = upgraded.begin()
    tools, _ = upgraded.upgrades._tools(STREAM, view.upgrade_id)
    upgraded.upgrades.cancel(STREAM, view.upgrade_id, after_stop="rollback")
    assert upgraded.advance(view).is_over
    return tools


def test_law_4_one_that_is_over_moves_nothing_any_more(upgraded: UpgradeStage) -> None:
    """A controller that slept in the middle of a step wakes up: it stops, deploys and resumes nothing."""
    tools = late(upgraded)
    before = upgraded.outside()
    with pytest.raises(NotHeldError):
        tools.orders.order(
            STREAM, "stop", deployment_id="d-0001", request_id=tools.request_id("end"), reason="", deadline_seconds=None
        )
    upgraded.stage.end()
    with pytest.raises(NotHeldError):
        tools.deployer.deploy(tools.target("restore").wish(), tools.request_id("new"), lambda _: None)
    with pytest.raises(NotHeldError):
        tools.attempts.resume(STREAM, tools.request_id("back"), assume_dead=False)
    assert upgraded.outside() == before


def test_law_4_nor_does_it_while_another_holds_the_stream(upgraded: UpgradeStage) -> None:
    """Of which it knows nothing."""
    tools = late(upgraded)
    upgraded.begin("up-2")
    with pytest.raises(NotHeldError):
        tools.deployer.deploy(tools.target("restore").wish(), tools.request_id("new"), lambda _: None)


def test_one_that_is_over_and_still_named_does_not_hold_it(upgraded: UpgradeStage) -> None:
    """Its controller died before it let go."""
    view, control = upgraded.begin(), upgraded.stage.control
    tools, state = upgraded.upgrades._tools(STREAM, view.upgrade_id)
    tools.take(state, "refused")
    register = control.need_register().value
    assert register.upgrade_id == view.upgrade_id
    with pytest.raises(NotHeldError):
        refuse_during_upgrade(control, register, view.upgrade_id)
    refuse_during_upgrade(control, register, None)


def test_status_says_which_upgrade_holds_the_stream(upgraded: UpgradeStage) -> None:
    """How far it has come, and whose it is; nothing once it is over, or where it cannot be read it is named so."""
    controller, control = upgraded.stage.controller, upgraded.stage.control
    assert controller.status(STREAM).upgrade == ""
    view = upgraded.begin()
    assert controller.status(STREAM).upgrade == f"{view.upgrade_id} begun, by {view.state.upgrade.requested_by}"
    step = layout.upgrade_step_key(STREAM, view.upgrade_id, 1)
    stored = upgraded.stage.store.get(step)
    assert stored is not None
    upgraded.stage.store.put(step, b"half a")
    assert controller.status(STREAM).upgrade == f"{view.upgrade_id}, which cannot be read"
    upgraded.stage.store.put(step, stored.body)
    upgraded.upgrades.cancel(STREAM, view.upgrade_id, after_stop="finish")
    upgraded.advance(view)
    assert controller.status(STREAM).upgrade == ""
    assert control.need_register().value.upgrade_id is None


def test_the_end_of_a_dead_driver_is_not_forced_while_an_upgrade_holds_the_stream(upgraded: UpgradeStage) -> None:
    """It is the upgrade that takes it over."""
    upgraded.begin()
    upgraded.fails("d-0001")
    before = upgraded.outside()
    with pytest.raises(ConflictError, match="under way"):
        upgraded.stage.controller.forced_stops.stop(STREAM, deadline_seconds=10, on_deadline="kill")
    assert upgraded.outside() == before
