"""What is known of the bytes of a snapshot's files, held against them as they arrive somewhere else."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import DataError
from airflow_streamstate.protocol.manifest import FileEntry, SnapshotManifest
from airflow_streamstate.snapshot.checksums import (
    ServerCheck,
    WholeCheck,
    companion_of,
    is_of_bytes,
    parse_checksums,
)
from airflow_streamstate.snapshot.data import crc32_hex, data_files
from airflow_streamstate.snapshot.fetch import Fetched, Progress, Wanted, fetch
from airflow_streamstate.store.interface import Store


def fetch_data(
    manifest: SnapshotManifest,
    sealed: Mapping[str, Mapping[str, str]],
    places: list[Store],
    target: Store,
    *,
    batch_bytes: int,
    timeout_seconds: float,
    clock: Clock = SYSTEM_CLOCK,
    arrives_as: SnapshotManifest | None = None,
    on_progress: Callable[[Progress], None] = lambda _progress: None,
    go_on: Callable[[], None] = lambda: None,
) -> Fetched:
    """Bring the files of a snapshot to another store; its manifest is not among them (Law 3).

    Each is held against its size, what the server that kept it said of its bytes, its sealed sha256, and Spark's own
    checksums, whose files come first.

    Args:
        manifest: of the snapshot.
        sealed: sha256 by query and path; empty where it is not sealed.
        places, target, batch_bytes, timeout_seconds, clock, on_progress, go_on: as in ``fetch``.
        arrives_as: a manifest of the same files by whose keys they are to lie at the target; None for the same keys.

    Raises:
        UnavailableError, SnapshotIncompleteError, SnapshotCorruptError: as ``fetch``.
    """
    checksum_files, others = _wanted(manifest, sealed, target, arrives_as or manifest)
    totals = Fetched(0, 0, ())
    for wanted in (checksum_files, others):
        found = fetch(
            places,
            target,
            wanted,
            batch_bytes=batch_bytes,
            timeout_seconds=timeout_seconds,
            clock=clock,
            on_progress=on_progress,
            go_on=go_on,
        )
        dropped = tuple(dict((*totals.dropped, *found.dropped)).items())
        totals = Fetched(totals.files + found.files, totals.size_bytes + found.size_bytes, dropped)
    return totals


def sealed_in(control: StreamControl, snapshot_id: str) -> Mapping[str, Mapping[str, str]]:
    """The sealed sha256 by query and path; empty where there is no seal, or none that can be read."""
    try:
        seal = control.seal(snapshot_id)
    except DataError:
        return {}
    return {} if seal is None else seal.sha256


def _wanted(
    manifest: SnapshotManifest, sealed: Mapping[str, Mapping[str, str]], target: Store, arrives_as: SnapshotManifest
) -> tuple[list[Wanted], list[Wanted]]:
    checksum_files: dict[str, Wanted] = {}
    others: dict[str, Wanted] = {}
    for name, query in sorted(manifest.queries.items()):
        keys, there = data_files(manifest, name), data_files(arrives_as, name)
        crc32_of = {companion_of(entry.path): entry.spark_crc32 for entry in query.files if entry.spark_crc32}

        def wanted(
            entry: FileEntry,
            complaint: Callable[[bytes], str],
            keys: dict[str, str] = keys,
            there: dict[str, str] = there,
        ) -> Wanted:
            return Wanted(keys[entry.path], entry.size_bytes, complaint, there[entry.path])

        for entry in query.files:
            sha256 = sealed.get(name, {}).get(entry.path, "")
            if entry.path in crc32_of:
                complaint = partial(_of_checksum_file, entry, sha256, crc32_of[entry.path])
                checksum_files[keys[entry.path]] = wanted(entry, complaint)
                continue
            companion_key = there.get(companion_of(entry.path), "") if entry.spark_crc32 else ""
            complaint = partial(_of_file, entry, sha256, target, companion_key)
            others[keys[entry.path]] = wanted(entry, complaint)
    return list(checksum_files.values()), list(others.values())


def _of_checksum_file(entry: FileEntry, sha256: str, crc32: str, body: bytes) -> str:
    return "this checksum file is not the captured one" if crc32_hex(body) != crc32 else _plainly(entry, sha256, body)


def _of_file(entry: FileEntry, sha256: str, target: Store, companion_key: str, body: bytes) -> str:
    complaint = _plainly(entry, sha256, body)
    companion = target.get(companion_key) if companion_key and not complaint else None
    if companion is None or crc32_hex(companion.body) != entry.spark_crc32:
        return complaint
    try:
        check = WholeCheck(parse_checksums(companion.body, key=companion_key))
    except DataError:
        return complaint
    check.update(body)
    return "it differs from Spark's checksums" if check.differs() else ""


def _plainly(entry: FileEntry, sha256: str, body: bytes) -> str:
    if len(body) != entry.size_bytes:
        return "it has another size"
    if sha256 and hashlib.sha256(body).hexdigest() != sha256:
        return "its sha256 is not the sealed one"
    if is_of_bytes(entry.checksum):
        server = ServerCheck(entry.checksum)
        server.update(body)
        if server.differs():
            return "it differs from the server's checksum of when it was captured"
    return ""
