"""``DrainCompleteSensor``."""

from __future__ import annotations

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_streamstate.protocol.codec import to_json
from airflow_streamstate.protocol.events import Expired
from airflow_streamstate.sensors.streamstate import DrainCompleteSensor
from support.airflow_fixtures import MakeContext
from support.airflow_streams import NamedHome
from support.scripted_stream import drain_notification


def test_it_waits_for_the_drain_of_the_named_deployment(named: NamedHome, context: MakeContext) -> None:
    """By name it finds a drain of long ago, whatever is current."""
    stream = named.stream()
    stream.deploy().runs().drained()
    stream.deploy().runs().drained()
    stream.deploy().runs()
    for deployment_id in ("d-0001", "d-0002"):
        sensor = DrainCompleteSensor(task_id="drained", stream_id="flights", deployment_id=deployment_id)
        assert sensor.execute(context())["snapshot_id"] == f"{deployment_id}-drained-000001"


def test_with_the_notification_it_knows_that_ones_ends(named: NamedHome, context: MakeContext) -> None:
    """An order that expired will not be obeyed, and the stream runs on: without its id, this would wait for ever."""
    stream = named.stream()
    attempt = stream.deploy().runs()
    command, number, _ = drain_notification(stream, attempt.deployment_id)
    attempt.say(Expired, command_id=command.command_id, command_number=number, command=to_json(command))
    sensor = DrainCompleteSensor(
        task_id="drained", stream_id="flights", deployment_id="d-0001", command_id=command.command_id
    )
    with pytest.raises(AirflowFailException, match="had expired"):
        sensor.execute(context())


def test_every_id_is_templated() -> None:
    """They come from parameters and from other tasks."""
    assert set(DrainCompleteSensor.template_fields) == {
        "stream_id", "deployment_id", "streamstate_conn_id", "command_id"
    }  # fmt: skip
