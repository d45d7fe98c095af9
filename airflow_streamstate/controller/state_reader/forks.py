"""Forks of snapshots that a reading reads: the snapshot itself is never opened by Spark (Law 4).

Links on a disk, copies on the server on S3. Two files may be made anew. Spark's readers take the number of partitions
from the entry of the offset log, and find none in those of version 2 before a query's first restart (4.2.0: None.get);
and for the change feed they ask for the commit of its first batch, of which they want nothing but that it is there.
"""

from __future__ import annotations

from dataclasses import replace

from airflow_streamstate.checkpoint.entries import (
    format_commit_entry,
    format_offset_entry,
    parse_commit_entry,
    parse_offset_entry,
)
from airflow_streamstate.checkpoint.fork import checkpoint_uri, fork, wipe
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.errors import DataError, SnapshotIncompleteError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest
from airflow_streamstate.snapshot.data import check_complete, data_files
from airflow_streamstate.snapshot.state_feed import feed_gap
from airflow_streamstate.snapshot.state_order import StatePlace
from airflow_streamstate.snapshot.state_sizes import bytes_by_partition
from airflow_streamstate.store.interface import Store

PARTITIONS = "spark.sql.shuffle.partitions"
_NO_COMMIT = "the snapshot does not hold the commit of the feed's first batch, which names the files of its state"


def fork_for_reading(
    checkpoints: Store, manifest: SnapshotManifest, query_name: str, reading_id: str, since: SnapshotManifest | None
) -> StatePlace:
    """Build the fork of one query.

    Args:
        checkpoints: where snapshots and forks lie.
        manifest: of the snapshot.
        query_name: which query; it has committed a batch.
        reading_id: whose folder the fork lies in.
        since: the older snapshot from which changes are wanted; None for none.

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
    folder = layout.reading_fork_folder(manifest.stream_id, reading_id, manifest.snapshot_id, query_name)
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
    """Without the entry of a batch that was planned and not committed, so that the fork stands at its last commit."""
    planned = {f"offsets/{batch_id + 1}", f"offsets/.{batch_id + 1}.crc"}
    return {path: key for path, key in files.items() if path not in planned}


def _body(store: Store, files: dict[str, str], path: str) -> bytes:
    stored = store.get(files[path]) if path in files else None
    if stored is None:
        raise SnapshotIncompleteError("a log entry of the snapshot is missing", path=path)
    return stored.body
