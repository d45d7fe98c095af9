"""Mistakes in fields that are no templates fail when the DAG is parsed, before any run."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.operators.deploy import DeployStreamOperator
from airflow_streamstate.operators.stop import DrainStreamOperator, StopStreamOperator
from airflow_streamstate.operators.upgrade import UpgradeStreamOperator
from airflow_streamstate.sensors.streamstate import StreamHealthSensor


@pytest.mark.parametrize(
    ("cls", "given", "words"),
    [
        (UpgradeStreamOperator, {"mode": "savepoint"}, "auto, restore, drain, fresh"),
        (UpgradeStreamOperator, {"on_kill_action": "leave"}, "finish, rollback"),
        (DeployStreamOperator, {"application": "a.py", "wait_until": "done"}, "healthy, caught_up, finished, none"),
        (DeployStreamOperator, {"application": "a.py", "if_running": "replace"}, "fail, ensure, upgrade"),
        (DeployStreamOperator, {"application": "a.py", "start": "empty"}, "restore, seed, fresh"),
        (DrainStreamOperator, {"mode": "event-time"}, "default, event_time"),
    ],
)
def test_a_word_that_a_field_does_not_have(cls: Any, given: dict[str, Any], words: str) -> None:
    """The error names the words that it has."""
    with pytest.raises(InvalidRequestError, match=words):
        cls(task_id="t", stream_id="flights", **given)
    assert cls(task_id="t", stream_id="flights", **dict.fromkeys(given, "{{ params.x }}")).task_id == "t"


@pytest.mark.parametrize("cls", [StopStreamOperator, StreamHealthSensor])
@pytest.mark.parametrize("stream_id", ["Flights", "", "../x", "a" * 64])
def test_a_stream_id_that_is_none(cls: Any, stream_id: str) -> None:
    """Operators and sensors; an id becomes a path."""
    with DAG("d"), pytest.raises(InvalidRequestError, match="not a valid stream id"):
        cls(task_id="t", stream_id=stream_id)


def test_what_is_rendered_is_checked_by_the_task() -> None:
    """Rendering sets fields, too: a wrong value then fails the task with Airflow's own exception, not the rendering."""
    task = UpgradeStreamOperator(task_id="t", stream_id="{{ params.stream }}", mode="{{ params.mode }}")
    task.stream_id, task.mode = "Flights", "savepoint"
    assert (task.stream_id, task.mode) == ("Flights", "savepoint")
