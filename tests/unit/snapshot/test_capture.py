"""Taking a snapshot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.clock import whole_milliseconds
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    InvalidRequestError,
    ObjectMissingError,
    OutcomeUnknownError,
    SnapshotIncompleteError,
    UnavailableError,
)
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import from_bytes
from airflow_streamstate.protocol.ids import SnapshotKind
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.positions import QueryPosition, StateLeft, WatermarkSpec
from airflow_streamstate.protocol.terms.version import NO_SNAPSHOTS
from airflow_streamstate.snapshot.capture import CAPTURE, QueryToCapture
from airflow_streamstate.snapshot.data import check_complete, data_files
from airflow_streamstate.snapshot.verify import verify
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore
from support.checkpoints import QUERY_ID, HookedStore, commit_batch, once, plan_batch
from support.faulty_store import KILL_POINTS, Fault, FaultPlan, FaultyStore, SimulatedCrash
from support.server_store import ServerStore
from support.snapshots import (
    DEPLOYMENT,
    PLACE,
    QUERY,
    SNAPSHOT,
    STREAM,
    Shelf,
    delete_file,
    flush,
    placed_shelf,
    plan_stateful,
    put_stop_entry,
    run_stateful,
)


def paths(manifest: SnapshotManifest, query_name: str = QUERY) -> list[str]:
    """The data files of a query, without Spark's checksum files."""
    return [entry.path for entry in manifest.queries[query_name].files if not entry.path.endswith(".crc")]


def shelf_with(last: int = 3) -> Shelf:
    shelf = Shelf()
    run_stateful(shelf.checkpoint(), last)
    return shelf


def everything(store: Store) -> dict[str, bytes]:
    bodies = {}
    for info in store.list_objects(""):
        stored = store.get(info.key)
        bodies[info.key] = stored.body
    return bodies


# what each kind holds


def test_a_live_snapshot_holds_the_last_committed_batch_and_nothing_above() -> None:
    """Of a query that runs on: its last commit with all its state, without the batch in flight (1a.6)."""
    shelf = shelf_with(3)
    plan_stateful(shelf.checkpoint(), 4)
    manifest = shelf.capture(kind="live", snapshot_id="d-0001-live-000007")
    query = manifest.queries[QUERY]
    assert (query.query_id, query.drained, query.watermark_ms) == (QUERY_ID, False, 4000)
    assert query.position == QueryPosition(
        batch_id=3, end_offsets=('{"logOffset":3}',), watermark_at=query.position.watermark_at
    )
    assert str(query.position.watermark_at) == "1970-01-01 00:00:04+00:00"
    assert {"metadata", "offsets/3", "commits/3", "state/0/0/4.delta", "state/0/1/4.delta"} <= set(paths(manifest))
    assert not {"offsets/4", "sources/0/4"} & set(paths(manifest))
    assert verify(shelf.control, shelf.checkpoints, manifest.snapshot_id) == []


@pytest.mark.parametrize("kind", ["stopped", "pre-drain"])
def test_a_planned_batch_of_sparks_own_belongs_to_the_snapshot(kind: SnapshotKind) -> None:
    """The planned entry goes word for word, with its source log, so that the successor runs it first (1a.6)."""
    shelf = shelf_with(3)
    plan_stateful(shelf.checkpoint(), 4)
    manifest = shelf.capture(kind=kind)
    assert manifest.queries[QUERY].position.planned_batch_id == 4
    assert {"offsets/4", "sources/0/4"} <= set(paths(manifest))
    planned = shelf.checkpoints.get(shelf.data_key("offsets/4"))
    original = shelf.checkpoints.get(shelf.checkpoint().offset_key(4))
    assert planned.body == original.body


def test_two_snapshots_of_one_position_hold_the_same_items() -> None:
    """In one order, under one digest, of whatever kind; at another position it is another digest."""
    shelf = shelf_with(3)
    live = shelf.capture(kind="live", snapshot_id="s-1")
    plan_stateful(shelf.checkpoint(), 4)
    again = shelf.capture(kind="live", snapshot_id="s-2")
    assert live.queries[QUERY].files == again.queries[QUERY].files
    assert live.content_digest == again.content_digest != ""
    assert list(paths(live)) == sorted(paths(live))
    run_stateful(shelf.checkpoint(), 4, first=4)
    assert shelf.capture(kind="live", snapshot_id="s-3").content_digest != live.content_digest
    run_stateful(shelf.checkpoint("rows"), 3)
    both = {name: QueryToCapture(shelf.checkpoint(name)) for name in ("rows", QUERY)}
    assert list(shelf.capture(both, snapshot_id="s-4").queries) == [QUERY, "rows"]


def test_what_spark_compacts_meanwhile_changes_no_item_of_a_position() -> None:
    """Its maintenance writes a full state next to the changes: the items of before are listed again, as long as they
    are all there; and else what is needed now."""
    shelf = shelf_with(3)
    before = shelf.capture(kind="live", snapshot_id="s-1")
    for partition in range(2):
        shelf.checkpoints.put(shelf.checkpoint().key(f"state/0/{partition}/4.snapshot"), b"all of it")
    assert paths(shelf.capture(kind="live", snapshot_id="s-2")) != paths(before)
    query = {QUERY: QueryToCapture(shelf.checkpoint(), before=before.queries[QUERY])}
    again = shelf.capture(query, kind="live", snapshot_id="s-3")
    assert (again.content_digest, again.queries[QUERY].files) == (before.content_digest, before.queries[QUERY].files)
    assert verify(shelf.control, shelf.checkpoints, "s-3") == []
    delete_file(shelf.checkpoint(), "state/0/1/1.delta")
    fewer = shelf.capture(query, kind="live", snapshot_id="s-4")
    assert "state/0/1/4.snapshot" in paths(fewer)
    assert verify(shelf.control, shelf.checkpoints, "s-4") == []


def test_the_items_of_another_position_are_not_listed_again() -> None:
    """Nor where the batch of that number ended elsewhere, or where a planned batch may have left state."""
    shelf = shelf_with(3)
    older = shelf.capture(kind="live", snapshot_id="s-1").queries[QUERY]
    run_stateful(shelf.checkpoint(), 4, first=4)
    newer = shelf.capture({QUERY: QueryToCapture(shelf.checkpoint(), before=older)}, kind="live", snapshot_id="s-2")
    assert "state/0/0/5.delta" in paths(newer)
    elsewhere = replace(newer.queries[QUERY].position, end_offsets=('{"logOffset":9}',))
    wrong = replace(newer.queries[QUERY], position=elsewhere, files=older.files)
    found = shelf.capture({QUERY: QueryToCapture(shelf.checkpoint(), before=wrong)}, kind="live", snapshot_id="s-3")
    assert paths(found) == paths(newer)
    plan_stateful(shelf.checkpoint(), 5)
    shelf.checkpoints.put(shelf.checkpoint().key("state/0/0/6.delta"), b"of the planned batch")
    planned = shelf.capture({QUERY: QueryToCapture(shelf.checkpoint(), before=newer.queries[QUERY])})
    assert {"offsets/5", "state/0/0/6.delta"} <= set(paths(planned))


def test_no_barrier_of_ours_is_in_a_snapshot() -> None:
    """A stop entry, over a committed or a planned batch, stays where it is (1a.1)."""
    shelf = shelf_with(3)
    put_stop_entry(shelf.checkpoint(), 4)
    assert "offsets/4" not in paths(shelf.capture(snapshot_id="s-1"))
    shelf = shelf_with(3)
    plan_stateful(shelf.checkpoint(), 4)
    put_stop_entry(shelf.checkpoint(), 5)
    assert "offsets/5" not in paths(shelf.capture(snapshot_id="s-2"))


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("kind", ["drained", "stopped"])
def test_a_drained_query_leaves_positions_only(kind: SnapshotKind, told: bool) -> None:
    """No state of a flushed query is kept, in no kind of snapshot: it is never resumed (Law 11)."""
    shelf = shelf_with(3)
    flush(shelf.checkpoint(), 4)
    query = QueryToCapture(
        shelf.checkpoint(),
        drained=told,
        state_rows_left=2,
        state_left=(StateLeft("stateStoreSave", 0, 2, "no watermark"),),
        rows_written_early=5,
        rows_dropped=1,
    )
    captured = shelf.capture({QUERY: query}, kind=kind).queries[QUERY]
    assert captured.drained
    assert not [entry.path for entry in captured.files if entry.path.startswith("state/")]
    assert {"metadata", "offsets/4", "commits/4", "sources/0/3"} <= {entry.path for entry in captured.files}
    assert captured.position.batch_id == 4
    assert captured.position.end_offsets == ('{"logOffset":3}',)
    counted = captured.position
    assert (counted.state_rows_left, counted.rows_written_early, counted.rows_dropped) == (2, 5, 1)
    # The watermark of before the flush, so that rows which were late stay late (1a.10).
    assert captured.watermark_ms == 4000


def test_a_query_that_should_be_drained_and_is_not_is_refused() -> None:
    """State is left behind only where the log reports it (Laws 13 and 16)."""
    shelf = shelf_with(3)
    with pytest.raises(ConflictError, match="not drained"):
        shelf.capture({QUERY: QueryToCapture(shelf.checkpoint(), drained=True)}, kind="drained")
    assert shelf.control.manifest(SNAPSHOT) is None


def test_what_only_the_driver_knows_is_kept() -> None:
    """Sources and watermarks of the plan are in the manifest, for a later comparison of plans."""
    shelf = shelf_with(1)
    query = QueryToCapture(
        shelf.checkpoint(), sources=("FileStreamSource[file:/in]",), watermarks=(WatermarkSpec("t", 60_000),),
        watermark_ms=77,
    )  # fmt: skip
    captured = shelf.capture({QUERY: query}).queries[QUERY]
    assert captured.sources == ("FileStreamSource[file:/in]",)
    assert captured.watermarks == (WatermarkSpec("t", 60_000),)
    assert captured.watermark_ms == 77


def test_manifest_says_whose_it_is() -> None:
    """Deployment, attempt, token, time, and the process that took it."""
    shelf = shelf_with(1)
    manifest = shelf.capture()
    assert (manifest.stream_id, manifest.deployment_id, manifest.attempt) == (STREAM, DEPLOYMENT, 1)
    assert (manifest.fencing_token, manifest.taken_by, manifest.snapshot_kind) == (1, "agent", "stopped")
    assert manifest.taken_at == whole_milliseconds(shelf.clock.now())
    assert manifest.files_count == len(manifest.queries[QUERY].files)
    sizes = [info.size_bytes for info in shelf.checkpoints.list_objects(shelf.data_key(""))]
    assert manifest.size_bytes == sum(sizes)


def test_every_file_has_its_size_and_sparks_checksum() -> None:
    """Each entry has its size; each file that Spark left a checksum for has the digest of that."""
    manifest = shelf_with(2).capture()
    entries = {entry.path: entry for entry in manifest.queries[QUERY].files}
    assert list(entries) == sorted(entries)
    for path in paths(manifest):
        folder, slash, name = path.rpartition("/")
        assert f"{folder}{slash}.{name}.crc" in entries
        assert len(entries[path].spark_crc32) == 8


def test_a_file_without_a_checksum_is_taken_as_it_is() -> None:
    """Object stores have no checksum files; entries of ours have none either."""
    shelf = shelf_with(2)
    for info in list(shelf.checkpoints.list_objects("")):
        if info.key.endswith(".crc"):
            shelf.checkpoints.delete(info.key)
    manifest = shelf.capture()
    assert {entry.spark_crc32 for entry in manifest.queries[QUERY].files} == {""}
    assert verify(shelf.control, shelf.checkpoints, SNAPSHOT) == []


def test_snapshot_outlives_what_spark_deletes() -> None:
    """A snapshot refers to nothing that Spark may delete, and never changes the checkpoint (Law 4)."""
    shelf = shelf_with(3)
    before = everything(shelf.checkpoints)
    shelf.capture()
    now, kept = everything(shelf.checkpoints), layout.retention_key(STREAM)
    assert {key: body for key, body in now.items() if "/snapshots/" not in key and key != kept} == before
    for key in before:
        shelf.checkpoints.delete(key)
    assert verify(shelf.control, shelf.checkpoints, SNAPSHOT) == []


def test_each_query_stands_at_its_own_batch() -> None:
    """Queries of one deployment commit independently."""
    shelf = shelf_with(3)
    run_stateful(shelf.checkpoint("other/query 2"), 1)
    queries = {name: QueryToCapture(shelf.checkpoint(name)) for name in (QUERY, "other/query 2")}
    manifest = shelf.capture(queries)
    assert {name: query.position.batch_id for name, query in manifest.queries.items()} == {QUERY: 3, "other/query 2": 1}
    assert verify(shelf.control, shelf.checkpoints, SNAPSHOT) == []


# nothing committed, and queries that were not started


@pytest.mark.parametrize("kind", ["stopped", "drained"])
def test_a_deployment_that_never_committed_has_positions_none(kind: SnapshotKind) -> None:
    """Its successor starts where its options specify, and that is known from the snapshot (Law 5)."""
    shelf = Shelf()
    run_stateful(shelf.checkpoint("made"), -1)
    queries = {name: QueryToCapture(shelf.checkpoint(name)) for name in ("made", "never started")}
    manifest = shelf.capture(queries, kind=kind)
    assert {query.position for query in manifest.queries.values()} == {QueryPosition(batch_id=None)}
    assert manifest.queries["made"].query_id == QUERY_ID
    assert manifest.queries["never started"].files == ()


def test_a_first_batch_that_is_planned_goes_along() -> None:
    """Also before the first commit the sink may hold the planned batch (1a.6)."""
    shelf = Shelf()
    run_stateful(shelf.checkpoint(), -1)
    plan_stateful(shelf.checkpoint(), 0)
    manifest = shelf.capture()
    assert manifest.queries[QUERY].position.planned_batch_id == 0
    assert {"metadata", "offsets/0", "sources/0/0"} <= set(paths(manifest))


@pytest.mark.parametrize("started", [True, False])
def test_a_live_snapshot_of_nothing_is_refused(started: bool) -> None:
    """While nothing is committed there is nothing that a live snapshot could hold."""
    shelf = Shelf()
    if started:
        run_stateful(shelf.checkpoint(), -1)
        plan_stateful(shelf.checkpoint(), 0)
    with pytest.raises(InvalidRequestError, match="nothing is committed yet"):
        shelf.capture({QUERY: QueryToCapture(shelf.checkpoint())} if started else {}, kind="live")
    assert shelf.control.manifest(SNAPSHOT) is None


def test_a_deployment_without_queries_has_an_empty_snapshot() -> None:
    """Stopped before its first query: a snapshot that holds nothing is still the one at its end (1a.9)."""
    assert Shelf().capture({}).queries == {}


def carried_from(shelf: Shelf) -> QueryToCapture:
    earlier = shelf.capture(snapshot_id="d-0001-stopped-000001")
    return QueryToCapture(
        shelf.checkpoint(deployment_id="d-0002"),
        carried=earlier.queries[QUERY],
        carried_snapshot_id=earlier.snapshot_id,
    )


def test_a_query_that_was_never_built_is_carried_on(tmp_path: Path) -> None:
    """Stopped before its first start, a query keeps the state that its deployment started with (Law 5); on a disk by
    links of its own."""
    shelf = Shelf(LocalStore(tmp_path, fsync=False))
    run_stateful(shelf.checkpoint(), 3)
    query = carried_from(shelf)
    manifest = shelf.capture({QUERY: query}, snapshot_id="d-0002-stopped-000001")
    assert manifest.queries[QUERY] == query.carried
    for info in list(shelf.checkpoints.list_objects(shelf.data_key(""))):
        shelf.checkpoints.delete(info.key)
    assert verify(shelf.control, shelf.checkpoints, "d-0002-stopped-000001") == []


def test_a_half_built_checkpoint_counts_as_not_built() -> None:
    """Without metadata a checkpoint is half built: what it was being built from is carried on (1a.10)."""
    shelf = shelf_with(3)
    query = carried_from(shelf)
    plan_batch(shelf.checkpoint(deployment_id="d-0002"), 3)
    assert shelf.capture({QUERY: query}, snapshot_id="d-0002-stopped-000001").queries[QUERY] == query.carried


def test_a_checkpoint_that_ran_and_lost_its_metadata_is_not_carried_over() -> None:
    """Batches of its own make it more than half built: the older position would run them again (Law 14)."""
    shelf = shelf_with(3)
    query = carried_from(shelf)
    run_stateful(shelf.checkpoint(deployment_id="d-0002"), 5)
    shelf.checkpoints.delete(shelf.checkpoint(deployment_id="d-0002").metadata_key)
    with pytest.raises(DataError, match="committed its own batches, but has no metadata"):
        shelf.capture({QUERY: query}, snapshot_id="d-0002-stopped-000001")


def test_a_built_checkpoint_is_captured_and_not_what_it_was_built_from() -> None:
    """What ran in this deployment is newer than its start."""
    shelf = shelf_with(3)
    query = carried_from(shelf)
    run_stateful(shelf.checkpoint(deployment_id="d-0002"), 5)
    manifest = shelf.capture({QUERY: query}, snapshot_id="d-0002-stopped-000001")
    assert manifest.queries[QUERY].position.batch_id == 5


def test_a_half_built_checkpoint_of_unknown_origin_is_refused() -> None:
    """It never becomes a position none, from which a successor would start with nothing (Law 5)."""
    shelf = Shelf()
    plan_batch(shelf.checkpoint(), 0)
    with pytest.raises(DataError, match="half built"):
        shelf.capture()


def test_carrying_on_from_a_damaged_snapshot_is_refused_by_name() -> None:
    """The new snapshot is not made, and the error names the file that the old one lacks (Law 3)."""
    shelf = shelf_with(3)
    query = carried_from(shelf)
    shelf.checkpoints.delete(shelf.data_key("state/0/1/3.delta"))
    with pytest.raises(SnapshotIncompleteError) as caught:
        shelf.capture({QUERY: query}, snapshot_id="d-0002-stopped-000001")
    assert caught.value.context["path"] == "state/0/1/3.delta"
    assert shelf.control.manifest("d-0002-stopped-000001") is None


@pytest.mark.parametrize("kept_at", [PLACE, "", NO_SNAPSHOTS])
def test_a_query_that_was_never_started_is_carried_from_one_place_to_another(kept_at: str) -> None:
    """Whole, and refused where it is not (Law 5)."""
    shelf, place = placed_shelf(3)
    source = shelf.capture(snapshot_id="s-1", kept_at=PLACE)
    queries = {QUERY: QueryToCapture(None, source.queries[QUERY], "s-1")}
    manifest = shelf.capture(queries, snapshot_id="s-2", kept_at=kept_at)
    assert verify(shelf.control, shelf.places.of(manifest), "s-2") == []
    place.delete(data_files(source, QUERY)["offsets/3"])
    with pytest.raises(Exception, match=r"lacks a file|no place has a file"):
        shelf.capture(queries, snapshot_id="s-3", kept_at=kept_at)
    assert shelf.control.manifest("s-3") is None


def test_carried_names_its_snapshot() -> None:
    """Without the id its files could not be found."""
    with pytest.raises(ValueError, match="id of the snapshot"):
        QueryToCapture(carried=shelf_with(0).capture().queries[QUERY])


# the same id again, crashes, full disks


def test_the_same_id_again_is_the_same_snapshot() -> None:
    """Trying twice is trying once, also when the query ran on in the meantime; nothing is written (Law 2)."""
    shelf = shelf_with(3)
    first = shelf.capture()
    run_stateful(shelf.checkpoint(), 5, first=4)
    again = FaultyStore(shelf.checkpoints)
    assert Shelf(again, clock=shelf.clock).capture() == first
    assert again.plan.writes == []


def calls_of_a_capture() -> FaultPlan:
    plan = FaultPlan()
    Shelf(FaultyStore(shelf_with(2).checkpoints, plan)).capture()
    return plan


CAPTURE_PLAN = calls_of_a_capture()
WRITES = len(CAPTURE_PLAN.writes)
MANIFEST_WRITE = WRITES - 1
"""Behind it only the register of what is kept is notified of the end."""


def test_the_manifest_is_written_last() -> None:
    """That it is in the making is reported before all else, and every link comes before the manifest (Laws 1 and 3)."""
    begun, *links, manifest, finished = CAPTURE_PLAN.writes
    assert begun.key == finished.key == layout.retention_key(STREAM)
    assert {call.method for call in links} == {"link"}
    assert (manifest.method, manifest.key) == ("create", layout.manifest_key(STREAM, SNAPSHOT))


def capture_again_is_whole(shelf: Shelf) -> None:
    manifest = shelf.capture()
    assert manifest == shelf.control.manifest(SNAPSHOT)
    check_complete(shelf.checkpoints, manifest)
    assert verify(shelf.control, shelf.checkpoints, SNAPSHOT) == []
    assert manifest.queries == shelf.capture(snapshot_id="s-fresh").queries


@pytest.mark.parametrize("number", range(1, WRITES + 1))
@pytest.mark.parametrize("fault", KILL_POINTS, ids=lambda fault: fault.name)
def test_killed_at_any_write_it_is_made_again(number: int, fault: Fault) -> None:
    """There is the complete snapshot or none; the next try makes it, whatever the last one left (Laws 2, 3 and 8)."""
    shelf = shelf_with(2)
    faulty = Shelf(FaultyStore(shelf.checkpoints, FaultPlan(at_write={number: fault})), clock=shelf.clock)
    if fault is Fault.REPLY_LOST:
        assert faulty.capture() == shelf.control.manifest(SNAPSHOT)
    else:
        with pytest.raises(SimulatedCrash):
            faulty.capture()
        landed = number > MANIFEST_WRITE or (number == MANIFEST_WRITE and fault is Fault.CRASH_AFTER)
        assert (shelf.control.manifest(SNAPSHOT) is not None) is landed
    capture_again_is_whole(shelf)


def fails_on_a_full_disk(shelf: Shelf, number: int, fault: Fault) -> None:
    faulty = Shelf(FaultyStore(shelf.checkpoints, FaultPlan(at_write={number: fault})), clock=shelf.clock)
    with pytest.raises(UnavailableError, match="the disk is full"):
        faulty.capture()
    assert shelf.control.manifest(SNAPSHOT) is None
    capture_again_is_whole(shelf)


@pytest.mark.parametrize("number", range(1, MANIFEST_WRITE + 1))
def test_a_full_disk_at_any_write_makes_no_snapshot(number: int) -> None:
    """The error reports that the disk is full, nothing exists, and with space again the same call works (Law 3)."""
    fails_on_a_full_disk(shelf_with(2), number, Fault.NO_SPACE)


def test_a_half_made_snapshot_of_an_older_position_does_not_get_into_the_new_one() -> None:
    """What a crashed try left is not in the manifest of the next."""
    shelf = shelf_with(2)
    with pytest.raises(SimulatedCrash):
        Shelf(FaultyStore(shelf.checkpoints, FaultPlan(at_write={MANIFEST_WRITE: Fault.CRASH_BEFORE}))).capture()
    run_stateful(shelf.checkpoint(), 6, first=3)
    assert "offsets/2" not in paths(shelf.capture())
    capture_again_is_whole(shelf)


def test_a_driver_that_wakes_up_after_its_successor_took_the_snapshot_harms_nothing() -> None:
    """Paused before any of its calls while another takes the same snapshot, it returns that one (Laws 2 and 4)."""
    for call in CAPTURE_PLAN.calls:
        shelf = shelf_with(2)
        others: list[SnapshotManifest] = []

        def take(shelf: Shelf = shelf, others: list[SnapshotManifest] = others) -> None:
            others.append(shelf.capture())

        zombie = FaultyStore(shelf.checkpoints, FaultPlan(meanwhile={call.number: take}))
        assert Shelf(zombie).capture() == others[0] == shelf.control.manifest(SNAPSHOT)
        assert verify(shelf.control, shelf.checkpoints, SNAPSHOT) == []


def test_two_lost_replies_in_a_row_are_borne() -> None:
    """Linking again is finding out; a third loss is reported, and nothing exists (Law 8)."""
    shelf = shelf_with(2)
    lost = FaultPlan(at_write={2: Fault.REPLY_LOST, 3: Fault.REPLY_LOST})
    Shelf(FaultyStore(shelf.checkpoints, lost)).capture()
    shelf = shelf_with(2)
    lost = FaultPlan(at_write=dict.fromkeys((2, 3, 4), Fault.REPLY_LOST))
    with pytest.raises(OutcomeUnknownError):
        Shelf(FaultyStore(shelf.checkpoints, lost)).capture()
    capture_again_is_whole(shelf)


def test_data_is_durable_before_a_manifest_in_another_store() -> None:
    """With the home elsewhere, the store of the data gets a separate complete write before the manifest (Law 3)."""
    plan = FaultPlan()
    checkpoints, home = FaultyStore(MemoryStore("disk"), plan), FaultyStore(MemoryStore("s3"), plan)
    shelf = Shelf(checkpoints, home)
    run_stateful(shelf.checkpoint(), 2)
    manifest = shelf.capture()
    assert [call.key for call in plan.writes[-3:]] == [
        layout.data_note_key(STREAM, SNAPSHOT),
        layout.manifest_key(STREAM, SNAPSHOT),
        layout.retention_key(STREAM),
    ]
    note = checkpoints.get(layout.data_note_key(STREAM, SNAPSHOT))
    assert from_bytes(note.body, key="note", expected=SnapshotManifest) == manifest


@pytest.mark.parametrize("snapshot_id", ["", "../x", "x" * 64, "UPPER", "a/b", "-a"])
def test_a_hostile_id_is_refused(snapshot_id: str) -> None:
    """No key is made of an id that is none."""
    with pytest.raises(InvalidRequestError):
        shelf_with(0).capture(snapshot_id=snapshot_id)


# while the query runs on


def hooked_shelf(last: int) -> tuple[Shelf, HookedStore]:
    store = HookedStore()
    shelf = Shelf(store)
    run_stateful(shelf.checkpoint(), last)
    return shelf, store


def delete_older_than(checkpoint: Checkpoint, batch_id: int) -> None:
    """What Spark's purge and maintenance leave: nothing below the batch, a full state file at it."""
    for info in list(checkpoint.store.list_objects(f"{checkpoint.prefix}/")):
        name = info.key.rpartition("/")[2].strip(".").split(".")[0]
        in_log = "/offsets/" in info.key or "/commits/" in info.key
        in_state = "/state/" in info.key
        if name.isdigit() and ((in_log and int(name) < batch_id) or (in_state and int(name) < batch_id + 1)):
            checkpoint.store.delete(info.key)


def run_and_purge(checkpoint: Checkpoint, batch_id: int) -> None:
    """One more batch, then Spark deletes all that it does not need for the last two."""
    run_stateful(checkpoint, batch_id, first=batch_id)
    for partition in range(2):
        snapshot = checkpoint.key(f"state/0/{partition}/{batch_id}.snapshot")
        checkpoint.store.put(snapshot, f"all of partition {partition} before batch {batch_id}".encode())
    delete_older_than(checkpoint, batch_id - 1)


def test_a_file_that_vanished_makes_it_go_again_at_a_newer_batch() -> None:
    """Spark deletes what is long superseded: the next position is captured instead."""
    shelf, store = hooked_shelf(3)
    store.before = once(lambda: [run_and_purge(shelf.checkpoint(), batch_id) for batch_id in range(4, 9)], "link")
    manifest = shelf.capture(kind="live")
    assert manifest.queries[QUERY].position.batch_id == 8
    assert "offsets/3" not in paths(manifest)
    store.before = None
    assert verify(shelf.control, shelf.checkpoints, SNAPSHOT) == []


@pytest.mark.parametrize(
    ("verb", "part"),
    [("get", "/checkpoints/counts/offsets/3"), ("get", "/checkpoints/counts/commits/3"), ("list", "/snapshots/"),
     ("get", "/data/")],
)  # fmt: skip
def test_whatever_vanishes_at_whatever_moment_it_goes_again(verb: str, part: str) -> None:
    """Also between the linking and the last check; even what was linked already."""
    shelf, store = hooked_shelf(3)

    def vanish() -> None:
        for batch_id in range(4, 9):
            run_and_purge(shelf.checkpoint(), batch_id)
        for info in list(store.list_objects(shelf.data_key(""))):
            store.delete(info.key)

    store.before = once(vanish, verb, part)
    manifest = shelf.capture(kind="live")
    store.before = None
    assert manifest.queries[QUERY].position.batch_id == 8
    assert verify(shelf.control, store, SNAPSHOT) == []


def test_a_query_that_outruns_every_try_is_an_error_to_retry() -> None:
    """The tries are bounded, the error reports which batches were tried, and no snapshot exists (Law 6)."""
    shelf, store = hooked_shelf(3)
    batch_ids = iter(range(4, 1000))

    def outrun(verb: str, key: str) -> None:
        if verb == "link" and "/state/" in key:
            for _ in range(4):
                run_and_purge(shelf.checkpoint(), next(batch_ids))

    store.before = outrun
    with pytest.raises(UnavailableError) as caught:
        shelf.capture(kind="live")
    batches = caught.value.context["batch_ids"]
    assert isinstance(batches, list)
    assert len(batches) == CAPTURE.tries
    assert shelf.control.manifest(SNAPSHOT) is None


def test_a_checkpoint_that_lacks_a_file_is_an_error_that_names_it() -> None:
    """Where the query does not run on, a missing file is lost: no snapshot is made without it (Law 5)."""
    shelf = shelf_with(3)
    delete_file(shelf.checkpoint(), "state/0/1/4.delta")
    with pytest.raises(ObjectMissingError, match=r"state/0/1/4\.delta"):
        shelf.capture()
    assert shelf.control.manifest(SNAPSHOT) is None


@pytest.mark.fast
@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 6))
def test_whatever_the_query_does_meanwhile_the_snapshot_is_one_position(moves: list[int], first: int) -> None:
    """Between any two calls the query may plan, commit and purge: the snapshot is complete, at a committed batch."""
    shelf, store = hooked_shelf(first)
    checkpoint, script = shelf.checkpoint(), iter(moves)
    state = {"next": first + 1, "planned": False}

    def move(verb: str, key: str) -> None:
        act = next(script, 0)
        if act == 1 and not state["planned"]:
            plan_stateful(checkpoint, state["next"])
            state["planned"] = True
        elif act == 2:
            run_stateful(checkpoint, state["next"], first=state["next"])
            state.update(next=state["next"] + 1, planned=False)
        elif act == 3:
            run_and_purge(checkpoint, state["next"])
            state.update(next=state["next"] + 1, planned=False)

    store.before = move
    manifest = shelf.capture(kind="live")
    store.before = None
    batch_id = manifest.queries[QUERY].position.batch_id
    assert batch_id is not None
    kept = Checkpoint(MemoryStore(), "kept")
    for path, key in data_files(manifest, QUERY).items():
        stored = store.get(key)
        kept.store.put(kept.key(path), stored.body)
    position = kept.position()
    assert (position.batch_id, position.planned, position.barriers) == (batch_id, None, ())
    assert f"state/0/0/{batch_id + 1}.delta" in data_files(manifest, QUERY)
    assert [problem for problem in verify(shelf.control, store, SNAPSHOT) if not problem.path.endswith(".crc")] == []


# on a disk


def test_on_a_disk_files_are_linked_and_not_copied(tmp_path: Path) -> None:
    """No byte is copied: both names are one file, of which a disk keeps no checksum."""
    store = LocalStore(tmp_path, fsync=False)
    shelf = Shelf(store)
    run_stateful(shelf.checkpoint(), 3)
    manifest = shelf.capture()
    for path, key in data_files(manifest, QUERY).items():
        assert store.path_of(key).samefile(store.path_of(shelf.checkpoint().key(path)))
    assert {entry.checksum for entry in manifest.queries[QUERY].files} == {""}


def test_an_uncommitted_flush_is_no_drain() -> None:
    """A drain entry that is not committed is left out, and the state stays in the snapshot (Laws 12 and 16)."""
    shelf = shelf_with(3)
    flush(shelf.checkpoint(), 4)
    delete_file(shelf.checkpoint(), "commits/4")
    captured = shelf.capture().queries[QUERY]
    assert (captured.drained, captured.position.batch_id, captured.position.planned_batch_id) == (False, 3, None)
    assert "offsets/4" not in {entry.path for entry in captured.files}
    commit_batch(shelf.checkpoint(), 4)
    assert shelf.capture(snapshot_id="s-2").queries[QUERY].drained


def test_rows_are_told_of_the_captured_batch_alone() -> None:
    """A count of a different batch than the captured one is no count (the driver's progress comes after the commit)."""
    shelf = shelf_with(3)
    for rows, told in (({3: 11}, 11), ({2: 9}, None), ({}, None)):
        query = QueryToCapture(shelf.checkpoint(), state_rows=rows)
        manifest = shelf.capture({QUERY: query}, snapshot_id=f"s-{len(rows)}-{told or 0}")
        assert manifest.queries[QUERY].position.state_rows_left == told


@pytest.mark.parametrize("kind", ["crc32", "etag"])
def test_a_server_copies_in_one_list_and_its_checksums_are_kept(kind: str) -> None:
    """No file is read to be copied, and the manifest holds what the server reported of each; also of carried state."""
    store = ServerStore(kind)
    shelf = Shelf(store)
    run_stateful(shelf.checkpoint(), 2)
    manifest = shelf.capture()
    files = manifest.queries[QUERY].files
    assert store.lists == [len(files)]
    assert [entry.checksum for entry in files] == [store.checksum_of(shelf.data_key(entry.path)) for entry in files]
    assert [key for key in store.read_keys if "/state/" in key and key.endswith(".delta")] == []
    carried = QueryToCapture(carried=manifest.queries[QUERY], carried_snapshot_id=SNAPSHOT)
    again = shelf.capture({QUERY: carried}, snapshot_id="d-0001-live-000002").queries[QUERY].files
    assert again == files
    for entry in again:  # it is where it was, so an entity tag of the key continues, too
        assert entry.checksum == store.checksum_of(shelf.data_key(entry.path))


@pytest.mark.parametrize("number", [1, 2, WRITES // 2, MANIFEST_WRITE])
def test_a_half_written_file_on_a_full_disk_is_no_file(number: int, tmp_path: Path) -> None:
    """Half of a write stays under a temporary name, and is not taken for anything (Law 3)."""
    shelf = Shelf(LocalStore(tmp_path, fsync=False))
    run_stateful(shelf.checkpoint(), 2)
    fails_on_a_full_disk(shelf, number, Fault.HALF_WRITTEN)


def test_a_disk_that_stays_full_keeps_being_told() -> None:
    """No space for any write at all: the same clear error each time, and never a snapshot."""
    shelf = shelf_with(2)
    faulty = Shelf(FaultyStore(shelf.checkpoints, FaultPlan(every_write=Fault.NO_SPACE)), clock=shelf.clock)
    for _ in range(3):
        with pytest.raises(UnavailableError, match="the disk is full"):
            faulty.capture()
    assert shelf.control.manifest(SNAPSHOT) is None
