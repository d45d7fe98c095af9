"""Seals are made while nobody waits for anything else."""

from __future__ import annotations

from airflow_streamstate.driver.attempt.latch import Order
from airflow_streamstate.driver.attempt.sealing import seal_in_background, seal_older
from airflow_streamstate.protocol.commands import DrainNotification, SnapshotRequest, StopRequest
from airflow_streamstate.protocol.events import Drained, Noted
from airflow_streamstate.protocol.records import StartPlan
from airflow_streamstate.snapshot.data import data_files
from airflow_streamstate.snapshot.verify import verify
from support.simulated_driver import SimulatedDriver, SimulatedStream, make_plan, waiting_script

STOPPED = "d-0001-stopped-000001"


def successor(stream: SimulatedStream) -> SimulatedDriver:
    """d-0001 was stopped; a driver of d-0002, which starts from its end, before its script begins."""
    stream.deploy()
    stream.order_at(2.1, StopRequest)
    assert stream.run(waiting_script(make_plan())) == 0
    stream.deploy(2, StartPlan("restore", STOPPED, "d-0001"))
    return SimulatedDriver(stream, "d-0002")


def test_positions_are_sealed_as_soon_as_they_are_told() -> None:
    """The snapshot drained is small, and has its sha256 before the driver is gone."""
    stream = SimulatedStream()
    stream.deploy()
    stream.order_at(2.1, DrainNotification)
    assert stream.run(waiting_script(make_plan())) == 0
    (drained,) = stream.events_of(Drained)
    assert stream.control.seal(drained.snapshot_id) is not None
    assert verify(stream.control, stream.checkpoints, drained.snapshot_id) == []


def test_the_next_driver_seals_what_the_one_before_left() -> None:
    """A stop does not wait for a seal; whoever has time makes it, once."""
    stream = SimulatedStream()
    driver = successor(stream)
    assert stream.control.seal(STOPPED) is None
    seal_older(driver.supervisor.attempt)
    made = stream.control.seal(STOPPED)
    assert made is not None
    seal_older(driver.supervisor.attempt)
    assert stream.control.seal(STOPPED) == made


def test_a_snapshot_that_is_not_whole_is_told_and_not_sealed() -> None:
    """A file of another size is noted as an event; the job goes on (Law 7)."""
    stream = SimulatedStream()
    driver = successor(stream)
    manifest = stream.control.need_manifest(STOPPED)
    stream.checkpoints.put(data_files(manifest, "counts")["metadata"], b"other bytes")
    seal_older(driver.supervisor.attempt)
    assert stream.control.seal(STOPPED) is None
    (note,) = stream.events_of(Noted, "d-0002")
    assert note.facts["snapshot_id"] == STOPPED


def test_a_seal_gives_way_to_an_ending() -> None:
    """Once the latch is closed nothing else is to keep the driver; the seal is left to the next one (1a.11)."""
    stream = SimulatedStream()
    driver = successor(stream)
    attempt = driver.supervisor.attempt
    attempt.latch.close("stop", Order())
    seal_older(attempt)
    seal_in_background(attempt, STOPPED)
    assert stream.control.seal(STOPPED) is None
    assert stream.events_of(Noted, "d-0002") == []


def test_snapshots_of_other_deployments_are_not_looked_at() -> None:
    """A driver seals its own and its predecessor's: not all that a stream has ever kept."""
    stream = SimulatedStream()
    stream.deploy()
    stream.order_at(2.1, SnapshotRequest)
    stream.order_at(4.1, StopRequest)
    assert stream.run(waiting_script(make_plan())) == 0
    stream.deploy(3, StartPlan("restore", STOPPED, "d-0002"))
    seal_older(SimulatedDriver(stream, "d-0003").supervisor.attempt)
    assert stream.control.seal(STOPPED) is None
