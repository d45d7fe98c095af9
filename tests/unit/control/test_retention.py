"""The register of what is kept: what a writer may refer to, and what is being removed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.control.registers import Retention
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import ConflictError, SnapshotNotFoundError
from airflow_streamstate.protocol.policies import PendingDeletion
from airflow_streamstate.store.memory import MemoryStore
from support.fake_clock import FakeClock

OLD, NEWEST, NEXT = (f"d-0001-live-{number:06}" for number in (1, 2, 3))


@pytest.fixture
def retention() -> Retention:
    """Of a stream whose newest snapshot is being removed."""
    clock = FakeClock()
    found = Retention(StreamControl(MemoryStore("home"), "orders", clock), "a controller")
    condemned = {NEWEST: PendingDeletion(clock.now())}
    found.change(lambda register: replace(register, newest_snapshot_id=NEWEST, condemned=condemned))
    return found


def test_a_snapshot_refers_to_none_that_is_being_removed(retention: Retention) -> None:
    """Its files would go with that one. (Law 3)"""
    assert retention.begin(NEXT, needs=(OLD, NEWEST)).base_ids == (OLD,)


def test_what_is_being_removed_is_neither_taken_again_nor_read_nor_pinned(retention: Retention) -> None:
    """Whoever holds it would be left with a part of it. (Law 3)"""
    with pytest.raises(ConflictError, match="was removed, and is not taken again"):
        retention.begin(NEWEST)
    with pytest.raises(SnapshotNotFoundError, match="is being removed"):
        retention.lease("l-1", NEWEST, "a reader", FakeClock().now())
    with pytest.raises(SnapshotNotFoundError, match="cannot be pinned any more"):
        retention.pin(NEWEST)
    register = retention.read()
    assert (register.makings, register.leases, register.pins) == ({}, {}, {})


def test_an_older_version_does_not_become_the_last_known_good_one(retention: Retention) -> None:
    """What the newer one needs would be removed. (Law 3)"""
    for deployment_id in ("d-0002", "d-0001", "d-0003"):
        retention.mark_good(deployment_id)
    known_good = retention.mark_good("d-0002").known_good
    assert known_good is not None
    assert known_good.deployment_id == "d-0003"
