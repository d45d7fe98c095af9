"""Where each file of a snapshot lies: in its own folder, or in that of an older snapshot with the same file.

Files are shared like that on stores where a link is a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from airflow_streamstate.checkpoint.fork import fork
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.manifest import FileEntry, SnapshotManifest
from airflow_streamstate.store.base import ManyAtOnce, Store
from airflow_streamstate.store.transfer import side_by_side


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
    """The folder of the files of a query that lie with the snapshot itself."""
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
    """Those of some shared files of a query that are where ``shared_from`` says; by one listing for each place."""
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
    """The folder that holds all files of a query and no others; "" where there is none."""
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
