"""The ends of a drain, as its events tell them."""

from __future__ import annotations

from airflow_streamstate.driver.attempt.latch import order_of
from airflow_streamstate.driver.shutdown.drain_ends import CHOICES_WITHDRAWN, DrainEnds
from airflow_streamstate.driver.shutdown.drain_snapshots import DrainSnapshots
from airflow_streamstate.driver.shutdown.limits import CallOff
from airflow_streamstate.protocol.commands import DrainNotification
from airflow_streamstate.protocol.events import DrainFailed, Failed
from support.simulated_driver import SimulatedDriver, SimulatedStream


def ends_of(stream: SimulatedStream) -> DrainEnds:
    attempt, order = SimulatedDriver(stream).supervisor.attempt, order_of(stream.order(DrainNotification), 1)
    return DrainEnds(attempt, order, DrainSnapshots(attempt, order))


def test_a_drain_that_is_called_off_says_why_and_what_follows() -> None:
    """One event ends the order and the requests to take it back; nothing is to be chosen where the stream runs on."""
    stream = SimulatedStream()
    stream.deploy()
    ends = ends_of(stream)
    assert ends.said() is None
    ends.called_off(CallOff("cancelled", "fail", "ada has taken it back", ("request-1",)), "runs_on")
    said = ends.said()
    assert said == stream.events_of(DrainFailed)[0]
    assert (said.error, said.also_answers, said.choices) == ("ada has taken it back", ("request-1",), ())
    assert stream.commands() == []


def test_what_becomes_a_stop_has_its_choices() -> None:
    """Whoever reads the event at night finds what can be done."""
    stream = SimulatedStream()
    stream.deploy()
    ends_of(stream).called_off(CallOff("deadline", "stop", "a batch was late"), "stop")
    assert stream.events_of(DrainFailed)[0].choices == CHOICES_WITHDRAWN


def test_a_batch_that_cannot_be_cut_fails_the_attempt() -> None:
    """It is named, and the waits are over: the process is about to end."""
    stream = SimulatedStream()
    stream.deploy()
    ends_of(stream).not_cut(["counts"])
    (failed,) = stream.events_of(Failed)
    assert failed.error == "the batch in flight of counts could not be cut; the driver is ended"
