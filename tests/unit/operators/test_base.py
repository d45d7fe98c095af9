"""What all operators share."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import (
    DAG,
    AirflowException,
    AirflowFailException,
    BaseOperator,
    TaskDeferred,
)

from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.errors import ConflictError, DeadlineExceededError
from airflow_streamstate.operators.base import StreamStateOperator, request_id_of, requester_of
from airflow_streamstate.operators.declared import CompareStreamsOperator
from airflow_streamstate.operators.deploy import DeployStreamOperator, LaunchingOperator, ResumeStreamOperator
from airflow_streamstate.operators.plan import PlanUpgradeOperator
from airflow_streamstate.operators.snapshot import (
    ExportStateOperator,
    MirrorSnapshotsOperator,
    PinSnapshotOperator,
    PruneSnapshotsOperator,
    SnapshotStreamOperator,
    VerifySnapshotOperator,
)
from airflow_streamstate.operators.stop import (
    DrainStreamOperator,
    RetireStreamOperator,
    SkipBatchOperator,
    StopStreamOperator,
)
from airflow_streamstate.operators.upgrade import RescaleStreamOperator, RollbackStreamOperator, UpgradeStreamOperator
from airflow_streamstate.protocol.ids import check_id
from airflow_streamstate.triggers.streamstate import EventContent
from support.airflow_fixtures import MakeContext
from support.airflow_streams import NamedHome

OPERATORS = [
    DeployStreamOperator, DrainStreamOperator, ExportStateOperator, MirrorSnapshotsOperator, PinSnapshotOperator,
    PlanUpgradeOperator, PruneSnapshotsOperator, RescaleStreamOperator, ResumeStreamOperator,
    RetireStreamOperator, RollbackStreamOperator,
    SkipBatchOperator, SnapshotStreamOperator, StopStreamOperator, UpgradeStreamOperator, VerifySnapshotOperator,
]  # fmt: skip
NEEDED: dict[type[StreamStateOperator], dict[str, Any]] = {
    RescaleStreamOperator: {"partitions": "{{ params.partitions }}"},
    DeployStreamOperator: {"application": "/nowhere.py"},
    ExportStateOperator: {"out": "/out"},
    PinSnapshotOperator: {"snapshot_id": "s"},
    SkipBatchOperator: {"batch_id": 1},
    VerifySnapshotOperator: {"snapshot_id": "s"},
}
WATCH = WaitCondition("stopped", "flights", "d-0001", command_id="c")


def test_the_request_is_the_same_for_every_try(context: MakeContext) -> None:
    """And after the task was cleared: trying twice is trying once (Law 2)."""
    assert request_id_of(context(try_number=1)) == request_id_of(context(try_number=7))


def test_every_task_run_and_mapped_index_has_a_request_of_its_own(context: MakeContext) -> None:
    """Two that share one would find each other's result."""
    ids = {
        request_id_of(context()),
        request_id_of(context(task_id="other")),
        request_id_of(context(run_id="manual__2")),
        request_id_of(context(map_index=0)),
        request_id_of(context(map_index=1)),
        request_id_of(context(dag_id="other")),
        request_id_of(context(), "another purpose"),
    }
    assert len(ids) == 7
    for request_id in ids:
        check_id(request_id, "request id")


def test_who_asked_can_be_read_in_the_records(context: MakeContext) -> None:
    """The task that stopped a stream can be found."""
    assert requester_of(context(task_id="stop")) == "airflow dag.stop manual__1"


@pytest.mark.parametrize("cls", OPERATORS, ids=lambda cls: cls.__name__)
def test_every_parameter_that_names_something_is_templated(cls: type[StreamStateOperator]) -> None:
    """Ids and paths come from parameters and other tasks."""
    own = {
        name
        for klass in cls.__mro__
        if klass.__module__.startswith("airflow_streamstate")
        for name, parameter in inspect.signature(klass.__init__).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    switches = {"deferrable", "poll_interval_seconds", "wait_for_completion"}
    if issubclass(cls, LaunchingOperator):
        switches |= {"on_kill_action"}
    if cls.template_fields.count("timeout_seconds") == 0:  # it has ``deadline_seconds`` instead
        switches |= {"timeout_seconds"}
    assert sorted(own - switches) == sorted(cls.template_fields)


@pytest.mark.parametrize("cls", OPERATORS, ids=lambda cls: cls.__name__)
def test_making_an_operator_touches_nothing(cls: type[StreamStateOperator], monkeypatch: pytest.MonkeyPatch) -> None:
    """DAGs are parsed every few seconds, where neither the home nor the connection may be there."""
    monkeypatch.setenv("AIRFLOW_CONN_STREAMSTATE_DEFAULT", "no connection at all")
    cls(task_id="task", stream_id="{{ params.stream_id }}", **NEEDED.get(cls, {}))


def test_an_event_ends_the_task_as_the_wait_in_a_worker_would(context: MakeContext) -> None:
    """The same result, the same exceptions."""
    operator = StopStreamOperator(task_id="stop", stream_id="flights")
    done = EventContent("done", WATCH, result={"snapshot_id": "s"}).to_json()
    assert operator.execute_complete(context(), done) == {
        "stream_id": "flights", "command_id": "c", "snapshot_id": "s"
    }  # fmt: skip
    over = EventContent("over", WATCH, error=ConflictError("it has failed")).to_json()
    with pytest.raises(AirflowFailException, match="it has failed"):
        operator.execute_complete(context(), over)
    late = EventContent("deadline", WATCH, error=DeadlineExceededError("it did not happen")).to_json()
    with pytest.raises(AirflowException, match="it did not happen") as raised:
        operator.execute_complete(context(), late)
    assert not isinstance(raised.value, AirflowFailException)


def test_an_event_that_is_none_of_ours_fails_the_task(context: MakeContext) -> None:
    """It may come from a triggerer of a different release."""
    with pytest.raises(AirflowFailException, match="no event of StreamStateTrigger"):
        StopStreamOperator(task_id="stop", stream_id="flights").execute_complete(context(), "success")


def test_a_deferral_carries_no_arguments_of_its_own(named: NamedHome, context: MakeContext) -> None:
    """Everything comes back in the event, and the deadline is a moment."""
    named.stream().deploy().runs()
    operator = StopStreamOperator(task_id="stop", stream_id="flights", deferrable=True, timeout_seconds="60")
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context())
    assert deferred.value.kwargs is None
    assert deferred.value.trigger.serialize()[1]["deadline_at"].endswith("Z")


def test_a_wait_without_bounds_is_refused(named: NamedHome, context: MakeContext) -> None:
    """Every wait has a deadline (Law 6)."""
    named.stream().deploy().runs()
    with pytest.raises(AirflowFailException, match="number of seconds"):
        StopStreamOperator(task_id="stop", stream_id="flights", timeout_seconds="for ever").execute(context())


def test_a_home_that_is_not_there_fails_the_task_in_one_sentence(
    named: NamedHome, context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection may be misspelt."""
    operator = StopStreamOperator(task_id="stop", stream_id="flights", streamstate_conn_id="nowhere")
    with pytest.raises(AirflowFailException, match="no such connection"):
        operator.execute(context())


@pytest.mark.parametrize("operator", [DeployStreamOperator, PlanUpgradeOperator, UpgradeStreamOperator])
def test_lists_and_mappings_are_shown_as_what_they_are(operator: type[StreamStateOperator]) -> None:
    """Airflow's page of rendered fields knows each by a renderer, and by no field that is not rendered."""
    renderers = operator.template_fields_renderers
    assert set(renderers) <= set(operator.template_fields)
    assert renderers["conf"] == "json"
    assert renderers["pod_template"] == "yaml"


@pytest.mark.parametrize(
    ("operator", "name", "more"),
    [
        (CompareStreamsOperator, "root", {"streams": "streams"}),
        (DeployStreamOperator, "application", {"stream_id": "flights"}),
        (PlanUpgradeOperator, "migration", {"stream_id": "flights"}),
        (UpgradeStreamOperator, "working_folder", {"stream_id": "flights"}),
    ],
)
def test_a_path_that_another_task_returns_comes_after_that_task(
    operator: type[BaseOperator], name: str, more: dict[str, str]
) -> None:
    """Airflow finds the task by the field; a path that is known is a text, as Airflow renders it."""
    with DAG("d"):
        task = operator(task_id="task", **{name: BaseOperator(task_id="before").output}, **more)
        known = operator(task_id="known", **{name: Path("/a/path")}, **more)
    assert task.upstream_task_ids == {"before"}
    assert getattr(known, name) == "/a/path"
