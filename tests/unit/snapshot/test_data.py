"""The files of a complete snapshot, and the quick look before a start."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.errors import InvalidRequestError, SnapshotCorruptError, SnapshotIncompleteError
from airflow_streamstate.protocol import layout
from airflow_streamstate.snapshot import data
from airflow_streamstate.snapshot.data import (
    READ_BYTES,
    are_one_file,
    check_complete,
    crc32_hex,
    crc32_of,
    data_files,
    is_on_disk,
    query_of,
    read_chunks,
    read_side_by_side,
)
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore
from support.asked_store import AskedStore
from support.snapshots import QUERY, SNAPSHOT, STREAM, Shelf, flip_byte, run_stateful


@pytest.fixture
def shelf() -> Shelf:
    shelf = Shelf()
    run_stateful(shelf.checkpoint(), 2)
    shelf.capture()
    return shelf


def test_links_of_one_file_are_told_from_copies_of_it(tmp_path: Path) -> None:
    """On a disk; elsewhere it is not known."""
    store = LocalStore(tmp_path)
    for target in (store, MemoryStore()):
        target.put("a", b"bytes")
        target.link("a", "b")
        target.put("c", b"bytes")
    assert [are_one_file(store, "a", other) for other in ("a", "b", "c", "none")] == [True, True, False, False]
    assert is_on_disk(store)
    assert not is_on_disk(target)
    assert not are_one_file(target, "a", "b")


@pytest.fixture(params=["disk", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return LocalStore(tmp_path, fsync=False) if request.param == "disk" else MemoryStore()


def test_answers_come_in_the_order_of_the_items(store: Store) -> None:
    """However many readers there are; and what one of them raises comes out in its place."""
    assert list(read_side_by_side(store, lambda item, _go_on: item * 2, range(50))) == [item * 2 for item in range(50)]
    answers = read_side_by_side(store, lambda item, _go_on: 6 // item, [3, 2, 0, 1])
    assert [next(answers), next(answers)] == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(answers)


def test_data_files_are_what_a_fork_takes(shelf: Shelf) -> None:
    """Path inside a checkpoint -> key of the object, for every file of the manifest."""
    manifest = shelf.control.need_manifest(SNAPSHOT)
    files = data_files(manifest, QUERY)
    assert list(files) == [entry.path for entry in manifest.queries[QUERY].files]
    assert files["offsets/2"] == f"{layout.snapshot_data_folder(STREAM, SNAPSHOT, QUERY)}/offsets/2"


def test_an_unknown_query_is_refused_by_name(shelf: Shelf) -> None:
    """The error names the queries that the snapshot has (1a.12)."""
    manifest = shelf.control.need_manifest(SNAPSHOT)
    for act in (query_of, data_files):
        with pytest.raises(InvalidRequestError) as caught:
            act(manifest, "another")
        assert caught.value.context["queries"] == [QUERY]


def test_every_file_that_is_missing_or_cut_short_is_seen_before_a_start(shelf: Shelf) -> None:
    """Whichever it is, no checkpoint is built, and the error names it, and its size (Law 5)."""
    manifest = shelf.control.need_manifest(SNAPSHOT)
    check_complete(shelf.checkpoints, manifest)
    check_complete(shelf.checkpoints, manifest, [QUERY])
    for path, key in data_files(manifest, QUERY).items():
        stored = shelf.checkpoints.get(key)
        shelf.checkpoints.delete(key)
        with pytest.raises(SnapshotIncompleteError) as caught:
            check_complete(shelf.checkpoints, manifest)
        assert caught.value.context["path"] == path
        shelf.checkpoints.put(key, stored.body[:-1])
        with pytest.raises(SnapshotCorruptError) as altered:
            check_complete(shelf.checkpoints, manifest)
        assert altered.value.context["path"] == path
        assert altered.value.context["size_bytes"] == len(stored.body) - 1
        shelf.checkpoints.put(key, stored.body)


@pytest.mark.parametrize("path", ["metadata", "offsets/2", "commits/2", "sources/0/1", "offsets/.2.crc"])
def test_an_altered_byte_in_a_small_log_is_seen_before_a_start(shelf: Shelf, path: str) -> None:
    """We read these ourselves, so we compare them with Spark's checksums; state files Spark checks when it reads."""
    flip_byte(shelf.checkpoints, shelf.data_key(path), 9)
    with pytest.raises(SnapshotCorruptError, match="not what was captured"):
        check_complete(shelf.checkpoints, shelf.control.need_manifest(SNAPSHOT))


def test_the_quick_look_takes_only_the_queries_asked_for(shelf: Shelf) -> None:
    """A damaged query does not keep another one from starting; an unknown one is refused."""
    manifest = shelf.control.need_manifest(SNAPSHOT)
    shelf.checkpoints.delete(shelf.data_key("metadata"))
    check_complete(shelf.checkpoints, manifest, [])
    with pytest.raises(InvalidRequestError):
        check_complete(shelf.checkpoints, manifest, ["another"])


def test_bytes_come_whole_whatever_the_store(store: Store) -> None:
    """Streamed or at once, the pieces together are the object; None if there is no object."""
    body = bytes(range(256)) * (READ_BYTES // 256) + b"tail"
    store.put("a/b", body)
    store.put("a/empty", b"")
    chunks = read_chunks(store, "a/b")
    assert chunks is not None
    assert b"".join(chunks) == body
    assert b"".join(read_chunks(store, "a/empty") or [b"no"]) == b""
    assert read_chunks(store, "a/none") is None


def test_a_large_file_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    """On a disk the pieces are of READ_BYTES at most."""
    store = LocalStore(tmp_path, fsync=False)
    store.put("a", b"x" * (READ_BYTES * 2 + 1))
    assert [len(piece) for piece in read_chunks(store, "a") or ()] == [READ_BYTES, READ_BYTES, 1]


@pytest.mark.parametrize(("size_bytes", "requests"), [(0, 1), (1, 1), (99, 1), (100, 2), (101, 2), (250, 3)])
def test_a_server_gives_a_large_file_in_parts(size_bytes: int, requests: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of RANGE_BYTES at most, and a small one with the one request that it always cost."""
    monkeypatch.setattr(data, "RANGE_BYTES", 100)
    store = AskedStore()
    store.put("a", bytes(range(size_bytes)))
    pieces = list(read_chunks(store, "a") or ())
    assert b"".join(pieces) == bytes(range(size_bytes))
    assert max(map(len, pieces), default=0) <= 100
    assert len(store.asked) == requests
    assert read_chunks(store, "none") is None


def test_the_crc_of_an_object_is_that_of_its_bytes(store: Store) -> None:
    """However small the buffer, also of nothing; and None if there is no object, or no folder."""
    body, buffer = bytes(range(256)) * 5, bytearray(100)
    store.put("a/b", body)
    store.put("a/empty", b"")
    assert crc32_of(store, "a/b", buffer) == crc32_hex(body)
    assert crc32_of(store, "a/empty", buffer) == crc32_hex(b"")
    assert crc32_of(store, "a/none", buffer) is crc32_of(store, "none/a", buffer) is None
