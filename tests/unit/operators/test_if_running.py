"""``DeployStreamOperator(if_running=…)``: make sure that this version runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred

from airflow_streamstate.operators.deploy import UPGRADED_KEY, DeployStreamOperator
from support import scripted_driver
from support.airflow_fixtures import MakeContext
from support.airflow_streams import NamedHome
from support.airflow_upgrades import Pushed, event_of, run_first_version, turn


@pytest.fixture
def running(named: NamedHome, tmp_path: Path) -> NamedHome:
    """A stream that runs ``first.py``."""
    run_first_version(named, tmp_path)
    return named


def ensure(script: Path, **more: Any) -> DeployStreamOperator:
    values = {
        "stream_id": "flights", "application": script, "master": "local[2]", "if_running": "ensure",
        "healthy_deadline_seconds": 20, "timeout_seconds": 50, "poll_interval_seconds": 0.1, **more,
    }  # fmt: skip
    return DeployStreamOperator(task_id="deploy", **values)


def current(home: NamedHome) -> tuple[str | None, str]:
    status = home.hook().client.status("flights")
    return status.deployment_id, str(status.state)


def first(folder: Path) -> Path:
    return folder / "first.py"


def other(folder: Path, *words: str) -> Path:
    return scripted_driver.script(folder, *words, name="new.py")


def test_the_same_version_is_left_running(running: NamedHome, ours: Any, pushed: Pushed, tmp_path: Path) -> None:
    """The task succeeds by the terms of ``wait_until``, and writes nothing."""
    result = ensure(first(tmp_path)).execute(ours)
    assert (result["deployment_id"], result["attempt"], result["state"]) == ("d-0001", 1, "running")
    assert current(running) == ("d-0001", "running")
    assert UPGRADED_KEY not in pushed


def test_another_version_is_upgraded_to(running: NamedHome, ours: Any, pushed: Pushed, tmp_path: Path) -> None:
    """By a rehearsal and a handover; the result is that of a deploy, that of the upgrade has its own XCom."""
    result = ensure(other(tmp_path, "proves"), arguments=["--again"]).execute(ours)
    assert (result["deployment_id"], result["state"]) == ("d-0002", "running")
    assert result["start"]["mode"] == "restore"
    assert (pushed[UPGRADED_KEY]["outcome"], pushed[UPGRADED_KEY]["old_deployment_id"]) == ("upgraded", "d-0001")
    again = ensure(other(tmp_path, "proves"), arguments=["--again"]).execute(ours)
    assert (again["deployment_id"], current(running)) == ("d-0002", ("d-0002", "running"))


def test_a_version_that_fails_leaves_the_old_one_running(running: NamedHome, ours: Any, tmp_path: Path) -> None:
    """As an upgrade does, and its retry does not try it again."""
    script = other(tmp_path, "fails boom")
    for _ in range(2):
        with pytest.raises(AirflowFailException):
            ensure(script).execute(ours)
        assert current(running)[1] == "running"


def test_upgrade_restarts_the_same_version(running: NamedHome, ours: Any, pushed: Pushed, tmp_path: Path) -> None:
    """``upgrade`` moves the stream whatever it runs."""
    result = ensure(first(tmp_path), if_running="upgrade").execute(ours)
    assert (result["deployment_id"], pushed[UPGRADED_KEY]["outcome"]) == ("d-0002", "upgraded")


def test_deferred_the_result_is_the_same(running: NamedHome, ours: Any, pushed: Pushed, tmp_path: Path) -> None:
    """Each step is taken by a worker, whose task is made again."""
    script = other(tmp_path, "proves")
    found = turn(ensure(script, arguments=["--again"], deferrable=True), ours)
    while isinstance(found, TaskDeferred):
        found = turn(ensure(script, arguments=["--again"], deferrable=True), ours, event_of(found), found.kwargs)
    assert (found["deployment_id"], found["state"]) == ("d-0002", "running")
    assert pushed[UPGRADED_KEY]["outcome"] == "upgraded"


def test_a_stream_that_does_not_run_is_deployed(named: NamedHome, context: MakeContext, tmp_path: Path) -> None:
    """For the first time, and after a stop; a retry finds what it started."""
    script = scripted_driver.script(tmp_path, "runs")
    assert ensure(script).execute(context())["deployment_id"] == "d-0001"
    assert ensure(script).execute(context())["deployment_id"] == "d-0001"
