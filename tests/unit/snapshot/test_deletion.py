"""Removing snapshots alongside writers, readers and other prunes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_streamstate.control.registers import CLOCKS_DIFFER_SECONDS, MAKING_SECONDS, Retention
from airflow_streamstate.errors import ConflictError, SnapshotNotFoundError, UnavailableError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.policies import (
    AbandonedSnapshot,
    LeaseRecord,
    PendingDeletion,
    Pin,
    RetentionRegister,
    SnapshotInProgress,
)
from airflow_streamstate.snapshot.data import Bases
from airflow_streamstate.snapshot.deletion import (
    PARTIAL_SECONDS,
    READ,
    REMEMBERED_SECONDS,
    Removed,
    Remover,
    SnapshotLease,
    has_data,
    held_in,
    leased,
)
from airflow_streamstate.snapshot.location import SnapshotPlaces
from airflow_streamstate.snapshot.verify import verify
from airflow_streamstate.store.base import ObjectInfo, Store
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore
from support.fake_clock import FakeClock
from support.faulty_store import Fault, FaultPlan, FaultyStore, SimulatedCrash
from support.interleaved import TO_THE_END, play
from support.shelf_acts import (
    IDS,
    all_but,
    assert_no_defect,
    assert_whole,
    data_keys,
    kept,
    keys_of,
    pinning,
    prune,
    pruning,
    reading,
    shelf_with,
    taking,
    waiting,
)
from support.snapshots import QUERY, SNAPSHOT, STREAM, Shelf, flip_byte, run_stateful

pytestmark = pytest.mark.fast

# sharing


def test_a_second_snapshot_copies_what_is_new_alone() -> None:
    """Unchanged files are stored once, and both snapshots are complete."""
    shelf = shelf_with(2)
    second = shelf.control.need_manifest(IDS[1])
    own = [entry for entry in second.queries[QUERY].files if not entry.shared_from]
    assert {entry.path for entry in own if "crc" not in entry.path} == {
        "commits/3", "offsets/3", "sources/0/3", "state/0/0/4.delta", "state/0/1/4.delta",
    }  # fmt: skip
    assert {entry.shared_from for entry in second.queries[QUERY].files} == {"", f"{IDS[0]}/data"}
    assert_whole(shelf)


def test_what_was_written_anew_under_the_same_name_is_not_shared() -> None:
    """A batch that was run again leaves other bytes: the new snapshot has its own (Law 14)."""
    shelf = shelf_with(1)
    shelf.checkpoints.put(shelf.checkpoint().key("state/0/0/3.delta"), b"run again" * 60)
    manifest = shelf.capture(snapshot_id=IDS[1], kind="live")
    entry = next(entry for entry in manifest.queries[QUERY].files if entry.path == "state/0/0/3.delta")
    assert entry.shared_from == ""


@pytest.mark.parametrize("path", ["state/0/0/2.delta", "state/0/0/.2.delta.crc"])
def test_what_was_deleted_from_an_older_snapshot_is_copied_again(path: str) -> None:
    """The checkpoint has it: the new snapshot does not name what is not there, though its base does (Law 3)."""
    shelf = shelf_with(1)
    MemoryStore.delete(shelf.checkpoints, shelf.data_key(path, snapshot_id=IDS[0]))  # type: ignore[arg-type]
    shelf.capture(snapshot_id=IDS[1], kind="live")
    assert verify(shelf.control, shelf.checkpoints, IDS[1]) == []
    (entry,) = [one for one in shelf.control.need_manifest(IDS[1]).queries[QUERY].files if one.path == path]
    assert entry.shared_from == ""


def test_versions_of_another_deployment_count_only_as_digests() -> None:
    """Equal versions of two keys mean equal bytes only where they are digests of them."""
    shelf = shelf_with(1)
    base = shelf.control.need_manifest(IDS[0])
    shelf.checkpoints.delete(layout.manifest_key(STREAM, IDS[0]))
    files = tuple(replace(entry, source_version="7") for entry in base.queries[QUERY].files)
    shelf.control.create_manifest(replace(base, queries={QUERY: replace(base.queries[QUERY], files=files)}))
    manifest = shelf.control.need_manifest(IDS[0])
    there = {entry.path: ObjectInfo(entry.path, entry.size_bytes, "7") for entry in files}
    same = Bases("d-0001", {IDS[0]: manifest}).shared(QUERY, set(there), there, shelf.checkpoints)
    other = Bases("d-0002", {IDS[0]: manifest}).shared(QUERY, set(there), there, shelf.checkpoints)
    assert (len(same), other) == (len(files), {})


# removing


def test_what_a_kept_snapshot_refers_to_stays() -> None:
    """The older one goes, but for the files that the younger one shares with it; with that one they go, too (Law 3)."""
    shelf = shelf_with(3)
    assert prune(shelf, IDS[2]) == IDS[:2]
    assert sorted(kept(shelf)) == [IDS[2]]
    assert_whole(shelf)
    assert data_keys(shelf, IDS[0])
    assert prune(shelf) == [IDS[2]]
    assert [data_keys(shelf, one) for one in IDS] == [[], [], [], []]


def test_what_is_pinned_or_leased_is_not_condemned() -> None:
    """Also where a prune names it (Law 1)."""
    shelf = shelf_with(3)
    Retention(shelf.control, "ada").pin(IDS[0])
    lease = SnapshotLease(shelf.control, IDS[1], "bob", 60.0)
    lease.take()
    assert prune(shelf) == [IDS[2]]
    shelf.clock.sleep(61.0 + CLOCKS_DIFFER_SECONDS)
    assert prune(shelf) == [IDS[1]]
    Retention(shelf.control, "ada").unpin(IDS[0])
    assert prune(shelf) == [IDS[0]]


def test_a_prune_whose_clock_is_ahead_takes_no_living_lease_for_over() -> None:
    """Neither the snapshot goes, nor what its reader has gathered of it, though the lease looks a moment too old."""
    shelf = shelf_with(2)
    with leased(shelf.control, IDS[1], "reader", 60.0) as lease:
        folder = lease.folder_of(shelf.checkpoints, shelf.control.need_manifest(IDS[1]), QUERY)
        ahead = Shelf(shelf.checkpoints, clock=FakeClock(shelf.clock.now() + timedelta(seconds=CLOCKS_DIFFER_SECONDS)))
        assert prune(ahead, IDS[0]) == []
        assert folder.exists()
        late = FakeClock(shelf.clock.now() + timedelta(seconds=CLOCKS_DIFFER_SECONDS + 61))
        assert prune(Shelf(shelf.checkpoints, clock=late), IDS[0]) == [IDS[1]]


def test_a_condemned_snapshot_is_neither_read_nor_pinned_nor_taken_again() -> None:
    """Later readers are refused; a day later the id is as if it had never been."""
    shelf = shelf_with(2)
    prune(shelf, IDS[1])
    with pytest.raises(SnapshotNotFoundError), leased(shelf.control, IDS[0], "late"):
        pass
    with pytest.raises(SnapshotNotFoundError):
        Retention(shelf.control).pin(IDS[0])
    with pytest.raises(ConflictError):
        shelf.capture(snapshot_id=IDS[0], kind="live")
    Remover(shelf.control, shelf.places, "test").condemn(kept(shelf), all_but())
    shelf.clock.sleep(REMEMBERED_SECONDS + 1)
    sweep(shelf)
    assert Retention(shelf.control).read().condemned == {}


def test_a_lease_is_renewed_while_its_reader_lives() -> None:
    """A long reading outlives the first lease; a dead reader's lease has ended."""
    shelf = shelf_with(2)
    with leased(shelf.control, IDS[0], "reader", 60.0) as lease:
        for _ in range(10):
            shelf.clock.sleep(20.0)
            lease.renew()
        assert prune(shelf, IDS[1]) == []
    assert prune(shelf, IDS[1]) == [IDS[0]]


def test_what_a_reader_gathers_beside_a_prune_stays() -> None:
    """Wherever in a prune the reader takes its lease and starts to gather, that stays until the lease is released."""
    for number in count(1):
        shelf = sweepable()
        lease = SnapshotLease(shelf.control, IDS[1], "reader")

        def read(shelf: Shelf = shelf, lease: SnapshotLease = lease) -> None:
            lease.take()
            lease.folder_of(shelf.checkpoints, shelf.control.need_manifest(IDS[1]), QUERY)

        plan = FaultPlan(meanwhile={number: read})
        store = FaultyStore(shelf.checkpoints, plan)
        Remover(Shelf(store, clock=shelf.clock).control, SnapshotPlaces(store), "test").sweep()
        if number > len(plan.calls):
            break  # the prune had ended by then
        folder = layout.gathered_folder(STREAM, lease.lease_id, QUERY)
        assert list(shelf.checkpoints.list_objects(f"{folder}/")), number
        lease.release()
        assert not list(shelf.checkpoints.list_objects(f"{folder}/"))


def sweepable() -> Shelf:
    """Two snapshots, of which the second shares files, and a folder that a dead reader left."""
    shelf = shelf_with(2)
    shelf.checkpoints.put(f"{layout.gathered_folder(STREAM, 'dead', QUERY)}/metadata", b"left")
    return shelf


def test_an_abandoned_half_is_collected_and_can_be_taken_anew() -> None:
    """A driver that died in the making leaves files: they go after their time. Its writer cannot complete them any
    more, but starts again in its own folder (Laws 3 and 4)."""
    shelf = half_made()
    assert data_keys(shelf, IDS[1])
    assert sweep(shelf).abandoned == []
    shelf.clock.sleep(MAKING_SECONDS + 1)
    assert sweep(shelf).abandoned == [IDS[1]]
    assert data_keys(shelf, IDS[1]) == []
    again = shelf.capture(snapshot_id=IDS[1], kind="live")
    assert again.take == 2
    sweep(shelf)
    assert_whole(shelf)


def test_the_files_of_a_running_try_stay() -> None:
    """The try before it was abandoned; its record covers no later folder (Law 3)."""
    shelf = half_made()
    shelf.clock.sleep(MAKING_SECONDS + 1)
    assert sweep(shelf).abandoned == [IDS[1]]
    under_way = f"{layout.snapshot_data_folder(STREAM, IDS[1], QUERY, 2)}/metadata"
    shelf.checkpoints.put(under_way, b"{}")
    assert sweep(shelf).files == 0
    assert data_keys(shelf, IDS[1]) == [under_way]


def half_made() -> Shelf:
    """One snapshot, and the half of a second one, whose driver died."""
    shelf = shelf_with(1)
    run_stateful(shelf.checkpoint(), 6, first=3)
    dying = FaultyStore(shelf.checkpoints, FaultPlan(at_write={8: Fault.CRASH_BEFORE}))
    with pytest.raises(SimulatedCrash):
        Shelf(dying, clock=shelf.clock).capture(snapshot_id=IDS[1], kind="live")
    return shelf


def sweep(shelf: Shelf) -> Removed:
    return Remover(shelf.control, shelf.places, "test").sweep()


def test_a_writer_that_slept_completes_nothing_that_was_collected() -> None:
    """It wakes up before its manifest, finds that it was abandoned, and takes the snapshot again (Laws 3 and 4)."""
    shelf = shelf_with(1)
    run_stateful(shelf.checkpoint(), 6, first=3)
    counting = FaultPlan()
    probe = Shelf(MemoryStore(), clock=shelf.clock)
    for info in shelf.checkpoints.list_objects(""):
        stored = shelf.checkpoints.get(info.key)
        probe.checkpoints.put(info.key, stored.body)
    Shelf(FaultyStore(probe.checkpoints, counting), clock=shelf.clock).capture(snapshot_id=IDS[1], kind="live")
    number = next(
        call.number for call in counting.calls if call.key.endswith(f"{IDS[1]}/manifest.json") and call.writes
    )

    def meanwhile() -> None:
        shelf.clock.sleep(MAKING_SECONDS + 1)
        sweep(shelf)

    sleeper = FaultyStore(shelf.checkpoints, FaultPlan(meanwhile={number: meanwhile}))
    with pytest.raises(UnavailableError, match="abandoned"):
        Shelf(sleeper, clock=shelf.clock).capture(snapshot_id=IDS[1], kind="live")
    assert shelf.control.manifest(IDS[1]) is None
    shelf.capture(snapshot_id=IDS[1], kind="live")
    assert_whole(shelf)


def test_a_half_without_a_record_is_collected_after_its_time() -> None:
    """As a writer leaves it that could not read the register: from when it was first seen (Law 7)."""
    shelf = shelf_with(1)
    shelf.checkpoints.put(shelf.data_key("offsets/0", snapshot_id=IDS[2]), b"half")
    sweep(shelf)
    shelf.clock.sleep(PARTIAL_SECONDS / 2)
    assert sweep(shelf).abandoned == []
    shelf.clock.sleep(PARTIAL_SECONDS)
    assert sweep(shelf).abandoned == [IDS[2]]
    assert data_keys(shelf, IDS[2]) == []


def test_two_prunes_that_meet_at_a_half_both_come_to_their_end() -> None:
    """One of them closes it, whichever came first, and what else each has to do is done."""
    for number in count(1):
        shelf = half_made()
        shelf.clock.sleep(MAKING_SECONDS + 1)
        closed: list[str] = []

        def other(shelf: Shelf = shelf, closed: list[str] = closed) -> None:
            closed += Remover(shelf.control, shelf.places, "other").sweep().abandoned

        plan = FaultPlan(meanwhile={number: other})
        store = FaultyStore(shelf.checkpoints, plan)
        closed += Remover(Shelf(store, clock=shelf.clock).control, SnapshotPlaces(store), "test").sweep().abandoned
        assert set(closed) == {IDS[1]}, number
        assert data_keys(shelf, IDS[1]) == []
        assert_whole(shelf)
        if number > len(plan.calls):
            break


def test_a_making_whose_manifest_is_damaged_stops_no_prune() -> None:
    """Its writer completed it and died; the manifest rotted. It is reported, as any other, and not taken for a half."""
    shelf = shelf_with(1)
    Retention(shelf.control).begin(IDS[1])
    shelf.checkpoints.put(layout.manifest_key(STREAM, IDS[1]), b"damaged")
    shelf.clock.advance(MAKING_SECONDS + 1)
    removed = sweep(shelf)
    assert removed.abandoned == []
    assert IDS[1] in removed.problems[0]


def test_a_manifest_that_cannot_be_read_keeps_every_file() -> None:
    """What it refers to is not known (Law 7)."""
    shelf = shelf_with(3)
    flip_byte(shelf.checkpoints, layout.manifest_key(STREAM, IDS[1]), at=40)
    before = data_keys(shelf, IDS[0])
    remover = Remover(shelf.control, shelf.places, "test")
    remover.condemn({IDS[0]: shelf.control.need_manifest(IDS[0])}, all_but(*IDS[1:]))
    assert "cannot be read" in remover.sweep().problems[0]
    assert data_keys(shelf, IDS[0]) == before
    assert Retention(shelf.control).read().halves == {}, "it is not noted as a partial one"


def test_on_a_disk_it_keeps_what_a_restored_home_has_of_older_ones(tmp_path: Path) -> None:
    """A snapshot that was brought back from a server names files in the folders of others, which came without their
    manifests: these seem to be halves, and only the damaged manifest would show it (Law 7)."""
    shelf = shelf_with(2)
    disk = LocalStore(tmp_path, fsync=False)
    manifest = shelf.control.need_manifest(IDS[1])
    for key in keys_of(manifest) | {layout.manifest_key(STREAM, IDS[1])}:
        stored = shelf.checkpoints.get(key)
        disk.put(key, stored.body)
    restored = Shelf(disk, clock=shelf.clock)
    whole = disk.get(layout.manifest_key(STREAM, IDS[1]))
    flip_byte(disk, layout.manifest_key(STREAM, IDS[1]), at=40)
    for _ in range(3):
        Remover(restored.control, restored.places, "test").sweep()
        shelf.clock.sleep(PARTIAL_SECONDS + 1)
    disk.put(layout.manifest_key(STREAM, IDS[1]), whole.body)
    assert verify(restored.control, disk, IDS[1]) == []


def test_a_damaged_register_stops_no_snapshot() -> None:
    """It copies all, and keeps its own files (Law 7)."""
    shelf = shelf_with(1)
    shelf.checkpoints.put(layout.retention_key(STREAM), b"{")
    manifest = shelf.capture(snapshot_id=SNAPSHOT)
    assert {entry.shared_from for entry in manifest.queries[QUERY].files} == {""}
    with leased(shelf.control, SNAPSHOT, "reader"):
        assert verify(shelf.control, shelf.checkpoints, SNAPSHOT) == []


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_a_prune_that_is_killed_anywhere_is_finished_by_the_next(fault: Fault) -> None:
    """Whatever it left, what is kept is complete, and the next one leaves nothing (Laws 1 and 2)."""
    counting = shelf_with(3)
    plan = FaultPlan()
    prune(Shelf(FaultyStore(counting.checkpoints, plan), clock=counting.clock), IDS[2])
    left = sorted(info.key for info in counting.checkpoints.list_objects(""))
    for number in range(1, len(plan.writes) + 1, 3):
        shelf = shelf_with(3)
        dying = FaultyStore(shelf.checkpoints, FaultPlan(at_write={number: fault}))
        with pytest.raises(SimulatedCrash):
            prune(Shelf(dying, clock=shelf.clock), IDS[2])
        assert_whole(shelf)
        prune(shelf, IDS[2])
        assert sorted(info.key for info in shelf.checkpoints.list_objects("")) == left


# what the register reports


AT = FakeClock().now()
LATER = AT + timedelta(seconds=60)
REGISTER = RetentionRegister(STREAM, "w", AT, "tests")


def change(shelf: Shelf, **changes: object) -> RetentionRegister:
    """The register, changed by another process."""
    return Retention(shelf.control, "another").change(lambda register: replace(register, **changes))  # type: ignore[arg-type]


def test_each_snapshot_that_the_register_keeps_has_its_reason() -> None:
    """A pin counts for more than a lease, and both for more than one in the making."""
    register = replace(
        REGISTER,
        makings={"m": SnapshotInProgress("s-5", ("s-1", "s-2", "s-3"), 1, AT, LATER)},
        leases={"a": LeaseRecord("s-2", "ada", AT, LATER), "b": LeaseRecord("s-4", "bob", AT, AT)},
        pins={"s-3": Pin(AT, "ada")},
    )
    over = AT + timedelta(seconds=CLOCKS_DIFFER_SECONDS)
    shares = "s-5, which is being taken, shares its files"
    held = {"s-1": shares, "s-2": f"leased until {LATER:%Y-%m-%d %H:%M:%SZ} by ada", "s-3": "pinned"}
    assert held_in(register, over) == {**held, "s-5": "it is being taken"}
    assert held_in(register, over + timedelta(seconds=60)) == {**held, "s-2": shares, "s-5": "it is being taken"}


def test_what_is_condemned_is_recorded_with_its_take_and_its_place() -> None:
    """Nothing that is not there, or is condemned already; its caller is asked before. (Law 1)"""
    shelf, _ = placed_shelf()
    manifests = kept(shelf)
    asked: list[str] = []
    remover = Remover(shelf.control, shelf.places, "ada", lambda: asked.append("asked"))
    change(shelf, condemned={IDS[3]: PendingDeletion(AT)}, generation=7)
    assert remover.condemn(manifests, lambda _register: []) == []
    assert remover.condemn(manifests, lambda _register: ["d-0009-live-000001", IDS[3]]) == []
    assert (asked, Retention(shelf.control).read().generation) == ([], 7)
    shelf.clock.sleep(5)
    assert remover.condemn(manifests, lambda _register: [IDS[1], IDS[0]]) == [IDS[0], IDS[1]]
    register = Retention(shelf.control).read()
    now = shelf.clock.now()
    assert register.condemned == {
        IDS[3]: PendingDeletion(AT), IDS[0]: PendingDeletion(now, 1, ""), IDS[1]: PendingDeletion(now, 1, PLACE),
    }  # fmt: skip
    assert (asked, register.generation, register.updated_by) == (["asked"], 8, "ada")
    assert remover.condemn(manifests, lambda _register: [IDS[1], IDS[2]]) == [IDS[2]]


def test_a_caller_that_gives_up_loses_nothing() -> None:
    """Before anything is condemned, and before each deletion. (Law 4)"""
    shelf = shelf_with(2)
    before = {info.key for info in shelf.checkpoints.list_objects("")}

    def give_up() -> None:
        raise ConflictError("it was deleted")

    remover = Remover(shelf.control, shelf.places, "test", give_up)
    with pytest.raises(ConflictError):
        remover.condemn(kept(shelf), all_but())
    assert Retention(shelf.control).read().condemned == {}
    Remover(shelf.control, shelf.places, "test").condemn(kept(shelf), all_but())
    with pytest.raises(ConflictError):
        remover.sweep()
    assert {info.key for info in shelf.checkpoints.list_objects("")} >= before


def test_what_a_sweep_did_is_counted() -> None:
    """Each file of data that went, also of halves; with nothing to do it counts nothing, and writes nothing."""
    shelf = shelf_with(2)
    half = shelf.data_key("offsets/0", snapshot_id=IDS[2])
    shelf.checkpoints.put(half, b"half")
    remover = Remover(shelf.control, shelf.places, "test")
    remover.condemn(kept(shelf), all_but(IDS[1]))
    count = len(data_keys(shelf, IDS[0])) - len([key for key in data_keys(shelf, IDS[0]) if key in needed_by(shelf)])
    assert remover.sweep() == Removed(count, [], [])
    register = Retention(shelf.control).read()
    assert register.halves == {IDS[2]: shelf.clock.now()}
    assert remover.sweep() == Removed()
    assert Retention(shelf.control).read() == register
    shelf.clock.sleep(PARTIAL_SECONDS)
    assert remover.sweep() == Removed(1, [IDS[2]], [])
    assert Retention(shelf.control).read().halves == {}


def needed_by(shelf: Shelf) -> set[str]:
    return {key for manifest in kept(shelf).values() for key in keys_of(manifest)}


@pytest.mark.parametrize("takes", [0, 1, 3])
def test_a_half_is_closed_under_the_number_of_its_newest_folder(takes: int) -> None:
    """Its writer may be at any of them; the record reports when and by whom. A note alone counts as the first take."""
    shelf = shelf_with(1)
    shelf.checkpoints.put(layout.data_note_key(STREAM, IDS[2]), b"it was to be durable")
    for number in range(1, takes + 1):
        folder = layout.snapshot_data_folder(STREAM, IDS[2], QUERY, number)
        shelf.checkpoints.put(f"{folder}/offsets/0", b"half")
    remover = Remover(shelf.control, shelf.places, "ada")
    remover.sweep()
    shelf.clock.sleep(PARTIAL_SECONDS)
    assert remover.sweep() == Removed(takes, [IDS[2]], [])
    found = shelf.control.snapshot_slot(IDS[2]).value
    assert isinstance(found, AbandonedSnapshot)
    assert (found.stream_id, found.snapshot_id, found.take) == (STREAM, IDS[2], takes or 1)
    assert (found.abandoned_at, found.abandoned_by) == (shelf.clock.now(), "ada")
    assert not has_data(shelf.checkpoints, layout.snapshot_folder(STREAM, IDS[2]))


def test_what_a_dead_reader_gathered_goes() -> None:
    """Once its lease has ended, or was never there; what a living one has stays."""
    shelf = sweepable()
    folder = layout.gathered_folders(STREAM)
    with leased(shelf.control, IDS[1], "reader", 60.0) as lease:
        lease.folder_of(shelf.checkpoints, shelf.control.need_manifest(IDS[1]), QUERY)
        sweep(shelf)
        assert shelf.checkpoints.list_folders(folder) == [lease.lease_id]
        shelf.clock.sleep(61.0 + CLOCKS_DIFFER_SECONDS)
        sweep(shelf)
        assert shelf.checkpoints.list_folders(folder) == []


def test_a_making_that_is_over_closes_its_own_try_and_no_later_one() -> None:
    """One that was abandoned before is abandoned again under its own number; one that is complete is forgotten."""
    shelf = shelf_with(1)
    made = SnapshotInProgress(IDS[2], (), 2, AT, AT)
    for before, expected in ((None, 2), (1, 2), (2, 2), (5, 5)):
        shelf.checkpoints.delete(layout.manifest_key(STREAM, IDS[2]))
        if before is not None:
            record = AbandonedSnapshot(STREAM, IDS[2], before, AT, "another", "w")
            shelf.control.cells.create(layout.manifest_key(STREAM, IDS[2]), record)
        change(
            shelf,
            makings={"m": made, "done": replace(made, snapshot_id=IDS[0]), "new": replace(made, expires_at=LATER)},
        )
        generation = Retention(shelf.control).read().generation
        assert sweep(shelf).abandoned == [IDS[2]]
        slot = shelf.control.snapshot_slot(IDS[2])
        assert isinstance(slot.value, AbandonedSnapshot)
        assert slot.value.take == expected
        assert slot.value.abandoned_by == ("another" if before == expected else "test")
        register = Retention(shelf.control).read()
        assert (list(register.makings), register.generation) == (["new"], generation + 1)
    assert shelf.control.manifest(IDS[0]) is not None


def test_what_was_completed_in_this_very_moment_is_not_told_as_abandoned() -> None:
    """Its manifest came between the look at the makings and the record that would take its place: it stays (Law 3)."""
    shelf = shelf_with(1)
    manifest = shelf.control.need_manifest(IDS[0])
    change(shelf, makings={"m": SnapshotInProgress(IDS[2], (), 1, AT, AT)})
    key = layout.manifest_key(STREAM, IDS[2])
    for number in count(1):
        shelf.checkpoints.delete(key)
        change(shelf, makings={"m": SnapshotInProgress(IDS[2], (), 1, AT, AT)})
        completed: list[int] = []

        def complete(completed: list[int] = completed, number: int = number) -> None:
            if shelf.control.snapshot_slot(IDS[2]) is None:
                shelf.control.create_manifest(replace(manifest, snapshot_id=IDS[2]))
                completed.append(number)

        plan = FaultPlan(meanwhile={number: complete})
        store = FaultyStore(shelf.checkpoints, plan)
        removed = Remover(Shelf(store, clock=shelf.clock).control, SnapshotPlaces(store), "test").sweep()
        slot = shelf.control.snapshot_slot(IDS[2])
        assert isinstance(slot.value, AbandonedSnapshot) is (not completed), number
        assert removed.abandoned == ([] if completed else [IDS[2]]), number
        if number > len(plan.calls):
            break


def test_a_stray_folder_at_any_place_is_left_alone() -> None:
    """It has no id of a snapshot, so it is nothing of ours. (Law 7)"""
    shelf, place = placed_shelf()
    strays = [f"{STREAM}/snapshots/{IDS[0]}.bak/data/counts/metadata", f"{STREAM}/snapshots/.Trash/x"]
    for store in (shelf.checkpoints, place):
        for key in strays:
            store.put(key, b"x")
    for _ in range(2):
        assert sweep(shelf) == Removed()
        shelf.clock.sleep(PARTIAL_SECONDS + 1)
    assert all(store.get(key) for store in (shelf.checkpoints, place) for key in strays)


def test_what_is_forgotten_in_its_time() -> None:
    """Leases that have ended, uses of what is not there, pins of what never came; and the rest stays. (Law 7)"""
    shelf = shelf_with(1)
    now = shelf.clock.now()
    held = LeaseRecord(IDS[0], "ada", AT, now)
    over = LeaseRecord(IDS[0], "bob", AT, now - timedelta(seconds=CLOCKS_DIFFER_SECONDS))
    old = now - timedelta(seconds=REMEMBERED_SECONDS)
    change(
        shelf,
        leases={"held": held, "over": over},
        used={IDS[0]: now, IDS[1]: now, IDS[3]: now},
        pins={
            IDS[0]: Pin(old, "ada"), IDS[1]: Pin(old, "ada"), IDS[2]: Pin(old + timedelta(seconds=1), "ada"),
            IDS[3]: Pin(old, "ada"),
        },
        makings={"m": SnapshotInProgress(IDS[3], (), 1, now, LATER)},
        condemned={
            "d-0009-live-000001": PendingDeletion(old),
            "d-0009-live-000002": PendingDeletion(old + timedelta(seconds=1)),
        },
    )  # fmt: skip
    sweep(shelf)
    register = Retention(shelf.control).read()
    assert register.leases == {"held": held}
    assert register.used == {IDS[0]: now, IDS[3]: now}
    assert list(register.pins) == [IDS[0], IDS[2], IDS[3]]
    assert list(register.condemned) == ["d-0009-live-000002"]


def test_a_place_is_forgotten_when_nothing_lies_there() -> None:
    """Not while a snapshot is in the making, which may be on its way there."""
    shelf, place = placed_shelf()
    prune(shelf, IDS[0])
    for info in list(place.list_objects(f"{STREAM}/snapshots/")):
        place.delete(info.key)
    making = SnapshotInProgress(IDS[3], (), 1, shelf.clock.now(), shelf.clock.now() + timedelta(seconds=60))
    change(shelf, makings={"m": making}, places=(PLACE,))
    sweep(shelf)
    assert Retention(shelf.control).read().places == (PLACE,)
    change(shelf, makings={})
    sweep(shelf)
    assert Retention(shelf.control).read().places == ()


def test_where_snapshots_are_taken_all_the_time_no_file_goes() -> None:
    """What refers to what cannot be known as of one moment: the next prune continues."""
    shelf = shelf_with(2)
    Remover(shelf.control, shelf.places, "test").condemn(kept(shelf), all_but(IDS[1]))
    before = data_keys(shelf, IDS[0])
    looks: list[str] = []

    class Busy(MemoryStore):
        def __getattribute__(self, name: str) -> object:
            if name == "list_folders":
                looks.append(name)
                change(shelf, generation=Retention(shelf.control).read().generation + 1)
            return object.__getattribute__(shelf.checkpoints, name)

    removed = Remover(shelf.control, SnapshotPlaces(Busy(), shelf.elsewhere.__getitem__, shelf.clock), "test").sweep()
    assert removed.problems == ["snapshots are being taken all the time: the next prune continues"]
    assert (removed.files, data_keys(shelf, IDS[0])) == (0, before)
    assert len(looks) > (READ.tries or 0)


def test_a_manifest_of_another_stream_of_this_name_is_not_removed() -> None:
    """It came in the moment of the deletion: by its version it is another object. (Law 4)"""
    shelf = shelf_with(2)
    Remover(shelf.control, shelf.places, "test").condemn(kept(shelf), all_but(IDS[1]))
    key = layout.manifest_key(STREAM, IDS[0])
    other = b"of another stream"

    def begin_anew() -> None:
        shelf.checkpoints.put(key, other)

    Remover(shelf.control, shelf.places, "test", begin_anew)._remove_manifest(IDS[0])
    stored = shelf.checkpoints.get(key)
    assert stored.body == other


def test_data_is_what_lies_in_the_folders_of_takes() -> None:
    """Records alongside them are none."""
    store = MemoryStore()
    folder = layout.snapshot_folder(STREAM, IDS[0])
    store.put(f"{folder}/notes/x", b"x")
    store.put(f"{folder}/manifest.json", b"{}")
    assert not has_data(store, folder)
    store.put(f"{layout.snapshot_data_folder(STREAM, IDS[0], QUERY, 2)}/x", b"x")
    assert has_data(store, folder)


# all at once


CALLS = 60
"""More than any of them makes that others can distinguish from their neighbours."""


@pytest.mark.parametrize("before", range(4, 9))
def test_taken_around_any_moment_of_a_prune_a_snapshot_is_whole(before: int) -> None:
    """Started at each moment of a prune that removes what it would share, and completed behind it (Law 3)."""
    for moment in range(1, CALLS, 2):
        shelf = shelf_with(2)
        acts = [pruning(shelf), taking(shelf, IDS[2], 4)]
        assert_no_defect(play(shelf.checkpoints, acts, [(0, moment), (1, before), (0, TO_THE_END)]))
        assert IDS[2] in kept(shelf)
        assert_whole(shelf)


EARLIER = "d-0001-drained-000001"


def test_a_prune_that_reads_slowly_misses_no_reference() -> None:
    """Between two of its reads one snapshot is completed, and the one that it shares files with is removed by another
    prune: what it read is not of one moment, and is read again."""
    for moment in range(1, CALLS):
        shelf = shelf_with(2)
        acts = [pruning(shelf, IDS[1]), taking(shelf, EARLIER, 4), pruning(shelf)]
        assert_no_defect(play(shelf.checkpoints, acts, [(1, 8), (0, moment), (1, TO_THE_END), (2, TO_THE_END)]))
        assert EARLIER in kept(shelf)
        assert_whole(shelf)


turns = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 9)), max_size=60)
deaths = st.dictionaries(st.integers(0, 3), st.integers(1, 120), max_size=2)


@settings(max_examples=60)
@given(turns=turns, dies_at=deaths)
def test_two_of_each_at_once_leave_every_snapshot_whole(turns: list[tuple[int, int]], dies_at: dict[int, int]) -> None:
    """Two that take snapshots, two that prune, a reader, a pin and the time, in any order of their calls, some of them
    killed: no file goes to which a manifest refers, and a reader with a lease reads what it leased (Laws 3, 4)."""
    shelf = shelf_with(2)
    findings: list[str] = []
    acts = [
        taking(shelf, IDS[2], 4),
        taking(shelf, IDS[3], 5),
        pruning(shelf, IDS[1], IDS[3]),
        pruning(shelf, IDS[2], IDS[3]),
        reading(shelf, IDS[0], findings),
        pinning(shelf, IDS[1]),
        waiting(shelf),
    ]
    assert_no_defect(play(shelf.checkpoints, acts, turns, dies_at))
    assert findings == []
    assert_whole(shelf)
    assert (IDS[1] in kept(shelf)) >= (IDS[1] in Retention(shelf.control).read().pins)
    prune(shelf, *IDS)
    shelf.clock.sleep(MAKING_SECONDS + 1)
    prune(shelf, *IDS)
    assert_whole(shelf)
    needed = set().union(*(keys_of(manifest) for manifest in kept(shelf).values())) if kept(shelf) else set()
    there = {key for one in shelf.control.snapshot_ids() for key in data_keys(shelf, one)}
    assert there == needed  # nothing is left over


# at other places


PLACE = "memory://place"


def placed_shelf() -> tuple[Shelf, MemoryStore]:
    """Three live snapshots: with the checkpoints, at a place, and at the place again."""
    place = MemoryStore("place")
    shelf = Shelf(elsewhere={PLACE: place})
    shelf.places.claim(shelf.control, PLACE)
    for number, kept_at in enumerate(("", PLACE, PLACE)):
        run_stateful(shelf.checkpoint(), 2 + number, first=0 if number == 0 else 2 + number)
        shelf.capture(snapshot_id=IDS[number], kind="live", kept_at=kept_at)
    return shelf, place


def below_snapshots(store: Store) -> list[str]:
    return [info.key for info in store.list_objects(f"{STREAM}/snapshots/")]


def test_what_lies_at_another_place_is_removed_there() -> None:
    """But for what a younger snapshot shares, and never in the store of the checkpoints instead."""
    shelf, place = placed_shelf()
    assert prune(shelf, IDS[2]) == [IDS[0], IDS[1]]
    assert data_keys(shelf, IDS[0]) == []
    (manifest,) = kept(shelf).values()
    assert verify(shelf.control, place, IDS[2]) == []
    assert {key for key in below_snapshots(place) if "/data/" in key} == keys_of(manifest)
    assert Retention(shelf.control).read().places == (PLACE,)


def test_what_was_linked_on_the_way_to_a_place_is_collected() -> None:
    """A driver that was killed after the manifest, or half way: nothing of it stays, and the snapshot is complete."""
    shelf, place = placed_shelf()
    left = f"{layout.snapshot_folder(STREAM, IDS[1])}/data/counts/metadata"
    shelf.checkpoints.put(left, b"left")
    for store in (shelf.checkpoints, place):
        store.put(f"{STREAM}/snapshots/d-0001-live-000009/data/counts/metadata", b"half")
    prune(shelf, *IDS)
    shelf.clock.advance(PARTIAL_SECONDS + 1)
    prune(shelf, *IDS)
    assert shelf.checkpoints.get(left) is None
    assert [key for store in (shelf.checkpoints, place) for key in below_snapshots(store) if "000009/data" in key] == []
    assert [verify(shelf.control, shelf.places.of(one), one.snapshot_id) for one in kept(shelf).values()] == [[]] * 3


def test_a_place_that_is_not_there_is_told_and_nothing_of_it_is_forgotten() -> None:
    """What is condemned there goes once the place is back; what was stored elsewhere is forgotten in its time."""
    shelf, place = placed_shelf()
    away = replace(shelf, elsewhere={PLACE: MemoryStore("empty")})
    remover = Remover(away.control, away.places, "test")
    remover.condemn(kept(shelf), all_but(IDS[2]))
    (problem,) = remover.sweep().problems
    assert "nothing is removed at memory://place" in problem
    assert data_keys(shelf, IDS[0]) == []
    assert any(IDS[1] in key for key in below_snapshots(place))
    shelf.clock.advance(REMEMBERED_SECONDS + 1)
    remover.sweep()
    assert [*Retention(shelf.control).read().condemned] == [IDS[1]]
    assert sweep(shelf).problems == []
    assert [entry.shared_from for entry in kept(shelf)[IDS[2]].queries[QUERY].files if entry.shared_from]
    assert verify(shelf.control, place, IDS[2]) == []
    assert {key for key in below_snapshots(place) if "/data/" in key} == keys_of(kept(shelf)[IDS[2]])


def test_a_place_that_falls_silent_in_the_middle_of_a_prune_is_told() -> None:
    """What is stored with the checkpoints goes all the same, and the prune comes to its end."""
    shelf, place = placed_shelf()
    gone = data_keys(shelf, IDS[0])
    remover = Remover(shelf.control, shelf.places, "test")
    remover.condemn(kept(shelf), all_but(IDS[2]))
    asked = count()

    class Silent(MemoryStore):
        def __getattribute__(self, name: str) -> object:
            if name in ("list_folders", "list_objects") and next(asked) >= 2:
                raise UnavailableError("the disk is away")
            return object.__getattribute__(place, name)

    shelf.elsewhere[PLACE] = Silent()
    (problem,) = sweep(shelf).problems
    assert "not everything was removed at memory://place" in problem
    assert gone
    assert data_keys(shelf, IDS[0]) == []


def test_a_place_under_two_names_loses_nothing_that_the_other_name_has() -> None:
    """A symlink, a bind mount: the folder is one, and each manifest has it by its own name (Law 3)."""
    shelf, place = placed_shelf()
    shelf.elsewhere["memory://alias"] = place  # mounted there after it was claimed
    run_stateful(shelf.checkpoint(), 5, first=5)
    shelf.capture(snapshot_id=IDS[3], kind="live", kept_at="memory://alias")
    prune(shelf, *IDS)
    assert [verify(shelf.control, place, one) for one in IDS[1:]] == [[]] * 3
    prune(shelf, IDS[3])
    assert verify(shelf.control, place, IDS[3]) == []
    assert {key for key in below_snapshots(place) if "/data/" in key} == keys_of(kept(shelf)[IDS[3]])
