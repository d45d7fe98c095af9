"""``SnapshotStreamOperator``."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred

from airflow_streamstate.operators.base import request_id_of
from airflow_streamstate.operators.snapshot import SnapshotStreamOperator
from airflow_streamstate.protocol.commands import SnapshotRequest
from support.airflow_fixtures import MakeContext
from support.airflow_streams import NamedHome


def test_it_returns_what_the_snapshot_is_and_a_retry_takes_no_second_one(
    named: NamedHome, context: MakeContext, deployed: Callable[..., Path]
) -> None:
    """Snapshots cost; asking twice is asking once (Law 2)."""
    deployed("runs")
    operator = SnapshotStreamOperator(
        task_id="snapshot", stream_id="flights", timeout_seconds=30, poll_interval_seconds=0.1
    )
    first = operator.execute(context(try_number=1))
    assert first["snapshot_id"] == "d-0001-live-000001"
    assert {"kind", "files", "bytes", "queries"} <= set(first)
    assert operator.execute(context(try_number=2)) == first
    assert len(named.hook().client.snapshots.all("flights")) == 1


def test_it_need_not_wait(named: NamedHome, context: MakeContext) -> None:
    """A sensor may do that."""
    named.stream().deploy().runs()
    operator = SnapshotStreamOperator(task_id="snapshot", stream_id="flights", wait_for_completion=False)
    assert operator.execute(context())["key"] == "flights/deployments/d-0001/commands/00000001.json"


def test_it_says_when_it_was_asked_for_and_under_which_id(named: NamedHome, context: MakeContext) -> None:
    """Rendered as text or not; a sensor goes by the request id."""
    attempt = named.stream().deploy().runs()
    operator = SnapshotStreamOperator(
        task_id="snapshot",
        stream_id="flights",
        wait_for_completion=False,
        requested_at="2026-03-01 10:05:00+00:00",
        ttl_seconds="60",
    )
    result = operator.execute(context())
    (slot,) = attempt.control.journal("d-0001").commands()
    assert isinstance(slot.command, SnapshotRequest)
    assert slot.command.request_id == result["request_id"] == request_id_of(context())
    assert (slot.command.requested_at, slot.command.ttl_seconds) == (
        datetime(2026, 3, 1, 10, 5, tzinfo=timezone.utc),
        60.0,
    )


def test_a_deferred_wait_goes_by_the_request(named: NamedHome, context: MakeContext) -> None:
    """The triggerer asks again as the worker would."""
    named.stream().deploy().runs()
    operator = SnapshotStreamOperator(task_id="snapshot", stream_id="flights", deferrable=True)
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context())
    assert deferred.value.trigger.watch["request_id"] == request_id_of(context())
