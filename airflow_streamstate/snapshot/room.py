"""How much room snapshots take, and how much of it they share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from airflow_streamstate.protocol.layout import is_checkpoint_place
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.snapshot.places import key_of
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.local import LocalStore

_File = tuple[str, str]
"""The place of a file, and its key there."""


def shared_bytes(checkpoints: Store, manifests: Collection[SnapshotManifest]) -> dict[str, int]:
    """By snapshot, how many of its bytes take no room of their own: another one has the same file, or the checkpoint
    that it was linked from on a disk, or whose own files it names.

    Args:
        checkpoints: the store of the data that lies at no other place.
        manifests: all that there are of the stream.
    """
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
    """By snapshot that goes, how many bytes that frees which nothing that stays has; each file counts once."""
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
    return {
        (manifest.data_uri, key_of(manifest, name, entry)): entry.size_bytes
        for name, query in manifest.queries.items()
        for entry in query.files
    }


def _named(manifest: SnapshotManifest) -> set[str]:
    """The files of checkpoints themselves, which are not the snapshot's."""
    return {
        key_of(manifest, name, entry)
        for name, query in manifest.queries.items()
        for entry in query.files
        if is_checkpoint_place(entry.shared_from)
    }


def _is_linked(checkpoints: Store, key: str) -> bool:
    with suppress(OSError):
        return isinstance(checkpoints, LocalStore) and checkpoints.path_of(key).stat().st_nlink > 1
    return False
