"""Naming what is wrong with a snapshot."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.errors import (
    MalformedMessageError,
    SnapshotCorruptError,
    SnapshotIncompleteError,
    SnapshotNotFoundError,
)
from airflow_streamstate.protocol import layout
from airflow_streamstate.snapshot import data
from airflow_streamstate.snapshot.capture import QueryToCapture
from airflow_streamstate.snapshot.data import data_files
from airflow_streamstate.snapshot.verify import Problem, Unread, check_before_start, examine, seal, verify
from airflow_streamstate.store import transfer
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore
from support.asked_store import AskedStore
from support.faulty_store import Fault, FaultPlan, FaultyStore
from support.hadoop_checksums import format_checksums
from support.server_store import ServerStore
from support.snapshots import QUERY, SNAPSHOT, STREAM, Shelf, flip_byte, run_stateful

pytestmark = pytest.mark.fast


@pytest.fixture(params=["unsealed", "sealed", "on disk", "sealed on disk"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Shelf:
    """A stream with one complete snapshot, sealed or not yet; on a disk its files are read side by side."""
    shelf = Shelf(LocalStore(tmp_path / "home", fsync=False)) if "on disk" in request.param else Shelf()
    run_stateful(shelf.checkpoint(), 2)
    shelf.capture()
    if "sealed" in request.param.split():
        seal(shelf.control, shelf.checkpoints, SNAPSHOT)
    return shelf


def problems(shelf: Shelf) -> list[Problem]:
    return verify(shelf.control, shelf.checkpoints, SNAPSHOT)


def named(shelf: Shelf) -> list[tuple[str, str]]:
    return [(problem.kind, problem.path) for problem in problems(shelf)]


def test_a_whole_snapshot_has_no_problems(shelf: Shelf) -> None:
    """Also with files alongside it that no manifest names."""
    shelf.checkpoints.put(shelf.data_key("offsets/99"), b"left over from a try that died")
    assert problems(shelf) == []


def test_one_flipped_byte_in_any_file_is_told_by_name(shelf: Shelf) -> None:
    """Altered bytes are found by Spark's own checksums, before any seal, and exactly that file is named."""
    for path, key in data_files(shelf.control.need_manifest(SNAPSHOT), QUERY).items():
        stored = shelf.checkpoints.get(key)
        for at in {0, len(stored.body) // 2, len(stored.body) - 1}:
            flip_byte(shelf.checkpoints, key, at)
            assert named(shelf) == [("altered", path)]
            shelf.checkpoints.put(key, stored.body)


def test_any_missing_file_is_told_by_name(shelf: Shelf) -> None:
    """Exactly the file that is gone."""
    for path, key in data_files(shelf.control.need_manifest(SNAPSHOT), QUERY).items():
        stored = shelf.checkpoints.get(key)
        shelf.checkpoints.delete(key)
        assert named(shelf) == [("missing", path)]
        shelf.checkpoints.put(key, stored.body)


def test_all_that_is_wrong_is_named_in_the_order_of_the_manifest(shelf: Shelf) -> None:
    """Whichever file was read first."""
    files = data_files(shelf.control.need_manifest(SNAPSHOT), QUERY)
    for key in files.values():
        shelf.checkpoints.put(key, b"other bytes")
    assert [path for _, path in named(shelf)] == list(files)


def test_a_reader_may_give_up_between_two_files(shelf: Shelf) -> None:
    """What ``before_each`` raises ends it."""

    def give_up() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify(shelf.control, shelf.checkpoints, SNAPSHOT, before_each=give_up)


class Endless(AskedStore):
    """Once ``most_pieces`` is set, its files continue without an end, but for checksum files."""

    most_pieces = pieces = 0

    def read_range(self, key: str, start: int, size_bytes: int) -> bytes | None:
        if not self.most_pieces or key.endswith(".crc"):
            return super().read_range(key, start, size_bytes)
        self.pieces += 1
        return bytes(size_bytes) if self.pieces < self.most_pieces else b""


def test_a_reader_may_give_up_in_the_middle_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """However large it is, an interrupt does not wait for its end."""
    monkeypatch.setattr(data, "RANGE_BYTES", 1)
    monkeypatch.setattr(transfer, "LOOK_SECONDS", 0.001)
    store = Endless()
    shelf = Shelf(store)
    run_stateful(shelf.checkpoint(), 2)
    shelf.capture()
    store.most_pieces = 1_000_000

    def give_up() -> None:
        if store.pieces:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify(shelf.control, shelf.checkpoints, SNAPSHOT, before_each=give_up)
    assert 0 < store.pieces < store.most_pieces


def test_what_was_read_whole_is_sealed_without_another_reading(shelf: Shelf) -> None:
    """The digests of one examination are those that a seal has."""
    examined = examine(shelf.control, shelf.checkpoints, SNAPSHOT)
    assert examined.sha256 == seal(shelf.control, shelf.checkpoints, SNAPSHOT).sha256


def test_a_file_of_another_size_is_altered(shelf: Shelf) -> None:
    """The detail reports both sizes; an empty file is no file that was captured."""
    shelf.checkpoints.put(shelf.data_key("state/0/0/3.delta"), b"")
    (problem,) = problems(shelf)
    assert (problem.kind, problem.query, problem.path) == ("altered", QUERY, "state/0/0/3.delta")
    assert problem.detail.startswith("0 bytes where ")
    assert problem.to_json() == {
        "kind": "altered", "query": QUERY, "path": "state/0/0/3.delta", "detail": problem.detail
    }  # fmt: skip


def test_where_in_the_file_it_is_altered_is_said(shelf: Shelf) -> None:
    """The first chunk that differs, by its offset."""
    flip_byte(shelf.checkpoints, shelf.data_key("state/0/0/3.delta"), 700)
    (problem,) = problems(shelf)
    assert problem.detail == "differs from Spark's checksum from byte 512 on"


def test_several_problems_are_all_told_in_order(shelf: Shelf) -> None:
    """One damaged file hides no other."""
    shelf.checkpoints.delete(shelf.data_key("commits/2"))
    flip_byte(shelf.checkpoints, shelf.data_key("offsets/2"))
    shelf.checkpoints.delete(shelf.data_key("state/0/1/.3.delta.crc"))
    assert named(shelf) == [
        ("missing", "commits/2"), ("altered", "offsets/2"), ("missing", "state/0/1/.3.delta.crc")
    ]  # fmt: skip


def without_checksums(store: Store) -> Shelf:
    """A complete snapshot without Spark's checksum files."""
    shelf = Shelf(store)
    run_stateful(shelf.checkpoint(), 2)
    for info in list(store.list_objects("")):
        if info.key.endswith(".crc"):
            store.delete(info.key)
    shelf.capture()
    return shelf


def test_without_sparks_checksums_the_seal_tells() -> None:
    """Where Spark leaves no checksums, a flipped byte is found once the snapshot is sealed."""
    shelf = without_checksums(MemoryStore())
    seal(shelf.control, shelf.checkpoints, SNAPSHOT)
    flip_byte(shelf.checkpoints, shelf.data_key("state/0/0/3.delta"))
    (problem,) = problems(shelf)
    assert (problem.kind, problem.detail) == ("altered", "its sha256 is not the sealed one")


def test_a_file_and_its_checksum_altered_together_are_told() -> None:
    """The manifest reports that the checksum of an altered file was repaired."""
    shelf = Shelf()
    run_stateful(shelf.checkpoint(), 2)
    shelf.capture()
    run_stateful(shelf.checkpoint("other"), 3)
    other = shelf.capture({QUERY: QueryToCapture(shelf.checkpoint("other"))}, snapshot_id="s-other")
    for path in ("commits/3", "commits/.3.crc"):
        source = shelf.checkpoints.get(data_files(other, QUERY)[path])
        shelf.checkpoints.put(shelf.data_key(path.replace("3", "2")), source.body)
    assert ("altered", "commits/.2.crc") in named(shelf)


def test_unreadable_files_are_told_and_the_rest_is_still_read(tmp_path: Path) -> None:
    """What the disk does not give is a problem with its reason, not the end of the check."""
    store = LocalStore(tmp_path, fsync=False)
    shelf = Shelf(store)
    run_stateful(shelf.checkpoint(), 2)
    shelf.capture()
    path = store.path_of(shelf.data_key("state/0/0/3.delta"))
    path.unlink()
    path.symlink_to(path)
    shelf.checkpoints.delete(shelf.data_key("state/0/1/3.delta"))
    assert named(shelf) == [("unreadable", "state/0/0/3.delta"), ("missing", "state/0/1/3.delta")]


def test_a_read_that_fails_is_unreadable(shelf: Shelf) -> None:
    """An answer that does not come is never taken for absence."""
    plan = FaultPlan()
    verify(shelf.control, FaultyStore(shelf.checkpoints, plan), SNAPSHOT)
    reads = [call.number for call in plan.calls if call.key.endswith("/state/0/1/3.delta")]
    faulty = FaultyStore(shelf.checkpoints, FaultPlan(at=dict.fromkeys(reads, Fault.UNAVAILABLE)))
    found = verify(shelf.control, faulty, SNAPSHOT)
    assert [(problem.kind, problem.path) for problem in found] == [("unreadable", "state/0/1/3.delta")]


def test_a_checksum_file_that_was_damaged_before_is_unreadable(shelf: Shelf) -> None:
    """Spark will refuse the file alongside it; so it is reported, though it is what was captured."""
    run_stateful(shelf.checkpoint("bad"), 1)
    shelf.checkpoints.put(shelf.checkpoint("bad").key("commits/.1.crc"), b"crc")
    shelf.capture({"bad": QueryToCapture(shelf.checkpoint("bad"))}, snapshot_id="s-bad")
    (problem,) = verify(shelf.control, shelf.checkpoints, "s-bad")
    assert (problem.kind, problem.query, problem.path) == ("unreadable", "bad", "commits/.1.crc")


def test_without_a_manifest_there_is_no_snapshot(shelf: Shelf) -> None:
    """With all files there or none: its own error, not a list of problems (Law 3)."""
    shelf.checkpoints.delete(layout.manifest_key(STREAM, SNAPSHOT))
    for snapshot_id in (SNAPSHOT, "d-0009-stopped-000001"):
        with pytest.raises(SnapshotNotFoundError, match="no complete snapshot"):
            verify(shelf.control, shelf.checkpoints, snapshot_id)


def test_a_damaged_manifest_is_refused(shelf: Shelf) -> None:
    """A manifest that cannot be read proves nothing about the files (Law 7)."""
    shelf.checkpoints.put(layout.manifest_key(STREAM, SNAPSHOT), b'{"kind": "SnapshotManif')
    with pytest.raises(MalformedMessageError):
        verify(shelf.control, shelf.checkpoints, SNAPSHOT)


def test_a_damaged_seal_is_a_problem_of_its_own(shelf: Shelf) -> None:
    """The files are still compared with Spark's checksums."""
    shelf.checkpoints.put(layout.seal_key(STREAM, SNAPSHOT), b"{}")
    assert named(shelf) == [("unreadable", "seal.json")]


# the look before a start


def name_of(path: str) -> str:
    """Of a checksum file the name of the file that it is about."""
    return path.rpartition("/")[2].removeprefix(".").removesuffix(".crc")


def test_a_flipped_byte_in_any_file_is_found_before_a_start(shelf: Shelf) -> None:
    """Log or state, sealed or not: nothing is started from a snapshot that is not what was captured (Law 5)."""
    manifest = shelf.control.need_manifest(SNAPSHOT)
    assert check_before_start(shelf.control, shelf.checkpoints, manifest) is None
    for path, key in data_files(manifest, QUERY).items():
        stored = shelf.checkpoints.get(key)
        flip_byte(shelf.checkpoints, key, len(stored.body) - 1)
        with pytest.raises(SnapshotCorruptError) as caught:
            check_before_start(shelf.control, shelf.checkpoints, manifest)
        assert caught.value.context["path"] in (path, path.replace(f".{name_of(path)}.crc", name_of(path)))
        shelf.checkpoints.delete(key)
        with pytest.raises(SnapshotIncompleteError):
            check_before_start(shelf.control, shelf.checkpoints, manifest)
        shelf.checkpoints.put(key, stored.body)


def test_what_a_checksum_file_hides_a_seal_tells_before_a_start(shelf: Shelf) -> None:
    """A file that was altered together with its checksum file: Spark would take it, the seal does not."""
    manifest = shelf.control.need_manifest(SNAPSHOT)
    key, companion = shelf.data_key("state/0/1/3.delta"), shelf.data_key("state/0/1/.3.delta.crc")
    stored = shelf.checkpoints.get(key)
    body = b"x" + stored.body[1:]
    shelf.checkpoints.put(key, body)
    shelf.checkpoints.put(companion, format_checksums(body))
    with pytest.raises(SnapshotCorruptError):
        check_before_start(shelf.control, shelf.checkpoints, manifest)


def test_the_largest_files_are_left_unread_where_a_snapshot_is_large(shelf: Shelf) -> None:
    """A start does not wait for hundreds of gigabytes: what was not read is counted, and its sizes still hold."""
    manifest = shelf.control.need_manifest(SNAPSHOT)
    sizes = sorted(entry.size_bytes for entry in manifest.queries[QUERY].files)
    budget_bytes = sum(sizes[:-2])
    assert check_before_start(shelf.control, shelf.checkpoints, manifest, budget_bytes) == Unread(2, sum(sizes[-2:]))
    *_, largest = sorted(manifest.queries[QUERY].files, key=lambda entry: entry.size_bytes)
    flip_byte(shelf.checkpoints, shelf.data_key(largest.path))
    assert check_before_start(shelf.control, shelf.checkpoints, manifest, budget_bytes) is not None
    with pytest.raises(SnapshotCorruptError):
        check_before_start(shelf.control, shelf.checkpoints, manifest)


def test_a_damaged_seal_does_not_stand_in_the_way_of_a_start(shelf: Shelf) -> None:
    """Spark's checksums prove what a seal cannot any more (Law 7)."""
    manifest = shelf.control.need_manifest(SNAPSHOT)
    shelf.checkpoints.put(layout.seal_key(STREAM, SNAPSHOT), b"{")
    assert check_before_start(shelf.control, shelf.checkpoints, manifest) is None


def on_a_server(kind: str = "crc32") -> tuple[Shelf, ServerStore]:
    """As ``without_checksums``, on a store that keeps checksums itself."""
    store = ServerStore(kind)
    return without_checksums(store), store


@pytest.mark.parametrize("kind", ["crc32", "etag"])
def test_the_servers_checksums_tell_altered_bytes(kind: str) -> None:
    """Where Spark leaves no checksum files, as on S3, the manifest holds what the server reported when it copied."""
    shelf, store = on_a_server(kind)
    assert named(shelf) == []
    for path, key in data_files(shelf.control.need_manifest(SNAPSHOT), QUERY).items():
        stored = store.get(key)
        flip_byte(store, key)
        assert named(shelf) == [("altered", path)]
        with pytest.raises(SnapshotCorruptError):
            check_before_start(shelf.control, store, shelf.control.need_manifest(SNAPSHOT))
        store.put(key, stored.body)


def test_however_large_a_snapshot_on_a_server_is_it_is_asked_for_all_of_it() -> None:
    """No byte is read for it, so nothing is left out; and what the server reports was altered is never passed over."""
    shelf, store = on_a_server()
    manifest = shelf.control.need_manifest(SNAPSHOT)
    assert check_before_start(shelf.control, store, manifest, read_bytes=0) is None
    *_, largest = sorted(manifest.queries[QUERY].files, key=lambda entry: entry.size_bytes)
    flip_byte(store, shelf.data_key(largest.path))
    with pytest.raises(SnapshotCorruptError):
        check_before_start(shelf.control, store, manifest, read_bytes=0)


def test_a_start_asks_the_server_and_reads_no_state() -> None:
    """Before a start from a server that keeps checksums no byte of state comes through here."""
    shelf, store = on_a_server()
    manifest = shelf.control.need_manifest(SNAPSHOT)
    store.read_keys.clear()
    store.asked_keys.clear()
    assert check_before_start(shelf.control, store, manifest) is None
    files = data_files(manifest, QUERY)
    assert set(store.asked_keys) == set(files.values())
    assert [key for key in store.read_keys if "/state/" in key] == []
