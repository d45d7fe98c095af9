"""The example DAGs by ``dag.test()``, on a home on S3, with drivers that need no Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.controller.request.requests import deploy_request
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.protocol.commands import DrainNotification, SnapshotRequest
from support import scripted_driver
from support.airflow_streams import NamedHome
from support.dag_results import returned, states
from support.scripted_rehearsal import keep_plan
from support.scripted_stream import QUERY

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:Using .httpx. with"),  # Airflow's in-process API server, not ours
]


def running(home: NamedHome, script: Path, *arguments: str) -> str:
    """Deploy this script and wait until it runs; gives the deployment."""
    hook = home.hook()
    view = hook.client.deploy(deploy_request("flights", script, arguments=arguments, master="local[2]"))
    hook.client.wait(
        WaitCondition("healthy", "flights", view.deployment_id), timeout_seconds=180, poll_interval_seconds=0.1
    )
    return view.deployment_id


def upgrade(script: Path, **more: Any) -> dict[str, Any]:
    return {"application": str(script), "arguments": ["--version", "2"], "healthy_deadline_seconds": 60, **more}


def test_an_incompatible_upgrade_drains_and_goes_on_from_the_drained_snapshot(
    scripted: NamedHome, run_dag: Any, tmp_path: Path
) -> None:
    """Notification, sensor, redeploy from what the drain returned, healthy."""
    script = scripted_driver.script(tmp_path, "runs")
    running(scripted, script)
    run = run_dag("upgrade_stream", upgrade(script, reason="new key"))
    assert states(run) == {
        "keep_or_drain": "success", "drain": "success", "drained": "success", "plan": "skipped", "stop": "skipped",
        "deploy": "success",
    }  # fmt: skip
    drained, deployed = returned(run, "drained"), returned(run, "deploy")
    assert set(drained) == {"deployment_id", "snapshot_id", "end_offsets", "watermark_at", "state_rows_left"}
    assert deployed["deployment_id"] == "d-0002"
    assert deployed["start"] == {
        "mode": "seed", "snapshot_id": drained["snapshot_id"], "predecessor_id": "d-0001"
    }  # fmt: skip
    notification = scripted.hook().client.notifications.read("flights", returned(run, "drain")["command_id"], "d-0001")
    assert isinstance(notification, DrainNotification)
    assert notification.reason == "new key"
    assert "airflow upgrade_stream.drain " in notification.requested_by
    commands = scripted.home.home.list_objects("flights/deployments/d-0001/commands/")
    assert list(commands) == []


def test_a_compatible_upgrade_keeps_the_state(scripted: NamedHome, run_dag: Any, tmp_path: Path) -> None:
    """Stop and restore, nothing written early."""
    script = scripted_driver.script(tmp_path, "runs")
    running(scripted, script)
    run = run_dag("upgrade_stream", upgrade(script, state="keep"))
    assert states(run)["drained"] == "skipped"
    assert returned(run, "stop")["snapshot_id"] == "d-0001-stopped-000001"
    assert returned(run, "deploy")["start"]["mode"] == "restore"


def test_what_the_state_does_not_fit_is_refused_while_the_old_version_runs(
    scripted: NamedHome, run_dag: Any, tmp_path: Path
) -> None:
    """Law 17: the plan comes before the stop."""
    running(scripted, scripted_driver.script(tmp_path, "runs"))
    new = scripted_driver.script(tmp_path, "runs", "needs-drain", name="new.py")
    run = run_dag("upgrade_stream", upgrade(new, state="keep"))
    assert str(run.state) == "failed"
    assert states(run)["plan"] == "failed"
    assert states(run)["stop"] in ("upstream_failed", "None")
    status = scripted.hook().client.status("flights")
    assert (status.deployment_id, status.state) == ("d-0001", "running")


def test_a_version_that_has_failed_can_be_upgraded(scripted: NamedHome, run_dag: Any, tmp_path: Path) -> None:
    """There is nothing to stop; the deploy takes over where it ended."""
    bad = scripted_driver.script(tmp_path, "runs", "fails", name="bad.py")
    hook = scripted.hook()
    hook.client.deploy(deploy_request("flights", bad, master="local[2]"))
    for _ in range(200):
        if hook.client.status("flights").state == "failed":
            break
        hook.clock.sleep(0.05)
    run = run_dag("upgrade_stream", upgrade(scripted_driver.script(tmp_path, "runs"), state="keep"))
    assert returned(run, "stop")["snapshot_id"] is None
    assert returned(run, "deploy")["deployment_id"] == "d-0002"


def test_a_drain_that_cannot_be_obeyed_stops_the_upgrade_and_not_the_stream(
    scripted: NamedHome, run_dag: Any, tmp_path: Path
) -> None:
    """The old version runs on; the new one is not deployed."""
    running(scripted, scripted_driver.script(tmp_path, "runs", "cannot-drain"))
    run = run_dag("upgrade_stream", upgrade(scripted_driver.script(tmp_path, "runs", name="new.py")))
    assert str(run.state) == "failed"
    assert states(run)["drained"] == "failed"
    assert states(run)["deploy"] in ("upstream_failed", "None")
    assert scripted.hook().client.status("flights").state == "running"


def test_a_spark_connection_that_is_not_there_is_an_error(scripted: NamedHome, run_dag: Any, tmp_path: Path) -> None:
    """The provider alone would start the job on YARN; here nothing is started or stopped."""
    script = scripted_driver.script(tmp_path, "runs")
    running(scripted, script)
    run = run_dag("upgrade_stream", upgrade(script, state="keep", spark_conn_id="nowhere"))
    assert states(run)["plan"] == "failed"
    status = scripted.hook().client.status("flights")
    assert (status.deployment_id, status.state) == ("d-0001", "running")
    assert scripted.home.control("flights").deployment_ids() == ["d-0001"]


def test_the_scheduled_upgrade_does_nothing_where_nothing_changed(
    scripted: NamedHome, run_dag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And upgrades with the state where something did, once."""
    monkeypatch.setenv("FLIGHTS_FOLDER", str(tmp_path))
    running(scripted, scripted_driver.script(tmp_path, "runs"))
    first = run_dag("scheduled_upgrade")
    assert returned(first, "deploy")["start"]["mode"] == "restore"
    second = run_dag("scheduled_upgrade")
    assert states(second) == {
        "something_changed": "success", "plan": "skipped", "stop": "skipped", "deploy": "skipped"
    }  # fmt: skip
    assert scripted.hook().client.status("flights").deployment_id == "d-0002"


@pytest.mark.parametrize(("word", "done", "mode"), [("fits", "stop", "restore"), ("needs-drain", "drain", "seed")])
def test_a_planned_upgrade_is_made_as_its_plan_says(
    scripted: NamedHome, run_dag: Any, tmp_path: Path, word: str, done: str, mode: str
) -> None:
    """Kept where the state can be, drained if that is allowed."""
    running(scripted, scripted_driver.script(tmp_path, "runs"))
    keep_plan(scripted.home.control("flights"), "d-0001", QUERY)
    script = scripted_driver.script(tmp_path, "runs", word, name="new.py")
    run = run_dag("planned_upgrade", {"application": str(script), "arguments": ["-v"], "allow_drain": True})
    assert returned(run, "plan")["outcome"] == ("fits" if done == "stop" else "refused")
    assert states(run)[done] == "success"
    assert returned(run, "deploy")["start"]["mode"] == mode


def test_the_gate_opens_for_a_drain_that_somebody_else_ordered(
    scripted: NamedHome, run_dag: Any, tmp_path: Path
) -> None:
    """By the deployment that is named, whatever came after it."""
    script = scripted_driver.script(tmp_path, "runs")
    running(scripted, script)
    hook = scripted.hook()
    hook.client.order("drain", "flights")
    hook.client.wait(WaitCondition("drained", "flights", "d-0001"), timeout_seconds=180, poll_interval_seconds=0.1)
    running(scripted, script, "--version", "2")
    run = run_dag("drain_gate", {"deployment_id": "d-0001"})
    assert returned(run, "drained")["snapshot_id"] == "d-0001-drained-000001"
    assert "d-0001" in returned(run, "backfill")


def test_the_gate_skips_the_back_fill_where_no_drain_can_come(
    scripted: NamedHome, run_dag: Any, tmp_path: Path
) -> None:
    """The deployment was stopped with its state: what it holds is not written."""
    running(scripted, scripted_driver.script(tmp_path, "runs"))
    hook = scripted.hook()
    hook.client.order("stop", "flights")
    hook.client.wait(WaitCondition("stopped", "flights", "d-0001"), timeout_seconds=180, poll_interval_seconds=0.1)
    run = run_dag("drain_gate")
    assert states(run) == {"drained": "skipped", "backfill": "skipped"}


def test_snapshots_are_taken_by_schedule(scripted: NamedHome, run_dag: Any, tmp_path: Path) -> None:
    """Asked for by one task, waited for by the other in the triggerer: one snapshot for each run, dated by the run."""
    running(scripted, scripted_driver.script(tmp_path, "runs"))
    found = [run_dag("scheduled_snapshots") for _ in range(2)]
    assert [states(run) for run in found] == [{"ask": "success", "ready": "success"}] * 2
    ids = [returned(run, "ready")["snapshot_id"] for run in found]
    assert ids == ["d-0001-live-000001", "d-0001-live-000002"]
    command = scripted.hook().client.notifications.read("flights", returned(found[0], "ask")["command_id"], "d-0001")
    assert isinstance(command, SnapshotRequest)
    assert (command.ttl_seconds, command.reason) == (1800.0, "every hour")


def test_a_job_runs_by_schedule(scripted: NamedHome, run_dag: Any, tmp_path: Path) -> None:
    """Each run of the DAG is the next attempt of the one deployment, and is waited for in the triggerer."""
    running(scripted, scripted_driver.script(tmp_path, "finishes"))
    found = [run_dag("scheduled_job") for _ in range(2)]
    assert [states(run) for run in found] == [{"run": "success"}] * 2
    results = [returned(run, "run") for run in found]
    assert [(one["deployment_id"], one["attempt"], one["state"]) for one in results] == [
        ("d-0001", 2, "finished"),
        ("d-0001", 3, "finished"),
    ]
