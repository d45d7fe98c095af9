"""How old a snapshot may be that something starts from."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_streamstate.controller.observe.observation import refuse_old_end
from airflow_streamstate.controller.upgrade.upgrades import RollbackRequest
from airflow_streamstate.errors import IncompatibleUpgradeError, InvalidRequestError
from airflow_streamstate.protocol.events import Stopped
from airflow_streamstate.protocol.terms.order import RollbackTerms
from support.sim_stage import STREAM, Stage


def stopped_cleanly(stage: Stage) -> None:
    stage.deploy()
    stage.stopped()


def killed(stage: Stage) -> None:
    stage.deploy()
    stage.come_to_life()
    stage.run_batches(3)
    stage.end()


@pytest.mark.parametrize("ended", [stopped_cleanly, killed])
def test_a_deploy_refuses_what_is_older_than_was_allowed(stage: Stage, ended: Callable[[Stage], None]) -> None:
    """By its end, or by the last sign of life of what died; before anything is recorded. (Law 5)"""
    ended(stage)
    stage.clock.sleep(3_600)
    with pytest.raises(IncompatibleUpgradeError, match="older than was allowed") as refused:
        stage.deploy("print('v2')\n", max_snapshot_age_seconds=3_000.0)
    assert refused.value.context["snapshot_age_seconds"] >= 3_600
    assert stage.controller.status(STREAM).deployment_id == "d-0001"
    assert stage.controller.status(STREAM).intent == ""
    assert stage.deploy("print('v2')\n", max_snapshot_age_seconds=4_000.0).deployment_id == "d-0002"


def test_what_a_controller_kept_is_as_old_as_the_last_sign_of_life(stage: Stage) -> None:
    """A takeover does not make the state of last week young."""
    killed(stage)
    seen = stage.seen()
    stage.clock.sleep(3_600)
    manifest = stage.keep()
    later = stage.clock.now()
    assert manifest.taken_by == "agent"
    refuse_old_end(seen, manifest, 60.0, later)
    with pytest.raises(IncompatibleUpgradeError):
        refuse_old_end(seen, None, 60.0, later)
    refuse_old_end(seen, None, None, later)


def test_a_fresh_start_starts_from_nothing_that_could_be_old(stage: Stage) -> None:
    """The bound proves nothing there."""
    stopped_cleanly(stage)
    stage.clock.sleep(3_600)
    assert stage.deploy("print('v2')\n", start="fresh", max_snapshot_age_seconds=1.0).start.mode == "fresh"


def test_a_rollback_to_a_snapshot_has_the_same_bound(stage: Stage) -> None:
    """And names the snapshot whose age it is."""
    stage.deploy()
    stage.come_to_life()
    stage.run_batches(3)
    manifest = stage.keep()
    stage.say(Stopped, snapshot_id=manifest.snapshot_id, queries={})
    stage.end()
    stage.deploy("print('v2')\n")
    stage.clock.sleep(3_600)
    request = RollbackRequest(STREAM, RollbackTerms(snapshot_id=manifest.snapshot_id, max_snapshot_age_seconds=60.0))
    with pytest.raises(IncompatibleUpgradeError, match="older than was allowed"):
        stage.controller.upgrades.begin_rollback(request)
    with pytest.raises(InvalidRequestError, match="none was named"):
        RollbackRequest(STREAM, RollbackTerms(max_snapshot_age_seconds=60.0))
    with pytest.raises(InvalidRequestError, match="max_snapshot_age_seconds cannot have this value"):
        RollbackRequest(STREAM, RollbackTerms(snapshot_id=manifest.snapshot_id, max_snapshot_age_seconds=-1.0))


def test_a_rollback_with_another_bound_is_another_request() -> None:
    """A retry has the same one. (Law 2)"""
    plain = RollbackRequest(STREAM, RollbackTerms(snapshot_id="s"))
    assert plain.digest != RollbackRequest(STREAM, RollbackTerms(snapshot_id="s", max_snapshot_age_seconds=1.0)).digest
    assert plain.digest == RollbackRequest(STREAM, RollbackTerms(snapshot_id="s")).digest
