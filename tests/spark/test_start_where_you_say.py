"""A batch that always fails is skipped, and a seed starts where one asks, by real drivers: what is read is exact."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from airflow_streamstate.protocol.commands import SkipRequest
from airflow_streamstate.protocol.events import Drained, Failed, QueryStarted, Rejected, Repositioned, Skipped, Stopped
from airflow_streamstate.protocol.records import StartPlan
from support.drivers import WINDOWED_COUNTS, Deployments, Driver, wait_until
from support.file_sink import rows_in
from support.window_rows import WindowRows

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

POISON = -1
FAILING = WINDOWED_COUNTS.replace(
    "windows = rows.",
    f'bad = F.when(F.col("v") == {POISON}, F.raise_error(F.lit("bad row")))\n'
    'rows = rows.withColumn("v", bad.otherwise(F.col("v")))\n'
    "windows = rows.",
)
INTO_FILES = """
counts.writeStream.queryName("counts").format("json").start(base + "/out").awaitTermination()
"""
INTO_BATCHES = """
def write(batch, batch_id):
    batch.write.mode("append").json(base + f"/out/{batch_id}")

counts.writeStream.queryName("counts").foreachBatch(write).start().awaitTermination()
"""
STORES = {
    "hdfs": {},
    "rocksdb-changelogs": {
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    },
    "rocksdb-format-2": {
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    },
}


class Rows(WindowRows):
    """Also a file whose rows nobody can compute, alongside good ones in the windows of other files."""

    def poison(self, base: Path) -> None:
        number = self.files
        seconds = [max(0, number - 1) * 20 + 5, number * 20, number * 20 + 1, (number + 1) * 20]
        rows = [{"t": f"2026-01-01T00:{s // 60:02d}:{s % 60:02d}.000Z", "k": "a", "v": 2**62} for s in seconds]
        rows.append({**rows[1], "v": POISON})
        hidden = base / "in" / f".{number:05d}"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(hidden, (1_700_000_000 + number,) * 2)
        hidden.rename(base / "in" / f"{number:05d}.json")
        self.files += 1

    def expected_without(self, number: int) -> Counter[tuple[str, int, int]]:
        """Of all files but this one."""
        gone = {(key, 2, 2 ** (number * 4 + at) + 2 ** (number * 4 + at + 2)) for at, key in enumerate("ab")}
        return Counter({window: count for window, count in self.expected().items() if window not in gone})


def wait_read(stream: Deployments, rows: Rows, driver: Driver) -> None:
    """Until every file that was fed is in a committed batch; each poll of the source finds one."""

    def is_read() -> bool:
        committed = stream.committed("counts")
        if not committed:
            return driver.launcher.status(driver.handle).has_ended
        entry = stream.checkpoint_folder("counts") / "offsets" / str(committed[-1])
        upto = json.loads(entry.read_text().splitlines()[2])["logOffset"]
        return bool(upto == rows.files - 1) or driver.launcher.status(driver.handle).has_ended

    wait_until(is_read, lambda: f"all of the input:\n{driver.log}", 90)
    assert not driver.launcher.status(driver.handle).has_ended, driver.log


def fail(stream: Deployments, rows: Rows, script: str, base: Path, conf: Mapping[str, str]) -> int:
    """Three files are read, and the next one fails in every attempt; its batch."""
    rows.feed()
    driver = stream.deploy(script, str(base), conf=conf)
    for _ in range(2):
        wait_read(stream, rows, driver)
        rows.feed()
    wait_read(stream, rows, driver)
    rows.poison(base)
    assert driver.exit_status() == 1, driver.log
    assert "bad row" in stream.events(Failed)[-1].error
    return stream.committed("counts")[-1] + 1


def read_on_and_drain(stream: Deployments, rows: Rows, driver: Driver) -> None:
    """Two more files, then the end, with every window."""
    for _ in range(2):
        rows.feed()
        wait_read(stream, rows, driver)
    stream.drain()
    assert driver.exit_status() == 0, driver.log
    assert stream.events(Drained), driver.log


@pytest.mark.named
@pytest.mark.parametrize("store", ["hdfs", "rocksdb-changelogs", "rocksdb-format-2"])
def test_the_rows_of_a_skipped_batch_and_no_others_are_missing(tmp_path: Path, store: str) -> None:
    """Windows that were open stay open, what the failed run left of the state is gone, ids continue. (Laws 9, 14)"""
    rows = Rows(tmp_path)
    with Deployments(tmp_path) as stream:
        batch_id = fail(stream, rows, FAILING + INTO_FILES, tmp_path, STORES[store])
        entry = (stream.checkpoint_folder("counts") / "offsets" / str(batch_id)).read_bytes()
        command_id = stream.order(SkipRequest, query_name="counts", batch_id=batch_id, reason="a bad row")
        driver = stream.resume()
        stream.wait_event(QueryStarted, driver, 2)
        (skipped,) = stream.events(Skipped)
        assert (skipped.command_id, skipped.batch_id, skipped.reason) == (command_id, batch_id, "a bad row")
        (move,) = skipped.moves
        assert (move.passed_over, move.read_again, move.unit) == (1, 0, "files")
        assert (move.from_offset, move.to_offset) == ('{"logOffset":2}', '{"logOffset":3}')
        assert stream.events(QueryStarted)[-1].batch_id == batch_id
        assert (stream.checkpoint_folder("counts") / "offsets" / str(batch_id)).read_bytes() == entry
        read_on_and_drain(stream, rows, driver)
        assert rows.found() == rows.expected_without(3)
        assert batch_id in stream.committed("counts")


def test_law_14_what_a_sink_may_hold_is_not_skipped_unasked(tmp_path: Path) -> None:
    """Nobody knows what a foreachBatch has written; with the flag the batch is skipped, even the very first one."""
    rows = Rows(tmp_path)
    with Deployments(tmp_path) as stream:
        rows.poison(tmp_path)
        first = stream.deploy(FAILING + INTO_BATCHES, str(tmp_path))
        assert first.exit_status() == 1, first.log
        stream.order(SkipRequest, query_name="counts", batch_id=0, reason="a bad row")
        second = stream.resume()
        assert second.exit_status() == 1, second.log
        (rejected,) = stream.events(Rejected)
        assert "it is not known whether foreachbatch holds some of batch 0" in rejected.reason
        assert stream.committed("counts") == []
        stream.order(SkipRequest, query_name="counts", batch_id=0, reason="a bad row", accepts_written=True)
        third = stream.resume()
        stream.wait_event(QueryStarted, third, 3)
        (skipped,) = stream.events(Skipped)
        assert [(move.from_offset, move.to_offset) for move in skipped.moves] == [("-", '{"logOffset":0}')]
        read_on_and_drain(stream, rows, third)
        written = [
            json.loads(line) for path in (tmp_path / "out").rglob("*.json") for line in path.read_text().splitlines()
        ]
        assert Counter((row["k"], row["n"], row["s"]) for row in written) == rows.expected_without(0)


@pytest.mark.named
def test_a_seed_begins_at_the_offsets_or_at_the_time_that_are_given(tmp_path: Path) -> None:
    """What was read is read again from there on and nothing before; refused where nobody accepted that. (Laws 5, 14)"""
    rows = Rows(tmp_path)
    with Deployments(tmp_path) as stream:
        rows.feed()
        first = stream.deploy(script_into("out"), str(tmp_path))
        for _ in range(4):
            wait_read(stream, rows, first)
            rows.feed()
        wait_read(stream, rows, first)
        stream.stop()
        assert first.exit_status() == 0, first.log
        stopped = stream.events(Stopped)[-1]
        offsets = {"counts": ('{"logOffset":1}',)}
        plan = StartPlan("seed", stopped.snapshot_id, "d-0001", allow_state_loss=True, offsets=offsets)
        second = stream.deploy(
            script_into("again"), str(tmp_path), start=replace(plan, accept_repeated_input=("counts",))
        )
        stream.wait_event(QueryStarted, second)
        (moved,) = stream.events(Repositioned)
        assert [(move.passed_over, move.read_again, move.unit) for move in moved.moves] == [(0, 3, "files")]
        assert stream.events(QueryStarted)[0].batch_id == stopped.queries["counts"].batch_id
        read_on_and_drain(stream, rows, second)
        assert windows(tmp_path / "again") == from_file(rows, 2)
        drained = stream.events(Drained)[-1]

        at = datetime.fromtimestamp(1_700_000_000 + 4, timezone.utc)
        plan = StartPlan("seed", drained.snapshot_id, "d-0002", begins_at=at)
        refused = stream.deploy(script_into("since"), str(tmp_path), start=plan)
        assert refused.exit_status() == 1, refused.log
        assert "--accept-repeated-input counts" in refused.log
        assert "3 files read again" in refused.log
        assert not list(stream.checkpoint_folder("counts").glob("commits/*"))
        third = stream.deploy(
            script_into("since"), str(tmp_path), start=replace(plan, accept_repeated_input=("counts",))
        )
        stream.wait_event(QueryStarted, third)
        wait_written(stream, third)
        stream.drain()
        assert third.exit_status() == 0, third.log
        assert windows(tmp_path / "since") == from_file(rows, 4)


def script_into(folder: str) -> str:
    return WINDOWED_COUNTS + INTO_FILES.replace("/out", f"/{folder}")


def windows(folder: Path) -> Counter[tuple[str, int, int]]:
    """What a file sink holds."""
    return Counter((row["k"], row["n"], row["s"]) for row in rows_in(folder))


def from_file(rows: Rows, number: int) -> Counter[tuple[str, int, int]]:
    """The windows of this file and of those after it."""
    return Counter({window: count for window, count in rows.expected().items() if window[2] >= 2 ** (number * 4)})


def wait_written(stream: Deployments, driver: Driver) -> None:
    """Until a trigger of the newest deployment has found no input."""

    def is_idle() -> bool:
        beat = stream.control.heartbeat(stream.deployment_id)
        return beat is not None and "counts" in beat.queries and beat.queries["counts"].is_idle

    wait_until(lambda: is_idle() or driver.launcher.status(driver.handle).has_ended, lambda: driver.log, 90)
