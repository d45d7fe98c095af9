"""The example DAGs on a real Airflow: api-server, scheduler, triggerer, dag-processor, a home on an S3 server, Spark.

Objects on S3 are checked with boto3 alone.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from airflow_streamstate.controller.request.requests import deploy_request
from airflow_streamstate.controller.wait.condition import WaitCondition
from support.airflow_home import DAGS_FOLDER
from support.airflow_site import AirflowSite, eventually
from support.airflow_streams import NamedHome, named_home
from support.flights import JOBS, Flights
from support.s3_server import BUCKET, REGION, StrikingProxy, options_for, striking_proxy

pytestmark = [pytest.mark.components, pytest.mark.spark, pytest.mark.timeout(1800)]
RUN_SECONDS = 600.0


@dataclass
class CommandWatcher:
    """Lists with boto3, every so often, what is under ``commands/``."""

    client: Any
    prefix: str
    seen: dict[str, dict[str, Any]] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    over: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        """List them until ``over`` is set."""
        while not self.over.wait(0.05):
            for info in self.client.list_objects_v2(Bucket=BUCKET, Prefix=self.prefix).get("Contents", []):
                if "/commands/" in info["Key"] and info["Key"] not in self.seen:
                    self._look(info["Key"])

    def _look(self, key: str) -> None:
        with contextlib.suppress(self.client.exceptions.NoSuchKey):
            self.seen[key] = json.loads(self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read())
            try:
                self.client.put_object(Bucket=BUCKET, Key=key, Body=b"{}", IfNoneMatch="*")
            except ClientError as error:
                if error.response["Error"]["Code"] == "PreconditionFailed":
                    self.refused.add(key)

    def left(self) -> list[str]:
        """The commands that are there now."""
        found = self.client.list_objects_v2(Bucket=BUCKET, Prefix=self.prefix).get("Contents", [])
        return [info["Key"] for info in found if "/commands/" in info["Key"]]


@dataclass
class Place:
    """All that the story needs."""

    site: AirflowSite
    home: NamedHome
    proxy: StrikingProxy
    commands: CommandWatcher
    flights: Flights

    def run(self, dag_id: str, run_id: str) -> dict[str, str]:
        """Wait for the end of a run that must succeed; state per task."""
        state = self.site.wait_for_run(dag_id, run_id, RUN_SECONDS)
        assert state == "success", self.site.why_failed(dag_id, run_id)
        return self.site.task_states(dag_id, run_id)

    def notification_of(self, deployment_id: str) -> dict[str, Any]:
        """The one drain notification that this deployment was sent, by what boto3 saw."""
        found = [
            (key, body)
            for key, body in self.commands.seen.items()
            if f"/{deployment_id}/" in key and body["kind"] == "DrainNotification"
        ]
        assert len(found) == 1, found
        key, body = found[0]
        assert f"/{BUCKET}/{key}" in self.proxy.creates  # made under the condition that nothing was there
        assert key in self.commands.refused  # and the server holds others to it
        return body


@pytest.fixture
def place(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    client = boto3.client("s3", endpoint_url=s3, region_name=REGION, aws_access_key_id="k", aws_secret_access_key="s")
    flights = Flights(tmp_path / "flights", pieces=8)
    watcher = CommandWatcher(client, f"{tmp_path.name}/flights/deployments/")
    thread = threading.Thread(target=watcher.watch, daemon=True)
    with (
        striking_proxy(s3) as proxy,
        named_home(tmp_path, monkeypatch, f"s3://{BUCKET}/{tmp_path.name}", options_for(proxy.endpoint_url)) as home,
    ):
        environment = {
            "AIRFLOW_CONN_STREAMSTATE_DEFAULT": home.connection,
            "FLIGHTS_FOLDER": str(flights.folder),
            "UPGRADE_STREAM_SCHEDULE": "@once",
            "SCHEDULED_UPGRADE_SCHEDULE": "@once",
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        thread.start()
        try:
            dags_folder = Path(shutil.copytree(DAGS_FOLDER, tmp_path / "dags"))  # no edits while the test runs
            with AirflowSite(tmp_path / "airflow", dags_folder, environment) as site:
                yield Place(site, home, proxy, watcher, flights)
        finally:
            watcher.over.set()
            thread.join(10)


@pytest.mark.named
def test_a_stream_is_upgraded_by_schedule_by_rest_and_by_the_command(place: Place) -> None:
    """Notification to S3, sensor in the triggerer, redeploy from what was returned, healthy; thrice, and twice more."""
    site, hook = place.site, place.home.hook()
    site.wait_for_dags("upgrade_stream", "scheduled_upgrade", "drain_gate")
    place.flights.feed(2)
    first = deploy_request(
        "flights", JOBS / "count_by_origin.py", arguments=tuple(place.flights.arguments), master="local[2]"
    )
    hook.client.deploy(first)
    hook.client.wait(WaitCondition("healthy", "flights", "d-0001"), timeout_seconds=240)

    # By its schedule, with the default of every parameter: drain, and another grouping key.
    site.unpause("upgrade_stream")
    (run_id,) = eventually(lambda: site.run_ids("upgrade_stream") or None, "the scheduled run", 120)
    assert run_id.startswith("scheduled__")
    assert place.run("upgrade_stream", run_id) == {
        "keep_or_drain": "success", "drain": "success", "drained": "success", "plan": "skipped", "stop": "skipped",
        "deploy": "success",
    }  # fmt: skip
    drained = site.xcom("upgrade_stream", run_id, "drained")
    assert drained["snapshot_id"] == "d-0001-drained-000001"
    assert drained["state_rows_left"] == 0
    deployed = site.xcom("upgrade_stream", run_id, "deploy")
    assert (deployed["deployment_id"], deployed["start"]["mode"]) == ("d-0002", "seed")
    notification = place.notification_of("d-0001")
    assert notification["requested_by"].startswith("airflow upgrade_stream.drain scheduled__")
    assert notification["command_id"] == site.xcom("upgrade_stream", run_id, "drain")["command_id"]
    assert place.commands.left() == []

    # Another team waits for the next drain, which it did not order.
    site.unpause("drain_gate")
    gate = site.trigger("drain_gate")
    eventually(lambda: site.task_states("drain_gate", gate)["drained"] == "up_for_reschedule", "the gate", 120)

    # By REST, back to the old key.
    place.flights.feed()
    conf = {"application": str(JOBS / "count_by_origin_v2.py"), "reason": "back again"}
    run_id = site.trigger("upgrade_stream", conf)
    place.run("upgrade_stream", run_id)
    assert site.xcom("upgrade_stream", run_id, "deploy")["deployment_id"] == "d-0003"
    assert place.notification_of("d-0002")["reason"] == "back again"
    assert place.commands.left() == []
    place.run("drain_gate", gate)
    assert site.xcom("drain_gate", gate, "drained") == site.xcom("upgrade_stream", run_id, "drained")

    # By the command line, with the state.
    place.flights.feed()
    conf = {"application": str(JOBS / "count_by_origin.py"), "state": "keep"}
    before = set(site.run_ids("upgrade_stream"))
    site.command("dags", "trigger", "upgrade_stream", "--conf", json.dumps(conf))
    (run_id,) = set(site.run_ids("upgrade_stream")) - before
    assert place.run("upgrade_stream", run_id)["drained"] == "skipped"
    assert site.xcom("upgrade_stream", run_id, "deploy")["start"]["mode"] == "restore"
    stops = [body for key, body in place.commands.seen.items() if "/d-0003/" in key]
    assert [body["kind"] for body in stops] == ["StopRequest"]
    assert place.commands.left() == []

    # And the nightly one, which keeps the state too.
    site.unpause("scheduled_upgrade")
    (run_id,) = eventually(lambda: site.run_ids("scheduled_upgrade") or None, "the nightly run", 120)
    place.run("scheduled_upgrade", run_id)
    status = hook.client.status("flights")
    assert (status.deployment_id, status.application, status.start.mode) == (
        "d-0005", "count_by_origin_v2.py", "restore"
    )  # fmt: skip

    # Clearing the whole upgrade of before finds what it did, and a newer deployment: nothing is moved back.
    site.call("POST", "/dags/upgrade_stream/clearTaskInstances", {
        "dry_run": False, "dag_run_id": _first(site.run_ids("upgrade_stream"), "scheduled__"), "only_failed": False,
        "task_ids": ["deploy"],
    })  # fmt: skip
    cleared = _first(site.run_ids("upgrade_stream"), "scheduled__")
    eventually(lambda: site.task_states("upgrade_stream", cleared)["deploy"] == "failed", "the refusal", 120)
    assert hook.client.status("flights").deployment_id == "d-0005"
    assert "current_deployment_id=d-0005" in site.why_failed("upgrade_stream", cleared)


def _first(run_ids: list[str], prefix: str) -> str:
    return next(run_id for run_id in run_ids if run_id.startswith(prefix))
