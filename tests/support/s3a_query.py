"""A query with its checkpoint on S3A, which claims and commits as Hadoop's connector does."""

from __future__ import annotations

from airflow_streamstate.checkpoint.log import Checkpoint
from support.checkpoints import SimulatedQuery, spark_commit_text, spark_offset_text


class S3AQuery(SimulatedQuery):
    """HEAD and LIST of the place, a temp file, an unconditional copy of it onto the place, and its delete.

    The directory markers that S3A makes are there, and no checksum file ever is.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        self.interrupted = False

    def look(self) -> None:
        key = self.checkpoint.offset_key(self._batch_id)
        is_folder = any(True for _ in self.checkpoint.store.list_objects(f"{key}/"))
        if is_folder or self.checkpoint.store.head(key) is not None:
            self._end()
        else:
            self._looked = True

    def rename(self) -> None:
        body = spark_offset_text(self._batch_id, watermark_ms=1000 * self._batch_id)
        self._claim("offsets", self._batch_id, body)
        self._looked, self._running = False, True

    def commit(self) -> None:
        self._claim("commits", self._batch_id, spark_commit_text(1000 * (self._batch_id + 1)))
        self.ran.append(self._batch_id)
        self._batch_id += 1
        self._running = False

    def _claim(self, folder: str, batch_id: int, body: bytes) -> None:
        store = self.checkpoint.store
        temporary = self.checkpoint.key(f"{folder}/.{batch_id}.3f0a-{len(self.ran)}.tmp")
        store.put(temporary, body)
        store.copy(temporary, self.checkpoint.key(f"{folder}/{batch_id}"))
        if not self.interrupted:
            store.delete(temporary)
