"""Time, ids and chance."""

from __future__ import annotations

import re
from datetime import datetime, timezone

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock, whole_milliseconds
from support.fake_clock import START_AT, FakeClock


def test_now_is_aware_utc_in_whole_milliseconds() -> None:
    """A time survives the trip over the wire."""
    now = SYSTEM_CLOCK.now()
    assert now.tzinfo is timezone.utc
    assert now == whole_milliseconds(now)
    assert whole_milliseconds(datetime(2026, 3, 1, 0, 0, 0, 123_999, tzinfo=timezone.utc)).microsecond == 123_000


def test_waits_have_a_clock_that_never_goes_back() -> None:
    """Sleeping moves it forward; a negative pause is none."""
    before = SYSTEM_CLOCK.monotonic_seconds()
    SYSTEM_CLOCK.sleep(0.001)
    SYSTEM_CLOCK.sleep(-5)
    assert SYSTEM_CLOCK.monotonic_seconds() > before


def test_ids_are_unique_uuids() -> None:
    """In their canonical lower-case form."""
    ids = {SYSTEM_CLOCK.new_uuid() for _ in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", one) for one in ids)


def test_jitter_is_a_fraction() -> None:
    """In [0, 1)."""
    assert all(0 <= SYSTEM_CLOCK.jitter() < 1 for _ in range(100))


def test_the_fake_clock_is_a_clock_that_tests_move() -> None:
    """Sleeping takes no time and moves it; ids are the same in every run, and others for another seed."""
    clock: Clock = FakeClock()
    clock.sleep(1.5)
    assert (clock.now() - START_AT).total_seconds() == clock.monotonic_seconds() == 1.5
    assert [FakeClock().new_uuid(), FakeClock(seed=1).new_uuid()] == [
        FakeClock().new_uuid(),
        FakeClock(seed=1).new_uuid(),
    ]
    assert FakeClock().new_uuid() != FakeClock(seed=1).new_uuid()
    assert clock.new_uuid() != clock.new_uuid()
