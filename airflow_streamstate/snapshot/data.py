"""The files of a complete snapshot: where each is stored, its bytes, and the files that snapshots share."""

from __future__ import annotations

import re
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from airflow_streamstate.checkpoint.fork import fork
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.errors import DataError, InvalidRequestError, SnapshotCorruptError, SnapshotIncompleteError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.older_python import zipped
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.layout import is_checkpoint_place
from airflow_streamstate.protocol.manifest import FileEntry, QuerySnapshot, SnapshotManifest
from airflow_streamstate.snapshot.checksums import (
    ServerCheck,
    SparkChecksums,
    WholeCheck,
    companion_of,
    parse_checksums,
)
from airflow_streamstate.store.base import ManyAtOnce, ObjectInfo, ReadsRanges, Store
from airflow_streamstate.store.local import LocalStore, disk_errors
from airflow_streamstate.store.transfer import side_by_side, until_done

# Where each file of a snapshot is: in its own folder, or in that of an older snapshot with the same file.
#
# Files are shared like that on stores where a link is a copy.


def key_of(manifest: SnapshotManifest, query_name: str, entry: FileEntry) -> str:
    """The key of one file of a snapshot (in the checkpoints store)."""
    return f"{folder_of(manifest, query_name, entry)}/{entry.path}"


def keys_of(manifest: SnapshotManifest) -> dict[str, FileEntry]:
    """Every file of a snapshot by its key."""
    return {key_of(manifest, name, entry): entry for name, query in manifest.queries.items() for entry in query.files}


def folder_of(manifest: SnapshotManifest, query_name: str, entry: FileEntry) -> str:
    """The folder of a query that holds one of its files."""
    if entry.shared_from:
        return layout.shared_data_folder(manifest.stream_id, entry.shared_from, query_name)
    return own_folder(manifest, query_name)


def own_folder(manifest: SnapshotManifest, query_name: str) -> str:
    """The folder of the files of a query that are with the snapshot itself."""
    return layout.snapshot_data_folder(manifest.stream_id, manifest.snapshot_id, query_name, manifest.take)


def place_of(manifest: SnapshotManifest, entry: FileEntry) -> str:
    """The ``layout.data_place`` of a file, for a younger snapshot that shares it."""
    return entry.shared_from or layout.data_place(manifest.snapshot_id, manifest.take)


def sizes_of(checkpoints: Store, manifest: SnapshotManifest, query_name: str) -> dict[str, int]:
    """The sizes of the objects in the folders of a query's files, by key."""
    files = manifest.queries[query_name].files
    folders = dict.fromkeys(folder_of(manifest, query_name, entry) for entry in files)
    return {key: size for folder in folders for key, size in _sizes_below(checkpoints, folder).items()}


def lying(store: Store, stream_id: str, query_name: str, entries: Sequence[FileEntry]) -> list[FileEntry]:
    """Those of some shared files of a query that are where ``shared_from`` names; by one listing for each place."""
    folder_at = {
        entry.shared_from: layout.shared_data_folder(stream_id, entry.shared_from, query_name) for entry in entries
    }
    lists = [partial(_sizes_below, store, folder) for folder in folder_at.values()]
    found = side_by_side(lists) if isinstance(store, ManyAtOnce) else [look() for look in lists]
    sizes = {key: size for there in found for key, size in there.items()}
    return [one for one in entries if sizes.get(f"{folder_at[one.shared_from]}/{one.path}") == one.size_bytes]


def _sizes_below(store: Store, folder: str) -> dict[str, int]:
    return {info.key: info.size_bytes for info in store.list_objects(f"{folder}/")}


def gathered(checkpoints: Store, manifest: SnapshotManifest, query_name: str, lease_id: str) -> Checkpoint:
    """One query of a snapshot as a folder that Spark can read: its own, or a fork where its files are in several.

    A fork is removed with the lease.

    Raises:
        ObjectMissingError, DataError: a file is not there, or no checkpoint can be made of them.
    """
    folder = one_folder(manifest, query_name)
    if folder:
        return Checkpoint(checkpoints, folder)
    target = Checkpoint(checkpoints, layout.gathered_folder(manifest.stream_id, lease_id, query_name))
    files = manifest.queries[query_name].files
    fork(checkpoints, {entry.path: key_of(manifest, query_name, entry) for entry in files}, target)
    return target


def one_folder(manifest: SnapshotManifest, query_name: str) -> str:
    """The folder that holds all files of a query and no others; "" without one."""
    found = {entry.shared_from for entry in manifest.queries[query_name].files} or {""}
    place = found.pop()
    if found or not (place == "" or layout.is_gathered_place(place)):
        return ""
    return (
        layout.shared_data_folder(manifest.stream_id, place, query_name) if place else own_folder(manifest, query_name)
    )


def gathered_logs(checkpoints: Store, manifest: SnapshotManifest, query_name: str, lease_id: str) -> Checkpoint:
    """As ``gathered``, with the logs alone, which a drained query has, too."""
    folder = one_folder(manifest, query_name)
    if folder:
        return Checkpoint(checkpoints, folder)
    target = Checkpoint(checkpoints, layout.gathered_folder(manifest.stream_id, lease_id, query_name))
    for entry in manifest.queries[query_name].files:
        if not entry.path.startswith("state/"):
            checkpoints.link(key_of(manifest, query_name, entry), target.key(entry.path))
    return target


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
    """The object's bytes, piece by piece where the store can; None if it does not exist.

    A file that shrinks or is deleted in the meantime ends early: callers compare the size. An object that is replaced
    on a server in the meantime may come in pieces of both: callers compare a checksum, or its version before and after.

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
        go_on: called again and again while one item takes long; raises to abort.
    """
    if not isinstance(store, (_OnDisk, ReadsRanges)):
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
            for entry, is_altered in zipped(logs, altered):
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
    """Whether two objects are links of one file of this machine; False if that is not known."""
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
    """Spark's checksums of a file, from the checksum file at ``key``; None if that is not as captured.

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
    """``crc32_hex`` of an object; None if it does not exist.

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


# Finds the files that a new snapshot need not copy, because an older one of the stream has them.
#
# On a disk every snapshot has links of its own. On other stores whose listings have versions, a file of the same path,
# size and version is named where it is. Versions are compared within one deployment, where they are of one key; across
# deployments only where they are digests of the bytes.

_DIGEST = re.compile(r'"?(?:[0-9a-f]{32}|[0-9a-f]{64})"?')


@dataclass(frozen=True)
class Bases:
    """The older snapshots (``manifests`` by id) whose files a new one of a deployment may share; none is removed."""

    deployment_id: str
    manifests: Mapping[str, SnapshotManifest]

    def shared(
        self, query_name: str, paths: Collection[str], there: Mapping[str, ObjectInfo], store: Store
    ) -> dict[str, FileEntry]:
        """The files of a query that need no copy, by path; each was found in a listing.

        Args:
            paths: of the query's files in the new snapshot.
            there: the same files in the checkpoint, by path, as they were listed.
            store: of the data of the older snapshots.
        """
        found: dict[str, FileEntry] = {}
        for manifest in self.manifests.values():
            query = manifest.queries.get(query_name)
            for entry in () if query is None else query.files:
                info = there.get(entry.path)
                if info is not None and self._is_same(manifest, entry, info):
                    found.setdefault(entry.path, replace(entry, shared_from=place_of(manifest, entry)))
        wanted = [entry for path, entry in found.items() if path in paths]
        return _with_companions(paths, {entry.path: entry for entry in self._lying(store, query_name, wanted)})

    def _lying(self, store: Store, query_name: str, wanted: Sequence[FileEntry]) -> list[FileEntry]:
        if not wanted:
            return []
        stream_id = next(iter(self.manifests.values())).stream_id
        return lying(store, stream_id, query_name, wanted)

    def _is_same(self, manifest: SnapshotManifest, entry: FileEntry, info: ObjectInfo) -> bool:
        if not entry.source_version or (entry.source_version, entry.size_bytes) != (info.version, info.size_bytes):
            return False
        return manifest.deployment_id == self.deployment_id or _DIGEST.fullmatch(info.version) is not None

    def with_same_bytes(self, query_name: str, files: Sequence[FileEntry], store: Store) -> tuple[FileEntry, ...]:
        """These linked files of a query, named in an older snapshot of this deployment if that has the same bytes.

        Spark's checksums decide this, whose own checksum is in a manifest. Each file was found in a listing of
        ``store``.
        """
        older: dict[str, FileEntry] = {}
        for manifest in self.manifests.values():
            query = manifest.queries.get(query_name)
            for entry in query.files if query is not None and manifest.deployment_id == self.deployment_id else ():
                older.setdefault(entry.path, replace(entry, shared_from=place_of(manifest, entry)))
        found: dict[str, FileEntry] = {}
        paths = {entry.path for entry in files}
        for entry in files:
            same, companion = older.get(entry.path), companion_of(entry.path)
            if same is None or not entry.spark_crc32 or companion not in older or companion not in paths:
                continue
            if (same.size_bytes, same.spark_crc32) == (entry.size_bytes, entry.spark_crc32):
                found |= {entry.path: same, companion: older[companion]}
        found = _with_companions(paths, {one.path: one for one in self._lying(store, query_name, [*found.values()])})
        return tuple(entry if entry.shared_from else found.get(entry.path, entry) for entry in files)

    def carried(self, query: QuerySnapshot, snapshot_id: str) -> QuerySnapshot | None:
        """The query of an older snapshot, with its files named where they are; None if that is not one of these."""
        manifest = self.manifests.get(snapshot_id)
        if manifest is None:
            return None
        files = tuple(replace(entry, shared_from=place_of(manifest, entry)) for entry in query.files)
        return replace(query, files=files)


def _with_companions(paths: Collection[str], found: dict[str, FileEntry]) -> dict[str, FileEntry]:
    """Without files whose checksum file is not shared, or the other way round."""
    for path in paths:
        companion = companion_of(path)
        if companion in paths and (path in found) != (companion in found):
            found.pop(path, None)
            found.pop(companion, None)
    return found


_File = tuple[str, str]
"""The place of a file, and its key there."""


def shared_bytes(checkpoints: Store, manifests: Collection[SnapshotManifest]) -> dict[str, int]:
    """By snapshot of a stream, the bytes that take no room of their own: another one or a checkpoint has them."""
    holders = Counter(file for one in manifests for file in _sizes(one))
    found = {}
    for one in manifests:
        sizes = _sizes(one)
        is_linked = not one.data_uri and isinstance(checkpoints, LocalStore)
        own = _named(one)
        found[one.snapshot_id] = sum(
            size
            for file, size in sizes.items()
            if file[1] in own or (_is_linked(checkpoints, file[1]) if is_linked else holders[file] > 1)
        )
    return found


def freed_bytes(
    checkpoints: Store, gone: Iterable[SnapshotManifest], kept: Iterable[SnapshotManifest]
) -> dict[str, int]:
    """By snapshot that is removed, the bytes that this frees; each file counts once."""
    needed = {file for one in kept for file in _sizes(one)}
    counted: set[_File] = set()
    found: dict[str, int] = {}
    for one in gone:
        own = {file: size for file, size in _sizes(one).items() if file not in needed and file not in counted}
        counted |= set(own)
        named = _named(one)
        if not one.data_uri and isinstance(checkpoints, LocalStore):
            own = {file: size for file, size in own.items() if not _is_linked(checkpoints, file[1])}
        found[one.snapshot_id] = sum(size for (_, key), size in own.items() if key not in named)
    return found


def _sizes(manifest: SnapshotManifest) -> Mapping[_File, int]:
    return {(manifest.data_uri, key): entry.size_bytes for key, entry in keys_of(manifest).items()}


def _named(manifest: SnapshotManifest) -> set[str]:
    """The named files of checkpoints, which are not the snapshot's own."""
    return {key for key, entry in keys_of(manifest).items() if is_checkpoint_place(entry.shared_from)}


def _is_linked(checkpoints: Store, key: str) -> bool:
    with suppress(OSError):
        return isinstance(checkpoints, LocalStore) and checkpoints.path_of(key).stat().st_nlink > 1
    return False
