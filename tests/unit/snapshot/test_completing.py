"""The last acts of taking a snapshot whose place is elsewhere."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_streamstate.control.registers import MAKING_SECONDS
from airflow_streamstate.errors import (
    OutcomeUnknownError,
    SnapshotCorruptError,
    SnapshotNotFoundError,
    UnavailableError,
)
from airflow_streamstate.protocol.records import DeploymentSpec
from airflow_streamstate.protocol.terms.version import NO_SNAPSHOTS
from airflow_streamstate.snapshot.capture import RENEW_AFTER_SHARE
from airflow_streamstate.snapshot.deletion import Remover, leased
from airflow_streamstate.snapshot.verify import verify
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.memory import MemoryStore
from support.examples import EXAMPLES
from support.faulty_store import KILL_POINTS, FaultPlan, FaultyStore, SimulatedCrash
from support.interleaved import play
from support.recorded_specs import with_version
from support.shelf_acts import IDS, Act, all_but, assert_no_defect, data_there, kept, keys_of, pinning, waiting
from support.snapshots import DEPLOYMENT, PLACE, QUERY, SNAPSHOT, STREAM, Shelf, placed_shelf, run_stateful

pytestmark = pytest.mark.fast


def test_what_an_older_snapshot_has_at_the_same_place_is_not_copied_again() -> None:
    """By Spark's checksums, where the store of the checkpoints reports no versions; both are complete."""
    shelf, place = placed_shelf(3)
    first = shelf.capture(kind="live", snapshot_id="s-1", kept_at=PLACE)
    run_stateful(shelf.checkpoint(), 4, first=4)
    second = shelf.capture(kind="live", snapshot_id="s-2", kept_at=PLACE)
    shared = [entry for entry in second.queries[QUERY].files if entry.shared_from]
    assert {entry.shared_from for entry in shared} == {"s-1/data"}
    assert {"metadata", "sources/0/0"} <= {entry.path for entry in shared}
    for manifest in (first, second):
        assert verify(shelf.control, place, manifest.snapshot_id) == []


def test_what_is_altered_on_its_way_makes_no_snapshot() -> None:
    """Each file is compared with what was captured as it arrives."""
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
        lying.put(info.key, stored.body)
    again = replace(shelf, checkpoints=lying)
    with pytest.raises(SnapshotCorruptError):
        again.capture(kept_at=PLACE)
    assert again.control.manifest(SNAPSHOT) is None


def test_a_crash_at_any_write_leaves_no_half_snapshot_and_the_next_try_takes_it() -> None:
    """At the home, the checkpoints and the place alike: no manifest, or a complete snapshot (Laws 2 and 3)."""
    plan = FaultPlan()
    struck_by(placed_shelf(2)[0], plan).capture(kept_at=PLACE)
    writes = len(plan.writes)
    assert writes > 20
    for number in range(1, writes + 1):
        for point in KILL_POINTS:
            shelf, place = placed_shelf(2)
            try:
                struck_by(shelf, FaultPlan(at_write={number: point})).capture(kept_at=PLACE)
            except (SimulatedCrash, UnavailableError, OutcomeUnknownError):
                found = shelf.control.manifest(SNAPSHOT)
                assert found is None or verify(shelf.control, place, SNAPSHOT) == []
            manifest = shelf.capture(kept_at=PLACE)
            assert verify(shelf.control, shelf.places.of(manifest), SNAPSHOT) == []


def struck_by(shelf: Shelf, plan: FaultPlan) -> Shelf:
    """The shelf, each call to whose stores meets this plan."""
    faulty = {uri: FaultyStore(store, plan) for uri, store in shelf.elsewhere.items()}
    return replace(shelf, checkpoints=FaultyStore(shelf.checkpoints, plan), elsewhere=faulty)


@pytest.mark.parametrize(("mine", "others"), [(PLACE, PLACE), (PLACE, ""), ("", PLACE), (PLACE, NO_SNAPSHOTS)])
def test_two_that_take_the_same_snapshot_end_with_one(mine: str, others: str) -> None:
    """An agent that slept and a controller that took over, in one place or two: the second finds the first one's
    snapshot, and removes only what it had linked itself (Laws 2 and 4)."""
    calm = FaultPlan()
    struck_by(placed_shelf(2)[0], calm).capture(kept_at=mine)
    for call in [call for call in calm.calls if call.writes]:
        shelf, _ = placed_shelf(2)
        paused = FaultPlan(meanwhile={call.number: partial(shelf.capture, kept_at=others)})
        found = struck_by(shelf, paused).capture(kept_at=mine)
        assert found == shelf.control.need_manifest(SNAPSHOT)
        assert verify(shelf.control, shelf.places.of(found), SNAPSHOT) == []


@pytest.mark.parametrize("lost", ["state/0/1/2.delta", "sources/0/0"])
def test_what_is_lost_at_a_place_is_copied_there_again(lost: str) -> None:
    """A snapshot refers to no file of an older one that is gone: the checkpoint still has it (Law 3)."""
    shelf, place = placed_shelf(3)
    shelf.capture(kind="live", snapshot_id="s-1", kept_at=PLACE)
    place.delete(shelf.data_key(lost, snapshot_id="s-1"))
    second = shelf.capture(kind="live", snapshot_id="s-2", kept_at=PLACE)
    third = shelf.capture(kind="live", snapshot_id="s-3", kept_at=PLACE)
    assert verify(shelf.control, place, "s-2") == []
    assert {entry.path: entry.shared_from for entry in second.queries[QUERY].files}[lost] == ""
    assert {entry.path: entry.shared_from for entry in third.queries[QUERY].files}[lost] == "s-2/data"


def test_a_copy_that_takes_long_is_not_abandoned() -> None:
    """It reports again and again that it is being made: else every prune would make it start again (Law 6)."""
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


def needed_at(shelf: Shelf, uri: str) -> set[str]:
    """The files that snapshots have at one of the stores."""
    there = [manifest for manifest in kept(shelf).values() if manifest.data_uri == uri]
    return set().union(*map(keys_of, there))


class GuardedAt(MemoryStore):
    """One of two stores: nothing is deleted that a snapshot which exists, and is not condemned, has there."""

    def __init__(self, name: str, uri: str, shelf: list[Shelf]) -> None:
        super().__init__(name)
        self._place, self._shelf = uri, shelf

    def delete(self, key: str, version: str | None = None) -> None:
        if self._shelf and "/data" in key:
            assert key not in needed_at(self._shelf[0], self._place), f"{key} is deleted, and a snapshot has it"
        super().delete(key, version)


def guarded_shelf() -> tuple[Shelf, MemoryStore]:
    """A snapshot alongside the checkpoints, one at a place, and a batch after them."""
    shelves: list[Shelf] = []
    place = GuardedAt("place", PLACE, shelves)
    shelf = Shelf(GuardedAt("checkpoints", "", shelves), elsewhere={PLACE: place})
    shelves.append(shelf)
    spec = next(one for one in EXAMPLES if isinstance(one, DeploymentSpec))
    shelf.control.create_spec(replace(with_version(spec, snapshots=PLACE), stream_id=STREAM, deployment_id=DEPLOYMENT))
    shelf.places.claim(shelf.control, PLACE)
    for number, kept_at in enumerate(("", PLACE)):
        run_stateful(shelf.checkpoint(), 2 + number, first=0 if number == 0 else 2 + number)
        shelf.capture(snapshot_id=IDS[number], kind="live", kept_at=kept_at)
    run_stateful(shelf.checkpoint(), 4, first=4)
    return shelf, place


def assert_whole_here_and_there(shelf: Shelf, place: MemoryStore) -> None:
    """Before and after a prune by which dead writers are known as dead, and which leaves nothing else."""
    for _ in range(2):
        for snapshot_id, manifest in kept(shelf).items():
            assert verify(shelf.control, shelf.places.of(manifest), snapshot_id) == []
        shelf.clock.sleep(MAKING_SECONDS + 1)
        assert Remover(shelf.control, shelf.places, "test").sweep().problems == []
    for uri, store in (("", shelf.checkpoints), (PLACE, place)):
        assert data_there(store) == needed_at(shelf, uri)


turns = st.lists(st.tuples(st.integers(0, 8), st.integers(1, 12)), max_size=60)
deaths = st.dictionaries(st.integers(0, 5), st.integers(1, 120), max_size=2)


@pytest.mark.full
@settings(max_examples=30)
@given(turns=turns, dies_at=deaths)
def test_taken_here_and_there_beside_everything_else_each_snapshot_is_whole(
    turns: list[tuple[int, int]], dies_at: dict[int, int]
) -> None:
    """Three that take one snapshot, two of them for a place and one for the checkpoints' store, another one that takes
    the next, two that prune, a reader that gathers a copy, a pin and the time, in any order of their calls, some of
    them killed: no file goes that a manifest has, at neither store, and in the end nothing else is left (Law 3)."""
    shelf, place = guarded_shelf()
    missing: list[str] = []

    def mine(store: Store) -> Shelf:
        assert isinstance(store, FaultyStore)
        return replace(shelf, checkpoints=store, elsewhere={PLACE: FaultyStore(place, store.plan)})

    def taking(snapshot_id: str, kept_at: str) -> Act:
        def act(store: Store) -> None:
            for _ in range(3):
                with suppress(UnavailableError):
                    mine(store).capture(snapshot_id=snapshot_id, kind="live", kept_at=kept_at)
                    return

        return act

    def pruning(*keep: str) -> Act:
        def act(store: Store) -> None:
            remover = Remover(mine(store).control, mine(store).places, "test")
            remover.condemn(kept(mine(store)), all_but(*keep))
            remover.sweep()

        return act

    def reading(store: Store) -> None:
        own = mine(store)
        with suppress(SnapshotNotFoundError), leased(own.control, IDS[1], "reader", 1e6) as lease:
            here = lease.landed(own.places, own.control.need_manifest(IDS[1]), [QUERY])
            store.head("turn.json")
            there = {info.key for info in shelf.checkpoints.list_objects(f"{STREAM}/")}
            missing.extend(keys_of(here) - there)

    acts = [
        taking(IDS[2], PLACE), taking(IDS[3], ""), pruning(IDS[3]), pruning(IDS[2], IDS[3]), taking(IDS[2], PLACE),
        taking(IDS[2], ""), reading, pinning(shelf, IDS[0]), waiting(shelf),
    ]  # fmt: skip
    assert_no_defect(play(shelf.checkpoints, acts, turns, dies_at))
    assert missing == []
    assert_whole_here_and_there(shelf, place)
