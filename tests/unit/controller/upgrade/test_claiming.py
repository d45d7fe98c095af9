"""Of two upgrades at once one takes the stream."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.controller.upgrade.forward import claim
from airflow_streamstate.errors import ConflictError
from airflow_streamstate.protocol.records import Intent
from support.sim_stage import STREAM
from support.upgrade_stage import UpgradeStage


def unclaimed(upgraded: UpgradeStage, request_id: str = "up-1") -> str:
    """One that was started, and whose controller died before it took the stream."""
    view = upgraded.begin(request_id)
    upgraded.stage.control.update_register(lambda now: replace(now, upgrade_id=None), by="test")
    return view.upgrade_id


def test_a_second_claim_writes_nothing(upgraded: UpgradeStage) -> None:
    """Claimed twice is claimed once: the register is not written again (Law 2)."""
    tools, state = upgraded.upgrades._tools(STREAM, unclaimed(upgraded))
    claim(tools, state)
    version = upgraded.stage.control.need_register().version
    claim(tools, state)
    assert (upgraded.held_by(), upgraded.stage.control.need_register().version) == (tools.upgrade.upgrade_id, version)


def test_a_stream_that_another_holds_is_not_taken(upgraded: UpgradeStage) -> None:
    """It is refused, and the other is not touched."""
    late = unclaimed(upgraded)
    first = upgraded.begin("up-2")
    tools, state = upgraded.upgrades._tools(STREAM, late)
    with pytest.raises(ConflictError, match=f"under way.*{first.upgrade_id}"):
        claim(tools, state)
    assert upgraded.held_by() == first.upgrade_id
    assert upgraded.upgrades.view(STREAM, late).outcome == "refused"


def test_a_deploy_that_is_under_way_is_not_disturbed(upgraded: UpgradeStage) -> None:
    """Its intent is young; the error names its owner."""
    late = unclaimed(upgraded)
    intent = Intent("r-9", "d-0002", upgraded.stage.clock.now(), "ada")
    upgraded.stage.control.update_register(lambda now: replace(now, intent=intent), by="test")
    tools, state = upgraded.upgrades._tools(STREAM, late)
    with pytest.raises(ConflictError, match="requested_by=ada"):
        claim(tools, state)
    assert upgraded.held_by() is None


def test_a_rollback_of_what_has_been_replaced_meanwhile_is_refused(upgraded: UpgradeStage) -> None:
    """It was about another version than the one that runs now."""
    upgraded.to_upgraded()
    view = upgraded.begin_rollback()
    upgraded.stage.control.update_register(lambda now: replace(now, upgrade_id=None, deployment_id="d-0001"), by="test")
    tools, state = upgraded.upgrades._tools(STREAM, view.upgrade_id)
    with pytest.raises(ConflictError, match="another controller moved this stream"):
        claim(tools, state)


def test_one_that_is_over_is_not_begun_again_by_a_late_claim(upgraded: UpgradeStage) -> None:
    """Its controller slept before the claim; named in the register, it does not hold the stream (Law 4)."""
    late = unclaimed(upgraded)
    tools, state = upgraded.upgrades._tools(STREAM, late)
    upgraded.upgrades.cancel(STREAM, late, after_stop="rollback")
    assert upgraded.upgrades.advance(STREAM, late).outcome == "refused"
    claim(tools, state)
    assert upgraded.begin("up-2").upgrade_id == upgraded.held_by()


def test_the_next_worker_claims_the_stream_before_any_other_step(upgraded: UpgradeStage) -> None:
    """The controller that recorded it died before its claim (Law 4)."""
    upgrade_id = unclaimed(upgraded)
    upgraded.upgrades.advance(STREAM, upgrade_id)
    assert upgraded.held_by() == upgrade_id
