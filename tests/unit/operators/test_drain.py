"""``DrainStreamOperator``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_streamstate.operators.stop import DrainStreamOperator
from airflow_streamstate.protocol.commands import DrainNotification
from support.airflow_fixtures import MakeContext
from support.airflow_streams import NamedHome
from support.scripted_driver import END_OFFSET, WATERMARK_TEXT


def drain(**more: Any) -> DrainStreamOperator:
    values = {"stream_id": "flights", "timeout_seconds": 30, "poll_interval_seconds": 0.1, **more}
    return DrainStreamOperator(task_id="drain", **values)


def test_it_writes_the_notification_and_does_not_wait(named: NamedHome, context: MakeContext) -> None:
    """A later task may wait."""
    stream = named.stream()
    stream.deploy().runs()
    result = drain(reason="new key", expires_in_seconds="60").execute(context())
    (slot,) = stream.control.journal("d-0001").commands()
    assert isinstance(slot.command, DrainNotification)
    assert result == {
        "stream_id": "flights",
        "deployment_id": "d-0001",
        "command_id": slot.command.command_id,
        "key": slot.key,
        "state": "running",
    }
    assert slot.command.reason == "new key"
    assert slot.command.deadline_at is not None
    assert (slot.command.deadline_at - slot.command.requested_at).total_seconds() == 60


def test_a_retry_writes_no_second_one(named: NamedHome, context: MakeContext) -> None:
    """And a clear after the drain finds what became of it (Law 2)."""
    stream = named.stream()
    attempt = stream.deploy().runs()
    first = drain().execute(context(try_number=1))
    assert drain().execute(context(try_number=2)) == first
    assert len(stream.control.journal("d-0001").commands()) == 1
    attempt.obey("")
    cleared = drain().execute(context())
    assert (cleared["command_id"], cleared["key"], cleared["state"]) == (first["command_id"], None, "drained")
    stream.deploy().runs()
    assert drain().execute(context())["deployment_id"] == "d-0001"


def test_it_waits_when_asked_and_returns_the_drain(context: MakeContext, deployed: Callable[..., Path]) -> None:
    """What the sensor would return, and which order it was."""
    deployed("runs")
    result = drain(wait_for_completion=True).execute(context())
    assert result.pop("command_id")
    assert result == {
        "stream_id": "flights",
        "deployment_id": "d-0001",
        "snapshot_id": "d-0001-drained-000001",
        "end_offsets": {"delays": [END_OFFSET]},
        "watermark_at": WATERMARK_TEXT,
        "state_rows_left": 0,
    }


def test_what_has_ended_is_launched_once_more_for_the_flush(
    named: NamedHome, context: MakeContext, deployed: Callable[..., Path]
) -> None:
    """Its own pinned code, in a next attempt (Law 15)."""
    deployed("finishes")
    assert named.hook().client.status("flights").state == "finished"
    result = drain(wait_for_completion=True).execute(context())
    assert result["snapshot_id"] == "d-0001-drained-000002"


def test_a_drain_that_cannot_be_obeyed_fails_at_once(context: MakeContext, deployed: Callable[..., Path]) -> None:
    """The reason is the job's; no retry changes it."""
    deployed("runs", "cannot-drain")
    with pytest.raises(AirflowFailException, match="a memory sink"):
        drain(wait_for_completion=True).execute(context())


def test_a_flush_that_failed_carries_its_words(context: MakeContext, deployed: Callable[..., Path]) -> None:
    """Airflow may retry it."""
    deployed("runs", "drain-fails")
    with pytest.raises(AirflowException, match="disk full"):
        drain(wait_for_completion=True).execute(context())


def test_a_fenced_deployment_is_not_drained(named: NamedHome, context: MakeContext) -> None:
    """No driver would obey; the error names the current one."""
    stream = named.stream()
    stream.deploy().runs()
    stream.deploy().runs()
    with pytest.raises(AirflowFailException, match="current_deployment_id=d-0002"):
        drain(deployment_id="d-0001").execute(context())


def test_a_stream_that_was_never_deployed_is_not_drained(named: NamedHome, context: MakeContext) -> None:
    """The error names the stream and the home."""
    with pytest.raises(AirflowFailException, match="stream_id=flights"):
        drain().execute(context())


def test_a_mode_that_is_not_known_is_refused(named: NamedHome, context: MakeContext) -> None:
    """Before anything is written."""
    stream = named.stream()
    stream.deploy().runs()
    task = drain(mode="{{ params.mode }}")
    task.mode = "fast"
    with pytest.raises(AirflowFailException, match="Use default, event_time"):
        task.execute(context())
    assert stream.control.journal("d-0001").commands() == []


def test_its_deadlines_are_those_of_the_notification(named: NamedHome, context: MakeContext) -> None:
    """Templated texts are numbers and words of the order; a wrong word fails for good."""
    stream = named.stream()
    stream.deploy().runs()
    drain(
        batches_deadline_seconds="60", on_batches_deadline="stop", flush_deadline_seconds="30", on_flush_deadline="kill"
    ).execute(context())
    (slot,) = stream.control.journal("d-0001").commands()
    assert isinstance(slot.command, DrainNotification)
    assert (slot.command.on_deadline, slot.command.flush_within_seconds) == ("stop", 30.0)
    assert slot.command.on_flush_deadline == "kill"
    task = drain(on_batches_deadline="{{ params.word }}")
    task.on_batches_deadline = "perhaps"
    with pytest.raises(AirflowFailException, match="on_batches_deadline"):
        task.execute(context())
