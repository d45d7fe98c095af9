"""The latch of an attempt (1a.11)."""

from __future__ import annotations

from airflow_streamstate.driver.attempt.latch import Latch, Order
from support.fake_clock import FakeClock


def test_only_the_first_order_closes_the_latch() -> None:
    """A drain that arrives during a stop does not replace it (1a.11)."""
    latch = Latch(FakeClock())
    assert latch.is_open
    assert latch.close("stop", Order("c-1", 1))
    assert not latch.close("drain", Order("c-2", 2))
    assert (latch.state, latch.order.command_id) == ("stop", "c-1")


def test_a_release_happens_once_and_keeps_its_time() -> None:
    """The grace of the script counts from the first release."""
    clock = FakeClock()
    latch = Latch(clock)
    latch.close("stop", Order())
    latch.release("stopped")
    clock.advance(5)
    latch.release("stopped")
    assert latch.is_released
    assert latch.released_at_seconds == 0.0


def test_the_holder_knows_that_it_holds() -> None:
    """With one thread for all, the agent's step sees that a start() is under way (1a.11)."""
    latch = Latch(FakeClock())
    assert not latch.is_held_here
    with latch.held():
        with latch.held():
            assert latch.is_held_here
        assert latch.is_held_here
    assert not latch.is_held_here
