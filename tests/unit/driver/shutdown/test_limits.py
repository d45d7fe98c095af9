"""The limits of a drain."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.latch import Order, order_of
from airflow_streamstate.driver.shutdown.barriers import CalledOffError, Limits
from airflow_streamstate.protocol.codec import NEWEST_PROTOCOL
from airflow_streamstate.protocol.commands import CancelRequest, DrainNotification
from airflow_streamstate.protocol.events import Rejected
from support.simulated_driver import SimulatedDriver, SimulatedStream, make_command


class Watched:
    """An attempt that drains, and the limits of its drain."""

    def __init__(self, **terms: Any) -> None:
        self.stream = SimulatedStream()
        self.stream.deploy()
        self.attempt: Attempt = SimulatedDriver(self.stream).attempt_life.attempt
        if "batches_within_seconds" in terms:
            terms["batches_by_at"] = self.stream.clock.now() + timedelta(seconds=terms.pop("batches_within_seconds"))
        command = self.stream.order(DrainNotification, **terms)
        self.limits = Limits(self.attempt, order_of(command, 1))


@pytest.mark.parametrize(("late_ms", "is_enough"), [(-1, False), (0, False), (1, True)])
def test_the_deadline_of_the_batches_is_a_moment(late_ms: int, is_enough: bool) -> None:
    """At that very moment it has not passed; a millisecond later it has."""
    watched = Watched(batches_within_seconds=10.0, on_deadline="stop")
    watched.stream.clock.sleep(10.0 + late_ms / 1000)
    assert watched.limits.is_enough() == is_enough
    reached = watched.limits.reached
    assert (reached is None) != is_enough
    if reached is not None:
        assert (reached.cause, reached.on_deadline, reached.answers) == ("deadline", "stop", ())
        with pytest.raises(CalledOffError, match="not committed by"):
            watched.limits.check()


def test_the_flush_has_its_own_time_from_its_beginning() -> None:
    """However long the batches took before it."""
    watched = Watched(flush_within_seconds=5.0, on_flush_deadline="kill")
    watched.stream.clock.sleep(100)
    assert not watched.limits.is_enough()
    watched.limits.begin_flush()
    watched.stream.clock.sleep(5.0)
    watched.limits.begin_flush()  # a later stage of the same flush
    assert not watched.limits.is_flush_late()
    watched.stream.clock.sleep(0.001)
    assert watched.limits.is_flush_late()
    reached = watched.limits.reached
    assert reached is not None
    assert (reached.cause, reached.on_deadline) == ("flush_deadline", "kill")


def test_a_drain_whose_command_is_lost_has_no_limits() -> None:
    """Only the log has the drain."""
    watched = Watched()
    limits = Limits(watched.attempt, Order("only-its-id"))
    limits.begin_flush()
    watched.stream.clock.sleep(1_000)
    assert not limits.is_enough()
    assert not limits.is_flush_late()


def test_a_request_to_cancel_is_obeyed_until_the_flush_and_rejected_after() -> None:
    """Requests from before the drain, for another deployment, or past their deadline cancel nothing."""
    watched = Watched()
    stream, journal = watched.stream, watched.attempt.journal
    foreign = make_command(CancelRequest, stream.clock, "d-0009")
    journal.write_command(foreign, NEWEST_PROTOCOL)
    assert not watched.limits.is_enough()
    request = stream.order(CancelRequest)
    stream.clock.sleep(1.0)
    assert watched.limits.is_enough()
    reached = watched.limits.reached
    assert reached is not None
    assert (reached.cause, reached.on_deadline, reached.answers) == ("cancelled", "fail", (request.command_id,))

    flushing = Limits(watched.attempt, order_of(make_command(DrainNotification, stream.clock, "d-0001"), 1))
    flushing.begin_flush()
    assert not flushing.is_flush_late()
    (rejected,) = stream.events_of(Rejected)
    assert rejected.command_id == request.command_id


def test_an_order_of_before_it_does_not_take_back_a_later_drain() -> None:
    """The later command counts."""
    watched = Watched()
    watched.stream.order(CancelRequest)
    later = watched.stream.order(DrainNotification)
    assert not Limits(watched.attempt, order_of(later, 3)).is_enough()
