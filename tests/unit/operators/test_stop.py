"""``StopStreamOperator``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_streamstate.operators.deploy import DeployStreamOperator
from airflow_streamstate.operators.stop import StopStreamOperator
from airflow_streamstate.protocol.commands import StopRequest
from support import scripted_driver
from support.airflow_fixtures import MakeContext
from support.airflow_streams import NamedHome


def stop(**more: Any) -> StopStreamOperator:
    values = {"stream_id": "flights", "wait_seconds": 30, "poll_interval_seconds": 0.1, **more}
    return StopStreamOperator(task_id="stop", **values)


def test_it_returns_the_snapshot_at_the_end(named: NamedHome, context: MakeContext, tmp_path: Path) -> None:
    """That is what the next version starts from; a retry finds the same."""
    script = scripted_driver.script(tmp_path, "runs")
    DeployStreamOperator(task_id="deploy", stream_id="flights", application=script, wait_seconds=30).execute(
        context(task_id="deploy")
    )
    first = stop().execute(context(try_number=1))
    assert (first["deployment_id"], first["snapshot_id"]) == ("d-0001", "d-0001-stopped-000001")
    assert first["state_rows_left"] == 7
    assert stop().execute(context(try_number=2)) == first


def test_it_need_not_wait(named: NamedHome, context: MakeContext) -> None:
    """The order is recorded, and says where."""
    stream = named.stream()
    stream.deploy().runs()
    result = stop(wait=False, begin_within_seconds=5).execute(context())
    (slot,) = stream.control.journal("d-0001").commands()
    assert isinstance(slot.command, StopRequest)
    assert (result["key"], result["command_id"]) == (slot.key, slot.command.command_id)


def test_what_has_stopped_is_answered_at_once(named: NamedHome, context: MakeContext) -> None:
    """Somebody was first."""
    named.stream().deploy().runs().stopped()
    assert stop().execute(context())["snapshot_id"] == "d-0001-stopped-000001"


def test_what_has_failed_cannot_be_stopped_unless_that_does_not_matter(named: NamedHome, context: MakeContext) -> None:
    """An upgrade of a failed version goes on; its deploy takes the snapshot itself."""
    named.stream().deploy().runs().failed("ValueError: boom")
    with pytest.raises(AirflowFailException, match="nobody would obey"):
        stop().execute(context())
    result = stop(if_not_running="pass").execute(context())
    assert (result["deployment_id"], result["snapshot_id"]) == ("d-0001", None)
    with pytest.raises(AirflowFailException, match="Use fail, pass"):
        stop(if_not_running="perhaps").execute(context())
