"""The links alongside a task instance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred

from airflow_streamstate.operators.links import LINKS, links_of, page_url
from airflow_streamstate.operators.stop import StopStreamOperator
from support.airflow_upgrades import Pushed

PAGE = "/plugin/streamstate/streamstate/streams/streamstate_default/flights"


def test_a_task_that_waits_shows_its_links_and_ids(deployed: Callable[..., Path], ours: Any, pushed: Pushed) -> None:
    """They are pushed before the wait starts, and again, unchanged, when the process of the task ends."""
    deployed("deaf")
    task = StopStreamOperator(task_id="task", stream_id="flights", deferrable=True, timeout_seconds=30)
    with pytest.raises(TaskDeferred):
        task.execute(ours)
    assert pushed["deployment_id"] == "d-0001"
    assert pushed["command_id"]
    assert pushed["_link_StreamPageLink"] == f"{PAGE}?deployment=d-0001"
    assert pushed["_link_DriverLogLink"] == f"{PAGE}?deployment=d-0001#log"
    again = {link.xcom_key: link.get_link(task, ti_key=ours["ti"]) for link in LINKS if link.xcom_key in pushed}
    assert again == {key: value for key, value in pushed.items() if key.startswith("_link_")}
    assert "_link_SparkUILink" not in pushed  # a driver on this machine has no address of it


def test_a_page_of_the_launcher_is_a_link_of_its_own() -> None:
    """Where a cluster knows Spark's UI."""
    found = links_of("home", "flights", {"Spark UI": "http://rm:8088/proxy/app_1"})
    assert found["_link_SparkUILink"] == "http://rm:8088/proxy/app_1"
    assert found["_link_PlanReportLink"].endswith("/streams/home/flights#plan")


def test_a_page_that_lets_anybody_in_is_no_xcom() -> None:
    """The link leads to what makes the address for the user who clicks, if that user may read logs of tasks."""
    found = links_of("home", "flights", {"Spark UI": ""}, {"deployment_id": "d-0002"})
    wanted = "/streamstate/api/open?conn_id=home&stream_id=flights&page=Spark+UI&deployment_id=d-0002"
    assert found["_link_SparkUILink"] == wanted


def test_the_page_lies_below_the_address_of_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a base path the link has it, too; and no id leaves its place in the path."""
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://host/airflow/")
    assert page_url("a/b", "<x>") == "/airflow/plugin/streamstate/streamstate/streams/a%2Fb/%3Cx%3E"


def test_links_lead_to_what_the_run_has_acted_on() -> None:
    """Also when the stream has moved on: they name the deployment, the upgrade, the plan and the snapshot."""
    ids = {"deployment_id": "d-0002", "upgrade_id": "u-0123456789ab", "snapshot_id": "d-0001-live-000001"}
    found = links_of("home", "flights", {}, ids)
    asked = "/streams/home/flights?deployment=d-0002&upgrade=u-0123456789ab&snapshot=d-0001-live-000001"
    assert found["_link_StreamPageLink"].endswith(f"{asked}#upgrades")
    assert found["_link_PlanReportLink"].endswith(f"{asked}#plan")
    planned = links_of("home", "flights", {}, {"rehearsal_id": "r-1"})
    assert planned["_link_PlanReportLink"].endswith("/streams/home/flights?plan=r-1#plan")
