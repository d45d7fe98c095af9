"""The sha256 of every file of a snapshot, written some time after the manifest, at low priority."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import SnapshotCorruptError, SnapshotIncompleteError
from airflow_streamstate.protocol.manifest import SnapshotManifest, SnapshotSeal
from airflow_streamstate.snapshot.checksums import is_of_bytes
from airflow_streamstate.snapshot.verify import FileReading
from airflow_streamstate.store.interface import Store


def needs_seal(manifest: SnapshotManifest) -> bool:
    """Whether a seal would say more than the manifest: not where the server's checksums of all bytes are in that.

    To seal is to read every byte, and from a server none is to come through a driver.
    """
    return not all(is_of_bytes(entry.checksum) for query in manifest.queries.values() for entry in query.files)


def seal(
    control: StreamControl, checkpoints: Store, snapshot_id: str, *, before_each: Callable[[], None] = lambda: None
) -> SnapshotSeal:
    """Hash every file and write the seal; one that is there already is returned as it is (Law 2).

    Nothing is sealed that is not, by size and Spark's own checksums, what was captured.

    Args:
        control: the stream.
        checkpoints: the store of the data.
        snapshot_id: a complete snapshot.
        before_each: called before each file; may pause, or raise to give up.

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
    for query_name, query in sorted(manifest.queries.items()):
        reading = FileReading(checkpoints, manifest, query_name)
        sha256[query_name] = {}
        for entry in query.files:
            before_each()
            facts = {"snapshot_id": snapshot_id, "query_name": query_name, "path": entry.path}
            found = reading.read(entry)
            if found is None:
                raise SnapshotIncompleteError("a file of the snapshot is missing, so it is not sealed", **facts)
            if found.complaint:
                raise SnapshotCorruptError(
                    "a file of the snapshot is altered, so it is not sealed", **facts, reason=found.complaint
                )
            sha256[query_name][entry.path] = found.sha256
    return seal_as_read(control, snapshot_id, sha256)


def seal_as_read(control: StreamControl, snapshot_id: str, sha256: Mapping[str, Mapping[str, str]]) -> SnapshotSeal:
    """Write the seal of a snapshot of which every file was read, and found to be what was captured.

    Args:
        control: the stream.
        snapshot_id: a complete snapshot.
        sha256: of every file, by query and path.
    """
    result = SnapshotSeal(snapshot_id=snapshot_id, sealed_at=control.clock.now(), sha256=sha256)
    control.put_seal(result)
    return result
