"""Copies the files of a snapshot from the places that hold it, each compared with all that is known of its bytes."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping
from functools import partial

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import DataError
from airflow_streamstate.protocol.manifest import FileEntry, SnapshotManifest
from airflow_streamstate.snapshot.checksums import (
    ServerCheck,
    SparkChecksums,
    WholeCheck,
    companion_of,
    is_of_bytes,
)
from airflow_streamstate.snapshot.copy import Copied, CopyProgress, FileToCopy, copy
from airflow_streamstate.snapshot.data import captured_checksums, data_files
from airflow_streamstate.store.base import Store


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
    """The sealed sha256 by query and path; empty where there is no seal, or a damaged one, which ``verify`` reports."""
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
        sha256: the sealed one; "" for none.
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
