"""A restore under settings that change what is in the state is refused, naming them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.driver.start.checkpoints import NOT_KNOWN
from airflow_streamstate.errors import UnavailableError
from airflow_streamstate.plan.record import last_recorded_plans
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.commands import Command, DrainNotification, StopRequest
from airflow_streamstate.protocol.events import Drained, Failed, QueryStarted, Stopped
from airflow_streamstate.protocol.ids import return_request_id_for, upgrade_id_for
from airflow_streamstate.protocol.records import StartPlan
from airflow_streamstate.store.base import ObjectInfo, Store
from airflow_streamstate.store.memory import MemoryStore
from support import simulated_query
from support.scripted_rehearsal import keep_plan
from support.simulated_driver import (
    STREAM,
    SimulatedStream,
    assert_nothing_lost,
    make_plan,
    waiting_script,
)
from support.simulated_query import SimulatedPlan

NAME = "spark.sql.mapKeyDedupPolicy"


def ended(
    monkeypatch: pytest.MonkeyPatch, plan: SimulatedPlan, order: type[Command], store: Store | None = None
) -> SimulatedStream:
    """A deployment under one setting has ended; from here on the session has another one."""
    stream = SimulatedStream(checkpoints=store or MemoryStore())
    monkeypatch.setitem(simulated_query.CONF, NAME, "LAST_WIN")
    stream.deploy()
    stream.order_at(2.1, order)
    assert stream.run(waiting_script(plan)) == 0
    monkeypatch.setitem(simulated_query.CONF, NAME, "EXCEPTION")
    return stream


def goes_on(stream: SimulatedStream, plan: SimulatedPlan, start: StartPlan, request_id: str = "") -> int | None:
    stream.deploy(2, start, request_id=request_id)
    stream.order_at(30.0, DrainNotification, "d-0002")
    return stream.run(waiting_script(plan), "d-0002")


def restore(stream: SimulatedStream) -> StartPlan:
    return StartPlan("restore", stream.events_of(Stopped)[0].snapshot_id, "d-0001")


def test_a_deploy_under_another_setting_is_refused_and_goes_on_under_the_old_one(
    plan: SimulatedPlan,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By name and with both values; no checkpoint is built, and nothing read."""
    stream = ended(monkeypatch, plan, StopRequest)
    reads = list(plan.sources[0].reads)
    assert goes_on(stream, plan, restore(stream)) == 1
    error = stream.events_of(Failed, "d-0002")[0].error
    assert "made by another plan" in error
    assert f"{NAME} was LAST_WIN and is EXCEPTION" in error
    assert plan.sources[0].reads == reads
    checkpoint = Checkpoint(stream.checkpoints, layout.checkpoint_folder(STREAM, "d-0002", "counts"))
    assert list(stream.checkpoints.list_objects(checkpoint.prefix)) == []

    monkeypatch.setitem(simulated_query.CONF, NAME, "LAST_WIN")
    number = stream.next_attempt("d-0002")
    stream.order_at(30.0, DrainNotification, "d-0002", attempt=number)
    assert stream.run(waiting_script(plan), "d-0002", number) == 0
    assert_nothing_lost(plan)


def test_what_holds_no_state_made_by_it_starts(plan: SimulatedPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query without state, and a seed, which starts with none."""
    without = make_plan(window_ms=None)
    stream = ended(monkeypatch, without, StopRequest)
    assert goes_on(stream, without, restore(stream)) == 0
    stream = ended(monkeypatch, plan, DrainNotification)
    start = StartPlan("seed", stream.events_of(Drained)[0].snapshot_id, "d-0001")
    assert goes_on(stream, plan, start) == 0
    assert stream.events_of(QueryStarted, "d-0002")[0].how == "seeded"


def test_no_verb_starts_it(plan: SimulatedPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law 17: nor does a rollback."""
    stream = ended(monkeypatch, plan, StopRequest)
    start, request_id = restore(stream), return_request_id_for(upgrade_id_for("u"), "forward")
    assert goes_on(stream, plan, start, request_id) == 1
    assert f"{NAME} was LAST_WIN and is EXCEPTION" in stream.events_of(Failed, "d-0002")[0].error


def test_where_nobody_can_tell_nothing_is_refused(plan: SimulatedPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a deployment without a recorded plan; it is reported."""
    stream = ended(monkeypatch, plan, StopRequest)
    for info in list(stream.control.home.list_objects(layout.plans_prefix(STREAM, "d-0001"))):
        stream.control.home.delete(info.key)
    assert goes_on(stream, plan, restore(stream)) == 0
    assert NOT_KNOWN in stream.events_of(QueryStarted, "d-0002")[0].remarks


class Away(MemoryStore):
    """Does not answer the first listing of this prefix."""

    prefix = "/"

    def list_objects(self, prefix: str) -> Iterator[ObjectInfo]:
        if prefix == self.prefix:
            self.prefix = "/"
            raise UnavailableError("the store does not answer", key=prefix)
        return super().list_objects(prefix)


def test_a_store_that_does_not_answer_lets_no_other_setting_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver asks again."""
    plan, store = make_plan(), Away()
    stream = ended(monkeypatch, plan, StopRequest, store)
    reads = list(plan.sources[0].reads)
    store.prefix = f"{layout.checkpoint_folder(STREAM, 'd-0002', 'counts')}/offsets/"
    assert goes_on(stream, plan, restore(stream)) == 1
    assert f"{NAME} was LAST_WIN and is EXCEPTION" in stream.events_of(Failed, "d-0002")[0].error
    assert plan.sources[0].reads == reads


@pytest.mark.parametrize("was_recorded", [True, False])
def test_a_setting_that_another_release_does_not_record_is_no_other_one(
    monkeypatch: pytest.MonkeyPatch, was_recorded: bool
) -> None:
    """A release that looks at one setting more, or at one less, has no word of the other on it."""
    plan, other = make_plan(), "spark.sql.caseSensitive"
    stream = ended(monkeypatch, plan, StopRequest)
    monkeypatch.setitem(simulated_query.CONF, NAME, "LAST_WIN")
    old = last_recorded_plans(stream.control, "d-0001", {"counts"})["counts"]
    if was_recorded:
        keep_plan(stream.control, "d-0001", "counts", replace(old, settings={**old.settings, other: "false"}))
    else:
        monkeypatch.setitem(simulated_query.CONF, other, "false")
    assert goes_on(stream, plan, restore(stream)) == 0


def test_neither_does_a_drain_before_its_first_start(plan: SimulatedPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush by another rule would write results of both."""
    stream = ended(monkeypatch, plan, StopRequest)
    rows = list(plan.sink.rows)
    stream.deploy(2, restore(stream))
    stream.order(DrainNotification, "d-0002")
    assert stream.run(waiting_script(plan), "d-0002") == 1
    assert f"{NAME} was LAST_WIN and is EXCEPTION" in stream.events_of(Failed, "d-0002")[0].error
    assert plan.sink.rows == rows
    assert "Draining" not in stream.kinds("d-0002")
