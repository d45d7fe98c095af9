"""Retention by ``dag.test()``: the example DAG with real Spark, and the other verbs without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.request.requests import deploy_request
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.snapshot.mirror_copies import is_mirrored
from airflow_streamstate.store.local import LocalStore
from support import scripted_driver
from support.airflow_streams import NamedHome
from support.dag_results import returned, states
from support.flights import JOBS, Flights

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:Using .httpx. with"),  # Airflow's in-process API server, not ours
]


@pytest.mark.spark
@pytest.mark.named
def test_a_snapshot_is_loaded_copied_and_written_as_tables(
    spark: NamedHome, run_dag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the stream runs; a second run of the DAG replaces the export and copies what is new."""
    monkeypatch.setenv("KEPT_SNAPSHOTS_MIRROR", str(tmp_path / "mirror"))
    monkeypatch.setenv("KEPT_SNAPSHOTS_TABLES", str(tmp_path / "tables"))
    flights, hook = Flights(tmp_path / "flights", pieces=2), spark.hook()
    flights.feed(2)
    hook.client.deploy(
        deploy_request("flights", JOBS / "count_by_origin.py", arguments=tuple(flights.arguments), master="local[2]")
    )
    hook.client.wait(WaitCondition("caught_up", "flights", "d-0001"), timeout_seconds=180)
    for number in (1, 2):
        run = run_dag("kept_snapshots")
        assert set(states(run).values()) == {"success"}, states(run)
        snapshot_id = returned(run, "taken")["snapshot_id"]
        assert snapshot_id == f"d-0001-live-00000{number}"
        loaded = returned(run, "verified")["loaded"]["delays"]["operators"]
        assert [one["rows"] > 0 for one in loaded] == [True]
        export = returned(run, "exported")["export"]
        assert (export["complete"], [table["rows"] for table in export["tables"]]) == (True, [loaded[0]["rows"]])
        assert list(Path(export["uri"]).rglob("*.parquet"))
        assert is_mirrored(spark.home.control("flights"), LocalStore(tmp_path / "mirror"), snapshot_id)
    assert hook.client.status("flights").state == "running"


@pytest.mark.parametrize("deletes", [False, True])
def test_a_stream_is_retired_behind_its_last_snapshot(
    scripted: NamedHome, run_dag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, deletes: bool
) -> None:
    """Which is at another place by then, whatever becomes of the home."""
    monkeypatch.setenv("RETIRED_STREAMS_MIRROR", str(tmp_path / "mirror"))
    hook = scripted.hook()
    hook.client.deploy(deploy_request("flights", scripted_driver.script(tmp_path, "runs"), master="local[2]"))
    hook.client.wait(WaitCondition("healthy", "flights", "d-0001"), timeout_seconds=180, poll_interval_seconds=0.1)
    run = run_dag("retire_stream", {"reason": "moved", "delete": deletes})
    assert states(run) == {"stopped": "success", "mirrored": "success", "retired": "success"}
    snapshot_id = returned(run, "stopped")["snapshot_id"]
    assert snapshot_id in {row["snapshot_id"] for row in returned(run, "mirrored")["snapshots"]}
    retired = returned(run, "retired")
    assert (retired["reason"], retired["deleted"], retired["objects"] > 0) == ("moved", deletes, deletes)
    assert [status.stream_id for status in hook.client.statuses()] == ([] if deletes else ["flights"])
    mirror = StreamControl(LocalStore(tmp_path / "mirror"), "flights", SYSTEM_CLOCK)
    assert mirror.need_manifest(snapshot_id).snapshot_kind == "stopped"
