"""The seal of a snapshot: the sha256 of every file, written some time after the manifest, at low priority.

On a disk a file that an older, sealed snapshot has too is a link of the same file, and is not read again: a stream that
takes a snapshot every few seconds reads only what has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import DataError, SnapshotCorruptError, SnapshotIncompleteError
from airflow_streamstate.protocol.ids import is_snapshot_of
from airflow_streamstate.protocol.manifest import FileEntry, SnapshotManifest, SnapshotSeal
from airflow_streamstate.snapshot.checksums import is_of_bytes
from airflow_streamstate.snapshot.data import are_one_file, facts_of, is_on_disk
from airflow_streamstate.snapshot.places import key_of
from airflow_streamstate.snapshot.verify import FileReading
from airflow_streamstate.store.base import Store

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
        before_each: called before each file, and again and again while it is read; may pause, or raise to give up.

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
