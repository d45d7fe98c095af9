"""Snapshots of a running deployment."""

from __future__ import annotations

import pytest

from airflow_streamstate.clock import Clock
from airflow_streamstate.protocol.codec import NEWEST_PROTOCOL
from airflow_streamstate.protocol.commands import SnapshotRequest, StopRequest
from airflow_streamstate.protocol.events import Accepted, Ignored, QueryStarted, Rejected, SnapshotReady, Stopped
from airflow_streamstate.snapshot.location import SnapshotPlaces
from airflow_streamstate.snapshot.verify import verify
from airflow_streamstate.store.base import ObjectInfo
from airflow_streamstate.store.memory import MemoryStore
from support.faulty_store import Fault, FaultPlan, FaultyStore
from support.simulated_driver import SimulatedDriver, SimulatedStream, make_plan, waiting_script
from support.simulated_query import SimulatedPlan
from support.snapshots import PLACE

pytestmark = pytest.mark.fast


def test_a_snapshot_is_taken_while_the_query_runs_on(stream: SimulatedStream) -> None:
    """At a committed batch, complete and verified, named after its command, and the query never stops (Law 2)."""
    plan = make_plan(500)
    command = stream.order(SnapshotRequest)
    stream.checkpoints.delete(stream.commands()[0])
    stream.clock.after(3.0, lambda: stream.control.journal("d-0001").write_command(command, NEWEST_PROTOCOL))
    stream.order_at(6.0, StopRequest)
    driver = SimulatedDriver(stream)
    assert driver.run(waiting_script(plan)) == 0
    ready = stream.events_of(SnapshotReady)[0]
    assert (ready.snapshot_id, ready.snapshot_kind, ready.command_number) == ("d-0001-live-000001", "live", 1)
    assert ready.queries["counts"].planned_batch_id is None
    assert verify(stream.control, stream.checkpoints, ready.snapshot_id) == []
    assert stream.control.seal(ready.snapshot_id) is not None
    assert len(driver.startables[0].runs) == 1
    assert stream.commands() == []


def test_a_snapshot_before_the_first_commit_is_taken_after_it(stream: SimulatedStream) -> None:
    """There is nothing to keep yet, which is no reason to refuse: the order stays, and the job runs on."""
    stream.order(SnapshotRequest)
    stream.order_at(20.0, StopRequest)
    assert stream.run(waiting_script(make_plan(batch_seconds=4))) == 0
    assert stream.events_of(Rejected) == []
    (ready,) = stream.events_of(SnapshotReady)
    assert ready.queries["counts"].batch_id == 0
    assert stream.kinds()[-1] == "Stopped"
    assert stream.commands() == []


def test_a_snapshot_that_waits_for_the_first_commit_still_goes_out_of_date(stream: SimulatedStream) -> None:
    """Its time to live counts from its request; nothing else is held up by it."""
    stream.order(SnapshotRequest, ttl_seconds=2.0)
    stream.order_at(4.0, StopRequest)
    assert stream.run(waiting_script(make_plan(batch_seconds=60))) == 0
    assert stream.events_of(SnapshotReady) == []
    assert stream.events_of(Ignored)
    assert stream.kinds()[-1] == "Stopped"


def run_with_full_disk(stream: SimulatedStream, until: float, ttl_seconds: float = 300.0) -> None:
    """The disk of the checkpoints is full from second 2 on; the home, with commands and events, is not."""
    faults = FaultPlan()
    stream.clock.after(2.0, lambda: setattr(faults, "every_write", Fault.NO_SPACE))
    stream.clock.after(until, lambda: setattr(faults, "every_write", None))
    stream.order_at(3.0, SnapshotRequest, ttl_seconds=ttl_seconds)
    stream.order_at(200.0, StopRequest)
    driver = SimulatedDriver(stream, checkpoints=FaultyStore(stream.checkpoints, faults), control=stream.control)
    assert driver.run(waiting_script(make_plan(50))) == 0
    assert stream.kinds()[-1] == "Stopped"


@pytest.mark.parametrize("ttl_seconds", [300.0, 1.0])
def test_a_full_disk_delays_a_snapshot(stream: SimulatedStream, ttl_seconds: float) -> None:
    """It is tried again, also beyond its time to live, and exists once there is space (Law 3)."""
    run_with_full_disk(stream, 20.0, ttl_seconds)
    assert len(stream.events_of(SnapshotReady)) == 1


def test_a_disk_that_stays_full_ends_the_request_with_the_reason(stream: SimulatedStream) -> None:
    """No snapshot half taken, the job runs on, and the request has its end (Law 3)."""
    run_with_full_disk(stream, 150.0)
    assert "disk is full" in stream.events_of(Rejected)[0].reason
    assert stream.control.manifest("d-0001-live-000001") is None


def test_two_commands_of_one_request_are_one_snapshot(stream: SimulatedStream) -> None:
    """The second is ignored, and its event names the snapshot it became; another request is another one (Law 2)."""
    for number, request_id in enumerate(["r-1", "r-1", "r-2", "r-1"]):
        stream.order_at(3.0 + number // 3 * 2.0, SnapshotRequest, request_id=request_id)
    stream.order_at(9.0, StopRequest)
    assert stream.run(waiting_script(make_plan(500))) == 0
    ready = stream.events_of(SnapshotReady)
    assert [(event.request_id, event.snapshot_id) for event in ready] == [
        ("r-1", "d-0001-live-000001"),
        ("r-2", "d-0001-live-000003"),
    ]
    assert [event.reason for event in stream.events_of(Ignored)] == [
        "its request has become snapshot d-0001-live-000001 already"
    ] * 2
    assert stream.control.need_manifest("d-0001-live-000001").request_id == "r-1"
    assert stream.commands() == []


def test_what_is_no_request_id_is_rejected(stream: SimulatedStream) -> None:
    """The command is rejected, and the job runs on (Law 7)."""
    stream.order_at(3.0, SnapshotRequest, request_id="../../stream")
    stream.order_at(6.0, StopRequest)
    assert stream.run(waiting_script(make_plan(500))) == 0
    assert "request id" in stream.events_of(Rejected)[0].reason
    assert stream.kinds()[-1] == "Stopped"


class SlowPlace(MemoryStore):
    """A place that is asked in vain for some time before each file of a live snapshot goes there."""

    def __init__(self, clock: Clock) -> None:
        super().__init__("slow")
        self._clock = clock

    def head(self, key: str) -> ObjectInfo | None:
        if "-live-" in key:
            self._clock.sleep(2.0)
        return super().head(key)


def run_with_slow_place(stream: SimulatedStream, *plans: SimulatedPlan) -> None:
    place = SlowPlace(stream.clock)
    stream.deploy(snapshots=PLACE)
    SnapshotPlaces(stream.checkpoints, lambda _: place, stream.clock).claim(stream.control, PLACE)
    driver = SimulatedDriver(stream, open_place=lambda _: place)
    assert driver.run(waiting_script(*plans, names=[f"counts-{number}" for number in range(len(plans))])) == 0


def test_a_copy_to_a_slow_place_gives_way_to_a_stop() -> None:
    """The end has its own snapshot; the request has its end, too (Law 6)."""
    stream = SimulatedStream()
    stream.order_at(10.0, SnapshotRequest)
    stream.order_at(20.0, StopRequest)
    run_with_slow_place(stream, make_plan(500))
    assert stream.events_of(SnapshotReady) == []
    assert "the deployment is being ended" in stream.events_of(Rejected)[0].reason
    (stopped,) = stream.events_of(Stopped)
    (accepted,) = [event for event in stream.events_of(Accepted) if event.at <= stopped.at][-1:]
    assert (stopped.at - accepted.at).total_seconds() < 10
    assert stream.control.need_manifest(str(stopped.snapshot_id)).data_uri == PLACE


def test_no_query_stands_at_its_barrier_while_the_snapshot_is_copied_to_its_place() -> None:
    """Linked is enough: from then on nothing of the checkpoints is wanted."""
    stream = SimulatedStream()
    stream.order_at(10.0, SnapshotRequest, consistent=True, ttl_seconds=60.0)
    stream.order_at(400.0, StopRequest)
    run_with_slow_place(stream, make_plan(500), make_plan(500))
    (ready,) = stream.events_of(SnapshotReady)
    restarted = [event for event in stream.events_of(QueryStarted) if event.batch_id is not None][-2:]
    assert all((ready.at - event.at).total_seconds() > 20 for event in restarted)
    assert [event.batch_id for event in restarted] == [query.batch_id for query in ready.queries.values()]
