"""Seals are made when no thread waits for something else."""

from __future__ import annotations

import pytest

from airflow_streamstate.driver.attempt.attempt_snapshots import seal_in_background, seal_older
from airflow_streamstate.driver.attempt.latch import Order
from airflow_streamstate.protocol.commands import DrainNotification, SnapshotRequest, StopRequest
from airflow_streamstate.protocol.events import Drained, Noted
from airflow_streamstate.protocol.records import StartPlan
from airflow_streamstate.snapshot.data import data_files
from airflow_streamstate.snapshot.verify import verify
from support.simulated_driver import SimulatedDriver, SimulatedStream, make_plan, waiting_script

STOPPED = "d-0001-stopped-000001"


@pytest.fixture
def successor(stream: SimulatedStream) -> SimulatedDriver:
    """A driver of d-0002, which starts from the stopped d-0001, before its script starts."""
    stream.order_at(2.1, StopRequest)
    assert stream.run(waiting_script(make_plan())) == 0
    stream.deploy(2, StartPlan("restore", STOPPED, "d-0001"))
    return SimulatedDriver(stream, "d-0002")


def test_positions_are_sealed_as_soon_as_they_are_told(stream: SimulatedStream) -> None:
    """The ``drained`` snapshot is small, and gets its sha256 before the driver ends."""
    stream.order_at(2.1, DrainNotification)
    assert stream.run(waiting_script(make_plan())) == 0
    (drained,) = stream.events_of(Drained)
    assert stream.control.seal(drained.snapshot_id) is not None
    assert verify(stream.control, stream.checkpoints, drained.snapshot_id) == []


def test_the_next_driver_seals_what_the_one_before_left(stream: SimulatedStream, successor: SimulatedDriver) -> None:
    """A stop does not wait for a seal; the next driver makes it, once."""
    assert stream.control.seal(STOPPED) is None
    seal_older(successor.attempt_life.attempt)
    made = stream.control.seal(STOPPED)
    assert made is not None
    seal_older(successor.attempt_life.attempt)
    assert stream.control.seal(STOPPED) == made


def test_a_snapshot_that_is_not_whole_is_told_and_not_sealed(
    stream: SimulatedStream, successor: SimulatedDriver
) -> None:
    """A file of a different size is noted; the job runs on (Law 7)."""
    manifest = stream.control.need_manifest(STOPPED)
    stream.checkpoints.put(data_files(manifest, "counts")["metadata"], b"other bytes")
    seal_older(successor.attempt_life.attempt)
    assert stream.control.seal(STOPPED) is None
    (note,) = stream.events_of(Noted, "d-0002")
    assert note.facts["snapshot_id"] == STOPPED


def test_a_seal_gives_way_to_an_ending(stream: SimulatedStream, successor: SimulatedDriver) -> None:
    """Once the latch is closed the driver seals nothing more; the next one does (1a.11)."""
    attempt = successor.attempt_life.attempt
    attempt.latch.close("stop", Order())
    seal_older(attempt)
    seal_in_background(attempt, STOPPED)
    assert stream.control.seal(STOPPED) is None
    assert stream.events_of(Noted, "d-0002") == []


def test_snapshots_of_other_deployments_are_not_looked_at(stream: SimulatedStream) -> None:
    """A driver seals its own deployment's snapshots and its predecessor's."""
    stream.order_at(2.1, SnapshotRequest)
    stream.order_at(4.1, StopRequest)
    assert stream.run(waiting_script(make_plan())) == 0
    stream.deploy(3, StartPlan("restore", STOPPED, "d-0002"))
    seal_older(SimulatedDriver(stream, "d-0003").attempt_life.attempt)
    assert stream.control.seal(STOPPED) is None
