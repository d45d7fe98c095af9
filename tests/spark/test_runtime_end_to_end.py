"""Unmodified scripts under the runner on real Spark: the life of a stream, with rows in equal to rows out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from airflow_streamstate.protocol.events import Accepted, Drained, Draining, QueryStarted, SnapshotReady, Stopped
from airflow_streamstate.protocol.records import StartPlan
from support.drivers import WINDOWED_COUNTS, Deployments, seconds_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400), pytest.mark.usefixtures("quick_jvm")]

TO_FILES = """
query = counts.writeStream.queryName("counts").format("json").start(base + "/out")
query.awaitTermination()
print("the script came to its end", query.isActive, query.exception())
"""
NEW_GROUPING = WINDOWED_COUNTS.replace('"k")', '"k", "v")').replace('"window.start", "k"', '"window.start", "k", "v"')


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
