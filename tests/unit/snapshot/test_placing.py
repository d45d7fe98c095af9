"""Snapshots that are stored elsewhere than with the checkpoints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_streamstate.errors import (
    ConflictError,
    InvalidRequestError,
    UnavailableError,
)
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.terms.version import NO_SNAPSHOTS
from airflow_streamstate.snapshot.data import check_complete, data_files
from airflow_streamstate.snapshot.deletion import leased
from airflow_streamstate.snapshot.verify import verify
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore
from airflow_streamstate.store.transfer import delete_below
from support.checkpoints import QUERY_ID, HookedStore
from support.server_store import ServerStore
from support.snapshots import PLACE, QUERY, SNAPSHOT, STREAM, Shelf, placed_shelf, run_stateful


def data_keys(store: Store) -> list[str]:
    """The files of snapshots there."""
    return [info.key for info in store.list_objects(f"{STREAM}/snapshots/") if "/data/" in info.key]


def test_a_snapshot_lies_whole_at_its_place_and_nowhere_else() -> None:
    """Its manifest reports where, and is in the home; what was linked on the way is gone (Law 3)."""
    shelf, place = placed_shelf()
    manifest = shelf.capture(kept_at=PLACE)
    assert manifest.data_uri == PLACE
    assert shelf.control.need_manifest(SNAPSHOT) == manifest
    keys = sorted(data_files(manifest, QUERY).values())
    assert keys == sorted(data_keys(place))
    assert data_keys(shelf.checkpoints) == []
    assert verify(shelf.control, shelf.places.of(manifest), SNAPSHOT) == []


def test_its_files_are_at_hand_for_a_reader_as_long_as_that_has_its_lease() -> None:
    """Copied alongside the checkpoints, where Spark reads; gone with the lease. The snapshot is not touched."""
    shelf, place = placed_shelf()
    manifest = shelf.capture(kept_at=PLACE)
    before = {info.key: place.get(info.key) for info in place.list_objects("")}
    with leased(shelf.control, SNAPSHOT, "a test") as lease:
        here = lease.landed(shelf.places, manifest, [QUERY])
        assert here.data_uri == ""
        check_complete(shelf.checkpoints, here, [QUERY])
        folder = lease.folder_of(shelf.checkpoints, here, QUERY)
        assert folder.query_id() == QUERY_ID
        assert folder.commit_ids()[-1] == 3
    assert list(shelf.checkpoints.list_objects(layout.gathered_folders(STREAM))) == []
    assert {info.key: place.get(info.key) for info in place.list_objects("")} == before


def test_the_setting_may_change_from_one_snapshot_to_the_next() -> None:
    """Nothing is shared between two places; each manifest knows its own."""
    shelf, place = placed_shelf(3)
    kept = [
        shelf.capture(kind="live", snapshot_id="s-1"),
        shelf.capture(kind="live", snapshot_id="s-2", kept_at=PLACE),
        shelf.capture(kind="live", snapshot_id="s-3"),
    ]
    assert [manifest.data_uri for manifest in kept] == ["", PLACE, ""]
    for manifest, store in zip(kept, (shelf.checkpoints, place, shelf.checkpoints), strict=True):
        assert verify(shelf.control, store, manifest.snapshot_id) == []
        assert not any(entry.shared_from for entry in manifest.queries[QUERY].files)


def test_a_place_that_is_not_there_takes_and_gives_nothing() -> None:
    """An empty folder where a disk should be mounted is no place: no byte goes there (Law 5)."""
    shelf, _ = placed_shelf()
    manifest = shelf.capture(kept_at=PLACE)
    empty = MemoryStore("empty")
    away = replace(shelf, elsewhere={PLACE: empty})
    with pytest.raises(UnavailableError, match="is not the place"):
        away.capture(snapshot_id="s-2", kept_at=PLACE)
    with pytest.raises(UnavailableError, match="is not the place"):
        away.places.of(manifest)
    assert list(empty.list_objects("")) == []
    assert shelf.control.manifest("s-2") is None
    empty.put(layout.place_record_key(STREAM), b"damaged")
    with pytest.raises(UnavailableError, match="is not the place"):
        away.capture(snapshot_id="s-2", kept_at=PLACE)


def test_a_place_is_that_of_one_home() -> None:
    """A stream of the same name in another home would write under the same keys."""
    shelf, place = placed_shelf()
    other = Shelf(checkpoints=MemoryStore("other"), elsewhere={PLACE: place})
    with pytest.raises(ConflictError, match="in another home"):
        other.places.claim(other.control, PLACE)
    run_stateful(other.checkpoint(), 3)
    with pytest.raises(ConflictError, match="in another home"):
        other.capture(kept_at=PLACE)
    shelf.places.claim(shelf.control, PLACE)
    assert data_keys(place) == []


def test_two_homes_of_the_same_uri_have_no_place_in_common() -> None:
    """The same folder on two machines: each would remove what the other keeps, as halves of its own. (Laws 3 and 4)"""
    shelf, place = placed_shelf()
    manifest = shelf.capture(kept_at=PLACE)
    other = Shelf(checkpoints=MemoryStore(), elsewhere={PLACE: place})
    assert other.control.home.uri == shelf.control.home.uri
    for _ in range(2):
        with pytest.raises(ConflictError, match="in another home of the same URI"):
            other.places.claim(other.control, PLACE)
    shelf.places.claim(shelf.control, PLACE)
    assert verify(shelf.control, place, manifest.snapshot_id) == []


def test_a_place_has_one_name() -> None:
    """Under a second one it would be taken for two, of which each is pruned by itself. (Law 3)"""
    shelf, place = placed_shelf()
    shelf.capture(kept_at=PLACE)
    shelf.elsewhere["memory://alias"] = place
    with pytest.raises(ConflictError, match="known by another name") as refused:
        shelf.places.claim(shelf.control, "memory://alias")
    assert refused.value.context["known_as"] == PLACE
    shelf.places.claim(shelf.control, PLACE)


def test_a_claim_that_was_cut_short_is_made_again() -> None:
    """The home knows which record it would write, also where that was written. (Laws 1 and 2)"""
    for moment in ("before", "after"):
        place = HookedStore()
        shelf = Shelf(elsewhere={PLACE: place})

        def die(verb: str, key: str, moment: str = moment) -> None:
            if verb == "create":
                raise RuntimeError(f"killed {moment} {key}")

        setattr(place, moment, die)
        with pytest.raises(RuntimeError, match="killed"):
            shelf.places.claim(shelf.control, PLACE)
        setattr(place, moment, None)
        shelf.places.claim(shelf.control, PLACE)
        shelf.places.need_own(shelf.control, PLACE)


def test_the_checkpoints_under_another_name_are_no_place(tmp_path: Path) -> None:
    """What is linked on the way to a place is removed afterwards: there it would be the snapshot itself (Law 3)."""
    folder, alias = tmp_path / "home", tmp_path / "alias"
    folder.mkdir()
    alias.symlink_to(folder)
    shelf = Shelf(checkpoints=LocalStore(folder), elsewhere={PLACE: LocalStore(alias)})
    run_stateful(shelf.checkpoint(), 3)
    with pytest.raises(ConflictError, match="is at this place"):
        shelf.places.claim(shelf.control, PLACE)
    delete_below(shelf.checkpoints, layout.deployments_folder(STREAM))  # as of a stream that is deployed first
    with pytest.raises(InvalidRequestError, match="by another name"):
        shelf.places.claim(shelf.control, PLACE)
    with pytest.raises(UnavailableError, match="is not the place"):
        shelf.places.need(STREAM, PLACE)


def test_a_mirror_is_no_place() -> None:
    """Clearing partial copies there would clear what is being taken."""
    shelf, place = placed_shelf()
    place.delete(layout.place_record_key(STREAM))
    place.put(layout.spec_key(STREAM, "d-0001"), b"{}")
    with pytest.raises(ConflictError, match="a mirror of a stream of this name"):
        shelf.places.claim(shelf.control, PLACE)
    assert place.get(layout.place_record_key(STREAM)) is None


def test_a_place_that_has_snapshots_is_not_claimed_anew_where_its_disk_is_not_mounted() -> None:
    """One snapshot would be in the folder, and the next on the disk; a deploy waits for the disk, or names another
    place (Law 5)."""
    shelf, _ = placed_shelf()
    shelf.capture(kept_at=PLACE)
    empty = MemoryStore("empty")
    away = replace(shelf, elsewhere={PLACE: empty})
    with pytest.raises(UnavailableError, match="its record is missing"):
        away.places.claim(away.control, PLACE)
    shelf.checkpoints.delete(layout.retention_key(STREAM))
    with pytest.raises(UnavailableError, match="its record is missing"):
        away.places.claim(away.control, PLACE)
    assert list(empty.list_objects("")) == []
    shelf.places.claim(shelf.control, PLACE)


def test_a_server_that_tells_checksums_is_asked_for_those_of_the_place() -> None:
    """The manifest states of the bytes what the place reports; versions are those of the checkpoint."""
    place = ServerStore()
    shelf = Shelf(elsewhere={PLACE: place})
    run_stateful(shelf.checkpoint(), 3)
    shelf.places.claim(shelf.control, PLACE)
    manifest = shelf.capture(kept_at=PLACE)
    assert all(entry.checksum for entry in manifest.queries[QUERY].files)
    assert verify(shelf.control, place, SNAPSHOT) == []
    run_stateful(shelf.checkpoint(), 4, first=4)
    place.asked_keys.clear()
    later = shelf.capture(kind="live", snapshot_id="s-2", kept_at=PLACE)
    own = [entry for entry in later.queries[QUERY].files if not entry.shared_from]
    assert 0 < len(place.asked_keys) == len(own) < later.files_count
    assert all(entry.checksum for entry in later.queries[QUERY].files)
    assert verify(shelf.control, place, "s-2") == []


def test_a_deployment_that_keeps_no_snapshots_refers_to_its_own_checkpoint() -> None:
    """Nothing is copied: the manifest at its end names the files of the checkpoint itself."""
    shelf, _ = placed_shelf(3)
    before = {info.key for info in shelf.checkpoints.list_objects("")}
    manifest = shelf.capture(kept_at=NO_SNAPSHOTS)
    after = {info.key for info in shelf.checkpoints.list_objects("")}
    assert after - before == {layout.manifest_key(STREAM, SNAPSHOT), layout.retention_key(STREAM)}
    assert manifest.refers_to_checkpoints
    checkpoint = shelf.checkpoint()
    assert data_files(manifest, QUERY)["offsets/3"] == checkpoint.offset_key(3)
    assert verify(shelf.control, shelf.checkpoints, SNAPSHOT) == []
    with pytest.raises(InvalidRequestError, match="--snapshots none"):
        shelf.capture(kind="live", snapshot_id="s-live", kept_at=NO_SNAPSHOTS)
