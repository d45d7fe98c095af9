"""The places of the files of a snapshot."""

from __future__ import annotations

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.protocol import layout
from airflow_streamstate.snapshot.capture import DataFolder
from airflow_streamstate.snapshot.data import gathered, key_of, own_folder, sizes_of
from airflow_streamstate.snapshot.deletion import leased
from support.snapshots import QUERY, STREAM, Shelf, run_stateful

FIRST, SECOND = "d-0001-live-000001", "d-0001-live-000002"


def two() -> Shelf:
    shelf = Shelf()
    for number, snapshot_id in enumerate((FIRST, SECOND)):
        run_stateful(shelf.checkpoint(), 2 + number, first=0 if number == 0 else 3)
        shelf.capture(snapshot_id=snapshot_id, kind="live")
    return shelf


def test_each_file_is_found_where_it_lies() -> None:
    """In its own folder, or in that of the older snapshot that has it."""
    shelf = two()
    manifest = shelf.control.need_manifest(SECOND)
    keys = {key_of(manifest, QUERY, entry) for entry in manifest.queries[QUERY].files}
    assert keys <= set(sizes_of(shelf.checkpoints, manifest, QUERY))
    assert {key.split("/")[2] for key in keys} == {FIRST, SECOND}


def test_spark_is_given_one_folder() -> None:
    """The snapshot's own where it holds all of it; else a fork, which goes with the reader's lease."""
    shelf = two()
    first, second = (shelf.control.need_manifest(one) for one in (FIRST, SECOND))
    assert gathered(shelf.checkpoints, first, QUERY, "lease").prefix == own_folder(first, QUERY)
    with leased(shelf.control, SECOND, "state") as lease:
        whole = lease.folder_of(shelf.checkpoints, second, QUERY)
        assert whole.prefix == layout.gathered_folder(STREAM, lease.lease_id, QUERY)
        assert whole.position().batch_id == 3
        assert Checkpoint(shelf.checkpoints, own_folder(second, QUERY)).exists() is False
    assert list(shelf.checkpoints.list_objects(f"{layout.gathered_folders(STREAM)}/")) == []


def test_what_is_taken_is_told_as_it_lies_there() -> None:
    """Sizes and checksums are of the copies (``copying``)."""
    shelf = two()
    folder = DataFolder(shelf.checkpoints, "orders/elsewhere")
    (entry,) = folder.take([shelf.checkpoint().metadata_key], ["metadata"])
    assert entry.path == "metadata"
    found = shelf.checkpoints.get("orders/elsewhere/metadata")
    assert entry.size_bytes == len(found.body)
