"""Unmodified scripts under the runner on real Spark: the life of a stream, with rows in equal to rows out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from airflow_streamstate.protocol.events import (
    Accepted,
    Drained,
    Draining,
    Failed,
    QueryStarted,
    SnapshotReady,
    Stopped,
)
from airflow_streamstate.protocol.records import StartPlan
from support.drivers import WINDOWED_COUNTS, Deployments, seconds_of, wait_until
from support.progress import files_read

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

TO_FILES = """
query = counts.writeStream.queryName("counts").format("json").start(base + "/out")
query.awaitTermination()
print("the script came to its end", query.isActive, query.exception())
"""
NEW_GROUPING = WINDOWED_COUNTS.replace('"k")', '"k", "v")').replace('"window.start", "k"', '"window.start", "k", "v"')

IN_ZONE = """
import sys
from pyspark.sql import SparkSession, functions as F

base, zone = sys.argv[1:]
spark = SparkSession.builder.config("spark.sql.session.timeZone", zone).getOrCreate()
rows = spark.readStream.schema("t timestamp, k string, v int").json(base + "/in")
hours = rows.withWatermark("t", "1 day").groupBy(F.window("t", "10 seconds"), F.date_format("t", "HH").alias("k"))
counts = hours.agg(F.count("*").alias("n")).select("window.start", "k", "n")
"""
"""A key that is read in the zone of the session: rows of one window and hour get two keys under two zones."""


def _row(second: int, key: str, value: int) -> dict[str, object]:
    return {"t": seconds_of(second // 60, second % 60), "k": key, "v": value}


def _sums(rows: Iterable[Mapping[str, object]]) -> Counter[str]:
    """Rows and values per key, whatever windows they came in."""
    total: Counter[str] = Counter()
    for row in rows:
        total[f"{row['k']} rows"] += int(str(row.get("n", 1)))
        total[f"{row['k']} sum"] += int(str(row.get("s", row.get("v"))))
    return total


def test_a_stream_lives_through_stop_resume_drain_and_new_versions(tmp_path: Path) -> None:
    """Stop, resume, drain, seed with other keys, restore: each row comes out once (1a.4, 1a.5, Law 9)."""
    fed: list[dict[str, object]] = []
    with Deployments(tmp_path) as stream:

        def feed(*rows: dict[str, object]) -> None:
            fed.extend(rows)
            stream.feed(*rows)

        first = stream.deploy(WINDOWED_COUNTS + TO_FILES, str(tmp_path))
        feed(_row(1, "a", 1), _row(2, "b", 2))
        feed(_row(31, "a", 3), _row(35, "a", 4))
        stream.wait_committed("counts", 1, first)
        stream.stop()
        assert first.exit_status() == 0, first.log
        assert "the script came to its end False None" in first.log
        assert "Traceback" not in first.log
        stopped = stream.events(Stopped)[0]
        assert stopped.queries["counts"].state_rows_left is None or stopped.queries["counts"].state_rows_left > 0
        at_stop = stopped.queries["counts"].batch_id
        assert at_stop is not None

        second = stream.resume()
        feed(_row(38, "b", 5))
        stream.wait_committed("counts", at_stop + 1, second)
        stream.snapshot()
        live = stream.wait_event(SnapshotReady, second)
        assert live.snapshot_kind == "live"
        stream.drain()
        assert second.exit_status() == 0, second.log
        assert "Traceback" not in second.log
        assert [event.how for event in stream.events(QueryStarted)] == ["fresh", "continued"]
        assert len(stream.events(Accepted)) == 3
        assert stream.events(Draining)
        drained = stream.events(Drained)[0]
        end = drained.queries["counts"]
        assert end.state_rows_left == 0
        assert end.rows_written_early
        assert _sums(stream.output()) == _sums(fed)
        last_batch = max(stream.committed("counts"))
        assert end.batch_id == last_batch

        third = stream.deploy(
            NEW_GROUPING + TO_FILES, str(tmp_path), start=StartPlan("seed", drained.snapshot_id, "d-0001")
        )
        feed(_row(52, "c", 6), _row(53, "c", 7))
        feed(_row(90, "d", 8))
        stream.wait_committed("counts", last_batch + 2, third)
        stream.stop()
        assert third.exit_status() == 0, third.log
        before = stream.events(Stopped)[0]
        started = stream.events(QueryStarted)[0]
        assert (started.how, started.batch_id) == ("seeded", last_batch)

        fourth = stream.deploy(
            NEW_GROUPING + TO_FILES, str(tmp_path), start=StartPlan("restore", before.snapshot_id, "d-0002")
        )
        feed(_row(91, "e", 9))
        at = before.queries["counts"].batch_id
        assert at is not None
        stream.wait_committed("counts", at + 1, fourth)
        stream.drain()
        assert fourth.exit_status() == 0, fourth.log
        assert stream.events(QueryStarted)[0].how == "restored"
        assert stream.events(Drained)
        assert _sums(stream.output()) == _sums(fed)
        ids = {event.query_id for number in (1, 2, 3) for event in stream.events(QueryStarted, f"d-{number:04d}")}
        assert len(ids) == 1


@pytest.mark.named
def test_state_made_in_one_time_zone_is_not_restored_in_another(tmp_path: Path) -> None:
    """Spark continues in silence, and one hour has two keys; refused explicitly, with no checkpoint, and fixable."""
    with Deployments(tmp_path) as stream:
        first = stream.deploy(IN_ZONE + TO_FILES, str(tmp_path), "UTC")
        stream.feed(_row(1, "a", 1), _row(2, "b", 2))
        stream.wait_committed("counts", 0, first)
        stream.stop()
        assert first.exit_status() == 0, first.log
        start = StartPlan("restore", stream.events(Stopped)[0].snapshot_id, "d-0001")

        second = stream.deploy(IN_ZONE + TO_FILES, str(tmp_path), "Asia/Tokyo", start=start)
        assert second.exit_status() == 1, second.log
        error = stream.events(Failed)[0].error
        assert "settings of this session change what the values in the state mean" in error
        assert "spark.sql.session.timeZone was UTC and is Asia/Tokyo" in error
        assert not stream.events(QueryStarted)
        assert not stream.checkpoint_folder("counts").exists()

        third = stream.deploy(IN_ZONE + TO_FILES, str(tmp_path), "UTC", start=start)
        stream.feed(_row(3, "c", 3))
        counts = stream.checkpoint_folder("counts")
        wait_until(lambda: files_read(counts) == 2, lambda: third.log, 90)
        stream.drain()
        assert third.exit_status() == 0, third.log
        assert stream.events(QueryStarted)[0].how == "restored"
        assert sum(int(str(row["n"])) for row in stream.output()) == 3
        assert len({row["k"] for row in stream.output()}) == 1
