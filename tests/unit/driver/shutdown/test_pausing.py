"""Snapshots with every query at its barrier."""

from __future__ import annotations

import pytest

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.protocol.commands import DrainNotification, SnapshotRequest
from airflow_streamstate.protocol.events import QueryStarted, Rejected, SnapshotReady, Stopped
from support.faulty_store import KILL_POINTS, Fault, FaultPlan, FaultyStore
from support.simulated_driver import (
    SimulatedDriver,
    SimulatedStream,
    assert_nothing_lost,
    make_plan,
    waiting_script,
)
from support.simulated_query import SimulatedPlan

pytestmark = pytest.mark.fast

TWO = ("counts-0", "counts-1")


def two_queries() -> tuple[SimulatedPlan, SimulatedPlan]:
    """A quick one and a slow one."""
    return make_plan(80), make_plan(80, batch_seconds=4.0)


@pytest.mark.parametrize("at_seconds", [1.0, 3.3, 5.9, 9.2])
def test_all_stand_when_it_is_taken_and_go_on_by_themselves(stream: SimulatedStream, at_seconds: float) -> None:
    """No batch is in flight at its position, none is cut, and each row is counted once (1a.4, Law 12)."""
    quick, slow = two_queries()
    stream.order_at(at_seconds, SnapshotRequest, consistent=True, ttl_seconds=60.0)
    stream.order_at(300.0, DrainNotification)
    assert stream.run(waiting_script(quick, slow, names=TWO)) == 0
    (ready,) = stream.events_of(SnapshotReady)
    manifest = stream.control.need_manifest(ready.snapshot_id)
    assert manifest.snapshot_kind == "live"
    assert all(query.position.planned_batch_id is None for query in manifest.queries.values())
    restarted = [event.batch_id for event in stream.events_of(QueryStarted)][2:]
    assert restarted == [ready.queries[name].batch_id for name in TWO]
    for plan in (quick, slow):
        assert_nothing_lost(plan)


def test_it_is_given_up_where_a_batch_outlasts_its_time_to_live(stream: SimulatedStream) -> None:
    """The quick query, which stood, runs on; the slow one never noticed; the rejection reports why (Law 6)."""
    quick, slow = two_queries()
    slow.batch_seconds = 30.0
    stream.order_at(2.0, SnapshotRequest, consistent=True, ttl_seconds=5.0)
    stream.order_at(900.0, DrainNotification)
    assert stream.run(waiting_script(quick, slow, names=TWO)) == 0
    (rejected,) = stream.events_of(Rejected)
    assert "were not committed in time" in rejected.reason
    assert [event.query_name for event in stream.events_of(QueryStarted)] == [*TWO, TWO[0]]
    assert stream.events_of(SnapshotReady) == []
    for plan in (quick, slow):
        assert_nothing_lost(plan)


def test_an_end_that_is_ordered_meanwhile_comes_first(stream: SimulatedStream) -> None:
    """The deadline of a drain is kept although a snapshot waits for the same batch."""
    quick, slow = two_queries()
    slow.batch_seconds = 60.0
    stream.order_at(2.0, SnapshotRequest, consistent=True, ttl_seconds=300.0)
    stream.order_at(4.0, DrainNotification, batches_within_seconds=5.0, on_deadline="kill")
    assert stream.run(waiting_script(quick, slow, names=TWO)) == 0
    (rejected,) = stream.events_of(Rejected)
    assert "is being ended" in rejected.reason
    (stopped,) = stream.events_of(Stopped)
    assert stream.clock.monotonic_seconds() < 30
    assert stopped.queries[TWO[1]].planned_batch_id is not None, "cut, and kept as it was planned"
    slow.batch_seconds = 0.5
    stream.order_at(300.0, DrainNotification)
    assert stream.run(waiting_script(quick, slow, names=TWO), attempt=stream.next_attempt()) == 0
    for plan in (quick, slow):
        assert_nothing_lost(plan)


def test_a_batch_that_fails_on_its_way_fails_its_query_and_no_other(stream: SimulatedStream) -> None:
    """The script gets its failure; there is no snapshot."""
    quick, slow = two_queries()
    stream.order_at(5.0, SnapshotRequest, consistent=True, ttl_seconds=60.0)
    slow.fails_at.add(1)
    assert stream.run(waiting_script(slow, quick, names=TWO[::-1])) == 1
    assert "a batch failed" in stream.events_of(Rejected)[0].reason
    slow.fails_at.clear()
    stream.order_at(300.0, DrainNotification)
    assert stream.run(waiting_script(quick, slow, names=TWO), attempt=stream.next_attempt()) == 0
    for plan in (quick, slow):
        assert_nothing_lost(plan)


@pytest.mark.full
@pytest.mark.parametrize("fault", [*KILL_POINTS, Fault.UNAVAILABLE])
def test_whatever_is_struck_meanwhile_the_queries_go_on(fault: Fault) -> None:
    """At every write between the request and its end: here, or in the next attempt (Laws 2, 3, 8, 12)."""
    calm, before = struck_at(10_000, fault)
    for number in range(1, len(calm.writes) - before, 3):
        struck_at(number, fault)


def struck_at(number: int, fault: Fault) -> tuple[FaultPlan, int]:
    """Take such a snapshot with one strike at a write after the request; returns the plan, and the number of writes
    before it."""
    stream, (quick, slow) = SimulatedStream(), two_queries()
    stream.deploy()
    faults, before = FaultPlan(), [0]
    store = FaultyStore(stream.checkpoints, faults)
    driver = SimulatedDriver(stream, checkpoints=store, control=StreamControl(store, "flights", stream.clock))

    def order() -> None:
        stream.order(SnapshotRequest, consistent=True, ttl_seconds=60.0)
        before[0] = len(faults.writes)
        faults.at_write[before[0] + number] = fault

    stream.clock.after(5.0, order)
    stream.clock.after(20.0, lambda: faults.at_write.clear())
    stream.order_at(300.0, DrainNotification)
    script = waiting_script(quick, slow, names=TWO)
    if driver.run(script) is None:
        assert stream.run(script, attempt=stream.next_attempt()) == 0
    assert stream.kinds()[-1] == "Drained"
    for plan in (quick, slow):
        assert_nothing_lost(plan)
    return faults, before[0]
