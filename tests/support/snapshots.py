"""A stream with a stateful checkpoint, ready to be captured."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from airflow_streamstate.checkpoint.log import Checkpoint, crc_key_of, drain_entry, format_offset_entry, stop_entry
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.ids import SnapshotKind
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.snapshot.capture import QueryToCapture, capture
from airflow_streamstate.snapshot.location import SnapshotPlaces
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.memory import MemoryStore
from support.checkpoints import QUERY_ID, barrier_mark, commit_batch, plan_batch, write_with_crc
from support.fake_clock import FakeClock

STREAM = "orders"
DEPLOYMENT = "d-0001"
SNAPSHOT = "d-0001-stopped-000001"
QUERY = "counts"
OPERATOR = {
    "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
    "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 2}],
}


PLACE = "memory://place"


@dataclass
class Shelf:
    """One stream, its two stores, and a way to take snapshots of deployment d-0001.

    Attributes:
        home: the store of the control objects; the same one by default.
    """

    checkpoints: Store = field(default_factory=MemoryStore)
    home: Store | None = None
    clock: FakeClock = field(default_factory=FakeClock)
    elsewhere: dict[str, Store] = field(default_factory=dict)

    @property
    def control(self) -> StreamControl:
        return StreamControl(self.home or self.checkpoints, STREAM, self.clock)

    @property
    def places(self) -> SnapshotPlaces:
        return SnapshotPlaces(self.checkpoints, self.elsewhere.__getitem__, self.clock)

    def checkpoint(self, query_name: str = QUERY, deployment_id: str = DEPLOYMENT) -> Checkpoint:
        return Checkpoint(self.checkpoints, layout.checkpoint_folder(STREAM, deployment_id, query_name))

    def capture(
        self,
        queries: dict[str, QueryToCapture] | None = None,
        *,
        snapshot_id: str = SNAPSHOT,
        kind: SnapshotKind = "stopped",
        kept_at: str = "",
        go_on: Callable[[], None] = lambda: None,
    ) -> SnapshotManifest:
        """Take a snapshot; of the query ``counts`` alone by default, and with the checkpoints."""
        return capture(
            self.control,
            self.checkpoints,
            snapshot_id=snapshot_id,
            snapshot_kind=kind,
            deployment_id=DEPLOYMENT,
            attempt=1,
            fencing_token=1,
            taken_by="agent",
            queries={QUERY: QueryToCapture(self.checkpoint())} if queries is None else queries,
            places=self.places,
            kept_at=kept_at,
            go_on=go_on,
        )

    def data_key(self, path: str, *, snapshot_id: str = SNAPSHOT, query_name: str = QUERY) -> str:
        """The key of a file in a snapshot."""
        return f"{layout.snapshot_data_folder(STREAM, snapshot_id, query_name)}/{path}"


def placed_shelf(last: int = 3) -> tuple[Shelf, MemoryStore]:
    """A shelf with a query of some batches, and a place for its snapshots."""
    place = MemoryStore("place")
    shelf = Shelf(elsewhere={PLACE: place})
    run_stateful(shelf.checkpoint(), last)
    shelf.places.claim(shelf.control, PLACE)
    return shelf, place


def run_stateful(checkpoint: Checkpoint, last: int, *, first: int = 0) -> Checkpoint:
    """Batches ``first`` to ``last`` of a counting query over files, with its state in two partitions."""
    if not checkpoint.exists():
        write_with_crc(checkpoint.store, checkpoint.metadata_key, json.dumps({"id": QUERY_ID}).encode())
        operator = f"v1\n{json.dumps(OPERATOR)}".encode()
        write_with_crc(checkpoint.store, checkpoint.key("state/0/_metadata/metadata"), operator)
    for batch_id in range(first, last + 1):
        plan_stateful(checkpoint, batch_id)
        for partition in range(2):
            body = f"state of partition {partition} after batch {batch_id}".encode() * 40
            write_with_crc(checkpoint.store, checkpoint.key(f"state/0/{partition}/{batch_id + 1}.delta"), body)
        commit_batch(checkpoint, batch_id, watermark_ms=1000 * (batch_id + 1))
    return checkpoint


def plan_stateful(checkpoint: Checkpoint, batch_id: int) -> None:
    """Spark takes up one more input file, and plans a batch over it."""
    log = {"path": f"file:///in/{batch_id}.json", "timestamp": 1_700_000_000_000 + batch_id, "batchId": batch_id}
    write_with_crc(checkpoint.store, checkpoint.key(f"sources/0/{batch_id}"), f"v1\n{json.dumps(log)}".encode())
    plan_batch(checkpoint, batch_id, watermark_ms=1000 * batch_id)


def put_stop_entry(checkpoint: Checkpoint, batch_id: int) -> None:
    """A stop barrier of ours, not committed."""
    entry = stop_entry(checkpoint.read_offset(batch_id - 1), barrier_mark("stop"))
    checkpoint.store.put(checkpoint.offset_key(batch_id), format_offset_entry(entry))


def flush(checkpoint: Checkpoint, batch_id: int) -> None:
    """The drain entry of ``batch_id``, and its commit."""
    base = checkpoint.read_offset(batch_id - 1)
    assert base is not None
    entry = drain_entry(base, barrier_mark("drain"))
    checkpoint.store.put(checkpoint.offset_key(batch_id), format_offset_entry(entry))
    for partition in range(2):
        write_with_crc(checkpoint.store, checkpoint.key(f"state/0/{partition}/{batch_id + 1}.delta"), b"empty")
    commit_batch(checkpoint, batch_id, watermark_ms=entry.batch_watermark_ms)


def flip_byte(store: Store, key: str, at: int = 0) -> None:
    """Alter one bit of one byte."""
    stored = store.get(key)
    assert stored is not None
    body = bytearray(stored.body)
    body[at] ^= 1
    store.put(key, bytes(body))


def delete_file(checkpoint: Checkpoint, path: str) -> None:
    """Spark deletes a file and its checksums."""
    checkpoint.store.delete(checkpoint.key(path))
    checkpoint.store.delete(crc_key_of(checkpoint.key(path)))
