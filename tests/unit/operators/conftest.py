"""Airflow in its own home."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import scripted_driver
from support.airflow_fixtures import MakeContext, context, named
from support.airflow_streams import NamedHome
from support.airflow_upgrades import Pushed
from support.snapshots import STREAM, Shelf, run_stateful

__all__ = ["context", "named"]


@pytest.fixture
def pushed() -> Pushed:
    """What a task pushes as its XComs."""
    return Pushed()


@pytest.fixture
def ours(context: MakeContext, pushed: Pushed) -> Any:
    """The context of this task, with its XComs."""
    return context(xcom_push=pushed.push)


@pytest.fixture
def deployed(named: NamedHome, context: MakeContext, tmp_path: Path) -> Callable[..., Path]:
    """Deploys by its operator, and waits for, a driver that behaves so; gives its script."""
    from airflow_streamstate.operators.deploy import DeployStreamOperator

    def deploy(*behaviour: str) -> Path:
        script = scripted_driver.script(tmp_path, *behaviour)
        until = "finished" if "finishes" in behaviour else "healthy"
        DeployStreamOperator(
            task_id="deploy", stream_id="flights", application=script, wait_until=until, timeout_seconds=30
        ).execute(context(task_id="deploy"))
        return script

    return deploy


@pytest.fixture
def shelf(named: NamedHome) -> Shelf:
    """A stream with two stopped snapshots that have state."""
    named.stream(STREAM).deploy()
    made = Shelf(named.home.home)
    run_stateful(made.checkpoint(), 3)
    made.capture()
    run_stateful(made.checkpoint(), 5, first=4)
    made.clock.advance(60)
    made.capture(snapshot_id="d-0001-stopped-000002")
    return made
