"""The example DAGs of upgrades by ``dag.test()``, on a home on S3, with drivers that need no Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.controller.request.requests import deploy_request
from airflow_streamstate.controller.wait.condition import WaitCondition
from support import scripted_driver
from support.airflow_streams import NamedHome
from support.airflow_upgrades import run_first_version
from support.dag_results import mapped_states, returned, states

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:Using .httpx. with"),  # Airflow's in-process API server, not ours
]


def new(folder: Path, *words: str) -> str:
    return str(scripted_driver.script(folder, *words, name="new.py"))


def test_an_upgrade_in_one_task(scripted: NamedHome, run_dag: Any, tmp_path: Path) -> None:
    """Rehearsed, stopped, started, proven; the report is what it returns."""
    run_first_version(scripted, tmp_path)
    conf = {"application": new(tmp_path, "proves"), "arguments": ["-v"], "warm": False, "reason": "new columns"}
    run = run_dag("upgrade_in_one_task", conf)
    assert states(run) == {"upgrade": "success"}
    result = returned(run, "upgrade")
    assert (result["outcome"], result["mode"], result["verdict"]) == ("upgraded", "restore", "same")
    spec = scripted.home.control("flights").spec("d-0002")
    assert spec.version.arguments == ("-v",)
    assert "airflow upgrade_in_one_task.upgrade " in spec.requested_by


def test_a_version_that_does_not_prove_itself_fails_the_task_and_the_old_one_runs(
    scripted: NamedHome, run_dag: Any, tmp_path: Path
) -> None:
    """Without a retry, though the DAG has some."""
    run_first_version(scripted, tmp_path)
    run = run_dag("upgrade_in_one_task", {"application": new(tmp_path, "crashes"), "arguments": None, "warm": False})
    assert states(run) == {"upgrade": "failed"}
    assert [ti.try_number for ti in run.get_task_instances()] == [1]
    assert returned(run, "upgrade")["outcome"] == "given_up"
    assert scripted.hook().client.status("flights").application == "first.py"


@pytest.mark.named
def test_many_streams_at_night(
    scripted: NamedHome, run_dag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The streams with a change, each by itself: one that does not fit holds up no other. A job between two of its runs
    gets its new version, and without one no extra run."""
    versions = {}
    for stream_id, words in {"fits": ["proves"], "same": [], "unfit": ["proves", "refused"]}.items():
        run_first_version(scripted, tmp_path, stream_id)
        script = scripted_driver.script(tmp_path, *words, name=f"{stream_id}.py") if words else tmp_path / "first.py"
        versions[stream_id] = {"application": str(script), "master": "local[2]"}
    hook, job = scripted.hook(), scripted_driver.script(tmp_path, "finishes", name="job.py")
    for stream_id, script in {
        "waits": job,
        "waits-no-more": scripted_driver.script(tmp_path, "finishes", "v2", name="v2.py"),
    }.items():
        hook.client.deploy(deploy_request(stream_id, job, master="local[2]"))
        finished = WaitCondition("finished", stream_id, "d-0001")
        hook.client.wait(finished, timeout_seconds=30, poll_interval_seconds=0.05)
        versions[stream_id] = {"application": str(script), "master": "local[2]"}
    file = tmp_path / "versions.json"
    file.write_text(json.dumps(versions))
    monkeypatch.setenv("NIGHTLY_UPGRADES_FILE", str(file))
    run = run_dag("nightly_upgrades")
    assert mapped_states(run, "upgrade") == ["success", "failed", "success"]
    now = {status.stream_id: (status.deployment_id, status.state) for status in hook.client.statuses()}
    assert now == {
        "fits": ("d-0002", "running"),
        "same": ("d-0001", "running"),
        "unfit": ("d-0001", "running"),
        "waits": ("d-0001", "finished"),
        "waits-no-more": ("d-0002", "finished"),
    }


@pytest.mark.parametrize(
    ("words", "verdict", "mode", "not_replayed"),
    [
        (("needs-drain", "hazardous", "refused"), "hazardous", "drain", "the verdict is hazardous"),
        pytest.param(("changes",), "same", "restore", None, marks=pytest.mark.named),
    ],
)
def test_a_plan_that_somebody_approved_is_made(
    scripted: NamedHome,
    run_dag: Any,
    tmp_path: Path,
    words: tuple[str, ...],
    verdict: str,
    mode: str,
    not_replayed: str | None,
) -> None:
    """A yes covers what the plan reports: a drain and a hazard, or rows that differ in a replayed batch."""
    run_first_version(scripted, tmp_path)
    conf = {"application": new(tmp_path, "proves", *words), "arguments": ["-v"], "warm": False}
    run = run_dag("approved_upgrade", conf, mark_success_pattern="approve")
    assert states(run) == {"plan": "success", "approve": "success", "upgrade": "success"}
    plan = returned(run, "plan")
    assert plan["verdict"] == verdict
    assert (plan["not_replayed"] or "").startswith(not_replayed or "")
    assert (plan["replay"] is None) is (not_replayed is not None)
    if plan["replay"] is not None:
        batch = plan["replay"]["queries"]["delays"]["batches"][-1]
        assert (batch["comparison"]["only_old"], batch["comparison"]["only_new"]) == (2, 1)
    assert (returned(run, "upgrade")["outcome"], returned(run, "upgrade")["mode"]) == ("upgraded", mode)
