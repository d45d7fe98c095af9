"""The fork of a snapshot's state that a reading reads, and how far Spark's change feed reaches in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from airflow_streamstate.checkpoint.entries import (
    format_commit_entry,
    format_offset_entry,
    parse_commit_entry,
    parse_offset_entry,
)
from airflow_streamstate.checkpoint.fork import checkpoint_uri, fork, wipe
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.checkpoint.missing_pin import PARTITIONS
from airflow_streamstate.errors import DataError, SnapshotIncompleteError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest
from airflow_streamstate.snapshot.data import check_complete, data_files
from airflow_streamstate.snapshot.state_order import StatePlace
from airflow_streamstate.snapshot.state_sizes import bytes_by_partition
from airflow_streamstate.store.base import Store

# Spark reads the change feed from the files of each batch: ``<v>.delta`` of the HDFS-backed store, ``<v>.changelog`` of
# RocksDB with changelog checkpointing. A snapshot holds those since its newest full version; batch N leaves N + 1.
_VERSION = re.compile(r"(state/[0-9]+/[0-9]+(?:/[^/]+)?)/([1-9][0-9]*)(?:_[0-9a-f-]+)?\.(zip|changelog|delta|snapshot)")
_CHANGES = ("changelog", "delta")
_NO_COMMIT = "the snapshot does not hold the commit of the feed's first batch, which names the files of its state"


def feed_gap(before: QuerySnapshot, after: QuerySnapshot, *, same_deployment: bool) -> str:
    """Why Spark's change feed does not reach from one snapshot of a query to a later one; "" where it does."""
    first, last = before.position.batch_id, after.position.batch_id
    if first is None or last is None or not same_deployment:
        return "the feed is of one deployment's batches"
    if last <= first:
        return "the feed goes from an older batch to a newer one"
    folders = _versions(after)
    if not folders:
        return "there is no state"
    for folder, versions in sorted(folders.items()):
        for version in range(first + 2, last + 2):
            if version not in versions:
                return f"the snapshot does not hold what batch {version - 1} changed in {folder}"
    return ""


def _versions(query: QuerySnapshot) -> Mapping[str, set[int]]:
    """By folder of a state store, the versions whose changes exist, perhaps of another try of a batch."""
    found: dict[str, set[int]] = {}
    for entry in query.files:
        match = _VERSION.fullmatch(entry.path)
        if match is not None:
            versions = found.setdefault(match[1], set())
            if match[3] in _CHANGES:
                versions.add(int(match[2]))
    return found


def fork_for_reading(
    checkpoints: Store, manifest: SnapshotManifest, query_name: str, run_id: str, since: SnapshotManifest | None
) -> StatePlace:
    """Build the fork of one query that a reading reads: Spark never opens the snapshot itself (Law 4).

    Links on a disk, server-side copies on S3. Two files may be written anew. Spark's readers take the number of
    partitions from the entry of the offset log, which is missing there in version 2 before a query's first restart
    (4.2.0: None.get). For the change feed they need the commit of its first batch to exist, and read nothing of it.

    Args:
        query_name: a query that has committed a batch.
        since: the older snapshot for a change feed; None for none.

    Raises:
        SnapshotIncompleteError, SnapshotCorruptError: the snapshot is not whole.
        DataError: an entry of its logs cannot be understood.
    """
    check_complete(checkpoints, manifest, [query_name])
    batch_id = manifest.queries[query_name].position.batch_id
    if batch_id is None:
        raise DataError("the query has committed nothing", query_name=query_name, snapshot_id=manifest.snapshot_id)
    files = _without_planned(data_files(manifest, query_name), batch_id)
    offset_path, commit_path = f"offsets/{batch_id}", f"commits/{batch_id}"
    offset = parse_offset_entry(_body(checkpoints, files, offset_path), key=files[offset_path])
    commit = parse_commit_entry(_body(checkpoints, files, commit_path), key=files[commit_path])
    state_format = 2 if commit.has_state_ids else 1
    instead = {}
    if PARTITIONS not in offset.conf:
        sizes = bytes_by_partition(manifest.queries[query_name].files).values()
        count = 1 + max((partition for partitions in sizes for partition in partitions), default=0)
        instead[offset_path] = format_offset_entry(replace(offset, conf={**offset.conf, PARTITIONS: str(count)}))
    feed_from, gap = _feed(manifest, since, query_name)
    first_commit = f"commits/{feed_from}"
    if feed_from is not None and first_commit not in files:
        if state_format == 1:
            instead[first_commit] = format_commit_entry(replace(commit, extra={}))
        else:
            feed_from, gap = None, _NO_COMMIT
    folder = layout.reading_fork_folder(manifest.stream_id, run_id, manifest.snapshot_id, query_name)
    target = Checkpoint(checkpoints, folder)
    wipe(target)
    fork(checkpoints, files, target, instead)
    return StatePlace(checkpoint_uri(target), batch_id, state_format, feed_from, gap)


def _feed(manifest: SnapshotManifest, since: SnapshotManifest | None, query_name: str) -> tuple[int | None, str]:
    before = None if since is None else since.queries.get(query_name)
    if since is None or before is None:
        return None, ""
    after: QuerySnapshot = manifest.queries[query_name]
    gap = feed_gap(before, after, same_deployment=since.deployment_id == manifest.deployment_id)
    return (None, gap) if gap or before.position.batch_id is None else (before.position.batch_id + 1, "")


def _without_planned(files: dict[str, str], batch_id: int) -> dict[str, str]:
    """Without the entry of a planned batch, so that the fork ends at its last commit."""
    planned = {f"offsets/{batch_id + 1}", f"offsets/.{batch_id + 1}.crc"}
    return {path: key for path, key in files.items() if path not in planned}


def _body(store: Store, files: dict[str, str], path: str) -> bytes:
    stored = store.get(files[path]) if path in files else None
    if stored is None:
        raise SnapshotIncompleteError("a log entry of the snapshot is missing", path=path)
    return stored.body
