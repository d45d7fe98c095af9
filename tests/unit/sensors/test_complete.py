"""``CompletePartitionSensor``."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)

from airflow_streamstate.sensors.streamstate import CompletePartitionSensor
from support.airflow_fixtures import MakeContext
from support.airflow_streams import NamedHome
from support.event_hours import HOUR, commits_through

TWO = "2026-03-01 14:00:00+00:00"
AT_TWO = datetime(2026, 3, 1, 14, tzinfo=timezone.utc)


def sensor(**more: Any) -> CompletePartitionSensor:
    values = {"task_id": "complete", "stream_id": "flights", "partition_end": TWO, "timeout": 0, **more}
    return CompletePartitionSensor(**values)


@pytest.mark.parametrize("deferrable", [False, True])
def test_it_waits_until_the_watermark_of_a_committed_batch_has_passed_the_hour(
    named: NamedHome, context: MakeContext, deferrable: bool
) -> None:
    """The same result either way; the condition is plain JSON."""
    attempt = named.stream().deploy().claim().started()
    commits_through(attempt, 0, AT_TWO - timedelta(seconds=1))
    with pytest.raises(TaskDeferred if deferrable else AirflowSensorTimeout) as waiting:
        sensor(deferrable=deferrable).execute(context())
    if isinstance(waiting.value, TaskDeferred):
        watch = waiting.value.trigger.watch
        assert (watch["wanted"], watch["complete_at"]) == ("complete", "2026-03-01T14:00:00.000Z")
    commits_through(attempt, 1, AT_TWO)
    assert sensor(deferrable=deferrable).execute(context()) == {
        "stream_id": "flights", "query_name": None, "complete_through_at": "2026-03-01T14:00:00.000Z",
        "deployment_id": "d-0001", "queries": {"delays": "2026-03-01T14:00:00.000Z"}, "reopened_from_at": None,
    }  # fmt: skip


def test_it_looks_again_in_the_mode_reschedule(named: NamedHome, context: MakeContext) -> None:
    """The third mode: one poke reports that it is not there yet, a later one that it is."""
    attempt = named.stream().deploy().claim().started()
    commits_through(attempt, 0, AT_TWO - HOUR)
    waiting = sensor(mode="reschedule")
    assert waiting.poke(context()).is_done is False
    commits_through(attempt, 1, AT_TWO)
    assert waiting.poke(context()).is_done is True


def test_by_default_it_is_the_end_of_the_data_interval() -> None:
    """As Airflow renders it."""
    assert CompletePartitionSensor(task_id="complete", stream_id="flights").partition_end == "{{ data_interval_end }}"
    assert "partition_end" in CompletePartitionSensor.template_fields
    assert "deployment_id" not in CompletePartitionSensor.template_fields


def test_lateness_moves_the_end(named: NamedHome, context: MakeContext) -> None:
    """An outer join emits the rows of an hour later than the hour's end."""
    attempt = named.stream().deploy().claim().started()
    commits_through(attempt, 0, AT_TWO + timedelta(minutes=9))
    with pytest.raises(AirflowSensorTimeout):
        sensor(lateness_seconds="600").execute(context())
    commits_through(attempt, 1, AT_TWO + timedelta(minutes=10))
    sensor(lateness_seconds="600").execute(context())


def test_a_restart_and_a_successor_do_not_end_the_wait(named: NamedHome, context: MakeContext) -> None:
    """Stopped a moment ago: the next deployment continues."""
    stream = named.stream()
    attempt = stream.deploy().claim().started()
    commits_through(attempt, 0, AT_TWO - HOUR)
    attempt.stopped()
    with pytest.raises(AirflowSensorTimeout):
        sensor().execute(context())
    successor = stream.deploy().claim().started()
    commits_through(successor, 1, AT_TWO)
    assert sensor().execute(context())["deployment_id"] == "d-0002"


@pytest.mark.parametrize(("soft_fail", "error"), [(False, AirflowFailException), (True, AirflowSkipException)])
def test_a_stream_that_has_ended_before_fails_it_at_once(
    named: NamedHome, context: MakeContext, soft_fail: bool, error: type[Exception]
) -> None:
    """With where it ended; skipped if that is asked for."""
    attempt = named.stream().deploy().claim().started()
    commits_through(attempt, 0, AT_TWO - HOUR)
    attempt.stopped()
    with pytest.raises(error, match=r"ended before.*complete_through_at=2026-03-01T13:00:00"):
        sensor(soft_fail=soft_fail, timeout=60, ended_for_seconds=0.000001).execute(context())


@pytest.mark.parametrize(
    ("more", "text"),
    [({"partition_end": "14:00"}, "no time with a time zone"), ({"partition_end": "None"}, "has no data interval")],
)
def test_a_moment_that_is_none_is_a_mistake(
    named: NamedHome, context: MakeContext, more: dict[str, Any], text: str
) -> None:
    """Never a skip."""
    named.stream().deploy().runs()
    with pytest.raises(AirflowFailException, match=text):
        sensor(soft_fail=True, **more).execute(context())
