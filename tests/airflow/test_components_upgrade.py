"""An upgrade under way on a real Airflow, while users and machines interfere. No Spark.

The triggerer runs in its own pid namespace if that can be had: it sees no driver, as one on another host.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_streamstate.control.upgrade_journal import UpgradeJournal
from airflow_streamstate.controller.upgrade.upgrade_views import UpgradeView
from support import scripted_driver
from support.airflow_home import DAGS_FOLDER
from support.airflow_place import Place
from support.airflow_site import AirflowSite, eventually
from support.airflow_streams import named_home
from support.airflow_upgrades import run_first_version, taken_by

pytestmark = [pytest.mark.components, pytest.mark.timeout(900)]
ALONE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
DAGS = '''
"""Upgrades, for tests."""
from datetime import timedelta
from airflow.sdk import dag, Param
from airflow_streamstate.operators.upgrade import UpgradeStreamOperator
from airflow_streamstate.streams_dag import StreamsDag

PARAMS = {
    "stream_id": Param("s", type="string"),
    "application": Param("", type="string"),
    "needs_approval": Param(False, type="boolean"),
}


def upgrading(dag_id, **more):
    @dag(dag_id=dag_id, schedule=None, catchup=False, params=PARAMS)
    def upgrading_dag():
        UpgradeStreamOperator(
            task_id="upgrade", stream_id="{{ params.stream_id }}", application="{{ params.application }}",
            needs_approval="{{ params.needs_approval }}", warm=False, on_kill_action="rollback", timeout_seconds=1500,
            healthy_deadline_seconds=900,
            poll_interval_seconds=0.5, retries=5, retry_delay=timedelta(seconds=1), **more,
        )
    upgrading_dag()


upgrading("upgrade_deferred", deferrable=True)
upgrading("upgrade_in_worker", deferrable=False)
StreamsDag(
    "streams", dag_id="declared", needs_approval=True, wave=2,
    default_args={"retries": 3, "retry_delay": timedelta(seconds=1)},
)
'''
DAG_IDS = ("upgrade_deferred", "upgrade_in_worker", "approved_upgrade", "declared")


def can_be_alone() -> bool:
    """Whether a process may have its own pid namespace here."""
    try:
        return subprocess.run([*ALONE, "true"], capture_output=True, check=False, timeout=20).returncode == 0
    except OSError:
        return False


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    base = tmp_path_factory.mktemp("upgrades")
    (base / "dags").mkdir()
    (base / "dags" / "upgrading.py").write_text(DAGS)
    shutil.copy(DAGS_FOLDER / "approved_upgrade.py", base / "dags")
    with pytest.MonkeyPatch.context() as monkeypatch:
        tools = scripted_driver.install(base / "tools")
        for name, value in tools.items():
            monkeypatch.setenv(name, value)
        with named_home(base, monkeypatch) as home:
            environment = {**tools, "AIRFLOW_CONN_STREAMSTATE_DEFAULT": home.connection}
            under = {"triggerer": ALONE} if can_be_alone() else {}
            with AirflowSite(base / "airflow", base / "dags", environment, under) as site:
                site.wait_for_dags(*DAG_IDS)
                for dag_id in DAG_IDS:
                    site.unpause(dag_id)
                yield Place(site, home, base)


def under_way(place: Place, stream_id: str, *phases: str) -> UpgradeView:
    """The upgrade of a stream, once it is under way in one of these phases."""

    def look() -> UpgradeView | None:
        view = place.home.hook().client.upgrades.under_way(stream_id)
        return view if view is not None and view.state.phase in phases else None

    found: UpgradeView = eventually(look, f"an upgrade of {stream_id} in {phases}", 180, every=0.1)
    return found


def ids(place: Place, stream_id: str) -> list[str]:
    return UpgradeJournal(place.home.home.control(stream_id)).ids()


def tasks_alone(place: Place, stream_id: str, upgrade_id: str) -> bool:
    """Whether the task, and no triggerer, took every step."""
    (actor,) = taken_by(place.home, upgrade_id, stream_id)
    return actor.startswith("airflow upgrade_")


def test_a_worker_that_is_killed_in_the_middle_is_gone_on_for(place: Place) -> None:
    """After it has stopped the old version and started the new one: the retry sees that one prove itself. (Law 2)"""
    stream_id = place.unused("killed")
    run_first_version(place.home, place.scripts, stream_id)
    run_id = place.start("upgrade_in_worker", stream_id, "late")
    view = under_way(place, stream_id, "started")
    task = place.site.call("GET", f"/dags/upgrade_in_worker/dagRuns/{run_id}/taskInstances/upgrade")
    os.kill(task["pid"], signal.SIGKILL)
    place.site.need_success("upgrade_in_worker", run_id, 300)
    result = place.site.xcom("upgrade_in_worker", run_id, "upgrade")
    assert (result["upgrade_id"], result["outcome"]) == (view.upgrade_id, "upgraded")
    task = place.site.call("GET", f"/dags/upgrade_in_worker/dagRuns/{run_id}/taskInstances/upgrade")
    assert task["try_number"] == 2
    assert ids(place, stream_id) == [view.upgrade_id]


@pytest.mark.named
def test_a_triggerer_that_is_restarted_in_the_middle_of_a_wait_forgets_nothing(place: Place) -> None:
    """Looking changes nothing, and workers act: same result, by the task alone."""
    stream_id = place.unused("surviving")
    run_first_version(place.home, place.scripts, stream_id)
    run_id = place.start("upgrade_deferred", stream_id, "late")
    view = under_way(place, stream_id, "started")
    place.wait_put_off("upgrade_deferred", run_id, "upgrade")
    place.site.restart("triggerer")
    place.site.need_success("upgrade_deferred", run_id, 300)
    result = place.site.xcom("upgrade_deferred", run_id, "upgrade")
    assert (result["upgrade_id"], result["outcome"]) == (view.upgrade_id, "upgraded")
    assert tasks_alone(place, stream_id, view.upgrade_id)


@pytest.mark.named
def test_a_driver_that_dies_is_noticed_though_the_triggerer_cannot_see_it(place: Place) -> None:
    """A worker looks itself, long before the version's time to prove itself has ended; and it is rolled back."""
    if not can_be_alone():
        pytest.skip("no process may have a pid namespace of its own here")
    stream_id = place.unused("unseen")
    run_first_version(place.home, place.scripts, stream_id)
    run_id = place.start("upgrade_deferred", stream_id, "stalls")
    view = under_way(place, stream_id, "started")
    place.wait_put_off("upgrade_deferred", run_id, "upgrade")
    # If a driver dies before its query has a plan, it is unknown whether its output can be undone.
    place.wait_plans(stream_id, "d-0002")
    claim = place.home.home.control(stream_id).claim("d-0002", 1)
    assert claim is not None
    os.kill(claim.pid, signal.SIGKILL)
    assert place.site.wait_for_run("upgrade_deferred", run_id, 450) == "failed"
    result = place.site.xcom("upgrade_deferred", run_id, "upgrade")
    assert (result["upgrade_id"], result["outcome"]) == (view.upgrade_id, "given_up")
    assert tasks_alone(place, stream_id, view.upgrade_id)
    assert place.home.hook().client.status(stream_id).application == "first.py"


@pytest.mark.named
def test_a_deferred_task_that_is_marked_failed_before_the_stop_has_done_nothing(place: Place) -> None:
    """The stream runs on, and is free."""
    stream_id = place.unused("marked")
    run_first_version(place.home, place.scripts, stream_id)
    run_id = place.start("upgrade_deferred", stream_id, "proves", needs_approval=True)
    view = under_way(place, stream_id, "planned")
    place.wait_triggerer("upgrade_deferred", run_id, "upgrade")
    place.mark_failed("upgrade_deferred", run_id, "upgrade")
    upgrades = place.home.hook().client.upgrades
    eventually(lambda: upgrades.view(stream_id, view.upgrade_id).is_over, "the end of the upgrade", 120)
    assert upgrades.view(stream_id, view.upgrade_id).outcome == "refused"
    assert upgrades.under_way(stream_id) is None
    status = place.home.hook().client.status(stream_id)
    assert (status.deployment_id, status.state) == ("d-0001", "running")


@pytest.mark.named
def test_a_deferred_task_that_is_marked_failed_after_the_stop_is_finished_when_it_is_cleared(place: Place) -> None:
    """As it was asked: the old version comes back, and the next try starts again from there."""
    stream_id = place.unused("between")
    run_first_version(place.home, place.scripts, stream_id)
    run_id = place.start("upgrade_deferred", stream_id, "late")
    view = under_way(place, stream_id, "started")
    place.wait_triggerer("upgrade_deferred", run_id, "upgrade")
    place.mark_failed("upgrade_deferred", run_id, "upgrade")
    journal = UpgradeJournal(place.home.home.control(stream_id))
    eventually(lambda: journal.cancellation(view.upgrade_id), "the cancellation", 120)
    # Else the scheduler may take the run for failed after the clear, and never run the task again.
    assert place.site.wait_for_run("upgrade_deferred", run_id, 120) == "failed"
    place.clear("upgrade_deferred", run_id, "upgrade")
    place.site.need_success("upgrade_deferred", run_id, 300)
    assert place.home.hook().client.upgrades.view(stream_id, view.upgrade_id).outcome == "given_up"
    result = place.site.xcom("upgrade_deferred", run_id, "upgrade")
    assert result["upgrade_id"] != view.upgrade_id
    assert result["outcome"] == "upgraded"


@pytest.mark.named
def test_a_deferred_task_that_is_cleared_begins_anew_where_nothing_had_happened(place: Place) -> None:
    """The plan waits for a yes again, and receives it."""
    stream_id = place.unused("cleared")
    run_first_version(place.home, place.scripts, stream_id)
    run_id = place.start("upgrade_deferred", stream_id, "proves", needs_approval=True)
    first = under_way(place, stream_id, "planned")
    place.wait_triggerer("upgrade_deferred", run_id, "upgrade")
    place.clear("upgrade_deferred", run_id, "upgrade")
    upgrades = place.home.hook().client.upgrades
    eventually(lambda: upgrades.view(stream_id, first.upgrade_id).is_over, "the end of the first", 120)
    second = under_way(place, stream_id, "planned")
    assert second.upgrade_id != first.upgrade_id
    upgrades.approve(stream_id, second.upgrade_id, is_approved=True)
    place.site.need_success("upgrade_deferred", run_id, 300)
    assert upgrades.view(stream_id, second.upgrade_id).outcome == "upgraded"


@pytest.mark.parametrize(
    ("answer", "deployment_id"),
    [
        pytest.param("Reject", "d-0001", marks=pytest.mark.named),
        ("Approve", "d-0002"),
    ],
)
def test_a_person_is_asked_with_the_plan_and_heard(place: Place, answer: str, deployment_id: str) -> None:
    """By Airflow's own form; a no changes nothing. A yes accepts all that the plan names: here a hazard, and a drain,
    without which Spark refuses the state."""
    stream_id = place.unused(f"asked-{answer.lower()}")
    run_first_version(place.home, place.scripts, stream_id)
    words = scripted_driver.script(place.scripts, "proves", "needs-drain", "hazardous", "refused", name="asked.py")
    conf = {"stream_id": stream_id, "application": str(words), "arguments": ["-v"], "warm": False}
    run_id = place.site.trigger("approved_upgrade", conf)
    place.wait_task("approved_upgrade", run_id, "approve", "awaiting_input")
    task = f"/dags/approved_upgrade/dagRuns/{run_id}/taskInstances/approve/-1/hitlDetails"
    asked = place.site.call("GET", task)
    assert asked["subject"] == f"Upgrade {stream_id}?"
    assert "**hazardous**" in asked["body"]
    assert "sink-replaced" in asked["body"]
    assert "aggregate-added" in asked["body"]
    assert "query delays" in asked["body"]
    assert "No batch was replayed: the verdict is hazardous" in asked["body"]

    def answer_it() -> None:
        # A person reads first; and a retry, if Airflow takes the task for failed all the same, asks again.
        is_asking = place.site.task_states("approved_upgrade", run_id)["approve"] == "awaiting_input"
        if is_asking and place.site.has_let_go("approved_upgrade", run_id, "approve"):
            place.site.call("PATCH", task, {"chosen_options": [answer], "params_input": {}})

    place.site.need_success("approved_upgrade", run_id, 400, meanwhile=answer_it)
    upgraded = place.site.task_states("approved_upgrade", run_id)["upgrade"]
    assert upgraded == ("success" if answer == "Approve" else "skipped")
    assert place.home.hook().client.status(stream_id).deployment_id == deployment_id
    if answer == "Approve":
        result = place.site.xcom("approved_upgrade", run_id, "upgrade")
        assert (result["outcome"], result["verdict"], result["mode"]) == ("upgraded", "hazardous", "drain")


def declare(place: Place, stream_id: str, word: str, **conf: str) -> None:
    """The file of a stream whose driver behaves so."""
    scripted_driver.script(place.scripts / "dags", word, name=f"{word}.py")
    values = {
        "id": stream_id, "application": f"../{word}.py", "master": "local[1]", "conf": conf,
        "upgrade": {"warm": False, "healthy_batches": 1, "healthy_deadline_seconds": 300},
    }  # fmt: skip
    (place.scripts / "dags" / "streams").mkdir(exist_ok=True)
    (place.scripts / "dags" / "streams" / f"{stream_id}.yaml").write_text(json.dumps(values))


def approve(place: Place, run_id: str, dag_id: str = "declared") -> Any:
    """Answer the question of a run; gives what was asked."""
    place.wait_task(dag_id, run_id, "approve", "awaiting_input")
    task = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/approve/-1/hitlDetails"
    eventually(lambda: place.site.has_let_go(dag_id, run_id, "approve"), "the end of the worker", 120)
    asked = place.site.call("GET", task)
    place.site.call("PATCH", task, {"chosen_options": ["Approve"], "params_input": {}})
    return asked


@pytest.mark.named
def test_streams_that_files_declare_are_approved_and_survive_a_killed_worker(place: Place) -> None:
    """A worker is killed while its wave is deployed, and the triggerer while the wave is deferred: the wave continues.
    An approval covers only what was compared. (Law 2)"""
    one, two = place.unused("declared-one"), place.unused("declared-two")
    declare(place, one, "proves")
    declare(place, two, "late")
    run_id = place.site.trigger("declared")
    asked = approve(place, run_id)
    assert f"| {one} | new | deploy |" in asked["body"]
    path = f"/dags/declared/dagRuns/{run_id}/taskInstances/apply/0"

    def worker() -> int | None:
        task = place.site.call("GET", path)
        return task["pid"] if task["state"] == "running" else None

    os.kill(eventually(worker, "the worker of apply", 120, every=0.05), signal.SIGKILL)
    place.wait_put_off("declared", run_id, "apply/0")
    place.site.kill("triggerer")
    place.site.need_success("declared", run_id, 400)
    assert place.site.call("GET", path)["try_number"] == 2
    results = place.site.call("GET", f"{path.removesuffix('/0')}/xcomEntries/return_value?map_index=0&deserialize=true")
    assert {each["result"] for each in results["value"]["streams"]} == {"done"}
    statuses = {view.stream_id: view for view in place.home.hook().client.statuses()}
    assert [(statuses[name].deployment_id, str(statuses[name].state)) for name in (one, two)] == [
        ("d-0001", "running"), ("d-0001", "running")
    ]  # fmt: skip
    declare(place, one, "proves", **{"spark.x": "1"})
    declare(place, two, "late", **{"spark.x": "1"})
    run_id = place.site.trigger("declared")
    place.wait_task("declared", run_id, "approve", "awaiting_input")
    declare(place, two, "late", **{"spark.x": "2"})
    approve(place, run_id)
    assert place.site.wait_for_run("declared", run_id, 400) == "failed"
    client = place.home.hook().client
    assert (client.status(one).deployment_id, client.status(two).deployment_id) == ("d-0002", "d-0001")
