"""``SnapshotReadySensor``."""

from __future__ import annotations

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSensorTimeout

from airflow_streamstate.sensors.streamstate import SnapshotReadySensor
from support.airflow_fixtures import MakeContext
from support.airflow_streams import NamedHome


def test_it_returns_what_the_snapshot_is(named: NamedHome, context: MakeContext) -> None:
    """The one of an order, the one with an id, or any."""
    attempt = named.stream().deploy().runs()
    order = named.hook().client.order("snapshot", "flights")
    attempt.obey("")
    for which in ({"command_id": order.command_id}, {"snapshot_id": "d-0001-live-000001"}, {}):
        found = SnapshotReadySensor(task_id="ready", stream_id="flights", **which).execute(context())
        assert (found["snapshot_id"], found["kind"]) == ("d-0001-live-000001", "live")


def test_it_waits_for_what_is_not_complete(named: NamedHome, context: MakeContext) -> None:
    """No manifest, no snapshot (Law 3)."""
    named.stream().deploy().runs()
    with pytest.raises(AirflowSensorTimeout):
        SnapshotReadySensor(task_id="ready", stream_id="flights", timeout=0).execute(context())


def test_it_does_not_wait_for_one_that_nobody_can_take(named: NamedHome, context: MakeContext) -> None:
    """Its deployment has failed."""
    named.stream().deploy().runs().failed("boom")
    with pytest.raises(AirflowFailException, match="boom"):
        SnapshotReadySensor(task_id="ready", stream_id="flights").execute(context())


def test_it_waits_for_a_request_over_deployments(named: NamedHome, context: MakeContext) -> None:
    """The one that was asked is gone; the one that runs now is asked again by the sensor itself."""
    named.stream().deploy().runs().failed("boom")
    attempt = named.stream().deploy().runs()
    asked = named.hook().client.order("snapshot", "flights", request_id="r-1")
    assert asked.deployment_id == "d-0002"
    attempt.failed("boom")
    successor = named.stream().deploy().runs()
    sensor = SnapshotReadySensor(task_id="ready", stream_id="flights", request_id="r-1")
    assert not sensor.poke(context()).is_done
    successor.obey("")
    assert sensor.execute(context())["deployment_id"] == "d-0003"
