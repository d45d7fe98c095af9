"""What was half copied to a mirror, and copies made alongside writers, readers and prunes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_streamstate.control.registers import CLOCKS_DIFFER_SECONDS, MAKING_SECONDS, Retention
from airflow_streamstate.errors import ConflictError, InvalidRequestError, SnapshotNotFoundError
from airflow_streamstate.protocol import layout
from airflow_streamstate.snapshot import copy
from airflow_streamstate.snapshot.deletion import LEASE_SECONDS, PARTIAL_SECONDS, REMEMBERED_SECONDS, Remover
from airflow_streamstate.snapshot.location import SnapshotPlaces
from airflow_streamstate.snapshot.mirror_copies import (
    carry_records,
    close_copies,
    delete_partial_copies,
    is_mirrored,
    mirror_snapshot,
)
from airflow_streamstate.snapshot.verify import verify
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore
from airflow_streamstate.store.transfer import STALE_UPLOAD_SECONDS
from support.faulty_store import Fault, FaultPlan, FaultyStore, SimulatedCrash
from support.interleaved import play
from support.shelf_acts import (
    IDS,
    GuardedStore,
    assert_no_defect,
    assert_whole,
    clearing,
    closing,
    data_needed,
    data_there,
    kept,
    mirroring,
    pinning,
    prune,
    pruning,
    reading,
    restore,
    restoring,
    shelf_with,
    taking,
    waiting,
    with_spec,
)
from support.snapshots import DEPLOYMENT, PLACE, SNAPSHOT, STREAM, Shelf, placed_shelf, run_stateful
from support.uploading_store import UploadingStore

pytestmark = pytest.mark.fast


class BeforeDelete(FaultyStore):
    """Another process acts right before the first file of a snapshot is deleted."""

    def __init__(self, inner: Store, act: Callable[[], None]) -> None:
        super().__init__(inner, FaultPlan())
        self._act: Callable[[], None] | None = act

    def delete(self, key: str, version: str | None = None) -> None:
        act, self._act = self._act if "/data" in key else None, None if "/data" in key else self._act
        if act is not None:
            act()
        super().delete(key, version)


def half_copied(shelf: Shelf, snapshot_id: str, mirror: Store, writes: int = 12) -> None:
    """A copy whose process was killed."""
    dying = FaultyStore(mirror, FaultPlan(at_write={writes: Fault.CRASH_BEFORE}))
    with pytest.raises(SimulatedCrash):
        mirror_snapshot(shelf.control, shelf.checkpoints, dying, snapshot_id)
    assert data_there(mirror)


def removed(shelf: Shelf, *keep: str) -> None:
    """What a dead reader had leased has ended, and all but these are pruned."""
    shelf.clock.sleep(LEASE_SECONDS + CLOCKS_DIFFER_SECONDS + 1)
    prune(shelf, *keep)


@pytest.mark.parametrize("of_all", [True, False])
@pytest.mark.parametrize("on_disk", [True, False])
def test_a_half_goes_once_its_snapshot_is_gone(tmp_path: Path, of_all: bool, on_disk: bool) -> None:
    """Before that it waits for a copy that continues it; what another copy shares with it stays (Law 3)."""
    shelf = with_spec(shelf_with(3))
    mirror = LocalStore(tmp_path) if on_disk else MemoryStore("mirror")
    half_copied(shelf, IDS[0], mirror)
    assert delete_partial_copies(shelf.control, mirror, "test", of_all=of_all) == 0
    removed(shelf, *IDS[1:])
    mirror_snapshot(shelf.control, shelf.checkpoints, mirror, IDS[1])
    there, needed = data_there(mirror), data_needed(mirror)
    assert there >= needed
    assert delete_partial_copies(shelf.control, mirror, "test", of_all=of_all) == len(there - needed)
    assert data_there(mirror) == needed
    assert verify(Shelf(mirror).control, mirror, IDS[1]) == []
    assert not is_mirrored(shelf.control, mirror, IDS[0])


def test_a_half_of_long_ago_is_found_by_a_look_at_every_folder() -> None:
    """Also where the home has forgotten that it ever had the snapshot; and then the record goes, too."""
    shelf, mirror = with_spec(shelf_with(2)), MemoryStore("mirror")
    half_copied(shelf, IDS[0], mirror)
    removed(shelf)
    shelf.clock.sleep(REMEMBERED_SECONDS + 1)
    prune(shelf)
    assert Retention(shelf.control).read().condemned == {}
    assert delete_partial_copies(shelf.control, mirror, "test") == 0
    assert delete_partial_copies(shelf.control, mirror, "test", of_all=True) > 0
    assert [info.key for info in mirror.list_objects(f"{layout.snapshots_folder(STREAM)}/")] == [
        layout.manifest_key(STREAM, IDS[0])
    ]
    shelf.clock.sleep(REMEMBERED_SECONDS + 1)
    delete_partial_copies(shelf.control, mirror, "test", of_all=True)
    assert list(mirror.list_objects(f"{layout.snapshots_folder(STREAM)}/")) == []


@pytest.mark.parametrize(("back", "refusal"), [(0, ConflictError), (1, SnapshotNotFoundError)])
def test_a_copy_that_slept_completes_nothing_that_was_cleared(back: int, refusal: type[Exception]) -> None:
    """It wakes up at its manifest or just before it: the copy was abandoned, or the snapshot is gone; one that is taken
    under the same id long after is copied whole over what was closed (Laws 3 and 4)."""
    shelf, mirror = with_spec(shelf_with(2)), MemoryStore("mirror")
    counting = FaultPlan()
    mirror_snapshot(shelf.control, shelf.checkpoints, FaultyStore(MemoryStore(), counting), IDS[0])
    key = layout.manifest_key(STREAM, IDS[0])
    last = next(call.number for call in counting.calls if (call.method, call.key) == ("create", key))

    def meanwhile() -> None:
        removed(shelf)
        assert delete_partial_copies(shelf.control, mirror, "test") > 0

    sleeper = FaultyStore(mirror, FaultPlan(meanwhile={last - back: meanwhile}))
    with pytest.raises(refusal):
        mirror_snapshot(shelf.control, shelf.checkpoints, sleeper, IDS[0])
    assert not is_mirrored(shelf.control, mirror, IDS[0])
    shelf.clock.sleep(REMEMBERED_SECONDS + 1)
    prune(shelf)
    shelf.capture(snapshot_id=IDS[0], kind="live")
    mirror_snapshot(shelf.control, shelf.checkpoints, mirror, IDS[0])
    assert verify(Shelf(mirror).control, mirror, IDS[0]) == []


def test_a_snapshot_is_not_removed_while_it_is_copied() -> None:
    """The copy has a lease; that of a dead one expires."""
    shelf, mirror = with_spec(shelf_with(2)), MemoryStore("mirror")
    seen: list[list[str]] = []
    mirror_snapshot(
        shelf.control,
        shelf.checkpoints,
        mirror,
        IDS[0],
        go_on=lambda: seen.append(prune(shelf, IDS[1])) if not seen else None,
    )
    assert seen == [[]]
    assert is_mirrored(shelf.control, mirror, IDS[0])
    assert prune(shelf, IDS[1]) == [IDS[0]]


def test_whole_copies_are_removed_wherever_it_is_cut() -> None:
    """At every call of it: what is not removed is complete, and the next one continues to the end. What the home has
    is not touched (Laws 2 and 3)."""

    def removed_from(mirror: MemoryStore, shelf: Shelf, plan: FaultPlan) -> int:
        striking = FaultyStore(mirror, plan)
        close_copies(shelf.control, striking, "test", IDS[:3])
        return delete_partial_copies(shelf.control, striking, "test", of_all=True)

    def stage() -> tuple[Shelf, MemoryStore]:
        shelf, mirror = with_spec(shelf_with(3)), GuardedStore("mirror")
        for snapshot_id in IDS[:3]:
            mirror_snapshot(shelf.control, shelf.checkpoints, mirror, snapshot_id)
        removed(shelf, *IDS[1:])
        return shelf, mirror

    shelf, mirror = stage()
    calm, before = FaultPlan(), data_there(mirror)
    assert removed_from(mirror, shelf, calm) == len(before - data_needed(mirror)) > 0
    assert [one for one in IDS[:3] if is_mirrored(shelf.control, mirror, one)] == IDS[1:3]
    for call in calm.calls:
        shelf, mirror = stage()
        with pytest.raises(SimulatedCrash):
            removed_from(mirror, shelf, FaultPlan({call.number: Fault.CRASH_AFTER}))
        assert_whole(Shelf(mirror))
        removed_from(mirror, shelf, FaultPlan())
        assert_whole(Shelf(mirror))
        assert data_there(mirror) == data_needed(mirror)
        assert not is_mirrored(shelf.control, mirror, IDS[0])


def test_what_is_taken_and_pruned_while_the_home_is_read_keeps_its_files() -> None:
    """At each call of it a new snapshot takes over what an older one refers to, which goes; and it is copied in the
    moment in which the first file will be deleted (Law 3)."""

    def stage() -> tuple[Shelf, MemoryStore]:
        shelf, mirror = with_spec(shelf_with(2)), GuardedStore("mirror")
        mirror_snapshot(shelf.control, shelf.checkpoints, mirror, IDS[0])
        removed(shelf, IDS[1])
        return shelf, mirror

    def remove_copy(shelf: Shelf, mirror: Store, plan: FaultPlan) -> None:
        control = Shelf(FaultyStore(shelf.checkpoints, plan), clock=shelf.clock).control
        close_copies(control, mirror, "test", IDS[:1])
        delete_partial_copies(control, mirror, "test", of_all=True)

    calm = FaultPlan()
    remove_copy(*stage(), calm)
    copied = 0
    for call in calm.calls:
        shelf, mirror = stage()

        def take_over(shelf: Shelf = shelf) -> None:
            run_stateful(shelf.checkpoint(), 4, first=4)
            shelf.capture(snapshot_id=IDS[2], kind="live")
            prune(shelf, IDS[2])

        def copy(shelf: Shelf = shelf, mirror: Store = mirror) -> None:
            nonlocal copied
            mirror_snapshot(shelf.control, shelf.checkpoints, mirror, IDS[2])
            copied += 1

        deleting = BeforeDelete(mirror, copy)
        remove_copy(shelf, deleting, FaultPlan(meanwhile={call.number: take_over}))
        assert_whole(Shelf(mirror))
    assert copied


turns = st.lists(st.tuples(st.integers(0, 10), st.integers(1, 12)), max_size=60)
deaths = st.dictionaries(st.integers(0, 9), st.integers(1, 150), max_size=3)


@pytest.mark.full
@settings(max_examples=60)
@given(turns=turns, dies_at=deaths)
def test_fetched_beside_everything_else_a_snapshot_is_whole_or_none(
    turns: list[tuple[int, int]], dies_at: dict[int, int]
) -> None:
    """Two that take snapshots, two that prune, two that fetch to a mirror, one that fetches from home and mirror to a
    new place, one that clears halves, one that removes complete copies, a reader, a pin and the time, in any order of
    their calls, file for file, some of them killed: what has a manifest is complete at every place, what was half
    fetched is never used, and nothing of it is left in the end (Laws 3 and 4)."""
    shelf, mirror, new = with_spec(shelf_with(2)), GuardedStore("mirror"), GuardedStore("new")
    findings: list[str] = []
    acts = [
        mirroring(shelf, IDS[0], mirror),
        restoring(shelf, mirror, new),
        pruning(shelf, IDS[2]),
        taking(shelf, IDS[2], 4),
        mirroring(shelf, IDS[2], mirror),
        clearing(shelf, mirror),
        closing(shelf, mirror, *IDS),
        waiting(shelf),
        pruning(shelf, IDS[1], IDS[2]),
        reading(shelf, IDS[0], findings),
        pinning(shelf, IDS[1]),
    ]
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(copy, "OPEN_BYTES", 0)  # one file after the other, so that others come between
        assert_no_defect(play(shelf.checkpoints, acts, turns, dies_at))
    assert findings == []
    for place in (shelf, Shelf(mirror), Shelf(new)):
        assert_whole(place)
    if Shelf(new).control.register() is not None:
        assert kept(Shelf(new))

    shelf.clock.sleep(MAKING_SECONDS + 1)  # dead writers are known as dead
    prune(shelf, *IDS)
    delete_partial_copies(shelf.control, mirror, "test", of_all=True)
    for snapshot_id in kept(shelf):
        mirror_snapshot(shelf.control, shelf.checkpoints, mirror, snapshot_id)
    assert_whole(Shelf(mirror))
    assert data_there(mirror) == data_needed(mirror)
    if Shelf(new).control.register() is None and (kept(shelf) or kept(Shelf(mirror))):
        restore(shelf, [shelf.checkpoints, mirror], new)
    remover = Remover(Shelf(new, clock=shelf.clock).control, SnapshotPlaces(new), "test")
    remover.sweep()
    shelf.clock.sleep(PARTIAL_SECONDS + 1)
    remover.sweep()
    assert_whole(Shelf(new))
    assert data_there(new) == data_needed(new)


def test_a_place_of_snapshots_is_never_cleared_and_is_no_mirror() -> None:
    """What is just being copied there has no manifest in the home yet, and is no half."""
    shelf, place = placed_shelf()
    tried: list[str] = []

    def try_to_mirror() -> None:
        with pytest.raises(InvalidRequestError, match="another place than that of the snapshots"):
            delete_partial_copies(shelf.control, place, "test", of_all=True)
        with pytest.raises(InvalidRequestError, match="another place than that of the snapshots"):
            carry_records(shelf.control, place, DEPLOYMENT)
        tried.append("both")

    with_spec(shelf)
    plan = FaultPlan(meanwhile={12: try_to_mirror})
    replace(shelf, elsewhere={PLACE: FaultyStore(place, plan)}).capture(kept_at=PLACE)
    assert tried
    assert verify(shelf.control, place, SNAPSHOT) == []


def test_an_upload_to_a_mirror_that_was_never_completed_is_ended() -> None:
    """By a reading of all of the mirror, a week after its start: a prune of the home does not go there."""
    shelf, mirror = shelf_with(1), UploadingStore(STREAM)
    shelf.clock.sleep(STALE_UPLOAD_SECONDS - 1)
    delete_partial_copies(shelf.control, mirror, "test", of_all=True)
    shelf.clock.sleep(2)
    delete_partial_copies(shelf.control, mirror, "test")
    assert mirror.uploads
    delete_partial_copies(shelf.control, mirror, "test", of_all=True)
    assert not mirror.uploads
