"""Copies of checkpoints and snapshots, each file compared with everything that is known of its bytes."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping
from functools import partial

from airflow_streamstate.checkpoint.fork import at_home, names_places, wipe
from airflow_streamstate.checkpoint.log import Checkpoint, Position
from airflow_streamstate.checkpoint.state_files import files_of
from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import DataError, ObjectMissingError, SnapshotCorruptError, StreamStateError
from airflow_streamstate.protocol.manifest import FileEntry, SnapshotManifest
from airflow_streamstate.retry import Retry
from airflow_streamstate.snapshot.checksums import (
    ChecksumCheck,
    ServerCheck,
    SparkChecksums,
    WholeCheck,
    companion_of,
    is_of_bytes,
    parse_checksums,
)
from airflow_streamstate.snapshot.copy import COPY_BATCH_BYTES, Copied, CopyErrors, CopyProgress, FileToCopy, copy
from airflow_streamstate.snapshot.data import captured_checksums, data_files
from airflow_streamstate.store.base import ObjectInfo, Store

COPY = Retry(tries=3)


def copy_checkpoint(
    source: Checkpoint, position: Position, target: Checkpoint, *, go_on: Callable[[], None] = lambda: None
) -> Copied:
    """Make ``target``, which no query uses yet, a checkpoint at this position of ``source``, ``metadata`` last.

    What is at ``target`` is wiped. Files with checksums of Spark's are compared with them. A driver that can claim no
    batch any more still maintains its state: where it removes a needed file, all is copied again. ``go_on`` is called
    again and again; it raises to abort.

    Raises:
        ObjectMissingError: a file of the position is not there.
        SnapshotCorruptError: a file is not what Spark wrote.
        DataError, UnsupportedCheckpointError: the source is damaged, or of a format not known here.
    """
    return COPY.call(SYSTEM_CLOCK, lambda: _copy_all(source, position, target, go_on), ObjectMissingError)


def _copy_all(source: Checkpoint, position: Position, target: Checkpoint, go_on: Callable[[], None]) -> Copied:
    prefix = len(source.prefix) + 1
    paths = [key[prefix:] for key in files_of(source, position)]
    wipe(target)
    listed = {info.key[prefix:]: info for info in source.store.list_objects(f"{source.prefix}/")}
    totals = Copied(0, 0)
    for path in paths:
        if names_places(path) and not path.endswith(".crc"):  # its .crc is of the old bytes
            go_on()
            totals += Copied(1, _rewrite(source, target, path, companion_of(path) in paths))
    copied = [path for path in paths if not names_places(path)]
    last = [path for path in (".metadata.crc", "metadata.crc", "metadata") if path in copied]
    first = [path for path in copied if path not in last]
    for some in (first, last):
        wanted = [_file(source, target, path, listed, companion_of(path) in paths) for path in some]
        totals += copy(
            [source.store],
            target.store,
            wanted,
            batch_bytes=COPY_BATCH_BYTES,
            timeout_seconds=float("inf"),
            go_on=go_on,
            is_new=True,
            errors=_Errors(),
        )
    return totals


def _rewrite(source: Checkpoint, target: Checkpoint, path: str, has_checksums: bool) -> int:
    body = _read(source, path)
    check = _CheckpointCheck(source, path, has_checksums, None)
    check.update(body)
    check.complaint()
    target.store.put(target.key(path), at_home(body, target, source.key(path)))
    return len(body)


def _file(
    source: Checkpoint, target: Checkpoint, path: str, listed: Mapping[str, ObjectInfo], has_checksums: bool
) -> FileToCopy:
    key = source.key(path)
    info = listed.get(path)
    if info is None:
        raise _gone(key)
    # One piece is of one version of the file.
    before = source.store.head(key) if info.size_bytes > COPY_BATCH_BYTES else None
    check = partial(_CheckpointCheck, source, path, has_checksums, before)
    return FileToCopy(key, info.size_bytes, check, target.key(path))


class _CheckpointCheck:
    """Compares one file with Spark's checksums of it, if any, and with ``head`` from before its first piece, if any."""

    def __init__(self, source: Checkpoint, path: str, has_checksums: bool, before: ObjectInfo | None) -> None:
        self._source = source
        self._path = path
        self._before = before
        self._checksums: ChecksumCheck | None = None
        if has_checksums:
            companion = companion_of(path)
            self._checksums = ChecksumCheck(parse_checksums(_read(source, companion), key=source.key(companion)))

    def update(self, data: bytes) -> None:
        if self._checksums is not None:
            self._checksums.update(data)

    def complaint(self) -> str:
        key = self._source.key(self._path)
        if self._before is not None:
            after = self._source.store.head(key)
            if after is None or _stamp(after) != _stamp(self._before):
                raise _gone(key)
        altered_at = None if self._checksums is None else self._checksums.finish()
        if altered_at is not None:
            raise SnapshotCorruptError(
                "a file of this checkpoint is not what Spark wrote",
                key=key,
                altered_from_byte=altered_at,
                next_step="Put the file back from a backup; nothing was changed.",
            )
        return ""


class _Errors(CopyErrors):
    """Raises the source's own error; a file that is not as it was listed means that the query has moved on."""

    def no_source(self, dropped: Mapping[str, StreamStateError]) -> StreamStateError:
        return next(iter(dropped.values()))

    def no_copy(self, key: str, problems: Mapping[str, str], *, is_missing: bool) -> StreamStateError:  # noqa: ARG002
        return _gone(key)


def _stamp(info: ObjectInfo) -> tuple[object, ...]:
    return info.size_bytes, info.version, info.modified_at


def _read(source: Checkpoint, path: str) -> bytes:
    stored = source.store.get(source.key(path))
    if stored is None:
        raise _gone(source.key(path))
    return stored.body


def _gone(key: str) -> ObjectMissingError:
    return ObjectMissingError("a file went while it was being copied", key=key)


# Copies the files of a snapshot from the places that hold it, each compared with all that is known of its bytes.


def copy_snapshot(
    manifest: SnapshotManifest,
    sealed: Mapping[str, Mapping[str, str]],
    sources: list[Store],
    target: Store,
    *,
    batch_bytes: int,
    timeout_seconds: float,
    clock: Clock = SYSTEM_CLOCK,
    arrives_as: SnapshotManifest | None = None,
    on_progress: Callable[[CopyProgress], None] = lambda _progress: None,
    go_on: Callable[[], None] = lambda: None,
) -> Copied:
    """Copy the files of a snapshot, without its manifest (Law 3). Other arguments and errors as ``copy``.

    Each is compared with its size, the checksum of the server that kept it, its sealed sha256, and Spark's own
    checksums, whose files come first.

    Args:
        sealed: sha256 by query and path; empty where it is not sealed.
        arrives_as: a manifest of the same files with their keys at the target; None for the same keys.
    """
    checksum_files, others = _files(manifest, sealed, target, arrives_as or manifest)
    totals = Copied(0, 0)
    for files in (checksum_files, others):
        totals += copy(
            sources,
            target,
            files,
            batch_bytes=batch_bytes,
            timeout_seconds=timeout_seconds,
            clock=clock,
            on_progress=on_progress,
            go_on=go_on,
        )
    return totals


def sealed_in(control: StreamControl, snapshot_id: str) -> Mapping[str, Mapping[str, str]]:
    """The sealed sha256 by query and path; empty if there is no seal, or a damaged one, which ``verify`` reports."""
    try:
        seal = control.seal(snapshot_id)
    except DataError:
        return {}
    return {} if seal is None else seal.sha256


def _files(
    manifest: SnapshotManifest, sealed: Mapping[str, Mapping[str, str]], target: Store, arrives_as: SnapshotManifest
) -> tuple[list[FileToCopy], list[FileToCopy]]:
    checksum_files: dict[str, FileToCopy] = {}
    others: dict[str, FileToCopy] = {}
    for name, query in sorted(manifest.queries.items()):
        keys, there = data_files(manifest, name), data_files(arrives_as, name)
        crc32_of = {companion_of(entry.path): entry.spark_crc32 for entry in query.files if entry.spark_crc32}

        for entry in query.files:
            sha256 = sealed.get(name, {}).get(entry.path, "")
            if entry.path in crc32_of:
                check = partial(_SnapshotCheck, entry, sha256, crc32_of[entry.path])
            else:
                beside = there.get(companion_of(entry.path), "") if entry.spark_crc32 else ""
                check = partial(
                    _SnapshotCheck, entry, sha256, checksums=partial(captured_checksums, target, beside, entry)
                )
            files = checksum_files if entry.path in crc32_of else others
            files[keys[entry.path]] = FileToCopy(keys[entry.path], entry.size_bytes, check, there[entry.path])
    return list(checksum_files.values()), list(others.values())


class _SnapshotCheck:
    """Compares one file with all that is known of it.

    Args:
        sha256: the sealed one; "" if not set.
        crc32: of a checksum file of Spark's, by the manifest; "" for other files.
        checksums: gives Spark's checksums of the file, where they have arrived.
    """

    def __init__(
        self,
        entry: FileEntry,
        sha256: str,
        crc32: str = "",
        checksums: Callable[[], SparkChecksums | None] = lambda: None,
    ) -> None:
        self._entry = entry
        self._size_bytes = self._crc32 = 0
        self._wanted_crc32, self._wanted_sha256 = crc32, sha256
        self._sha256 = hashlib.sha256() if sha256 else None
        self._server = ServerCheck(entry.checksum) if is_of_bytes(entry.checksum) else None
        known = checksums()
        self._spark = None if known is None else WholeCheck(known)

    def update(self, data: bytes) -> None:
        self._size_bytes += len(data)
        if self._wanted_crc32:
            self._crc32 = zlib.crc32(data, self._crc32)
        for check in (self._sha256, self._server, self._spark):
            if check is not None:
                check.update(data)

    def complaint(self) -> str:
        if self._wanted_crc32 and f"{self._crc32:08x}" != self._wanted_crc32:
            return "this checksum file is not the captured one"
        if self._size_bytes != self._entry.size_bytes:
            return "it has another size"
        if self._sha256 is not None and self._sha256.hexdigest() != self._wanted_sha256:
            return "its sha256 is not the sealed one"
        if self._server is not None and self._server.differs():
            return "it differs from the server's checksum of when it was captured"
        return "it differs from Spark's checksums" if self._spark is not None and self._spark.differs() else ""
