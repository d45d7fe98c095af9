"""Reading a whole snapshot and naming everything that is wrong with it."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Literal

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import DataError, SnapshotCorruptError, SnapshotIncompleteError, StreamStateError
from airflow_streamstate.protocol.manifest import FileEntry, SnapshotManifest
from airflow_streamstate.snapshot.checksums import (
    ChecksumCheck,
    ServerCheck,
    SparkChecksums,
    WholeCheck,
    companion_of,
    parse_checksums,
)
from airflow_streamstate.snapshot.data import REMEDY, check_complete, crc32_hex, read_chunks, side_by_side
from airflow_streamstate.snapshot.places import folder_of, key_of
from airflow_streamstate.store.base import ManyAtOnce, Store

ProblemKind = Literal["missing", "altered", "unreadable", "outrun"]
READ_BEFORE_START_BYTES = 1 << 31
"""How much of a snapshot is read before a start from it: three to five seconds' worth on one core of two."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        kind: not there; other bytes than were captured; not to be read; or ``outrun``: its driver went on after it.
        query: the query's name; "" where it concerns the snapshot as a whole.
        path: of the file, relative to the query's folder.
        detail: the same in words.
    """

    kind: ProblemKind
    query: str
    path: str
    detail: str

    def to_json(self) -> dict[str, str]:
        """The problem as plain JSON."""
        return {"kind": self.kind, "query": self.query, "path": self.path, "detail": self.detail}


@dataclass(frozen=True)
class Examined:
    """A snapshot that was read.

    Attributes:
        problems: everything that is wrong with it, in the manifest's order.
        sha256: of every file that was read, by query and path.
    """

    problems: list[Problem]
    sha256: Mapping[str, Mapping[str, str]]


def verify(
    control: StreamControl, checkpoints: Store, snapshot_id: str, *, before_each: Callable[[], None] = lambda: None
) -> list[Problem]:
    """As ``examine``: the problems alone. An empty list means that the snapshot is whole."""
    return examine(control, checkpoints, snapshot_id, before_each=before_each).problems


def examine(
    control: StreamControl, checkpoints: Store, snapshot_id: str, *, before_each: Callable[[], None] = lambda: None
) -> Examined:
    """Read every byte of the snapshot, once.

    Each file is held against its size and, once the snapshot is sealed, its sha256; before that, and where it differs
    from that, against Spark's own checksums and what the server that keeps it said when it was copied.

    Args:
        control: the stream.
        checkpoints: the store of the data.
        snapshot_id: a complete snapshot.
        before_each: called again and again while files are read; may raise to give up.

    Raises:
        SnapshotNotFoundError: there is no complete snapshot of this id.
        DataError: its manifest cannot be read.
    """
    manifest = control.need_manifest(snapshot_id)
    problems: list[Problem] = []
    sealed: Mapping[str, Mapping[str, str]] = {}
    try:
        seal = control.seal(snapshot_id)
        sealed = {} if seal is None else seal.sha256
    except DataError as error:
        problems.append(Problem("unreadable", "", "seal.json", str(error)))
    sha256: dict[str, dict[str, str]] = {}
    for query_name, query in sorted(manifest.queries.items()):
        reading = FileReading(checkpoints, manifest, query_name)
        look = partial(_examine_entry, reading, query_name, sealed.get(query_name, {}))
        digests = sha256.setdefault(query_name, {})
        with closing(side_by_side(checkpoints, look, query.files, before_each)) as found:
            for entry in query.files:
                before_each()
                problem, digest = next(found)
                if problem is not None:
                    problems.append(problem)
                else:
                    digests[entry.path] = digest
    return Examined(problems, sha256)


def _examine_entry(
    reading: FileReading, query_name: str, sealed: Mapping[str, str], entry: FileEntry, go_on: Callable[[], None]
) -> tuple[Problem | None, str]:
    """What is wrong with a file, if anything, and its sha256; ``go_on`` as ``FileReading.read``."""
    wanted = sealed.get(entry.path, "")
    try:
        found = reading.read(entry, for_checksums=not wanted, go_on=go_on)
        if found is not None and wanted and found.sha256 != wanted:
            found = reading.read(entry, go_on=go_on) or found  # Spark's checksums tell where it differs
    except StreamStateError as error:
        return Problem("unreadable", query_name, entry.path, str(error)), ""
    if found is None:
        return Problem("missing", query_name, entry.path, f"of {entry.size_bytes} bytes"), ""
    complaint = found.complaint
    if not complaint and wanted and found.sha256 != wanted:
        complaint = "its sha256 is not the sealed one"
    return (Problem("altered", query_name, entry.path, complaint) if complaint else None), found.sha256


@dataclass(frozen=True)
class Unread:
    """What the look before a start left unread: the largest files, by their sizes alone as they were captured."""

    files: int
    size_bytes: int

    def describe(self, snapshot_id: str) -> str:
        """What a person should know of a snapshot that is too large to be read before a start."""
        return (
            f"{self.files} files of {self.size_bytes:,} bytes of snapshot {snapshot_id} were not read; Spark compares"
            " them with its checksums when it loads them, and `streamstate snapshot verify` does so at any time"
        )


def check_before_start(
    control: StreamControl, checkpoints: Store, manifest: SnapshotManifest, read_bytes: int = READ_BEFORE_START_BYTES
) -> Unread | None:
    """Before a deployment starts from a snapshot: every file there and of its size, and read as far as that is cheap.

    Where the server keeps checksums, it is asked for them, several at a time, and no byte comes through here. Other
    files are read from the smallest on, until ``read_bytes`` are: each is held against the sealed sha256 where there is
    one, else against Spark's checksums. What is left unread Spark compares with its checksums when it loads it.

    Returns:
        What was not read; None where everything was.

    Raises:
        SnapshotIncompleteError: a file is missing.
        SnapshotCorruptError: a file is not what was captured.
    """
    check_complete(checkpoints, manifest)
    sealed: Mapping[str, Mapping[str, str]] = {}
    with contextlib.suppress(DataError):  # a damaged seal proves nothing; ``verify`` tells of it
        seal = control.seal(manifest.snapshot_id)
        sealed = {} if seal is None else seal.sha256
    readings = {name: FileReading(checkpoints, manifest, name) for name in manifest.queries}
    files = [(entry.size_bytes, name, entry) for name, query in manifest.queries.items() for entry in query.files]
    files.sort(key=lambda file: file[:2])
    told = _told_by_server(checkpoints, manifest, [(name, entry) for _, name, entry in files])
    left_bytes, unread_files, unread_bytes = read_bytes, 0, 0
    for size_bytes, name, entry in files:
        is_as_copied = told.get((name, entry.path))
        if is_as_copied:
            continue
        if is_as_copied is None:  # what the server says was altered is read, however large it is
            if size_bytes > left_bytes:
                unread_files, unread_bytes = unread_files + 1, unread_bytes + size_bytes
                continue
            left_bytes -= size_bytes
        _check_entry(readings[name], manifest, name, entry, sealed.get(name, {}).get(entry.path, ""))
    return Unread(unread_files, unread_bytes) if unread_files else None


def _told_by_server(
    checkpoints: Store, manifest: SnapshotManifest, files: Sequence[tuple[str, FileEntry]]
) -> dict[tuple[str, str], bool]:
    """By query and path, whether the server says that it keeps the bytes which were captured, where it says anything.

    Raises:
        UnavailableError: it does not answer.
    """
    if not isinstance(checkpoints, ManyAtOnce):
        return {}
    asked = [(name, entry) for name, entry in files if entry.checksum]
    found = checkpoints.checksums_of([key_of(manifest, name, entry) for name, entry in asked])
    return {
        (name, entry.path): checksum == entry.checksum for (name, entry), checksum in zip(asked, found, strict=True)
    }


def _check_entry(
    reading: FileReading, manifest: SnapshotManifest, query_name: str, entry: FileEntry, sha256: str
) -> None:
    facts = {"snapshot_id": manifest.snapshot_id, "query_name": query_name, "path": entry.path}
    found = reading.read(entry, for_digest=bool(sha256), for_checksums=not sha256)
    if found is None:
        raise SnapshotIncompleteError("a file of the snapshot is missing", **facts, next_step=REMEDY)
    complaint = found.complaint
    if not complaint and sha256 and found.sha256 != sha256:
        complaint = "its sha256 is not the sealed one"
    if complaint:
        raise SnapshotCorruptError(
            "a file of the snapshot is not what was captured", **facts, reason=complaint, next_step=REMEDY
        )


@dataclass(frozen=True)
class FileRead:
    """One file as read: its sha256, and what speaks against it by size and Spark's checksums ("" if nothing)."""

    sha256: str
    complaint: str


class FileReading:
    """Reads the files of one query of a snapshot, each once, from beginning to end.

    Args:
        checkpoints: the store of the data.
        manifest: of the snapshot.
        query_name: one of its queries.
    """

    def __init__(self, checkpoints: Store, manifest: SnapshotManifest, query_name: str) -> None:
        self._checkpoints = checkpoints
        self._manifest = manifest
        self._query_name = query_name
        files = manifest.queries[query_name].files
        self._crc32_of = {companion_of(entry.path): entry.spark_crc32 for entry in files if entry.spark_crc32}

    def is_as_copied(self, entry: FileEntry) -> bool:
        """Whether the server itself says that it keeps the bytes which were captured; False also where it cannot."""
        if not entry.checksum or not isinstance(self._checkpoints, ManyAtOnce):
            return False
        return self._checkpoints.checksum_of(self._key_of(entry)) == entry.checksum

    def read(
        self,
        entry: FileEntry,
        *,
        for_digest: bool = True,
        for_checksums: bool = True,
        go_on: Callable[[], None] = lambda: None,
    ) -> FileRead | None:
        """The file, or None where it is not there.

        Args:
            entry: which file.
            for_digest: whether its sha256 is wanted; "" where not.
            for_checksums: whether it is held against Spark's checksums.
            go_on: called after each piece of it; raises to give up.

        Raises:
            UnavailableError, InvalidRequestError: it cannot be read.
            DataError: it is a checksum file as captured, and yet not in Hadoop's format.
        """
        key = self._key_of(entry)
        chunks = read_chunks(self._checkpoints, key)
        if chunks is None:
            return None
        if entry.path in self._crc32_of:
            return self._read_companion(entry, key, b"".join(chunks))
        checksums = self._checksums_of(entry) if for_checksums else None
        check = WholeCheck(checksums) if checksums is not None else None
        server = ServerCheck(entry.checksum) if entry.checksum else None
        size_bytes, digest = 0, hashlib.sha256() if for_digest else None
        for chunk in chunks:
            size_bytes += len(chunk)
            if digest is not None:
                digest.update(chunk)
            if check is not None:
                check.update(chunk)
            if server is not None:
                server.update(chunk)
            go_on()
        complaint = _complaint_by_size(size_bytes, entry)
        if not complaint and checksums is not None and check is not None and check.differs():
            complaint = self._where_altered(key, checksums)
        if not complaint and server is not None and self._is_altered(server, entry):
            complaint = "differs from the server's checksum of when it was captured"
        return FileRead("" if digest is None else digest.hexdigest(), complaint)

    def _key_of(self, entry: FileEntry) -> str:
        return key_of(self._manifest, self._query_name, entry)

    def _is_altered(self, server: ServerCheck, entry: FileEntry) -> bool:
        return server.differs() if server.is_known else not self.is_as_copied(entry)

    def _read_companion(self, entry: FileEntry, key: str, body: bytes) -> FileRead:
        complaint = _complaint_by_size(len(body), entry)
        if not complaint and crc32_hex(body) != self._crc32_of[entry.path]:
            complaint = "this checksum file is not the captured one"
        if not complaint:
            parse_checksums(body, key=key)
        return FileRead(hashlib.sha256(body).hexdigest(), complaint)

    def _where_altered(self, key: str, checksums: SparkChecksums) -> str:
        check = ChecksumCheck(checksums)
        for chunk in read_chunks(self._checkpoints, key) or ():
            check.update(chunk)
        at = check.finish()
        return "differs from Spark's checksum" + ("" if at is None else f" from byte {at} on")

    def _checksums_of(self, entry: FileEntry) -> SparkChecksums | None:
        # A checksum file that is missing, altered or damaged is told under its own name, and proves nothing here.
        beside = f"{folder_of(self._manifest, self._query_name, entry)}/{companion_of(entry.path)}"
        companion = self._checkpoints.get(beside) if entry.spark_crc32 else None
        if companion is None or crc32_hex(companion.body) != entry.spark_crc32:
            return None
        try:
            return parse_checksums(companion.body, key=companion.key)
        except DataError:
            return None


def _complaint_by_size(size_bytes: int, entry: FileEntry) -> str:
    return "" if size_bytes == entry.size_bytes else f"{size_bytes} bytes where {entry.size_bytes} belong"
