"""How much room snapshots take, and how much of it they share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.snapshot.places import key_of
from airflow_streamstate.store.interface import Store
from airflow_streamstate.store.local import LocalStore


def shared_bytes(checkpoints: Store, manifests: Collection[SnapshotManifest]) -> dict[str, int]:
    """By snapshot, how many of its bytes take no room of their own: another one has the same file, or on a disk the
    checkpoint that it was linked from.

    Args:
        checkpoints: the store of the data.
        manifests: all that there are of the stream.
    """
    if isinstance(checkpoints, LocalStore):
        return {one.snapshot_id: _linked_bytes(checkpoints, one) for one in manifests}
    holders = Counter(key for one in manifests for key in _sizes(one))
    return {one.snapshot_id: sum(size for key, size in _sizes(one).items() if holders[key] > 1) for one in manifests}


def freed_bytes(
    checkpoints: Store, gone: Iterable[SnapshotManifest], kept: Iterable[SnapshotManifest]
) -> dict[str, int]:
    """By snapshot that goes, how many bytes that frees which nothing that stays has; each file counts once."""
    needed = {key for one in kept for key in _sizes(one)}
    counted: set[str] = set()
    found: dict[str, int] = {}
    for one in gone:
        own = {key: size for key, size in _sizes(one).items() if key not in needed and key not in counted}
        counted |= set(own)
        if isinstance(checkpoints, LocalStore):
            own = {key: size for key, size in own.items() if not _is_linked(checkpoints, key)}
        found[one.snapshot_id] = sum(own.values())
    return found


def _sizes(manifest: SnapshotManifest) -> Mapping[str, int]:
    return {
        key_of(manifest, name, entry): entry.size_bytes
        for name, query in manifest.queries.items()
        for entry in query.files
    }


def _linked_bytes(checkpoints: LocalStore, manifest: SnapshotManifest) -> int:
    return sum(size for key, size in _sizes(manifest).items() if _is_linked(checkpoints, key))


def _is_linked(checkpoints: LocalStore, key: str) -> bool:
    with suppress(OSError):
        return checkpoints.path_of(key).stat().st_nlink > 1
    return False
