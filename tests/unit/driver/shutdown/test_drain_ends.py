"""The ends of a drain, in its events."""

from __future__ import annotations

import pytest

from airflow_streamstate.driver.attempt.latch import order_of
from airflow_streamstate.driver.shutdown.barriers import CallOff
from airflow_streamstate.driver.shutdown.drain import CHOICES_WITHDRAWN, DrainEnds
from airflow_streamstate.driver.shutdown.flush import DrainSnapshots
from airflow_streamstate.protocol.commands import DrainNotification
from airflow_streamstate.protocol.events import AfterDrain, DrainFailed, Failed
from support.simulated_driver import SimulatedDriver, SimulatedStream


def ends_of(stream: SimulatedStream) -> DrainEnds:
    attempt, order = SimulatedDriver(stream).attempt_life.attempt, order_of(stream.order(DrainNotification), 1)
    return DrainEnds(attempt, order, DrainSnapshots(attempt, order))


@pytest.mark.parametrize(
    ("call_off", "then", "choices"),
    [
        (CallOff("cancelled", "fail", "ada has taken it back", ("request-1",)), "runs_on", ()),
        (CallOff("deadline", "stop", "a batch was late"), "stop", CHOICES_WITHDRAWN),
    ],
)
def test_a_drain_that_is_called_off_says_why_and_what_follows(
    stream: SimulatedStream, call_off: CallOff, then: AfterDrain, choices: tuple[str, ...]
) -> None:
    """One event ends the drain and the requests to cancel it; there are no choices where the stream runs on."""
    ends = ends_of(stream)
    assert ends.said() is None
    ends.called_off(call_off, then)
    said = ends.said()
    assert said == stream.events_of(DrainFailed)[0]
    assert (said.error, said.also_answers, said.choices) == (call_off.why, call_off.answers, choices)
    assert stream.commands() == []


def test_a_batch_that_cannot_be_cut_fails_the_attempt(stream: SimulatedStream) -> None:
    """The event names the query; the process is about to end."""
    ends_of(stream).not_cut(["counts"])
    (failed,) = stream.events_of(Failed)
    assert failed.error == "the batch in flight of counts could not be cut; the driver is ended"
