"""The files of a complete snapshot: where they lie, their bytes as a stream, and the quick look before a start."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from airflow_streamstate.errors import InvalidRequestError, SnapshotCorruptError, SnapshotIncompleteError
from airflow_streamstate.protocol.manifest import FileEntry, QuerySnapshot, SnapshotManifest
from airflow_streamstate.snapshot.checksums import ServerCheck, WholeCheck, companion_of, parse_checksums
from airflow_streamstate.snapshot.places import folder_of, key_of, sizes_of
from airflow_streamstate.store.base import ReadsRanges, Store
from airflow_streamstate.store.local import disk_errors
from airflow_streamstate.store.transfer import until_done

READ_BYTES = 1 << 20
RANGE_BYTES = 1 << 23
"""What is asked of a server in one request; what is not larger comes with one."""
READERS = 4
"""Of files on disk: one waits for the disk while others compute."""
QUICK_BYTES = 1 << 20
"""Up to this size the quick look reads a log entry; state files are larger, and Spark checks them when it reads."""
REMEDY = (
    "`streamstate snapshot verify` names everything that is wrong; put the files back from a backup of the snapshot."
)
Read = TypeVar("Read")
Found = TypeVar("Found")
_LOGS = ("offsets/", "commits/", "sources/")


@runtime_checkable
class _OnDisk(Protocol):
    """A store whose objects are files of this machine."""

    root: Path

    def path_of(self, key: str) -> Path: ...


def data_files(manifest: SnapshotManifest, query_name: str) -> dict[str, str]:
    """Every file of one query, Spark's checksum files among them: path inside a checkpoint -> key of the object.

    This is what ``checkpoint.fork`` takes; the keys are of the checkpoints store.

    Raises:
        InvalidRequestError: the snapshot has no such query.
    """
    return {entry.path: key_of(manifest, query_name, entry) for entry in query_of(manifest, query_name).files}


def query_of(manifest: SnapshotManifest, query_name: str) -> QuerySnapshot:
    """One query of a snapshot.

    Raises:
        InvalidRequestError: the snapshot has no such query.
    """
    query = manifest.queries.get(query_name)
    if query is None:
        raise InvalidRequestError(
            "the snapshot has no such query",
            snapshot_id=manifest.snapshot_id,
            query_name=query_name,
            queries=sorted(manifest.queries),
            next_step="Start it with nothing by --allow-new-query, or give it the name it had.",
        )
    return query


def read_chunks(store: Store, key: str) -> Iterator[bytes] | None:
    """The object's bytes piece by piece, where the store can; None where there is none.

    A file that shrinks or goes while it is read just ends early: callers compare the size. On a server one that is
    replaced meanwhile may come in pieces of both: callers compare a checksum, or its version before and after.

    Raises:
        UnavailableError, InvalidRequestError: it cannot be read; also while iterating.
    """
    if isinstance(store, ReadsRanges) and not isinstance(store, _OnDisk):
        first = store.read_range(key, 0, RANGE_BYTES)
        return None if first is None else _ranges(store, key, first)
    if not isinstance(store, _OnDisk):
        stored = store.get(key)
        return None if stored is None else iter((stored.body,))
    if store.head(key) is None:
        return None
    return _file_chunks(store, key)


def side_by_side(
    store: Store,
    read: Callable[[Read, Callable[[], None]], Found],
    items: Iterable[Read],
    go_on: Callable[[], None] = lambda: None,
) -> Generator[Found]:
    """What ``read`` says of each, in order; of files of this machine several are read at once.

    Args:
        store: that the items are read from.
        read: called in threads of its own where a large file is read piece by piece, with an item, and with what it
            calls after each piece: that raises where its result is not awaited any more.
        items: what to read.
        go_on: called again and again while one of them takes long; raises to give up.
    """
    if not isinstance(store, _OnDisk | ReadsRanges):
        for item in items:
            yield read(item, go_on)
        return
    readers, given_up = READERS if isinstance(store, _OnDisk) else 1, threading.Event()

    def unless_given_up() -> None:
        if given_up.is_set():
            raise CancelledError

    with ThreadPoolExecutor(readers, thread_name_prefix="streamstate-read") as pool:
        try:
            for task in [pool.submit(read, item, unless_given_up) for item in items]:
                yield until_done(task, go_on)
        finally:
            given_up.set()
            pool.shutdown(wait=True, cancel_futures=True)


def _ranges(store: ReadsRanges, key: str, first: bytes) -> Iterator[bytes]:
    piece, start = first, 0
    while piece:
        yield piece
        start += len(piece)
        if len(piece) < RANGE_BYTES:
            return
        piece = store.read_range(key, start, RANGE_BYTES) or b""


def _file_chunks(store: _OnDisk, key: str) -> Iterator[bytes]:
    with disk_errors("get", key, store.root), store.path_of(key).open("rb", buffering=0) as file:
        while piece := file.read(READ_BYTES):
            yield piece


def check_complete(checkpoints: Store, manifest: SnapshotManifest, query_names: Iterable[str] | None = None) -> None:
    """The quick look before a checkpoint is built from a snapshot: every file there, of its size, small logs unaltered.

    State files are not read here: ``verify.check_before_start`` did that before the driver was launched, and Spark
    compares them with their checksums when it loads them.

    Args:
        checkpoints: the store that holds the data.
        manifest: of the snapshot.
        query_names: which queries; all of them by default.

    Raises:
        SnapshotIncompleteError: a file is missing.
        SnapshotCorruptError: a file has another size or other bytes than were captured.
        InvalidRequestError: the snapshot has no such query.
    """
    for query_name in sorted(manifest.queries) if query_names is None else query_names:
        query = query_of(manifest, query_name)
        sizes = sizes_of(checkpoints, manifest, query_name)
        for entry in query.files:
            found = sizes.get(key_of(manifest, query_name, entry))
            if found is None:
                raise SnapshotIncompleteError(
                    "a file of the snapshot is missing", **_facts(manifest, query_name, entry), next_step=REMEDY
                )
            if found != entry.size_bytes:
                raise SnapshotCorruptError(
                    "a file of the snapshot has another size than was captured",
                    **_facts(manifest, query_name, entry),
                    size_bytes=found,
                    expected_bytes=entry.size_bytes,
                    next_step=REMEDY,
                )
        for entry in query.files:
            if _is_small_log(entry) and _is_altered(checkpoints, folder_of(manifest, query_name, entry), entry):
                raise SnapshotCorruptError(
                    "a file of the snapshot is not what was captured",
                    **_facts(manifest, query_name, entry),
                    next_step=REMEDY,
                )


def _facts(manifest: SnapshotManifest, query_name: str, entry: FileEntry) -> dict[str, str]:
    return {"snapshot_id": manifest.snapshot_id, "query_name": query_name, "path": entry.path}


def _is_small_log(entry: FileEntry) -> bool:
    in_log = entry.path == "metadata" or entry.path.startswith(_LOGS)
    return in_log and bool(entry.spark_crc32 or entry.checksum) and entry.size_bytes <= QUICK_BYTES


def _is_altered(checkpoints: Store, folder: str, entry: FileEntry) -> bool:
    if not entry.spark_crc32:
        body, server = checkpoints.get(f"{folder}/{entry.path}"), ServerCheck(entry.checksum)
        server.update(b"" if body is None else body.body)
        return body is None or server.differs()
    key = f"{folder}/{companion_of(entry.path)}"
    companion, stored = checkpoints.get(key), checkpoints.get(f"{folder}/{entry.path}")
    if companion is None or stored is None or crc32_hex(companion.body) != entry.spark_crc32:
        return True
    check = WholeCheck(parse_checksums(companion.body, key=key))
    check.update(stored.body)
    return check.differs()


def is_on_disk(store: Store) -> bool:
    """Whether its objects are files of this machine."""
    return isinstance(store, _OnDisk)


def are_one_file(store: Store, key: str, other_key: str) -> bool:
    """Whether two objects are links of one file of this machine, with the same bytes; False where it is unknown."""
    if not isinstance(store, _OnDisk):
        return False
    try:
        return store.path_of(key).samefile(store.path_of(other_key))
    except OSError:
        return False


def crc32_hex(body: bytes) -> str:
    """The CRC-32 of these bytes as eight hex digits: what the manifest keeps of a checksum file."""
    return f"{zlib.crc32(body):08x}"


def crc32_of(store: Store, key: str, buffer: bytearray) -> str | None:
    """``crc32_hex`` of an object, at the least cost where that is a file of this machine; None where there is none.

    Args:
        store: holds it.
        key: its key.
        buffer: to read into, of any size; one for many objects spares the kernel to find new memory for each.

    Raises:
        UnavailableError, InvalidRequestError: it cannot be read.
    """
    if not isinstance(store, _OnDisk):
        stored = store.get(key)
        return None if stored is None else crc32_hex(stored.body)
    crc32, view = 0, memoryview(buffer)
    with disk_errors("get", key, store.root), suppress(FileNotFoundError, NotADirectoryError):
        with store.path_of(key).open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                crc32 = zlib.crc32(view[:count], crc32)
        return f"{crc32:08x}"
    return None
