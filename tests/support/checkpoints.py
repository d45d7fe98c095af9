"""Builders of checkpoint folders as Spark 4.2 writes them, and a simulated query that behaves as its log does."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator
from typing import TypeVar

from airflow_streamstate.checkpoint.log import BarrierKind, BarrierMark, Checkpoint, crc_key_of
from airflow_streamstate.store.base import ObjectInfo, Store, StoredObject
from airflow_streamstate.store.memory import MemoryStore
from support.hadoop_checksums import format_checksums

Hook = Callable[[str, str], None]
Result = TypeVar("Result")

PREFIX = "orders/deployments/d-0001/checkpoints/counts"
QUERY_ID = "859f4a6f-435c-47ba-9a05-e59c7df04d99"
CONF = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    ),
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.compression.codec": "lz4",
}


class HookedStore(MemoryStore):
    """A store in memory that calls a function before or after each of its calls: to be Spark, to note, or to fail.

    The function gets verb and key; a hook that calls the store itself is not called for that.
    """

    def __init__(self) -> None:
        super().__init__()
        self.before: Hook | None = None
        self.after: Hook | None = None
        self._inside = False

    def _call(self, hook: Hook | None, verb: str, key: str) -> None:
        if hook is None or self._inside:
            return
        self._inside = True
        try:
            hook(verb, key)
        finally:
            self._inside = False

    def _around(self, verb: str, key: str, act: Callable[[], Result]) -> Result:
        self._call(self.before, verb, key)
        result = act()
        self._call(self.after, verb, key)
        return result

    def get(self, key: str) -> StoredObject | None:
        return self._around("get", key, lambda: MemoryStore.get(self, key))

    def head(self, key: str) -> ObjectInfo | None:
        return self._around("head", key, lambda: MemoryStore.head(self, key))

    def create(self, key: str, body: bytes) -> str:
        return self._around("create", key, lambda: MemoryStore.create(self, key, body))

    def replace(self, key: str, body: bytes, version: str) -> str:
        return self._around("replace", key, lambda: MemoryStore.replace(self, key, body, version))

    def list_objects(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._around("list", prefix, lambda: MemoryStore.list_objects(self, prefix))

    def link(self, source_key: str, target_key: str) -> bool:
        return self._around("link", target_key, lambda: MemoryStore.link(self, source_key, target_key))

    def delete(self, key: str, version: str | None = None) -> None:
        self._around("delete", key, lambda: MemoryStore.delete(self, key, version))


def once(hook: Callable[[], None], verb: str, part: str = "") -> Hook:
    """A hook that acts at the first call of ``verb`` on a key that contains ``part``, and never again."""
    done = []

    def act(called: str, key: str) -> None:
        if called == verb and part in key and not done:
            done.append(key)
            hook()

    return act


def memory_checkpoint(prefix: str = PREFIX) -> Checkpoint:
    """A checkpoint that Spark has made and not used yet, in a new hooked store in memory."""
    checkpoint = Checkpoint(HookedStore(), prefix)
    checkpoint.store.put(checkpoint.metadata_key, json.dumps({"id": QUERY_ID}, separators=(",", ":")).encode())
    return checkpoint


def spark_offset_text(offset: int, *, watermark_ms: int = 0, timestamp_ms: int = 1_700_000_000_000) -> bytes:
    """An offset log entry of a query over one file source."""
    metadata = {"batchWatermarkMs": watermark_ms, "batchTimestampMs": timestamp_ms, "conf": CONF}
    return f'v1\n{json.dumps(metadata, separators=(",", ":"))}\n{{"logOffset":{offset}}}'.encode()


def spark_commit_text(watermark_ms: int = 0) -> bytes:
    """A commit log entry."""
    return f'v1\n{{"nextBatchWatermarkMs":{watermark_ms}}}'.encode()


def write_with_crc(store: Store, key: str, body: bytes) -> None:
    """Write an object and a checksum alongside it, as Hadoop's local file system does."""
    store.put(key, body)
    store.put(crc_key_of(key), format_checksums(body))


def plan_batch(checkpoint: Checkpoint, batch_id: int, *, watermark_ms: int = 0) -> None:
    """Spark plans a batch."""
    text = spark_offset_text(batch_id, watermark_ms=watermark_ms, timestamp_ms=1_700_000_000_000 + batch_id)
    write_with_crc(checkpoint.store, checkpoint.offset_key(batch_id), text)


def commit_batch(checkpoint: Checkpoint, batch_id: int, *, watermark_ms: int = 0) -> None:
    """Spark commits a batch."""
    write_with_crc(checkpoint.store, checkpoint.commit_key(batch_id), spark_commit_text(watermark_ms))


def run_batches(checkpoint: Checkpoint, last: int, *, first: int = 0) -> Checkpoint:
    """Batches ``first`` to ``last`` planned and committed."""
    for batch_id in range(first, last + 1):
        plan_batch(checkpoint, batch_id, watermark_ms=1000 * batch_id)
        commit_batch(checkpoint, batch_id, watermark_ms=1000 * (batch_id + 1))
    return checkpoint


def barrier_mark(
    kind: BarrierKind = "stop", *, deployment_id: str = "d-0001", attempt: int = 1, write_id: str = "w-1"
) -> BarrierMark:
    """A mark of deployment d-0001."""
    return BarrierMark(kind, "orders", deployment_id, attempt, "c-1", write_id)


class SimulatedQuery:
    """A running query by its log alone: plans by look-then-rename, ends when a claim fails, idles without noticing.

    Each method is one thing that Spark does without a pause; a test interleaves them with the code under test.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.ran: list[int] = []
        self.ended = False
        self.initialised = False
        self.in_trigger = False
        self._batch_id = 0
        self._looked = False
        self._running = False

    def has_ended(self) -> bool:
        return self.ended

    def is_trigger_active(self) -> bool:
        return self.in_trigger

    def has_initialised(self) -> bool:
        return self.initialised

    def actions(self) -> list[str]:
        """What it could do next."""
        if self.ended:
            return []
        if not self.initialised:
            return ["initialise"]
        if self._running:
            return ["commit", "fail"]
        if self._looked:
            return ["rename"]
        return ["look", "end_trigger"] if self.in_trigger else ["begin_trigger"]

    def act(self, action: str) -> None:
        """Do one of ``actions``."""
        getattr(self, action)()

    def initialise(self) -> None:
        """Take the latest entry of the log for the batch to run, as Spark does, whatever is below it."""
        ids, commits = self.checkpoint.offset_ids(), self.checkpoint.commit_ids()
        self._batch_id = ids[-1] if ids else 0
        self._running = bool(ids) and ids[-1] not in commits
        if ids and not self._running:
            self._batch_id += 1
        self.initialised = True
        self.in_trigger = self._running

    def begin_trigger(self) -> None:
        self.in_trigger = True

    def end_trigger(self) -> None:
        self.in_trigger = False

    def look(self) -> None:
        """Look whether the next batch is free; end if it is not."""
        if self.checkpoint.store.head(self.checkpoint.offset_key(self._batch_id)) is not None:
            self._end()
        else:
            self._looked = True

    def rename(self) -> None:
        """Put the entry, over whatever came there since the look."""
        plan_batch(self.checkpoint, self._batch_id)
        self._looked, self._running = False, True

    def commit(self) -> None:
        commit_batch(self.checkpoint, self._batch_id)
        self.ran.append(self._batch_id)
        self._batch_id += 1
        self._running = False

    def fail(self) -> None:
        self._end()

    def _end(self) -> None:
        self.ended, self.in_trigger = True, False


def write_source_log(checkpoint: Checkpoint, last: int, *, folder: int = 0, interval: int = 10) -> None:
    """A file source's log up to and including ``last``, one file per number, compacted as Spark does."""
    lines: list[str] = []
    for number in range(last + 1):
        line = f'{{"path":"file:///in/f{number}.json","timestamp":{1000 + number},"batchId":{number}}}'
        lines.append(line)
        compacts = (number + 1) % interval == 0
        body = "\n".join(["v1", *(lines if compacts else [line])]).encode()
        name = f"{number}.compact" if compacts else str(number)
        write_with_crc(checkpoint.store, checkpoint.key(f"sources/{folder}/{name}"), body)


def write_operator_metadata(
    checkpoint: Checkpoint,
    *,
    operator: int = 0,
    partitions: int = 2,
    stores: tuple[str, ...] = ("default",),
    operator_name: str = "stateStoreSave",
) -> None:
    """The metadata and schema of a stateful operator."""
    raw = {
        "operatorInfo": {"operatorId": operator, "operatorName": operator_name},
        "stateStoreInfo": [{"storeName": name, "numColsPrefixKey": 0, "numPartitions": partitions} for name in stores],
    }
    body = f"v1\n{json.dumps(raw)}".encode()
    write_with_crc(checkpoint.store, checkpoint.key(f"state/{operator}/_metadata/metadata"), body)
    write_with_crc(checkpoint.store, checkpoint.key(f"state/{operator}/0/_metadata/schema"), b"schema")


def store_folders(*, operator: int = 0, partitions: int = 2, stores: tuple[str, ...] = ("default",)) -> list[str]:
    """The folders of an operator's stores, below ``state/``."""
    return [
        f"{operator}/{partition}" + ("" if name == "default" else f"/{name}")
        for partition in range(partitions)
        for name in stores
    ]


def write_hdfs_state(
    checkpoint: Checkpoint, versions: range, *, snapshots: tuple[int, ...] = (), folders: list[str] | None = None
) -> None:
    """Deltas of these versions, and snapshots alongside some, of the HDFS-backed store."""
    for folder in store_folders() if folders is None else folders:
        for version in versions:
            write_with_crc(checkpoint.store, checkpoint.key(f"state/{folder}/{version}.delta"), b"d%d" % version)
        for version in snapshots:
            write_with_crc(checkpoint.store, checkpoint.key(f"state/{folder}/{version}.snapshot"), b"s%d" % version)


def rocksdb_zip(files: list[str], logs: list[str] | None = None) -> bytes:
    """A version of a RocksDB store that needs these files of ``SSTs/`` (and of ``logs/``)."""
    raw: dict[str, object] = {
        "sstFiles": [{"localFileName": name[:6], "dfsSstFileName": name, "sizeBytes": 1} for name in files],
        "numKeys": 1,
    }
    if logs:
        raw["logFiles"] = [{"localFileName": name, "dfsLogFileName": name, "sizeBytes": 1} for name in logs]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("metadata", f"v1\n{json.dumps(raw)}")
        archive.writestr("CURRENT", "MANIFEST-000005\n")
    return buffer.getvalue()


def write_rocksdb_state(checkpoint: Checkpoint, versions: range, *, folders: list[str] | None = None) -> None:
    """Versions of a RocksDB store; version v needs the files of v and of v - 1."""
    for folder in store_folders() if folders is None else folders:
        for version in versions:
            names = [f"00000{number}-u{number}.sst" for number in (version - 1, version)]
            for name in names:
                write_with_crc(checkpoint.store, checkpoint.key(f"state/{folder}/SSTs/{name}"), b"sst")
            write_with_crc(checkpoint.store, checkpoint.key(f"state/{folder}/{version}.zip"), rocksdb_zip(names))


def end_offsets(checkpoint: Checkpoint) -> tuple[str, ...]:
    """The source lines of the last committed batch; none before it."""
    batch_id = checkpoint.position().batch_id
    entry = None if batch_id is None else checkpoint.read_offset(batch_id)
    return () if entry is None else entry.source_lines
