"""Rewrites state on real Spark, as the driver's start does, and compares it with a run that started with the new
version."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_streamstate.checkpoint.fork import fork
from airflow_streamstate.checkpoint.guards import guard_checkpoint
from airflow_streamstate.checkpoint.log import Checkpoint, delete_with_crc, format_offset_entry
from airflow_streamstate.checkpoint.seed import rewritten_entries
from airflow_streamstate.checkpoint.state_files import files_of
from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.control.artifacts import pin
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.start.state_rewrite import Rewritten, rewrite_if_asked
from airflow_streamstate.protocol.manifest import QuerySnapshot
from airflow_streamstate.protocol.positions import QueryPosition
from airflow_streamstate.protocol.records import DeploymentSpec, StartPlan, StateRewrite
from airflow_streamstate.protocol.terms.version import Artifact, Version
from support.rewrite_table import HOURS_AHEAD, QUERY, Row
from support.truth_lab import Files, Rows, TruthLab, _all, _row
from support.truth_table import Script

STREAM = "orders"
_KEYS = ("a", "b", "c", "d", "e", "f", "g", "h", "ä", None)
StateRows = list[tuple[object, ...]]


def _many(seed: int, count: int, first: int, last: int) -> tuple[dict[str, object], ...]:
    """Rows at random seconds of these, the same each time."""
    chance = random.Random(seed)
    return tuple(
        _row(chance.randint(first, last), chance.choice(_KEYS), chance.choice("xyz"), chance.randint(1, 1_000_000))
        for _ in range(count)
    )


LAST = tuple(_row(300, key, "z", 7) for key in _KEYS)
INPUT: tuple[Mapping[str, Files], Mapping[str, Files]] = (
    {"a": (_many(1, 40, 1, 21), _many(2, 30, 14, 27)), "b": (_many(3, 40, 1, 21), _many(4, 30, 14, 27))},
    {
        "a": (_many(5, 30, 18, 31), (*_many(6, 8, 3, 34), *LAST)),
        "b": (_many(7, 30, 18, 31), (*_many(8, 8, 3, 34), *LAST)),
    },
)
"""Two files before the change, two behind it; windows, joins and sessions are open when it comes."""


@contextmanager
def rewriting_in(shared_spark: Any, base: Path) -> Iterator[RewriteLab]:
    """A lab in a warm session of its own; none of its queries is left."""
    session = shared_spark.newSession()
    # Batches of a few rows: neither generated code nor a checksum alongside each file of a checkpoint pays.
    session.conf.set("spark.sql.codegen.wholeStage", "false")
    session.conf.set("fs.AbstractFileSystem.file.impl", "org.apache.hadoop.fs.local.RawLocalFs")
    session.conf.set("spark.sql.streaming.pollingDelay", "10ms")
    yield RewriteLab(session, base)
    for query in session.streams.active:
        query.stop()


class RewriteLab(TruthLab):
    """As ``TruthLab``, with more rows and null keys."""

    def __init__(self, spark: Any, base: Path) -> None:
        super().__init__(spark, base, *INPUT)
        self.said: list[str] = []

    def begun(self, script: Script) -> Checkpoint:
        """The checkpoint of a script that ran until the change comes."""
        return self._old(script)

    def going_on(self, script: Script) -> Rows:
        """What a script that runs from the beginning writes after the change."""
        if script not in self._whole:
            self._whole[script] = _all(self.run(script, self.fork(script), "all"))
        return self._whole[script]

    def told(self, script: Script, checkpoint: Checkpoint) -> Rows:
        """What a script writes on a checkpoint of everything."""
        return _all(self.run(script, checkpoint, "all"))

    def uri_of(self, checkpoint: Checkpoint) -> str:
        """The checkpoint's place, for Spark."""
        return f"file:{self._folder(checkpoint)}"

    def forget_commits_from(self, checkpoint: Checkpoint, batch_id: int) -> None:
        """Make this batch one that was planned, and did not commit."""
        for number in checkpoint.commit_ids():
            if number >= batch_id:
                delete_with_crc(self.store, checkpoint.commit_key(number))
        for number in checkpoint.offset_ids():
            if number > batch_id:
                delete_with_crc(self.store, checkpoint.offset_key(number))

    def run_hours_ahead(self, script: Script, checkpoint: Checkpoint) -> Rows:
        """What a batch without input writes that starts hours later: timers fire, times to live have ended."""
        position = checkpoint.position()
        assert position.batch_id is not None
        entry = checkpoint.read_offset(position.batch_id)
        assert entry is not None
        later = entry.batch_timestamp_ms + HOURS_AHEAD * 3_600_000
        planned = replace(entry, batch_timestamp_ms=later)
        checkpoint.store.create(checkpoint.offset_key(position.next_batch_id), format_offset_entry(planned))
        return _all(self.run(script, checkpoint, "before", once=True))

    def rewritten(self, row: Row, *, is_rehearsed: bool = True) -> Checkpoint:
        """A checkpoint of the new script whose state is that of the old one, rewritten as the driver does it.

        Raises what the driver raises.
        """
        old = self.fork(row.old)
        return self.written_anew(old, row, is_rehearsed=is_rehearsed)

    def written_anew(self, old: Checkpoint, row: Row, *, is_rehearsed: bool = True) -> Checkpoint:
        """As ``rewritten``, from this checkpoint, which is left as it is."""
        position = old.position()
        files = {key[len(old.prefix) + 1 :]: key for key in files_of(old, position)}
        known = QuerySnapshot(
            old.query_id() or "", QueryPosition(position.batch_id, planned_batch_id=position.planned_id), ()
        )
        attempt = self._attempt(row)
        with self._settings(row.new):
            found = rewrite_if_asked(attempt, QUERY, self._startable(row.new), known, files, is_rehearsed=is_rehearsed)
        assert found is not None
        target = self.place("rewritten")
        entries = rewritten_entries(self.store, files, found.conf, position.batch_id, found.state_ids)
        fork(self.store, dict(found.files), target, entries)
        guard_checkpoint(target)
        self.last = found
        return target

    last: Rewritten

    def _attempt(self, row: Row) -> Attempt:
        control = StreamControl(self.store, STREAM, SYSTEM_CLOCK)
        asked = StateRewrite(**row.asks)  # type: ignore[arg-type]
        if row.migration:
            asked = replace(asked, migration=pin(self.store, STREAM, "migration.py", row.migration.encode()))
        spec = DeploymentSpec(
            stream_id=STREAM,
            deployment_id=f"d-{self._made:04}",
            fencing_token=1,
            version=Version(
                application=Artifact("job.py", "0" * 64),
                master="local[2]",
            ),
            start=StartPlan("restore", "s-1", rewrite=asked),
            checkpoints_uri=self.store.uri,
            request_id="r-1",
            requested_by="test",
            reason="",
            created_at=SYSTEM_CLOCK.now(),
        )
        attempt = Attempt(
            control, self.store, spec, 1, SYSTEM_CLOCK, lambda key: f"file:{self.base}/{key}", self.said.append
        )
        attempt.note_spark(self.spark.version)
        return attempt

    def _startable(self, script: Script) -> Any:
        from airflow_streamstate.driver.spark.spark_query import SparkWriter

        frame = self.frame(script)
        writer = frame.writeStream.outputMode(script.mode).foreachBatch(lambda _rows, _id: None)
        return SparkWriter(self.spark, frame._jdf, writer._jwrite, None, None)

    def state_of(self, checkpoint: Checkpoint, *, in_partitions: bool = True) -> StateRows:
        """Every row of the state at the last commit, as bytes, with its operator, store, partition and family."""
        from pyspark.sql import functions as F  # noqa: N812

        from airflow_streamstate.driver.spark.state_reading import STATE_FORMAT, stores_of

        batch_id = checkpoint.position().batch_id
        assert batch_id is not None
        commit = checkpoint.read_commit(batch_id)
        session = self.spark.newSession()
        session.conf.set(STATE_FORMAT, "2" if commit is not None and commit.has_state_ids else "1")
        options = session._jvm.org.apache.spark.sql.execution.datasources.v2.state.StateSourceOptions
        every_family = options.INTERNAL_ONLY_READ_ALL_COLUMN_FAMILIES()
        folder, rows = str(self._folder(checkpoint)), []
        for store in stores_of(session, folder):
            reader = session.read.format("statestore").option("operatorId", store["operatorId"])
            reader = reader.option("storeName", store["stateStoreName"]).option("batchId", batch_id)
            frame = reader.option(every_family, "true").load(folder)
            place = F.spark_partition_id() if in_partitions else F.lit(0)
            shown = frame.select(place, F.hex("key_bytes"), F.hex("value_bytes"), "column_family_name")
            rows += [(store["operatorId"], store["stateStoreName"], *found) for found in shown.collect()]
        return sorted(rows, key=repr)
