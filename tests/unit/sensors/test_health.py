"""``StreamHealthSensor``."""

from __future__ import annotations

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSensorTimeout, TaskDeferred

from airflow_streamstate.protocol.events import QueryFailed
from airflow_streamstate.protocol.positions import LagTrend, SourceLag
from airflow_streamstate.sensors.streamstate import StreamHealthSensor
from support.airflow_fixtures import MakeContext
from support.airflow_streams import NamedHome


def test_it_returns_the_status_of_a_healthy_stream(named: NamedHome, context: MakeContext) -> None:
    """A batch of every query."""
    named.stream().deploy().runs()
    status = StreamHealthSensor(task_id="healthy", stream_id="flights").execute(context())
    assert (status["state"], status["queries"]["delays"]["batch_id"]) == ("running", 0)


def test_a_stream_that_has_only_started_is_not_healthy_yet(named: NamedHome, context: MakeContext) -> None:
    """It may still fail at its first batch."""
    named.stream().deploy().claim().started()
    with pytest.raises(AirflowSensorTimeout):
        StreamHealthSensor(task_id="healthy", stream_id="flights", timeout=0).execute(context())


def test_a_stream_that_has_failed_will_not_become_healthy(named: NamedHome, context: MakeContext) -> None:
    """The task log has the script's traceback."""
    named.stream().deploy().claim().failed("ValueError: boom")
    with pytest.raises(AirflowFailException, match=r"(?s)boom.*--- traceback ---"):
        StreamHealthSensor(task_id="healthy", stream_id="flights").execute(context())


def test_a_degraded_stream_fails_the_sensor(named: NamedHome, context: MakeContext) -> None:
    """At once, though the other queries run: with the query, the batch and the cause."""
    attempt = named.stream().deploy().runs()
    attempt.say(
        QueryFailed, query_name="delays", query_id="id", query_run_id="run", batch_id=0, planned_batch_id=1,
        error="Unlucky: batch of bad luck",
    )  # fmt: skip
    with pytest.raises(AirflowFailException, match="delays has failed in batch 1: Unlucky: batch of bad luck"):
        StreamHealthSensor(task_id="healthy", stream_id="flights").execute(context())


@pytest.mark.parametrize("deferrable", [False, True])
def test_it_waits_until_nothing_is_left_to_read(named: NamedHome, context: MakeContext, deferrable: bool) -> None:
    """The same result either way; so much as is allowed may be left."""
    attempt = named.stream().deploy().runs()
    attempt.beat(lags=(SourceLag("file /in", 3, "files"),))
    options = {"task_id": "zero", "stream_id": "flights", "caught_up": True, "timeout": 0, "deferrable": deferrable}
    with pytest.raises(TaskDeferred if deferrable else AirflowSensorTimeout) as waiting:
        StreamHealthSensor(**options).execute(context())
    if isinstance(waiting.value, TaskDeferred):
        assert waiting.value.trigger.watch["wanted"] == "caught_up"
    status = StreamHealthSensor(**options | {"max_lag": "3"}).execute(context())
    assert status["queries"]["delays"]["behind"] == "3 files behind"
    attempt.beat(lags=(SourceLag("file /in", 0, "files"),))
    assert StreamHealthSensor(**options).execute(context())["queries"]["delays"]["caught_up"] is True


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_stream_whose_input_never_pauses_catches_up_though_no_look_meets_its_least(
    named: NamedHome, context: MakeContext, deferrable: bool
) -> None:
    """What is behind grows from one commit to the next, and each poll of the sensor may come late within a batch."""
    attempt = named.stream().deploy().runs()
    trend = LagTrend(9, 1_000, 100.0, 1_000, 100.0, 20, 20, 20)
    attempt.beat(lags=(SourceLag("kafka flights", 900, "rows", trend=trend),))
    options = {"task_id": "zero", "stream_id": "flights", "caught_up": True, "timeout": 0, "deferrable": deferrable}
    status = StreamHealthSensor(**options, max_lag=20).execute(context())
    assert status["queries"]["delays"]["behind"] == "900 rows behind, 20 at the least"
    with pytest.raises(TaskDeferred if deferrable else AirflowSensorTimeout):
        StreamHealthSensor(**options, max_lag=19).execute(context())
