"""Reads a complete snapshot and reports everything that is wrong with it; seals it with the sha256 of every file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Literal

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import DataError, SnapshotCorruptError, SnapshotIncompleteError, StreamStateError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.older_python import zipped
from airflow_streamstate.protocol.forms import View
from airflow_streamstate.protocol.ids import is_snapshot_of
from airflow_streamstate.protocol.manifest import FileEntry, SnapshotManifest, SnapshotSeal
from airflow_streamstate.snapshot.checksums import (
    ChecksumCheck,
    ServerCheck,
    SparkChecksums,
    WholeCheck,
    companion_of,
    is_of_bytes,
    parse_checksums,
)
from airflow_streamstate.snapshot.copies import sealed_in
from airflow_streamstate.snapshot.data import (
    REMEDY,
    are_one_file,
    captured_checksums,
    check_complete,
    crc32_hex,
    facts_of,
    folder_of,
    is_on_disk,
    key_of,
    read_chunks,
    read_side_by_side,
)
from airflow_streamstate.store.base import ManyAtOnce, Store

ProblemKind = Literal["missing", "altered", "unreadable", "outrun"]
READ_BEFORE_START_BYTES = 1 << 31
"""How much of a snapshot is read before a start from it: three to five seconds on one core of two."""


@dataclass(frozen=True)
class Problem(View):
    """One thing that is wrong.

    Attributes:
        kind: ``altered``: other bytes than were captured; ``outrun``: the driver continued after the snapshot at its
            end.
        query: the query's name; "" for the snapshot as a whole.
        path: of the file, relative to the query's folder.
        detail: what is wrong, as text.
    """

    kind: ProblemKind
    query: str
    path: str
    detail: str


@dataclass(frozen=True)
class Examined:
    """The problems of a snapshot in the manifest's order, and the sha256 of its whole files, by query and path."""

    problems: list[Problem]
    sha256: Mapping[str, Mapping[str, str]]


def verify(
    control: StreamControl, checkpoints: Store, snapshot_id: str, *, before_each: Callable[[], None] = lambda: None
) -> list[Problem]:
    """The problems of ``examine``; none where the snapshot is complete."""
    return examine(control, checkpoints, snapshot_id, before_each=before_each).problems


def examine(
    control: StreamControl, checkpoints: Store, snapshot_id: str, *, before_each: Callable[[], None] = lambda: None
) -> Examined:
    """Read every byte of the snapshot, once.

    Each file is compared with its size and, once the snapshot is sealed, its sha256; before that, and if that differs,
    with Spark's own checksums and the server's checksum of when it was copied.

    Args:
        checkpoints: the store of the data.
        before_each: called again and again while files are read; may raise to abort.

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
        with closing(read_side_by_side(checkpoints, look, query.files, before_each)) as found:
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
    """The problem of a file, or None, and its sha256; ``go_on`` as ``FileReading.read``."""
    wanted = sealed.get(entry.path, "")
    try:
        found = reading.read(entry, for_checksums=not wanted, go_on=go_on)
        if found is not None and wanted and found.sha256 != wanted:
            found = reading.read(entry, go_on=go_on) or found  # Spark's checksums show where it differs
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
    """The largest files, which ``check_before_start`` did not read; their sizes are as captured."""

    files: int
    size_bytes: int

    def describe(self, snapshot_id: str) -> str:
        """The warning about a snapshot that is too large to be read before a start."""
        return (
            f"{self.files} files of {self.size_bytes:,} bytes of snapshot {snapshot_id} were not read; Spark compares"
            " them with its checksums when it loads them, and `streamstate snapshot verify` does so at any time"
        )


def check_before_start(
    control: StreamControl, checkpoints: Store, manifest: SnapshotManifest, read_bytes: int = READ_BEFORE_START_BYTES
) -> Unread | None:
    """Check a snapshot before a deployment starts from it: every file there, of its size, and read as far as is cheap.

    A server that keeps checksums is asked for them, several at a time, and its files are not read. Other files are read
    from the smallest on, until ``read_bytes``: each is compared with the sealed sha256 if there is one, else with
    Spark's checksums. Spark compares the others with its checksums when it loads them.

    Returns:
        What was not read; None where everything was.

    Raises:
        SnapshotIncompleteError: a file is missing.
        SnapshotCorruptError: a file is not what was captured.
    """
    check_complete(checkpoints, manifest)
    sealed = sealed_in(control, manifest.snapshot_id)
    readings = {name: FileReading(checkpoints, manifest, name) for name in manifest.queries}
    files = [(entry.size_bytes, name, entry) for name, query in manifest.queries.items() for entry in query.files]
    files.sort(key=lambda file: file[:2])
    told = _told_by_server(checkpoints, manifest, [(name, entry) for _, name, entry in files])
    left_bytes, unread_files, unread_bytes = read_bytes, 0, 0
    for size_bytes, name, entry in files:
        is_as_copied = told.get((name, entry.path))
        if is_as_copied:
            continue
        if is_as_copied is None:  # a file that is altered by the server's checksum is read, however large it is
            if size_bytes > left_bytes:
                unread_files, unread_bytes = unread_files + 1, unread_bytes + size_bytes
                continue
            left_bytes -= size_bytes
        _check_entry(readings[name], manifest, name, entry, sealed.get(name, {}).get(entry.path, ""))
    return Unread(unread_files, unread_bytes) if unread_files else None


def _told_by_server(
    checkpoints: Store, manifest: SnapshotManifest, files: Sequence[tuple[str, FileEntry]]
) -> dict[tuple[str, str], bool]:
    """By query and path, whether the server's checksum is that of the captured bytes; only of files that have one."""
    if not isinstance(checkpoints, ManyAtOnce):
        return {}
    asked = [(name, entry) for name, entry in files if entry.checksum]
    found = checkpoints.checksums_of([key_of(manifest, name, entry) for name, entry in asked])
    return {(name, entry.path): checksum == entry.checksum for (name, entry), checksum in zipped(asked, found)}


def _check_entry(
    reading: FileReading, manifest: SnapshotManifest, query_name: str, entry: FileEntry, sha256: str
) -> None:
    facts = facts_of(manifest, query_name, entry)
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
class VerifiedFile:
    """One file as read: its sha256, and its problem by size and checksums ("" without one)."""

    sha256: str
    complaint: str


class FileReading:
    """Reads the files of one query of a snapshot from a store, each once, from beginning to end."""

    def __init__(self, checkpoints: Store, manifest: SnapshotManifest, query_name: str) -> None:
        self._checkpoints = checkpoints
        self._manifest = manifest
        self._query_name = query_name
        files = manifest.queries[query_name].files
        self._crc32_of = {companion_of(entry.path): entry.spark_crc32 for entry in files if entry.spark_crc32}

    def is_as_copied(self, entry: FileEntry) -> bool:
        """Whether the server's checksum is that of the captured bytes; False also where it keeps none."""
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
    ) -> VerifiedFile | None:
        """The file, or None where it is not there.

        Args:
            for_digest: whether to compute its sha256, which is "" otherwise.
            for_checksums: whether to compare it with Spark's checksums.
            go_on: called after each piece of it; raises to abort.

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
        return VerifiedFile("" if digest is None else digest.hexdigest(), complaint)

    def _key_of(self, entry: FileEntry) -> str:
        return key_of(self._manifest, self._query_name, entry)

    def _is_altered(self, server: ServerCheck, entry: FileEntry) -> bool:
        return server.differs() if server.is_known else not self.is_as_copied(entry)

    def _read_companion(self, entry: FileEntry, key: str, body: bytes) -> VerifiedFile:
        complaint = _complaint_by_size(len(body), entry)
        if not complaint and crc32_hex(body) != self._crc32_of[entry.path]:
            complaint = "this checksum file is not the captured one"
        if not complaint:
            parse_checksums(body, key=key)
        return VerifiedFile(hashlib.sha256(body).hexdigest(), complaint)

    def _where_altered(self, key: str, checksums: SparkChecksums) -> str:
        check = ChecksumCheck(checksums)
        for chunk in read_chunks(self._checkpoints, key) or ():
            check.update(chunk)
        at = check.finish()
        return "differs from Spark's checksum" + ("" if at is None else f" from byte {at} on")

    def _checksums_of(self, entry: FileEntry) -> SparkChecksums | None:
        beside = f"{folder_of(self._manifest, self._query_name, entry)}/{companion_of(entry.path)}"
        return captured_checksums(self._checkpoints, beside, entry)


def _complaint_by_size(size_bytes: int, entry: FileEntry) -> str:
    return "" if size_bytes == entry.size_bytes else f"{size_bytes} bytes where {entry.size_bytes} belong"


# The seal of a snapshot: the sha256 of every file, written some time after the manifest, at low priority.
#
# On a disk a file that an older, sealed snapshot has too is a link of the same file, and is not read again: a stream
# that takes a snapshot every few seconds reads only what has changed.

OLDER_LOOKS = 3
"""The number of older snapshots that are searched for a sealed one."""


def needs_seal(manifest: SnapshotManifest) -> bool:
    """Whether a seal adds anything: not where the manifest has the server's checksums of all bytes.

    Sealing reads every byte, and none is to come from a server through a driver.
    """
    return not all(is_of_bytes(entry.checksum) for query in manifest.queries.values() for entry in query.files)


def seal(
    control: StreamControl, checkpoints: Store, snapshot_id: str, *, before_each: Callable[[], None] = lambda: None
) -> SnapshotSeal:
    """Hash every file and write the seal; an existing one is returned as it is (Law 2).

    Only what was captured, by size and Spark's own checksums, is sealed. A file that an older seal of this deployment
    has gets that digest: if it was altered since then, ``verify`` finds that.

    Args:
        checkpoints: the store of the data.
        before_each: called before each file, and again and again while it is read; may pause, or raise to abort.

    Raises:
        SnapshotNotFoundError: there is no complete snapshot of this id.
        SnapshotIncompleteError: a file is missing.
        SnapshotCorruptError: a file is altered.
        DataError: the manifest, a seal, or a checksum file cannot be read.
    """
    manifest = control.need_manifest(snapshot_id)
    existing = control.seal(snapshot_id)
    if existing is not None:
        return existing
    sha256: dict[str, dict[str, str]] = {}
    older = _Older.of(control, checkpoints, manifest)
    for query_name, query in sorted(manifest.queries.items()):
        reading = FileReading(checkpoints, manifest, query_name)
        sha256[query_name] = {}
        for entry in query.files:
            before_each()
            if older is not None and (known := older.sha256_of(manifest, query_name, entry)):
                sha256[query_name][entry.path] = known
                continue
            facts = facts_of(manifest, query_name, entry)
            found = reading.read(entry, go_on=before_each)
            if found is None:
                raise SnapshotIncompleteError("a file of the snapshot is missing, so it is not sealed", **facts)
            if found.complaint:
                raise SnapshotCorruptError(
                    "a file of the snapshot is altered, so it is not sealed", **facts, reason=found.complaint
                )
            sha256[query_name][entry.path] = found.sha256
    return seal_as_read(control, snapshot_id, sha256)


class _Older:
    """The newest sealed snapshot before one, of the same deployment."""

    def __init__(self, checkpoints: Store, manifest: SnapshotManifest, sealed: SnapshotSeal) -> None:
        self._checkpoints = checkpoints
        self._manifest = manifest
        self._sealed = sealed
        self._files = {(name, entry.path): entry for name, query in manifest.queries.items() for entry in query.files}

    @classmethod
    def of(cls, control: StreamControl, checkpoints: Store, manifest: SnapshotManifest) -> _Older | None:
        if not is_on_disk(checkpoints):
            return None
        mine = [one for one in control.snapshot_ids() if is_snapshot_of(one, manifest.deployment_id)]
        others = sorted((one for one in mine if one != manifest.snapshot_id), key=_number_of, reverse=True)
        for snapshot_id in others[:OLDER_LOOKS]:
            with suppress(DataError):
                sealed, older = control.seal(snapshot_id), control.manifest(snapshot_id)
                if sealed is not None and older is not None:
                    return cls(checkpoints, older, sealed)
        return None

    def sha256_of(self, manifest: SnapshotManifest, query_name: str, entry: FileEntry) -> str:
        """The sealed digest of the same file; "" where it is another one, or that is not known."""
        was = self._files.get((query_name, entry.path))
        if was is None or (was.size_bytes, was.spark_crc32) != (entry.size_bytes, entry.spark_crc32):
            return ""
        keys = key_of(manifest, query_name, entry), key_of(self._manifest, query_name, was)
        if not are_one_file(self._checkpoints, *keys):
            return ""
        return self._sealed.sha256.get(query_name, {}).get(entry.path, "")


def _number_of(snapshot_id: str) -> str:
    return snapshot_id.rpartition("-")[2]


def seal_as_read(control: StreamControl, snapshot_id: str, sha256: Mapping[str, Mapping[str, str]]) -> SnapshotSeal:
    """Write the seal of a complete snapshot whose files were all read and found whole; ``sha256`` by query and path."""
    result = SnapshotSeal(snapshot_id=snapshot_id, sealed_at=control.clock.now(), sha256=sha256)
    control.put_seal(result)
    return result
