"""The sha256 of a snapshot's files."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from airflow_streamstate.errors import SnapshotCorruptError, SnapshotIncompleteError, SnapshotNotFoundError
from airflow_streamstate.protocol import layout
from airflow_streamstate.snapshot.data import data_files
from airflow_streamstate.snapshot.verify import needs_seal, seal, verify
from airflow_streamstate.store.local import LocalStore
from support.faulty_store import FaultPlan, FaultyStore
from support.server_store import ServerStore
from support.snapshots import QUERY, SNAPSHOT, STREAM, Shelf, flip_byte, run_stateful

FIRST, SECOND = "d-0001-live-000001", "d-0001-live-000002"


@pytest.fixture
def shelf() -> Shelf:
    shelf = Shelf()
    run_stateful(shelf.checkpoint(), 2)
    shelf.capture()
    return shelf


def test_every_file_is_sealed(shelf: Shelf) -> None:
    """The seal holds the sha256 of each file, by query and path."""
    sealed = seal(shelf.control, shelf.checkpoints, SNAPSHOT)
    files = data_files(shelf.control.need_manifest(SNAPSHOT), QUERY)
    assert set(sealed.sha256[QUERY]) == set(files)
    for path, key in files.items():
        stored = shelf.checkpoints.get(key)
        assert sealed.sha256[QUERY][path] == hashlib.sha256(stored.body).hexdigest()
    assert shelf.control.seal(SNAPSHOT) == sealed


def test_sealing_twice_is_sealing_once(shelf: Shelf) -> None:
    """A seal that is there is returned, and no file is read for it (Law 2)."""
    first = seal(shelf.control, shelf.checkpoints, SNAPSHOT)
    plan = FaultPlan()
    shelf.clock.advance(60)
    assert seal(shelf.control, FaultyStore(shelf.checkpoints, plan), SNAPSHOT) == first
    assert plan.calls == []


def test_what_an_older_seal_has_is_not_read_again(tmp_path: Path) -> None:
    """On a disk: links of one file have one digest, that of its first reading; what was altered since is reported."""
    shelf = Shelf(LocalStore(tmp_path, fsync=False))
    run_stateful(shelf.checkpoint(), 2)
    shelf.capture(snapshot_id=FIRST, kind="live")
    first = seal(shelf.control, shelf.checkpoints, FIRST)
    run_stateful(shelf.checkpoint(), 3, first=3)
    shelf.capture(snapshot_id=SECOND, kind="live")
    shared = tmp_path / shelf.data_key("state/0/1/3.delta", snapshot_id=SECOND)
    whole = shared.read_bytes()
    shared.write_bytes(bytes(len(whole)))  # in place, so under every name of it
    second = seal(shelf.control, shelf.checkpoints, SECOND)
    assert second.sha256[QUERY]["state/0/1/3.delta"] == first.sha256[QUERY]["state/0/1/3.delta"]
    assert [problem.path for problem in verify(shelf.control, shelf.checkpoints, SECOND)] == ["state/0/1/3.delta"]
    shared.write_bytes(whole)
    assert verify(shelf.control, shelf.checkpoints, SECOND) == []


def test_a_file_of_its_own_is_read_whatever_an_older_seal_says(tmp_path: Path) -> None:
    """Of the same name, size and checksums as captured, and yet another file: it is what it is by its own bytes."""
    shelf = Shelf(LocalStore(tmp_path, fsync=False))
    run_stateful(shelf.checkpoint(), 2)
    for snapshot_id in (FIRST, SECOND):
        shelf.capture(snapshot_id=snapshot_id, kind="live")
    seal(shelf.control, shelf.checkpoints, FIRST)
    key = shelf.data_key("state/0/1/3.delta", snapshot_id=SECOND)
    stored = shelf.checkpoints.get(key)
    shelf.checkpoints.put(key, bytes(len(stored.body)))  # replaces the name, not the file
    with pytest.raises(SnapshotCorruptError):
        seal(shelf.control, shelf.checkpoints, SECOND)


@pytest.mark.parametrize(("harm", "refusal"), [("altered", SnapshotCorruptError), ("missing", SnapshotIncompleteError)])
def test_nothing_altered_or_incomplete_is_sealed(shelf: Shelf, harm: str, refusal: type[Exception]) -> None:
    """A seal over altered bytes would bless them; the error names the file."""
    key = shelf.data_key("state/0/1/3.delta")
    if harm == "altered":
        flip_byte(shelf.checkpoints, key)
    else:
        shelf.checkpoints.delete(key)
    with pytest.raises(refusal) as caught:
        seal(shelf.control, shelf.checkpoints, SNAPSHOT)
    assert caught.value.context["path"] == "state/0/1/3.delta"
    assert shelf.control.seal(SNAPSHOT) is None


def test_only_a_complete_snapshot_is_sealed(shelf: Shelf) -> None:
    """Without a manifest there is nothing to seal (Law 3)."""
    shelf.checkpoints.delete(layout.manifest_key(STREAM, SNAPSHOT))
    with pytest.raises(SnapshotNotFoundError):
        seal(shelf.control, shelf.checkpoints, SNAPSHOT)


def test_the_caller_sets_the_pace_and_may_give_up(shelf: Shelf) -> None:
    """It is asked before each file; what it raises ends the work without a seal."""
    files = len(data_files(shelf.control.need_manifest(SNAPSHOT), QUERY))
    asked: list[int] = []

    def before_each() -> None:
        asked.append(len(asked))
        if len(asked) == files:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        seal(shelf.control, shelf.checkpoints, SNAPSHOT, before_each=before_each)
    assert len(asked) == files
    assert shelf.control.seal(SNAPSHOT) is None


@pytest.mark.parametrize(("kind", "needed"), [("crc32", False), ("etag", True)])
def test_what_the_server_has_checksums_of_needs_no_seal(kind: str, needed: bool) -> None:
    """To seal is to read every byte; where the manifest holds the server's checksums it would report nothing more."""
    shelf = Shelf(ServerStore(kind))
    run_stateful(shelf.checkpoint(), 2)
    assert needs_seal(shelf.capture()) is needed
