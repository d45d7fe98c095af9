"""Real queries over a folder of JSON files: input, start, and expected output."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.store.local import LocalStore

SCHEMA = "ts timestamp, k string, v long"
START_SECONDS = 1_704_067_200  # 2024-01-01T00:00:00Z
WAIT_SECONDS = 90
PROVIDERS = {
    "hdfs": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}


@dataclass
class Feed:
    """Files of rows, one minute of event time each; every value is used once, so that sums show each row."""

    folder: Path
    fed: list[dict[str, Any]] = field(default_factory=list)
    files: int = 0

    def add(self, files: int = 1, *, rows_per_file: int = 4) -> None:
        """Add files, each visible at once and with its own modification time."""
        for _ in range(files):
            rows = [
                {"ts": _stamp(self.files * 60 + row * 5), "k": "abc"[row % 3], "v": self.files * 1000 + row}
                for row in range(rows_per_file)
            ]
            self.write(rows)

    def write(self, rows: list[dict[str, Any]]) -> None:
        """Add one file with just these rows."""
        hidden = self.folder / f".f{self.files:05d}"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        hidden.rename(self.folder / f"f{self.files:05d}.json")
        os.utime(self.folder / f"f{self.files:05d}.json", (START_SECONDS + self.files, START_SECONDS + self.files))
        self.fed += rows
        self.files += 1


def row_at(second: int, key: str, value: int) -> dict[str, Any]:
    """A row at that second of event time."""
    return {"ts": _stamp(second), "k": key, "v": value}


def _stamp(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(START_SECONDS + second))


def read_files(spark: Any, folder: Path, *, files_per_batch: int = 1) -> Any:
    """The stream of a feed, a file per batch."""
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files_per_batch).json(str(folder / "in"))


def local_checkpoint(folder: Path, name: str = "checkpoint") -> Checkpoint:
    """The checkpoint in that sub-folder, as the package sees it."""
    return Checkpoint(LocalStore(folder), name)


def use_provider(spark: Any, provider: str) -> None:
    """The state store of the queries that this session starts from now on: ``hdfs`` or ``rocksdb``."""
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDERS[provider])


class RealQuery:
    """What a barrier's placement sees of a real query."""

    def __init__(self, query: Any) -> None:
        self.query = query
        self._seen = False

    def has_ended(self) -> bool:
        """By the latch that Spark opens last, not by ``isActive``, which ``stop()`` clears first."""
        from pyspark.errors import StreamingQueryException

        try:
            return bool(self.query._jsq.awaitTermination(1))
        except StreamingQueryException:
            return True

    def is_trigger_active(self) -> bool:
        return bool(self.query.status["isTriggerActive"])

    def has_initialised(self) -> bool:
        self._seen = self._seen or self.is_trigger_active() or self.query.lastProgress is not None
        return self._seen


class Collected:
    """A foreachBatch sink that keeps what it got, and can be slow or fail at a batch."""

    def __init__(self, *, seconds: float = 0.0, fail_at: int | None = None) -> None:
        self.batches: dict[int, list[int]] = {}
        self.seconds = seconds
        self.fail_at = fail_at

    def __call__(self, rows: Any, batch_id: int) -> None:
        """Take a batch."""
        SYSTEM_CLOCK.sleep(self.seconds)
        if batch_id == self.fail_at:
            raise ValueError("this batch fails")
        self.batches[batch_id] = sorted(row["v"] for row in rows.collect())

    @property
    def values(self) -> list[int]:
        """All values of ``v`` of all batches, sorted."""
        return sorted(value for values in self.batches.values() for value in values)


def start(
    stream: Any, checkpoint: Checkpoint, sink: Callable[[Any, int], None] | Path | None = None, **how: Any
) -> Any:
    """Start a query into a function per batch, a folder of parquet files, or nowhere.

    Args:
        checkpoint: where; in a local store.
        sink: the function, the folder, or None for ``noop``.
        how: ``once``, ``availableNow`` or ``processingTime`` for the trigger; ``mode`` for the output mode.
    """
    mode = how.pop("mode", "append")
    store = checkpoint.store
    assert isinstance(store, LocalStore)
    writer = stream.writeStream.outputMode(mode).option("checkpointLocation", str(store.root / checkpoint.prefix))
    if how:
        writer = writer.trigger(**how)
    if sink is None:
        return writer.format("noop").start()
    if isinstance(sink, Path):
        return writer.format("parquet").option("path", str(sink)).start()
    return writer.foreachBatch(sink).start()


def run_to_end(stream: Any, checkpoint: Checkpoint, sink: Any = None, **how: Any) -> Any:
    """Start a query that ends by itself (``availableNow`` unless given otherwise) and wait for it."""
    query = start(stream, checkpoint, sink, **(how or {"availableNow": True}))
    assert query.awaitTermination(WAIT_SECONDS), "the query did not end in time"
    return query


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait until something is so; fail with ``what`` after a long while."""
    end = SYSTEM_CLOCK.monotonic_seconds() + WAIT_SECONDS
    while not condition():
        assert SYSTEM_CLOCK.monotonic_seconds() < end, f"waited in vain until {what}"
        SYSTEM_CLOCK.sleep(0.02)


def rows_in(spark: Any, folder: Path) -> list[tuple[Any, ...]]:
    """The rows of a parquet folder, sorted."""
    return sorted(tuple(row) for row in spark.read.parquet(str(folder)).collect())


def sums(values: Iterable[tuple[Any, ...]]) -> int:
    """The sum of the last column."""
    return sum(value[-1] for value in values)
