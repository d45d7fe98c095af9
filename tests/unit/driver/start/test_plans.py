"""``airflow_streamstate.driver.start.recorded_plans``: the plan is recorded before the start, and never in its way."""

from __future__ import annotations

import pytest

from airflow_streamstate.connectors.sink import Sink
from airflow_streamstate.driver.attempt.ports import AnalyzedPlan, QueryRun
from airflow_streamstate.errors import UnavailableError
from airflow_streamstate.plan.model import RecordedPlan
from airflow_streamstate.plan.record import recorded_plans
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import QueryStarted
from support.simulated_driver import Script, SimulatedStream, make_plan, waiting_script
from support.simulated_query import SimulatedPlan, SimulatedStartable


def plans_of(stream: SimulatedStream) -> list[RecordedPlan]:
    """The records of the one query, in their order."""
    control = stream.control
    keys = [info.key for info in control.home.list_objects(layout.plans_prefix("flights", "d-0001", "counts"))]
    found = [control.cells.read(key, RecordedPlan) for key in keys]
    return [each.value for each in found if each is not None]


def _once(plan: SimulatedPlan) -> Script:
    return waiting_script(plan)


def _run_again(stream: SimulatedStream, plan: SimulatedPlan) -> None:
    attempt = stream.next_attempt()
    assert stream.run(_once(plan), attempt=attempt) == 0


def test_a_plan_is_recorded_before_the_query_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its operators, its sources as their connectors know them (Law 1)."""
    stream, plan = SimulatedStream(), make_plan(20, trigger="available_now")
    plan.shows_sources = True
    stream.deploy()
    seen: list[int] = []
    start = SimulatedStartable.start

    def watched(startable: SimulatedStartable, checkpoint_uri: str) -> QueryRun:
        seen.append(len(plans_of(stream)))
        return start(startable, checkpoint_uri)

    monkeypatch.setattr(SimulatedStartable, "start", watched)
    assert stream.run(_once(plan)) == 0
    assert seen == [1]
    (record,) = plans_of(stream)
    assert (record.attempt, record.number, record.plan.query_name) == (1, 1, "counts")
    assert [(each.kind, each.spark_name) for each in record.plan.operators] == [("aggregate", "stateStoreSave")]
    assert record.plan.operators[0].keys[0].is_event_time
    assert record.plan.watermarks == plan.watermarks
    assert record.plan.sources[0].format == "simulated"
    assert stream.events_of(QueryStarted)[0].remarks == ()


def test_a_resumed_attempt_records_a_plan_that_differs_and_no_other() -> None:
    """Its script may read other settings."""
    stream = SimulatedStream()
    plan = make_plan(20, trigger="available_now")
    stream.deploy()
    assert stream.run(_once(plan)) == 0
    _run_again(stream, plan)
    assert [record.number for record in plans_of(stream)] == [1]
    plan.trigger = "once"
    _run_again(stream, plan)
    assert [(record.number, record.attempt) for record in plans_of(stream)] == [(1, 1), (2, 3)]
    assert recorded_plans(stream.control, "d-0001")["counts"].trigger == "once"


@pytest.mark.parametrize("trouble", ["spark", "text", "store"])
def test_a_plan_that_cannot_be_recorded_is_a_remark(
    stream: SimulatedStream, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query starts in any case."""
    plan = make_plan(20, trigger="available_now")
    if trouble == "store":
        create = stream.control.home.create

        def refusing(key: str, body: bytes) -> str:
            if "/plans/" in key:
                raise UnavailableError("it does not answer", key=key)
            return create(key, body)

        monkeypatch.setattr(stream.control.home, "create", refusing)
    else:

        def spoilt(startable: SimulatedStartable) -> AnalyzedPlan:
            if trouble == "spark":
                raise RuntimeError("no JSON of this")
            return AnalyzedPlan("{}", Sink("noop"))

        monkeypatch.setattr(SimulatedStartable, "analyzed_plan", spoilt)
    assert stream.run(_once(plan)) == 0
    (started,) = stream.events_of(QueryStarted)
    assert "its plan is not recorded" in started.remarks[-1]
    assert plans_of(stream) == []
