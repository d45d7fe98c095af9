"""A deployment's life as OpenLineage's own client and Airflow's OpenLineage provider take it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_streamstate.hooks import openlineage
from airflow_streamstate.operators.deploy import DeployStreamOperator
from airflow_streamstate.operators.stop import StopStreamOperator
from airflow_streamstate.operators.upgrade import UpgradeStreamOperator
from airflow_streamstate.plan.model import PlannedSource
from support import scripted_driver
from support.airflow_streams import NamedHome, named_home
from support.built_plans import plan
from support.event_hours import succeeds
from support.scripted_rehearsal import keep_plan
from support.scripted_stream import QUERY
from support.webhook_receiver import Receiver, receiving

pytest.importorskip("openlineage.client", reason="`tox -e openlineage` has the provider of OpenLineage")
pytestmark = [pytest.mark.named]
PLAN = plan(
    sources=(PlannedSource("kafka", "kafka", "", {"kafka.bootstrap.servers": "broker:9092", "subscribe": "orders"}),)
)
PARENT = openlineage.Parent("default", "flights_dag", "01890a5d-ac96-774b-bcce-b302099a8057")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NamedHome]:
    for name, value in scripted_driver.install(tmp_path / "tools").items():
        monkeypatch.setenv(name, value)
    with named_home(tmp_path, monkeypatch) as found:
        yield found


def told(home: NamedHome, deployment_id: str = "d-0001", parent: openlineage.Parent | None = None) -> list[Any]:
    """The events of a deployment, as they are sent: JSON by the client's own serializer."""
    from openlineage.client.serde import Serde

    events = openlineage.run_events(home.hook().client, "flights", deployment_id, parent)
    return [json.loads(Serde.to_json(event)) for event in events]


def test_the_life_of_a_deployment_is_one_run(home: NamedHome) -> None:
    """START, RUNNING for each attempt, COMPLETE at its end; the same run id and times for every sender."""
    stream = home.stream()
    first = stream.deploy().runs()
    keep_plan(stream.control, "d-0001", QUERY, PLAN)
    assert [event["eventType"] for event in told(home)] == ["START", "RUNNING"]
    first.failed("ValueError: boom")
    assert [event["eventType"] for event in told(home)] == ["START", "RUNNING", "FAIL"]
    assert told(home)[-1]["run"]["facets"]["errorMessage"]["message"].startswith("ValueError: boom")
    second = stream.resume().claim().started()
    assert [event["eventType"] for event in told(home)] == ["START", "RUNNING", "RUNNING"]
    second.stopped()
    events = told(home)
    assert [event["eventType"] for event in events] == ["START", "RUNNING", "RUNNING", "COMPLETE"]
    assert events == told(home)
    assert len({event["run"]["runId"] for event in events}) == 1
    assert [event["eventTime"] for event in events] == sorted(event["eventTime"] for event in events)


def test_an_event_names_the_stream_what_it_reads_and_writes_and_its_dag_run(home: NamedHome) -> None:
    """Datasets from the recorded plan."""
    stream = home.stream()
    stream.deploy().runs()
    keep_plan(stream.control, "d-0001", QUERY, PLAN)
    event = told(home, parent=PARENT)[-1]
    assert event["job"]["name"] == "flights"
    assert event["job"]["namespace"] == f"streamstate://{home.config.home_uri.strip('/')}"
    assert event["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    assert [(each["namespace"], each["name"]) for each in event["inputs"]] == [("kafka://broker:9092", "orders")]
    assert [(each["namespace"], each["name"]) for each in event["outputs"]] == [("file", "/out")]
    facets = event["run"]["facets"]
    assert facets["parent"]["run"]["runId"] == PARENT.run_id
    assert (facets["parent"]["job"]["namespace"], facets["parent"]["job"]["name"]) == ("default", "flights_dag")
    assert facets["processing_engine"]["version"] == "4.2.0"
    assert facets["streamstate_deployment"]["deployment_id"] == "d-0001"
    assert facets["streamstate_deployment"]["start_mode"] == "fresh"


def test_a_successor_is_another_run_and_a_deployment_without_a_last_word_is_aborted(home: NamedHome) -> None:
    """Its driver died, and a new version took over."""
    stream = home.stream()
    first = stream.deploy().runs()
    succeeds(stream, first, "restore", first.snapshot("stopped")).claim().started()
    assert told(home)[-1]["eventType"] == "ABORT"
    assert told(home)[-1]["run"]["runId"] != told(home, "d-0002")[-1]["run"]["runId"]


def test_before_its_plan_is_recorded_a_version_has_the_datasets_of_the_one_before(home: NamedHome) -> None:
    """So its START names them, too."""
    stream = home.stream()
    first = stream.deploy().runs()
    keep_plan(stream.control, "d-0001", QUERY, PLAN)
    succeeds(stream, first, "restore", first.stopped())
    assert told(home, "d-0002")[0]["inputs"] == told(home)[0]["inputs"] != []


def task_instance() -> SimpleNamespace:
    """What the provider's listener has of a task that has ended."""
    dag_run = SimpleNamespace(logical_date=None, run_after=datetime(2026, 3, 1, tzinfo=timezone.utc), clear_number=0)
    return SimpleNamespace(dag_id="dag", run_id="manual__1", task_id="task", dag_run=dag_run)


@pytest.mark.parametrize("kind", [DeployStreamOperator, StopStreamOperator, UpgradeStreamOperator])
def test_airflows_provider_takes_what_an_operator_tells(
    home: NamedHome, kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own extractor calls the methods; the events of the deployment go out through its adapter."""
    from airflow.providers.openlineage.extractors.base import DefaultExtractor
    from airflow.providers.openlineage.plugins.adapter import OpenLineageAdapter

    sent: list[Any] = []
    monkeypatch.setattr(OpenLineageAdapter, "emit", lambda _self, event: sent.append(event))
    more = {} if kind is StopStreamOperator else {"application": "/srv/job.py"}
    task = kind(task_id="task", stream_id="flights", **more)
    assert DefaultExtractor(task).extract() is None  # a stream that is not there yet
    stream = home.stream()
    stream.deploy().runs()
    keep_plan(stream.control, "d-0001", QUERY, PLAN)
    found = DefaultExtractor(task).extract_on_complete(task_instance())
    assert [each.namespace for each in found.inputs] == ["kafka://broker:9092"]
    assert [each.namespace for each in found.outputs] == ["file"]
    assert [event.eventType.value for event in sent] == ["START", "RUNNING"]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A server of lineage on loopback, to which the provider sends by its own HTTP transport."""
    from airflow.providers.openlineage.plugins.listener import get_openlineage_listener

    with receiving() as receiver:
        address = receiver.url.partition("/T000")[0]
        transport = {"type": "http", "url": address, "endpoint": "api/v1/lineage", "timeout": 5, "retry": {"total": 1}}
        monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", json.dumps(transport))
        get_openlineage_listener.cache_clear()
        yield receiver
    get_openlineage_listener.cache_clear()


def end_task(task: Any) -> Any:
    """What the provider does at the end of a task."""
    from airflow.providers.openlineage.extractors.base import DefaultExtractor

    return DefaultExtractor(task).extract_on_complete(task_instance())


def test_the_events_arrive_by_http_and_say_the_same_each_time(home: NamedHome, server: Receiver) -> None:
    """By the provider's listener, adapter and transport; a second task sends the same events of a run again."""
    stream = home.stream()
    first = stream.deploy().runs()
    keep_plan(stream.control, "d-0001", QUERY, PLAN)
    end_task(DeployStreamOperator(task_id="task", stream_id="flights", application="/srv/job.py"))
    assert [(one["eventType"], one["job"]["name"]) for one in server.got] == [
        ("START", "flights"), ("RUNNING", "flights"),
    ]  # fmt: skip
    assert {one["path"] for one in server.headers} == {"/api/v1/lineage"}
    first.stopped()
    end_task(StopStreamOperator(task_id="task", stream_id="flights"))
    assert [one["eventType"] for one in server.got[2:]] == ["START", "RUNNING", "COMPLETE"]
    assert server.got[2:4] == server.got[:2]
    for event in server.got:
        is_event_of_openlineage(event)


def is_event_of_openlineage(event: Any) -> None:
    """What OpenLineage's schema requires of an event of a run, of its datasets and of each facet."""
    assert datetime.fromisoformat(event["eventTime"]).tzinfo is not None
    assert event["schemaURL"].startswith("https://openlineage.io/spec/")
    assert event["producer"] == openlineage.PRODUCER
    assert uuid.UUID(event["run"]["runId"])
    places = [event["run"], event["job"], *event["inputs"], *event["outputs"]]
    assert all(one["namespace"] and one["name"] for one in places[1:])
    for facet in (facet for one in places for facet in one.get("facets", {}).values()):
        assert facet["_producer"]
        assert facet["_schemaURL"].startswith("http")


def test_a_server_of_lineage_that_refuses_fails_no_task(home: NamedHome, server: Receiver) -> None:
    """The datasets of the task are reported all the same."""
    stream = home.stream()
    stream.deploy().runs()
    keep_plan(stream.control, "d-0001", QUERY, PLAN)
    server.statuses = [500] * 20
    found = end_task(DeployStreamOperator(task_id="task", stream_id="flights", application="/srv/job.py"))
    assert [each.namespace for each in found.inputs] == ["kafka://broker:9092"]
    assert server.got == []
