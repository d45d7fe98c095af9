"""The files of a complete snapshot: their keys, their bytes as a stream, and the quick check before a start."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from airflow_streamstate.errors import DataError, InvalidRequestError, SnapshotCorruptError, SnapshotIncompleteError
from airflow_streamstate.protocol.manifest import FileEntry, QuerySnapshot, SnapshotManifest
from airflow_streamstate.snapshot.checksums import (
    ServerCheck,
    SparkChecksums,
    WholeCheck,
    companion_of,
    parse_checksums,
)
from airflow_streamstate.snapshot.places import folder_of, key_of, sizes_of
from airflow_streamstate.store.base import ReadsRanges, Store
from airflow_streamstate.store.local import disk_errors
from airflow_streamstate.store.transfer import until_done

READ_BYTES = 1 << 20
RANGE_BYTES = 1 << 23
"""The largest part that one request asks of a server."""
READERS = 4
"""Readers of files on disk: one waits for the disk while others compute."""
LOG_READERS = 8
"""Readers of small files: one waits for the store while others compute."""
QUICK_BYTES = 1 << 20
"""The largest log entry that the quick check reads; Spark checks larger files when it reads them."""
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
    """Every file of one query, also Spark's checksum files, as ``checkpoint.fork`` takes them: path -> key.

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
    """The object's bytes, piece by piece where the store can; None where there is none.

    A file that shrinks or is deleted meanwhile ends early: callers compare the size. An object that is replaced on a
    server meanwhile may come in pieces of both: callers compare a checksum, or its version before and after.

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


def read_side_by_side(
    store: Store,
    read: Callable[[Read, Callable[[], None]], Found],
    items: Iterable[Read],
    go_on: Callable[[], None] = lambda: None,
) -> Generator[Found]:
    """The results of ``read`` for each item, in order; several files of this machine are read at once.

    Args:
        read: called with an item and a function to call after each piece, which raises where the result is not awaited
            any more; in other threads where a store gives large files in pieces.
        go_on: called again and again while one item takes long; raises to give up.
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
    """The quick check before a checkpoint is built from a snapshot: every file there, of its size, small logs whole.

    State files are not read: ``verify.check_before_start`` did that before the launch, and Spark compares them with
    their checksums when it loads them. ``query_names`` None is all of them.

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
                    "a file of the snapshot is missing", **facts_of(manifest, query_name, entry), next_step=REMEDY
                )
            if found != entry.size_bytes:
                raise SnapshotCorruptError(
                    "a file of the snapshot has another size than was captured",
                    **facts_of(manifest, query_name, entry),
                    size_bytes=found,
                    expected_bytes=entry.size_bytes,
                    next_step=REMEDY,
                )
        logs = list(filter(_is_small_log, query.files))
        with ThreadPoolExecutor(LOG_READERS, thread_name_prefix="streamstate-read") as pool:
            altered = pool.map(partial(_is_altered, checkpoints, manifest, query_name), logs)
            for entry, is_altered in zip(logs, altered, strict=True):
                if is_altered:
                    raise SnapshotCorruptError(
                        "a file of the snapshot is not what was captured",
                        **facts_of(manifest, query_name, entry),
                        next_step=REMEDY,
                    )


def facts_of(manifest: SnapshotManifest, query_name: str, entry: FileEntry) -> dict[str, str]:
    """The context of an error about one file."""
    return {"snapshot_id": manifest.snapshot_id, "query_name": query_name, "path": entry.path}


def _is_small_log(entry: FileEntry) -> bool:
    in_log = entry.path == "metadata" or entry.path.startswith(_LOGS)
    return in_log and bool(entry.spark_crc32 or entry.checksum) and entry.size_bytes <= QUICK_BYTES


def _is_altered(checkpoints: Store, manifest: SnapshotManifest, query_name: str, entry: FileEntry) -> bool:
    folder = folder_of(manifest, query_name, entry)
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
    """Whether the objects of this store are files of this machine."""
    return isinstance(store, _OnDisk)


def are_one_file(store: Store, key: str, other_key: str) -> bool:
    """Whether two objects are links of one file of this machine; False where that is not known."""
    if not isinstance(store, _OnDisk):
        return False
    try:
        return store.path_of(key).samefile(store.path_of(other_key))
    except OSError:
        return False


def crc32_hex(body: bytes) -> str:
    """The CRC-32 of these bytes as eight hex digits, which a manifest keeps of a checksum file."""
    return f"{zlib.crc32(body):08x}"


def captured_checksums(store: Store, key: str, entry: FileEntry) -> SparkChecksums | None:
    """Spark's checksums of a file, from the checksum file at ``key``; None where that is not as captured.

    A missing, altered or damaged checksum file is reported under its own name.
    """
    companion = store.get(key) if key and entry.spark_crc32 else None
    if companion is None or crc32_hex(companion.body) != entry.spark_crc32:
        return None
    try:
        return parse_checksums(companion.body, key=key)
    except DataError:
        return None


def crc32_of(store: Store, key: str, buffer: bytearray) -> str | None:
    """``crc32_hex`` of an object; None where there is none.

    ``buffer``, of any size, is for files of this machine: one for many objects saves allocations.

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
