"""Accepting commands, and their ends."""

from __future__ import annotations

import pytest

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.driver.attempt.answers import accept, call_off_drain, clean_up
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.latch import order_of
from airflow_streamstate.protocol.commands import DrainNotification, StopRequest
from airflow_streamstate.protocol.events import Ignored
from support.faulty_store import Fault, FaultPlan, FaultyStore
from support.simulated_driver import STREAM, SimulatedDriver, SimulatedStream


def make_attempt(stream: SimulatedStream, faults: FaultPlan | None = None) -> Attempt:
    store = FaultyStore(stream.checkpoints, faults)
    return SimulatedDriver(stream, control=StreamControl(store, STREAM, stream.clock)).attempt_life.attempt


def test_a_command_is_accepted_once(stream: SimulatedStream) -> None:
    """A driver that continues after a crash accepts nothing twice (Law 2)."""
    attempt = make_attempt(stream)
    order = order_of(stream.order(StopRequest), 1)
    accept(attempt, order)
    accept(attempt, order)
    assert stream.kinds() == ["Accepted"]


def test_the_clean_up_takes_what_has_its_end_and_nothing_else(stream: SimulatedStream) -> None:
    """A pending command stays."""
    attempt = make_attempt(stream)
    first, second = stream.order(StopRequest), stream.order(DrainNotification)
    attempt.reporter.write(Ignored, command_id=first.command_id, command_number=1, command={}, reason="no")
    clean_up(attempt)
    left = [slot.command for slot in stream.control.journal("d-0001").commands()]
    assert left == [second]


def test_a_clean_up_outlasts_a_lost_reply(stream: SimulatedStream) -> None:
    """The driver tries it again."""
    faults = FaultPlan()
    attempt = make_attempt(stream, faults)
    command = stream.order(StopRequest)
    attempt.reporter.write(Ignored, command_id=command.command_id, command_number=1, command={}, reason="no")
    faults.at = {len(faults.calls) + 1: Fault.UNAVAILABLE, len(faults.calls) + 4: Fault.REPLY_LOST}
    clean_up(attempt)
    assert stream.commands() == []


@pytest.mark.parametrize(("only_drains", "released"), [(False, False), (True, True)])
def test_a_drain_that_is_called_off_opens_the_latch_unless_it_was_all(
    stream: SimulatedStream, only_drains: bool, released: bool
) -> None:
    """An attempt that only drains starts nothing instead."""
    attempt = make_attempt(stream)
    attempt.note_mode("drain" if only_drains else "run")
    attempt.latch.close("drain", order_of(stream.order(DrainNotification), 1))
    call_off_drain(attempt, "it cannot")
    assert stream.kinds() == ["Rejected"]
    assert attempt.latch.is_released is released
    assert attempt.latch.is_open is not released
    assert stream.commands() == []
