"""Snapshots of a running deployment."""

from __future__ import annotations

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.protocol.commands import SnapshotRequest, StopRequest
from airflow_streamstate.protocol.events import Ignored, Rejected, SnapshotReady
from airflow_streamstate.snapshot.verify import verify
from support.faulty_store import Fault, FaultPlan, FaultyStore
from support.simulated_driver import STREAM, SimulatedDriver, SimulatedStream, make_plan, waiting_script


def test_a_snapshot_is_taken_while_the_query_runs_on() -> None:
    """At a committed batch, complete and verified, named after its command, and the query never stops (Law 2)."""
    stream, plan = SimulatedStream(), make_plan(500)
    stream.deploy()
    command = stream.order(SnapshotRequest)
    stream.checkpoints.delete(stream.commands()[0])
    stream.clock.after(3.0, lambda: stream.control.journal("d-0001").write_command(command, 1))
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


def test_a_snapshot_before_the_first_commit_is_rejected() -> None:
    """There is nothing to keep yet; the job runs on."""
    stream = SimulatedStream()
    stream.deploy()
    stream.order(SnapshotRequest)
    stream.order_at(3.0, StopRequest)
    assert stream.run(waiting_script(make_plan(batch_seconds=2))) == 0
    assert "nothing is committed" in stream.events_of(Rejected)[0].reason
    assert stream.kinds()[-1] == "Stopped"
    assert stream.commands() == []


def run_with_full_disk(stream: SimulatedStream, begin: float, end: float) -> None:
    stream.deploy()
    faults = FaultPlan()
    snapshots = FaultyStore(stream.checkpoints, faults)

    def fill() -> None:
        faults.every_write = Fault.NO_SPACE

    def empty() -> None:
        faults.every_write = None

    stream.clock.after(begin, fill)
    stream.clock.after(end, empty)
    stream.order_at(3.0, SnapshotRequest)
    stream.order_at(200.0, StopRequest)
    # The disk of the checkpoints is full for us; the home, where commands and events lie, is not.
    driver = SimulatedDriver(
        stream, checkpoints=snapshots, control=StreamControl(stream.checkpoints, STREAM, stream.clock)
    )
    assert driver.run(waiting_script(make_plan(50))) == 0


def test_a_full_disk_delays_a_snapshot() -> None:
    """It is tried again while there is hope, and exists once there is space (Law 3)."""
    stream = SimulatedStream()
    run_with_full_disk(stream, 2.0, 20.0)
    assert len(stream.events_of(SnapshotReady)) == 1
    assert stream.kinds()[-1] == "Stopped"


def test_a_disk_that_stays_full_ends_the_request_with_the_reason() -> None:
    """No snapshot half taken, the job runs on, and the request has its end (Law 3)."""
    stream = SimulatedStream()
    run_with_full_disk(stream, 2.0, 150.0)
    assert "disk is full" in stream.events_of(Rejected)[0].reason
    assert stream.control.manifest("d-0001-live-000001") is None
    assert stream.kinds()[-1] == "Stopped"


def test_two_commands_of_one_request_are_one_snapshot() -> None:
    """The second one is ignored, and told which snapshot it has become; another request is another one (Law 2)."""
    stream = SimulatedStream()
    stream.deploy()
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


def test_what_is_no_request_id_is_rejected() -> None:
    """Whoever wrote it by hand is told; the job runs on (Law 7)."""
    stream = SimulatedStream()
    stream.deploy()
    stream.order_at(3.0, SnapshotRequest, request_id="../../stream")
    stream.order_at(6.0, StopRequest)
    assert stream.run(waiting_script(make_plan(500))) == 0
    assert "request id" in stream.events_of(Rejected)[0].reason
    assert stream.kinds()[-1] == "Stopped"
