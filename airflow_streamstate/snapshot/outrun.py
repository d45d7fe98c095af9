"""Finds batches that a driver ran after it was taken for dead and its end was captured (1a.8).

A fence ends such a driver at its next batch, unless Spark's own rename overwrote the fence during a claim. Then the
successor runs the same batches: its state is right, and the sink may hold them twice, which can only be reported.
"""

from __future__ import annotations

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest
from airflow_streamstate.store.base import Store

OUTRUN = "the driver of this deployment went on after its end was taken: the sink may hold these batches twice"


def batches_after(checkpoints: Store, manifest: SnapshotManifest) -> dict[str, tuple[int, ...]]:
    """Per query, the batches that its deployment claimed or committed after the snapshot at its end.

    Queries without such a batch are left out. This is odd only for a snapshot that a successor starts from.

    Raises:
        DataError, UnsupportedCheckpointError: an entry cannot be read.
    """
    found = {}
    for name, query in manifest.queries.items():
        folder = layout.checkpoint_folder(manifest.stream_id, manifest.deployment_id, name)
        later = _later(Checkpoint(checkpoints, folder), query)
        if later:
            found[name] = later
    return found


def _later(checkpoint: Checkpoint, query: QuerySnapshot) -> tuple[int, ...]:
    last, planned = query.position.batch_id, query.position.planned_batch_id
    committed = {number for number in checkpoint.commit_ids() if last is None or number > last}
    claimed = set()
    for number in checkpoint.offset_ids():
        if number != planned and (last is None or number > last):
            entry = checkpoint.read_offset(number)
            if entry is not None and not entry.is_ours:
                claimed.add(number)
    return tuple(sorted(committed | claimed))
