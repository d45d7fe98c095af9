"""Finds the files that a new snapshot need not copy, because an older one of the stream has them.

On a disk every snapshot has links of its own. On other stores whose listings have versions, a file of the same path,
size and version is named where it lies. Versions are compared within one deployment, where they are of one key; across
deployments only where they are digests of the bytes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from airflow_streamstate.protocol.layout import is_checkpoint_place
from airflow_streamstate.protocol.manifest import FileEntry, QuerySnapshot, SnapshotManifest
from airflow_streamstate.snapshot.checksums import companion_of
from airflow_streamstate.snapshot.places import keys_of, lying, place_of
from airflow_streamstate.store.base import ObjectInfo, Store
from airflow_streamstate.store.local import LocalStore

_DIGEST = re.compile(r'"?(?:[0-9a-f]{32}|[0-9a-f]{64})"?')


@dataclass(frozen=True)
class Bases:
    """The older snapshots (``manifests`` by id) whose files a new one of a deployment may share; none is removed."""

    deployment_id: str
    manifests: Mapping[str, SnapshotManifest]

    def shared(
        self, query_name: str, paths: Collection[str], there: Mapping[str, ObjectInfo], store: Store
    ) -> dict[str, FileEntry]:
        """The files of a query that need no copy, by path; each was found in a listing.

        Args:
            paths: of the query's files in the new snapshot.
            there: the same files in the checkpoint, by path, as they were listed.
            store: of the data of the older snapshots.
        """
        found: dict[str, FileEntry] = {}
        for manifest in self.manifests.values():
            query = manifest.queries.get(query_name)
            for entry in () if query is None else query.files:
                info = there.get(entry.path)
                if info is not None and self._is_same(manifest, entry, info):
                    found.setdefault(entry.path, replace(entry, shared_from=place_of(manifest, entry)))
        wanted = [entry for path, entry in found.items() if path in paths]
        return _with_companions(paths, {entry.path: entry for entry in self._lying(store, query_name, wanted)})

    def _lying(self, store: Store, query_name: str, wanted: Sequence[FileEntry]) -> list[FileEntry]:
        if not wanted:
            return []
        stream_id = next(iter(self.manifests.values())).stream_id
        return lying(store, stream_id, query_name, wanted)

    def _is_same(self, manifest: SnapshotManifest, entry: FileEntry, info: ObjectInfo) -> bool:
        if not entry.source_version or (entry.source_version, entry.size_bytes) != (info.version, info.size_bytes):
            return False
        return manifest.deployment_id == self.deployment_id or _DIGEST.fullmatch(info.version) is not None

    def with_same_bytes(self, query_name: str, files: Sequence[FileEntry], store: Store) -> tuple[FileEntry, ...]:
        """These linked files of a query, named in an older snapshot of this deployment where that has the same bytes.

        Spark's checksums tell, whose own checksum is in a manifest. Each file was found in a listing of ``store``.
        """
        older: dict[str, FileEntry] = {}
        for manifest in self.manifests.values():
            query = manifest.queries.get(query_name)
            for entry in query.files if query is not None and manifest.deployment_id == self.deployment_id else ():
                older.setdefault(entry.path, replace(entry, shared_from=place_of(manifest, entry)))
        found: dict[str, FileEntry] = {}
        paths = {entry.path for entry in files}
        for entry in files:
            same, companion = older.get(entry.path), companion_of(entry.path)
            if same is None or not entry.spark_crc32 or companion not in older or companion not in paths:
                continue
            if (same.size_bytes, same.spark_crc32) == (entry.size_bytes, entry.spark_crc32):
                found |= {entry.path: same, companion: older[companion]}
        found = _with_companions(paths, {one.path: one for one in self._lying(store, query_name, [*found.values()])})
        return tuple(entry if entry.shared_from else found.get(entry.path, entry) for entry in files)

    def carried(self, query: QuerySnapshot, snapshot_id: str) -> QuerySnapshot | None:
        """The query of an older snapshot, with its files named where they lie; None where that is not one of these."""
        manifest = self.manifests.get(snapshot_id)
        if manifest is None:
            return None
        files = tuple(replace(entry, shared_from=place_of(manifest, entry)) for entry in query.files)
        return replace(query, files=files)


def _with_companions(paths: Collection[str], found: dict[str, FileEntry]) -> dict[str, FileEntry]:
    """Without files whose checksum file is not shared, or the other way round."""
    for path in paths:
        companion = companion_of(path)
        if companion in paths and (path in found) != (companion in found):
            found.pop(path, None)
            found.pop(companion, None)
    return found


_File = tuple[str, str]
"""The place of a file, and its key there."""


def shared_bytes(checkpoints: Store, manifests: Collection[SnapshotManifest]) -> dict[str, int]:
    """By snapshot of a stream, the bytes that take no room of their own: another one or a checkpoint has them."""
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
    """By snapshot that is removed, the bytes that this frees; each file counts once."""
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
    return {(manifest.data_uri, key): entry.size_bytes for key, entry in keys_of(manifest).items()}


def _named(manifest: SnapshotManifest) -> set[str]:
    """The named files of checkpoints, which are not the snapshot's own."""
    return {key for key, entry in keys_of(manifest).items() if is_checkpoint_place(entry.shared_from)}


def _is_linked(checkpoints: Store, key: str) -> bool:
    with suppress(OSError):
        return isinstance(checkpoints, LocalStore) and checkpoints.path_of(key).stat().st_nlink > 1
    return False
