"""``RollbackStreamOperator``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.operators.upgrade import RollbackStreamOperator, UpgradeStreamOperator
from airflow_streamstate.triggers.streamstate import StreamStateTrigger
from support import scripted_driver
from support.airflow_fixtures import MakeContext
from support.airflow_streams import NamedHome
from support.airflow_upgrades import Pushed, deferral_of, event_of, run_first_version, taken_by, turn


@pytest.fixture
def upgraded(named: NamedHome, context: MakeContext, tmp_path: Path) -> NamedHome:
    """A stream whose second version runs."""
    return upgraded_from(named, context, tmp_path)


def upgraded_from(named: NamedHome, context: MakeContext, tmp_path: Path, *more: str) -> NamedHome:
    run_first_version(named, tmp_path, "flights", *more)
    script = scripted_driver.script(tmp_path, "proves", name="new.py")
    task = UpgradeStreamOperator(task_id="upgrade", stream_id="flights", application=script, warm=False)
    task.execute(context(task_id="upgrade", xcom_push=Pushed().push))
    return named


def rollback(**more: Any) -> RollbackStreamOperator:
    values = {
        "stream_id": "flights", "timeout_seconds": 50, "healthy_deadline_seconds": 20, "poll_interval_seconds": 0.1,
        **more,
    }  # fmt: skip
    return RollbackStreamOperator(task_id="rollback", **values)


@pytest.mark.parametrize("is_deferrable", [False, True])
def test_what_ran_before_runs_again(upgraded: NamedHome, ours: Any, is_deferrable: bool) -> None:
    """Forward, with the batches named that are the other version's; cleared, it is found and not done again."""
    task = rollback(deferrable=is_deferrable, reason="it is too slow")
    found = turn(task, ours)
    while isinstance(found, TaskDeferred):
        assert found.trigger.on_kill_action == "finish"
        found = turn(task, ours, event_of(found), found.kwargs)
    assert (found["outcome"], found["way"]) == ("rolled_back", "forward")
    assert found["bad_batches"]["delays"]
    assert (found["new_deployment_id"], found["returned_deployment_id"]) == ("d-0002", "d-0003")
    assert taken_by(upgraded, found["upgrade_id"]) == {"airflow dag.task manual__1"}
    assert turn(task, ours) == found


def test_where_no_way_is_exact_it_fails_without_a_retry(
    named: NamedHome, context: MakeContext, ours: Any, pushed: Pushed, tmp_path: Path
) -> None:
    """And nothing is touched."""
    upgraded_from(named, context, tmp_path, "refused")
    with pytest.raises(AirflowFailException, match="no rollback is exact"):
        rollback(strategy="forward").execute(ours)
    assert pushed["return_value"]["outcome"] == "failed"
    assert named.hook().client.status("flights").deployment_id == "d-0002"


def test_the_first_version_has_nothing_to_go_back_to(named: NamedHome, ours: Any, tmp_path: Path) -> None:
    """Refused before anything is recorded."""
    run_first_version(named, tmp_path)
    with pytest.raises(AirflowFailException, match="first deployment"):
        rollback().execute(ours)


@pytest.mark.parametrize("where", ["worker", "triggerer"])
def test_a_task_that_is_ended_before_anything_has_happened_changes_nothing(
    upgraded: NamedHome, ours: Any, where: str
) -> None:
    """The current version runs on, the stream is free, and a later try starts again."""
    task = rollback(deferrable=True)
    deferred = deferral_of(task, ours)
    begun = deferred.trigger.watch["deployment_id"]
    upgrades = upgraded.hook().client.upgrades
    assert upgrades.view("flights", begun).state.phase == "trying"
    if where == "worker":
        task.on_kill()
    else:
        asyncio.run(StreamStateTrigger(**deferred.trigger.serialize()[1]).on_kill())
    assert upgrades.view("flights", begun).outcome == "refused"
    assert upgrades.under_way("flights") is None
    assert upgraded.hook().client.status("flights").deployment_id == "d-0002"
    found = rollback().execute(ours)
    assert found["upgrade_id"] != begun
    assert found["outcome"] == "rolled_back"


def test_a_snapshot_that_is_not_there_is_refused(upgraded: NamedHome, ours: Any) -> None:
    """By its id, before anything is recorded; the current version runs on."""
    before = list(upgraded.home.home.list_objects("flights/upgrades/"))
    with pytest.raises(AirflowFailException, match="snapshot_id=d-0001-none"):
        rollback(snapshot_id="d-0001-none").execute(ours)
    assert list(upgraded.home.home.list_objects("flights/upgrades/")) == before
    assert upgraded.hook().client.status("flights").deployment_id == "d-0002"


@pytest.mark.parametrize(
    ("field", "value"), [("strategy", "sideways"), ("accept_duplicates", "some"), ("undo_command", "[1")]
)
def test_what_cannot_be_meant_is_refused(upgraded: NamedHome, context: MakeContext, field: str, value: Any) -> None:
    """Before anything is recorded."""
    before = list(upgraded.home.home.list_objects("flights/upgrades/"))
    with pytest.raises((AirflowFailException, InvalidRequestError)):  # a word is refused as the DAG is parsed
        rollback(**{field: value}).execute(context())
    assert list(upgraded.home.home.list_objects("flights/upgrades/")) == before
