"""What a process holds for a time, and for how long it can be sure of it."""

from __future__ import annotations

import pytest

from airflow_streamstate.control.objects import RENEW_SHARE, Lease
from airflow_streamstate.errors import UnavailableError
from support.fake_clock import FakeClock


def test_a_lease_that_was_never_written_is_due_and_one_that_was_is_not() -> None:
    """From a share of it on it is renewed, at whichever step comes next."""
    clock = FakeClock()
    assert Lease(clock, 100.0).is_due()
    lease = Lease(clock, 100.0, is_held=True)
    assert not lease.is_due()
    clock.sleep(100.0 * RENEW_SHARE)
    assert lease.is_due()
    assert not lease.is_due(0.5)


def test_how_long_the_write_took_counts() -> None:
    """Others read the end that was computed before the write. (Law 4)"""
    clock = FakeClock()
    lease, began_at = Lease(clock, 100.0), clock.now()
    with lease.renewed() as until_at:
        clock.sleep(30.0)
    assert (until_at - began_at).total_seconds() == 100.0
    assert lease.age_seconds == 30.0


def test_a_write_that_failed_renews_nothing() -> None:
    """What was held is held as long as before."""
    clock = FakeClock()
    lease = Lease(clock, 100.0, is_held=True)
    clock.sleep(40.0)
    with pytest.raises(UnavailableError), lease.renewed():
        raise UnavailableError("the store is away")
    assert lease.age_seconds == 40.0


class TwoClocks(FakeClock):
    """One on the wall, and one that stops while the machine sleeps."""

    asleep_seconds = 0.0

    def monotonic_seconds(self) -> float:
        return super().monotonic_seconds() - self.asleep_seconds


@pytest.mark.parametrize("asleep_seconds", [0.0, 90.0, -90.0])
def test_the_clock_that_says_more_counts(asleep_seconds: float) -> None:
    """A machine that slept, or whose clock was set, holds nothing that another one may have taken. (Law 4)"""
    clock = TwoClocks()
    lease = Lease(clock, 100.0, is_held=True)
    clock.advance(90.0)
    clock.asleep_seconds = asleep_seconds
    assert lease.age_seconds == (180.0 if asleep_seconds < 0 else 90.0)
