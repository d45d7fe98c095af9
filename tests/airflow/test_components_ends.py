"""Tasks that wait on a real Airflow and are marked, restarted, or full of secrets. No Spark."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.controller.request.requests import deploy_request
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.provider_info import get_provider_info
from support import scripted_driver
from support.airflow_place import Place
from support.airflow_site import AirflowSite
from support.airflow_streams import named_home

pytestmark = [pytest.mark.components, pytest.mark.timeout(900)]
SECRET = "hunter-of-seven-7"
DAGS = '''
"""Tasks that wait, for tests."""
from airflow.sdk import dag, Param
from airflow_streamstate.operators.deploy import DeployStreamOperator
from airflow_streamstate.sensors.streamstate import DrainCompleteSensor

PARAMS = {"stream_id": Param("s", type="string"), "application": Param("", type="string")}


def deploying(dag_id, **more):
    @dag(dag_id=dag_id, schedule=None, catchup=False, params=PARAMS)
    def deploying_dag():
        DeployStreamOperator(
            task_id="deploy", stream_id="{{ params.stream_id }}", application="{{ params.application }}",
            arguments=["--password", "{{ conn.other.password }}"],
            conf={"spark.some.secret": "{{ conn.other.password }}"}, allow_literal_secrets=True,
            timeout_seconds=300, poll_interval_seconds=0.5, on_kill_action="stop", **more,
        )
    deploying_dag()


deploying("deploy_deferred", deferrable=True)
deploying("deploy_in_worker", deferrable=False, retries=0)


@dag(schedule=None, catchup=False, params=PARAMS)
def gate():
    DrainCompleteSensor(task_id="drained", stream_id="{{ params.stream_id }}", deferrable=True, poke_interval=0.5)


gate()
'''


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    base = tmp_path_factory.mktemp("ends")
    (base / "dags").mkdir()
    (base / "dags" / "waiting.py").write_text(DAGS)
    with pytest.MonkeyPatch.context() as monkeypatch:
        tools = scripted_driver.install(base / "tools")
        for name, value in tools.items():
            monkeypatch.setenv(name, value)
        with named_home(base, monkeypatch) as home:
            environment = {
                **tools,
                "AIRFLOW_CONN_STREAMSTATE_DEFAULT": home.connection,
                "AIRFLOW_CONN_OTHER": f'{{"conn_type": "generic", "password": "{SECRET}"}}',
            }
            with AirflowSite(base / "airflow", base / "dags", environment) as site:
                site.wait_for_dags("deploy_deferred", "deploy_in_worker", "gate")
                for dag_id in ("deploy_deferred", "deploy_in_worker", "gate"):
                    site.unpause(dag_id)
                yield Place(site, home, base)


@pytest.mark.parametrize("dag_id", ["deploy_deferred", "deploy_in_worker"])
def test_marking_a_task_that_waits_stops_its_stream_as_asked(place: Place, dag_id: str) -> None:
    """Whether the triggerer has it or a worker."""
    stream_id = place.unused(dag_id.replace("_", "-"))
    run_id = place.start(dag_id, stream_id, "hangs")
    if dag_id == "deploy_deferred":
        place.wait_triggerer(dag_id, run_id, "deploy")  # before that Airflow calls no on_kill: docs/reference/limits.md
    else:
        place.wait_task(dag_id, run_id, "deploy", "running")
    place.wait_state(stream_id, "running")
    place.site.call("PATCH", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/deploy", {"new_state": "failed"})
    place.wait_state(stream_id, "stopped")


@pytest.mark.named
def test_a_triggerer_that_ends_stops_no_stream_and_forgets_no_wait(place: Place) -> None:
    """Rolling restarts are every day's business."""
    hook = place.home.hook()
    script = scripted_driver.script(place.scripts, "runs", name="runs.py")
    gated, surviving = place.unused("gated"), place.unused("surviving")
    hook.client.deploy(deploy_request(gated, script, master="local[2]"))
    hook.client.wait(WaitCondition("healthy", gated, "d-0001"), timeout_seconds=180)
    run_id = place.site.trigger("gate", {"stream_id": gated})
    waiting = place.start("deploy_deferred", surviving, "hangs")
    place.wait_put_off("gate", run_id, "drained")
    place.wait_put_off("deploy_deferred", waiting, "deploy")
    place.site.restart("triggerer")
    assert hook.client.status(surviving).state in ("launching", "running")
    hook.client.order("drain", gated)
    place.site.need_success("gate", run_id, 240)
    assert place.site.xcom("gate", run_id, "drained")["snapshot_id"] == "d-0001-drained-000001"
    assert hook.client.status(surviving).state == "running"


def test_the_form_of_the_connection_has_every_field_and_a_button_that_works(place: Place) -> None:
    """As the UI asks for them."""
    hooks = place.site._send("GET", "/ui/connections/hook_meta", None)
    (ours,) = [hook for hook in hooks if hook["connection_type"] == "streamstate"]
    info: Any = get_provider_info()
    (told,) = info["connection-types"]
    assert set(ours["extra_fields"]) == set(told["conn-fields"])
    assert {"home_uri", "role_arn", "gcs_key_path", "azure_secret_key"} <= set(ours["extra_fields"])
    assert ours["standard_fields"]["password"]["title"] == "S3 secret access key"
    body = {
        "connection_id": "tried",
        "conn_type": "streamstate",
        "extra": f'{{"home_uri": "{place.home.config.home_uri}"}}',
    }
    answer = place.site.call("POST", "/connections/test", body)
    assert answer["status"], answer
    assert "conditional writes hold" in answer["message"]


def test_a_secret_is_nowhere_in_airflow(place: Place) -> None:
    """Not in rendered fields, XComs, logs, events or anywhere else in its database: by its bytes."""
    run_id = place.start("deploy_deferred", place.unused("secretive"), "fails")
    assert place.site.wait_for_run("deploy_deferred", run_id, 240) == "failed"
    task = place.site.call("GET", f"/dags/deploy_deferred/dagRuns/{run_id}/taskInstances/deploy")
    assert task["rendered_fields"]["arguments"] == ["--password", "***"]
    time.sleep(1)  # noqa: TID251 - the last log lines of other processes
    holding = [
        str(path.relative_to(place.site.folder))
        for path in place.site.folder.rglob("*")
        if path.is_file() and SECRET.encode() in path.read_bytes()
    ]
    assert holding == []


def test_no_driver_has_airflows_own_settings_in_its_environment(place: Place) -> None:
    """A streaming job has no business with Airflow's connections."""
    stream_id = place.unused("inherits")
    place.start("deploy_deferred", stream_id, "hangs")
    place.wait_state(stream_id, "running")
    claim: Any = place.home.stream(stream_id).control.claim("d-0001", 1)
    environ = Path(f"/proc/{claim.pid}/environ").read_bytes().split(b"\0")
    names = {entry.partition(b"=")[0].decode() for entry in environ}
    assert not [name for name in names if name.startswith(("AIRFLOW__", "AIRFLOW_CONN_"))]
    assert SECRET.encode() not in b"\0".join(environ)
    assert os.getpid() != claim.pid
