"""The old version is back: what is made of a query of it that fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.protocol.terms.version import OnQueryFailure
from support.scripted_rehearsal import keep_plan
from support.sim_stage import STREAM, Stage
from support.upgrade_stage import SOCKET, UpgradeStage


@pytest.mark.parametrize("ends", [True, False])
def test_a_query_of_the_old_version_that_fails_is_not_yet_its_end(upgraded: UpgradeStage, ends: bool) -> None:
    """Its script may end by it, and is then started once more; where it continues with the others, that is reported."""
    view = upgraded.to_started()
    upgraded.fails()
    upgraded.advance(view)
    upgraded.new_runs(3, "d-0003")
    upgraded.stage.query_failed(deployment_id="d-0003")
    upgraded.beats(3, "d-0003")
    view = upgraded.advance(view)
    assert view.state.phase == "returned"
    if ends:
        upgraded.fails("d-0003")
        view = upgraded.advance(view)
        assert (view.state.phase, upgraded.stage.control.need_register().value.attempt) == ("returned", 2)
        return
    upgraded.stage.clock.advance(upgraded.stage.spec("d-0003").version.settings.exit_grace_seconds)
    upgraded.beats(3, "d-0003")
    view = upgraded.advance(view)
    assert (view.outcome, upgraded.stage.control.need_register().value.attempt) == ("failed", 1)
    assert "is not healthy: a query of the deployment has failed" in view.state.text


@pytest.mark.parametrize(("policy", "outcome"), [("degrade", "failed"), ("fail", None)])
def test_what_a_failed_query_of_the_old_version_leads_to_hangs_on_its_policy(
    stage: Stage, policy: OnQueryFailure, outcome: str | None
) -> None:
    """One that keeps the others running is reported at once; one that ends them has the rest of its deadline."""
    stage.deploy(on_query_failure=policy)
    stage.come_to_life(queries=("counts",))
    stage.run_batches(3)
    keep_plan(stage.control, "d-0001", "counts")
    upgraded = UpgradeStage(stage)
    view = upgraded.to_started()
    upgraded.fails()
    upgraded.advance(view)
    upgraded.new_runs(3, "d-0003")
    stage.query_failed(deployment_id="d-0003")
    stage.clock.advance(60.0)
    upgraded.beats(3, "d-0003")
    assert upgraded.advance(view).outcome == outcome
    stage.clock.advance(60.0)
    upgraded.beats(3, "d-0003")
    view = upgraded.advance(view)
    assert view.outcome == "failed"
    assert "is not healthy: a query of the deployment has failed" in view.state.text


@pytest.mark.parametrize("is_accepted", [True, False])
def test_an_old_version_that_no_resume_can_start_again_is_deployed_anew(tmp_path: Path, *, is_accepted: bool) -> None:
    """Its socket sends each row once: with what the upgrade accepts it comes back; else that is reported (Law 5)."""
    upgraded = UpgradeStage(Stage(tmp_path, identities=(SOCKET,))).runs()
    asked = {"change": {"accept_lost_input": ("counts",)}} if is_accepted else {"mode": "fresh"}
    view = upgraded.to_ready(**asked)
    upgraded.stops()
    upgraded.upgrades.cancel(STREAM, view.upgrade_id, after_stop="rollback")
    view = upgraded.advance(view)
    if is_accepted:
        assert (view.state.phase, view.state.returned_deployment_id) == ("returned", "d-0002")
        assert upgraded.stage.spec("d-0002").version.application == upgraded.stage.spec("d-0001").version.application
    else:
        assert view.outcome == "failed"
        assert "--accept-lost-input counts" in view.state.text
