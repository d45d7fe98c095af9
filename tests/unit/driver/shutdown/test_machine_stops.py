"""A driver whose machine asks it to end stops at its barrier, by its own command."""

from __future__ import annotations

from pathlib import Path

from airflow_streamstate.control.objects import ASKED_TO_END
from airflow_streamstate.protocol.commands import DrainNotification
from airflow_streamstate.protocol.events import Accepted, Drained, Stopped
from support.simulated_driver import SimulatedStream, assert_nothing_lost, make_plan, waiting_script


def test_it_stops_after_the_batch_in_flight_and_the_next_attempt_goes_on(tmp_path: Path) -> None:
    """With a snapshot, and without a cut batch; the file of one launch does not stop the next one (Laws 2 and 12)."""
    first, second = tmp_path / "a0001", tmp_path / "a0002"
    first.mkdir()
    second.mkdir()
    stream, plan = SimulatedStream(launch_folder=str(first)), make_plan()
    stream.deploy()
    stream.clock.after(20.0, (first / ASKED_TO_END).touch)
    assert stream.run(waiting_script(plan)) == 0
    (stopped,) = stream.events_of(Stopped)
    assert stopped.snapshot_id is not None
    (accepted,) = stream.events_of(Accepted)
    assert (accepted.command["requested_by"], accepted.command["kind"]) == ("the driver itself", "StopRequest")
    assert accepted.command["reason"] == "its machine asks the driver to end"
    assert stream.commands() == []
    stream.launch_folder = str(second)
    attempt = stream.next_attempt()
    stream.order_at(60.0, DrainNotification)
    assert stream.run(waiting_script(plan), attempt=attempt) == 0
    assert len(stream.events_of(Drained)) == 1
    assert_nothing_lost(plan)


def test_a_driver_that_is_not_asked_runs_on(tmp_path: Path) -> None:
    """Also where nothing leads its processes."""
    stream = SimulatedStream(launch_folder=str(tmp_path))
    stream.deploy()
    stream.clock.after(30.0, (tmp_path / "another_file").touch)
    stream.clock.after(60.0, (tmp_path / ASKED_TO_END).touch)
    assert stream.run(waiting_script(make_plan())) == 0
    (stopped,) = stream.events_of(Stopped)
    began_at = stream.control.spec("d-0001").created_at
    assert (stopped.at - began_at).total_seconds() >= 60.0
