"""What a rollback goes back to; never to what was just abandoned."""

from __future__ import annotations

import pytest

from airflow_streamstate.control.upgrade_journal import UpgradeJournal
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.ids import return_request_id_for, upgrade_id_for
from support.sim_stage import STREAM
from support.upgrade_stage import UpgradeStage


def test_a_first_deployment_has_nothing_to_go_back_to(upgraded: UpgradeStage) -> None:
    """It is reported before anything is recorded."""
    with pytest.raises(InvalidRequestError, match="no version to go back to"):
        upgraded.begin_rollback()
    assert upgraded.upgrades.under_way(STREAM) is None


def test_a_second_rollback_does_not_bring_the_bad_version_back(upgraded: UpgradeStage) -> None:
    """Two operators may give the same command; it is refused before anything of it is recorded."""
    upgraded.to_upgraded()
    view = upgraded.rehearsed(upgraded.advance(upgraded.begin_rollback()))
    upgraded.stops("d-0002")
    upgraded.advance(view)
    upgraded.new_runs(7, "d-0003")
    assert upgraded.advance(view).outcome == "rolled_back"
    before = UpgradeJournal(upgraded.stage.control).ids()
    with pytest.raises(InvalidRequestError, match="gone back already") as refused:
        upgraded.begin_rollback("back-2")
    assert {"given_up": "d-0002", "given_up_by": view.upgrade_id}.items() <= refused.value.context.items()
    assert UpgradeJournal(upgraded.stage.control).ids() == before
    assert upgraded.begin_rollback().upgrade_id == view.upgrade_id  # its own request again finds it (Law 2)


def test_a_rollback_behind_an_upgrade_that_was_given_up_does_not_bring_it_back(upgraded: UpgradeStage) -> None:
    """It went back by itself; and once something else is deployed over it, there is a version before again."""
    view = upgraded.to_started()
    upgraded.new_runs(5)
    upgraded.fails()
    upgraded.rehearsed(upgraded.advance(view))
    upgraded.new_runs(7, "d-0003")
    assert upgraded.advance(view).outcome == "given_up"
    with pytest.raises(InvalidRequestError, match="gone back already"):
        upgraded.begin_rollback()
    upgraded.stage.keep("stopped", "d-0003")
    upgraded.stage.end("d-0003")
    upgraded.stage.deploy("print('v3')\n")
    assert upgraded.begin_rollback().state.upgrade.old_deployment_id == "d-0003"
    assert upgraded.held_by() is not None


def test_before_a_version_that_was_deployed_anew_ran_the_same_code(upgraded: UpgradeStage) -> None:
    """An upgrade was abandoned when the old version was already drained: that version was not abandoned."""
    stage = upgraded.stage
    stage.keep("stopped", "d-0001")
    stage.end("d-0001")
    upgrade_id = upgrade_id_for("given up")
    stage.deploy(request_id=return_request_id_for(upgrade_id, "anew"))
    with pytest.raises(InvalidRequestError, match="the same code") as refused:
        upgraded.begin_rollback()
    assert {"same_code": "d-0001", "given_up_by": upgrade_id}.items() <= refused.value.context.items()
    assert "d-0001" not in str(refused.value.next_step)
