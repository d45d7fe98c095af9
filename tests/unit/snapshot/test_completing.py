"""The last acts of taking a snapshot whose place is elsewhere."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from airflow_streamstate.control.retention import MAKING_SECONDS
from airflow_streamstate.errors import (
    OutcomeUnknownError,
    SnapshotCorruptError,
    UnavailableError,
)
from airflow_streamstate.protocol.records import NO_SNAPSHOTS
from airflow_streamstate.snapshot.making import RENEW_AFTER_SHARE
from airflow_streamstate.snapshot.removal import Remover
from airflow_streamstate.snapshot.verify import verify
from airflow_streamstate.store.memory import MemoryStore
from support.faulty_store import KILL_POINTS, FaultPlan, FaultyStore, SimulatedCrash
from support.snapshots import PLACE, QUERY, SNAPSHOT, Shelf, placed_shelf, run_stateful


def test_what_an_older_snapshot_has_at_the_same_place_is_not_copied_again() -> None:
    """By Spark's checksums, where the store of the checkpoints tells no versions; both are whole."""
    shelf, place = placed_shelf(3)
    first = shelf.capture(kind="live", snapshot_id="s-1", kept_at=PLACE)
    run_stateful(shelf.checkpoint(), 4, first=4)
    second = shelf.capture(kind="live", snapshot_id="s-2", kept_at=PLACE)
    shared = [entry for entry in second.queries[QUERY].files if entry.shared_from]
    assert {entry.shared_from for entry in shared} == {"s-1/data"}
    assert {"metadata", "sources/0/0"} <= {entry.path for entry in shared}
    for manifest in (first, second):
        assert verify(shelf.control, place, manifest.snapshot_id) == []


def test_what_somebody_deleted_at_the_place_is_copied_again() -> None:
    """An older snapshot names it there, and it is not there (Law 3)."""
    shelf, place = placed_shelf(3)
    shelf.capture(kind="live", snapshot_id="s-1", kept_at=PLACE)
    place.delete(shelf.data_key("sources/0/0", snapshot_id="s-1"))
    run_stateful(shelf.checkpoint(), 4, first=4)
    shelf.capture(kind="live", snapshot_id="s-2", kept_at=PLACE)
    assert verify(shelf.control, place, "s-2") == []


def test_what_is_altered_on_its_way_makes_no_snapshot() -> None:
    """Each file is held against what was captured as it arrives."""
    shelf, _ = placed_shelf(3)

    class Altering(MemoryStore):
        def get(self, key: str):  # type: ignore[no-untyped-def]
            stored = super().get(key)
            if stored is None or not key.endswith("/data/counts/state/0/1/4.delta"):
                return stored
            return replace(stored, body=b"x" * len(stored.body))

    lying = Altering()
    for info in shelf.checkpoints.list_objects(""):
        stored = shelf.checkpoints.get(info.key)
        assert stored is not None
        lying.put(info.key, stored.body)
    again = replace(shelf, checkpoints=lying)
    with pytest.raises(SnapshotCorruptError):
        again.capture(kept_at=PLACE)
    assert again.control.manifest(SNAPSHOT) is None


def test_a_crash_at_any_write_leaves_no_half_snapshot_and_the_next_try_takes_it() -> None:
    """At the home, the checkpoints and the place alike: no manifest, or a whole snapshot (Laws 2 and 3)."""
    plan = FaultPlan()
    shelf, place = placed_shelf(2)
    replace(
        shelf,
        checkpoints=FaultyStore(shelf.checkpoints, plan),
        elsewhere={PLACE: FaultyStore(place, plan)},
    ).capture(kept_at=PLACE)
    writes = len(plan.writes)
    assert writes > 20
    for number in range(1, writes + 1):
        for point in KILL_POINTS:
            shelf, place = placed_shelf(2)
            plan = FaultPlan(at_write={number: point})
            faulty = replace(
                shelf,
                checkpoints=FaultyStore(shelf.checkpoints, plan),
                elsewhere={PLACE: FaultyStore(place, plan)},
            )
            try:
                faulty.capture(kept_at=PLACE)
            except (SimulatedCrash, UnavailableError, OutcomeUnknownError):
                found = shelf.control.manifest(SNAPSHOT)
                assert found is None or verify(shelf.control, place, SNAPSHOT) == []
            manifest = shelf.capture(kept_at=PLACE)
            assert verify(shelf.control, shelf.places.of(manifest), SNAPSHOT) == []


def test_two_that_take_the_same_snapshot_end_with_one() -> None:
    """An agent that slept and a controller that took over: who is second finds it, whatever the first one removed of
    what both had linked (Laws 2 and 4)."""
    calm, place = placed_shelf(2)
    plan = FaultPlan()
    replace(calm, checkpoints=FaultyStore(calm.checkpoints, plan), elsewhere={PLACE: FaultyStore(place, plan)}).capture(
        kept_at=PLACE
    )
    for call in [call for call in plan.calls if call.writes]:
        shelf, place = placed_shelf(2)
        other = partial(shelf.capture, kept_at=PLACE)
        paused = FaultPlan(meanwhile={call.number: other})
        slow = replace(
            shelf, checkpoints=FaultyStore(shelf.checkpoints, paused), elsewhere={PLACE: FaultyStore(place, paused)}
        )
        found = slow.capture(kept_at=PLACE)
        assert found == shelf.control.need_manifest(SNAPSHOT)
        assert verify(shelf.control, place, SNAPSHOT) == []


@pytest.mark.parametrize(("mine", "others"), [(PLACE, ""), ("", PLACE), (PLACE, NO_SNAPSHOTS)])
def test_two_that_keep_the_same_snapshot_in_different_places_end_with_one(mine: str, others: str) -> None:
    """A takeover that copies to a place for so long that a second one, which keeps snapshots elsewhere, is first: it
    removes what it had linked, and nothing that the other's manifest names (Laws 2 and 4)."""

    def paused_by(shelf: Shelf, plan: FaultPlan) -> Shelf:
        faulty = {uri: FaultyStore(store, plan) for uri, store in shelf.elsewhere.items()}
        return replace(shelf, checkpoints=FaultyStore(shelf.checkpoints, plan), elsewhere=faulty)

    calm = FaultPlan()
    paused_by(placed_shelf(2)[0], calm).capture(kept_at=mine)
    for call in [call for call in calm.calls if call.writes]:
        shelf, _ = placed_shelf(2)
        paused = FaultPlan(meanwhile={call.number: partial(shelf.capture, kept_at=others)})
        found = paused_by(shelf, paused).capture(kept_at=mine)
        assert found == shelf.control.need_manifest(SNAPSHOT)
        assert verify(shelf.control, shelf.places.of(found), SNAPSHOT) == []


def test_what_is_lost_at_a_place_is_copied_there_again() -> None:
    """A snapshot refers to no file of an older one that is gone: the checkpoint still has it."""
    shelf, place = placed_shelf(3)
    shelf.capture(kind="live", snapshot_id="s-1", kept_at=PLACE)
    lost = "state/0/1/2.delta"
    place.delete(shelf.data_key(lost, snapshot_id="s-1"))
    second = shelf.capture(kind="live", snapshot_id="s-2", kept_at=PLACE)
    third = shelf.capture(kind="live", snapshot_id="s-3", kept_at=PLACE)
    assert verify(shelf.control, place, "s-2") == []
    assert {entry.path: entry.shared_from for entry in second.queries[QUERY].files}[lost] == ""
    assert {entry.path: entry.shared_from for entry in third.queries[QUERY].files}[lost] == "s-2/data"


def test_a_copy_that_takes_long_is_not_abandoned() -> None:
    """It says again and again that it is being made: else every prune would make it begin anew (Law 6)."""
    shelf, place = placed_shelf(2)
    plan = FaultPlan()
    plan.before_each = lambda: shelf.clock.sleep(MAKING_SECONDS * RENEW_AFTER_SHARE / 4)
    abandoned: list[str] = []

    def go_on() -> None:
        abandoned.extend(Remover(shelf.control, shelf.places, "test").sweep().abandoned)

    began = shelf.clock.monotonic_seconds()
    manifest = replace(shelf, elsewhere={PLACE: FaultyStore(place, plan)}).capture(kept_at=PLACE, go_on=go_on)
    assert shelf.clock.monotonic_seconds() - began > MAKING_SECONDS
    assert abandoned == []
    assert verify(shelf.control, shelf.places.of(manifest), SNAPSHOT) == []
