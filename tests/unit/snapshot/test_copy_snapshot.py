"""What speaks against a file of a snapshot, reported where it arrives."""

from __future__ import annotations

import pytest

from airflow_streamstate.errors import SnapshotCorruptError
from airflow_streamstate.snapshot.copies import copy_snapshot, sealed_in
from airflow_streamstate.snapshot.data import data_files
from airflow_streamstate.snapshot.verify import seal
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.memory import MemoryStore
from support.server_store import ServerStore
from support.snapshots import QUERY, SNAPSHOT, Shelf, flip_byte, run_stateful


def shelf_with(store: Store) -> Shelf:
    shelf = Shelf(store)
    run_stateful(shelf.checkpoint(), 2)
    shelf.capture()
    return shelf


def bring(shelf: Shelf, target: Store) -> None:
    manifest = shelf.control.need_manifest(SNAPSHOT)
    sealed = sealed_in(shelf.control, SNAPSHOT)
    copy_snapshot(manifest, sealed, [shelf.checkpoints], target, batch_bytes=64, timeout_seconds=20)


def test_every_file_arrives_under_its_key() -> None:
    """The manifest is not among them: the caller writes it last. (Law 3)"""
    shelf, target = shelf_with(MemoryStore()), MemoryStore()
    bring(shelf, target)
    keys = data_files(shelf.control.need_manifest(SNAPSHOT), QUERY).values()
    assert {info.key: target.get(info.key).body for info in target.list_objects("")} == {
        key: shelf.checkpoints.get(key).body for key in keys
    }


@pytest.mark.parametrize("path", ["state/0/1/3.delta", "state/0/1/.3.delta.crc", "commits/2"])
def test_sparks_checksums_tell_an_altered_file(path: str) -> None:
    """Without a seal and without a server that keeps checksums."""
    shelf, target = shelf_with(MemoryStore()), MemoryStore()
    flip_byte(shelf.checkpoints, shelf.data_key(path))
    with pytest.raises(SnapshotCorruptError) as caught:
        bring(shelf, target)
    assert caught.value.context["key"] == shelf.data_key(path)
    assert target.get(shelf.data_key(path)) is None


@pytest.mark.parametrize("kept_by", ["seal", "server"])
def test_what_else_is_known_tells_it_too(kept_by: str) -> None:
    """The sealed sha256, or what the server reported when it copied the file, where Spark keeps no checksum."""
    shelf = shelf_with(ServerStore() if kept_by == "server" else MemoryStore())
    if kept_by == "seal":
        seal(shelf.control, shelf.checkpoints, SNAPSHOT)
    flip_byte(shelf.checkpoints, shelf.data_key("metadata"))
    with pytest.raises(SnapshotCorruptError):
        bring(shelf, MemoryStore())
