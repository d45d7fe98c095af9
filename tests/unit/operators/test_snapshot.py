"""``SnapshotStreamOperator``."""

from __future__ import annotations

from pathlib import Path

from airflow_streamstate.operators.deploy import DeployStreamOperator
from airflow_streamstate.operators.snapshot import SnapshotStreamOperator
from support import scripted_driver
from support.airflow_fixtures import MakeContext
from support.airflow_streams import NamedHome


def test_it_returns_what_the_snapshot_is_and_a_retry_takes_no_second_one(
    named: NamedHome, context: MakeContext, tmp_path: Path
) -> None:
    """Snapshots cost; asking twice is asking once (Law 2)."""
    script = scripted_driver.script(tmp_path, "runs")
    DeployStreamOperator(task_id="deploy", stream_id="flights", application=script, wait_seconds=30).execute(
        context(task_id="deploy")
    )
    operator = SnapshotStreamOperator(
        task_id="snapshot", stream_id="flights", wait_seconds=30, poll_interval_seconds=0.1
    )
    first = operator.execute(context(try_number=1))
    assert first["snapshot_id"] == "d-0001-live-000001"
    assert {"kind", "files", "bytes", "queries"} <= set(first)
    assert operator.execute(context(try_number=2)) == first
    assert len(named.hook().controller.snapshots.all("flights")) == 1


def test_it_need_not_wait(named: NamedHome, context: MakeContext) -> None:
    """A sensor may do that."""
    named.stream().deploy().runs()
    operator = SnapshotStreamOperator(task_id="snapshot", stream_id="flights", wait=False)
    assert operator.execute(context())["key"] == "flights/deployments/d-0001/commands/00000001.json"
