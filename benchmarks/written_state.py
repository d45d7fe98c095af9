"""Checkpoints with state of any size, laid out as Spark leaves them with RocksDB, but written without Spark.

For what knows files and no rows. The files hold noise, and on a disk each has Hadoop's checksum file alongside it.
"""

from __future__ import annotations

import os

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.snapshot.capture import QueryToCapture, capture
from airflow_streamstate.snapshot.checksums import companion_of
from airflow_streamstate.store.base import Store

DEPLOYMENT, QUERY = "d-0001", "counts"
FILE_BYTES = 10_000_000


class WrittenState:
    """The state of one query, in ``files`` files of 10 MB; each ``change`` is one batch more.

    Args:
        with_checksums: with Hadoop's checksum files, which S3A leaves out.
    """

    def __init__(self, store: Store, prefix: str, files: int, *, with_checksums: bool) -> None:
        from support.checkpoints import write_operator_metadata

        self._store = store
        self._with_checksums = with_checksums
        self.checkpoint = Checkpoint(store, prefix)
        self._batch_id = -1
        store.put(self.checkpoint.metadata_key, b'{"id":"859f4a6f-435c-47ba-9a05-e59c7df04d99"}')
        write_operator_metadata(self.checkpoint, partitions=1)
        self.names = [f"{number:06d}-u{number}.sst" for number in range(files)]
        for name in self.names:
            self._put(f"state/0/0/SSTs/{name}", os.urandom(FILE_BYTES))
        self._commit()

    def change(self) -> None:
        """One more batch, for which RocksDB has merged into one new file."""
        number = self._batch_id + 1
        name = f"{900_000 + number:06d}-u{number}.sst"
        self.names[number % len(self.names)] = name
        self._put(f"state/0/0/SSTs/{name}", os.urandom(FILE_BYTES))
        self._commit()

    def capture(self, stream_id: str, snapshot_id: str, store: Store | None = None) -> SnapshotManifest:
        """A live snapshot of the last batch, as a snapshot of this stream; through another store where one is given."""
        store = store or self._store
        return capture(
            StreamControl(store, stream_id, SYSTEM_CLOCK), store, snapshot_id=snapshot_id, snapshot_kind="live",
            deployment_id=DEPLOYMENT, attempt=1, fencing_token=1, taken_by="agent",
            queries={QUERY: QueryToCapture(Checkpoint(store, self.checkpoint.prefix))},
        )  # fmt: skip

    def _commit(self) -> None:
        from support.checkpoints import commit_batch, plan_batch, rocksdb_zip

        self._batch_id += 1
        self._put(f"state/0/0/{self._batch_id + 1}.zip", rocksdb_zip(self.names))
        plan_batch(self.checkpoint, self._batch_id)
        commit_batch(self.checkpoint, self._batch_id)
        if not self._with_checksums:
            infos = self._store.list_objects(f"{self.checkpoint.prefix}/")
            for info in [info for info in infos if info.key.endswith(".crc")]:
                self._store.delete(info.key)

    def _put(self, path: str, body: bytes) -> None:
        from support.hadoop_checksums import format_checksums

        self._store.put(self.checkpoint.key(path), body)
        if self._with_checksums:
            self._store.put(self.checkpoint.key(companion_of(path)), format_checksums(body))
