"""Drains that another end overtook."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from airflow_streamstate.driver.shutdown.overtaken import note_overtaken_drain
from airflow_streamstate.protocol.commands import DrainNotification, StopRequest
from airflow_streamstate.protocol.events import Drained, Noted, Stopped
from support.simulated_driver import SimulatedDriver, SimulatedStream, make_plan, waiting_script


def overtaken(stream: SimulatedStream) -> list[object]:
    """The drains of which some attempt said so."""
    found = (event.facts.get("overtaken_command_id") for event in stream.events_of(Noted))
    return [command_id for command_id in found if command_id is not None]


def is_tried_for_ever(driver: SimulatedDriver) -> None:
    """The trial of the drain is slow: nobody knows yet whether it can be begun."""
    driver.start(make_plan(400))
    driver.supervisor.attempt.in_background = never_done
    driver.await_all()


def never_done(_work: Callable[[], None], *, gives_way: bool = True) -> None:
    assert not gives_way, "somebody waits for it"


def test_a_drain_that_a_stop_overtook_is_told_and_done_by_the_next_attempt() -> None:
    """The stop ends the attempt; the drain holds for the deployment, and the events say so before the end (1a.11)."""
    stream = SimulatedStream()
    stream.deploy()
    stream.order_at(7.7, DrainNotification, rehearse=True)
    stream.order_at(8.0, StopRequest)
    driver = SimulatedDriver(stream)
    assert driver.run(is_tried_for_ever) == 0
    (slot,) = stream.control.journal("d-0001").commands()
    command = slot.command
    assert command is not None
    assert overtaken(stream) == [command.command_id]
    assert stream.events_of(Noted)[0].at <= stream.events_of(Stopped)[0].at
    note_overtaken_drain(driver.supervisor.attempt)
    assert overtaken(stream) == [command.command_id], "an end that is begun again says nothing twice"
    attempt = stream.next_attempt()
    assert stream.run(waiting_script(make_plan(400)), attempt=attempt) == 0
    assert [event.command_id for event in stream.events_of(Drained)] == [command.command_id]
    assert overtaken(stream) == [command.command_id]


def test_a_drain_that_a_failure_overtook_is_told_too() -> None:
    """The script fails while the drain is tried: whoever looks why it was not drained finds that it still is to be."""
    stream = SimulatedStream()
    stream.deploy()
    stream.order_at(7.7, DrainNotification, rehearse=True)

    def fails(driver: SimulatedDriver) -> None:
        driver.start(make_plan(400))
        driver.supervisor.attempt.in_background = never_done
        driver.clock.sleep(10.0)
        raise ValueError("boom")

    assert stream.run(fails) == 1
    (slot,) = stream.control.journal("d-0001").commands()
    assert slot.command is not None
    assert overtaken(stream) == [slot.command.command_id]
    assert stream.kinds("d-0001")[-1] == "Failed"


def test_nothing_is_said_where_no_drain_waits() -> None:
    """A stop alone, or a drain whose deadline has passed by then."""
    for is_drained in (False, True):
        stream = SimulatedStream()
        stream.deploy()
        if is_drained:
            deadline_at = stream.clock.now() + timedelta(seconds=7.9)
            stream.order_at(7.7, DrainNotification, rehearse=True, deadline_at=deadline_at)
        stream.order_at(8.0, StopRequest)
        assert SimulatedDriver(stream).run(is_tried_for_ever) == 0
        assert stream.events_of(Stopped)
        assert stream.events_of(Drained) == []
        assert overtaken(stream) == []
