"""A snapshot in the making."""

from __future__ import annotations

import pytest

from airflow_streamstate.control.retention import MAKING_SECONDS, Retention
from airflow_streamstate.errors import InvalidRequestError, UnavailableError
from airflow_streamstate.snapshot.making import Renewal, making
from airflow_streamstate.snapshot.removal import Remover
from support.faulty_store import Fault, FaultPlan, FaultyStore, SimulatedCrash
from support.snapshots import DEPLOYMENT, SNAPSHOT, STREAM, Shelf, run_stateful

REHEARSAL = "r-5f0c1b7e6a0c-0001"


def test_it_is_recorded_for_as_long_as_it_is_made() -> None:
    """Not longer: neither where it is complete nor where it was refused; of a crash the record stays (Law 1)."""
    shelf = Shelf()
    run_stateful(shelf.checkpoint(), 2)
    retention = Retention(shelf.control)
    shelf.capture()
    assert (retention.read().makings, retention.read().newest_snapshot_id) == ({}, "d-0001-stopped-000001")
    with pytest.raises(InvalidRequestError):
        shelf.capture({}, snapshot_id="d-0001-live-000001", kind="live")
    assert retention.read().makings == {}
    dying = FaultyStore(shelf.checkpoints, FaultPlan(at_write={3: Fault.CRASH_BEFORE}))
    run_stateful(shelf.checkpoint(), 3, first=3)
    with pytest.raises(SimulatedCrash):
        Shelf(dying, clock=shelf.clock).capture(snapshot_id="d-0001-live-000002", kind="live")
    (made,) = retention.read().makings.values()
    assert (made.snapshot_id, made.base_ids) == ("d-0001-live-000002", ("d-0001-stopped-000001",))


def test_what_a_rehearsal_forks_is_none_that_is_kept() -> None:
    """It goes with its rehearsal: no record, and nothing shared."""
    shelf = Shelf()
    with making(shelf.control, REHEARSAL, DEPLOYMENT, "controller", ()) as made:
        assert (made.take, made.bases, made.begun) == (1, None, None)
    assert shelf.checkpoints.head(f"{STREAM}/retention.json") is None


def test_one_that_was_abandoned_while_it_was_made_is_not_renewed() -> None:
    """Whoever slept for too long finds that before he copies on, and begins anew."""
    shelf = Shelf()
    with making(shelf.control, SNAPSHOT, DEPLOYMENT, "agent", ()) as made:
        renewal = Renewal(made)
        shelf.clock.advance(MAKING_SECONDS - 1)
        renewal.renew()
        shelf.clock.advance(MAKING_SECONDS - 1)
        assert Remover(shelf.control, shelf.places, "test").sweep().abandoned == []
        shelf.clock.advance(2)
        assert Remover(shelf.control, shelf.places, "test").sweep().abandoned == [SNAPSHOT]
        with pytest.raises(UnavailableError, match="it was abandoned"):
            renewal.renew()
