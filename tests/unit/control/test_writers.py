"""Which Spark wrote what a deployment holds."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from airflow_streamstate.control.journal import spark_that_wrote
from airflow_streamstate.protocol.events import Event, QueryStarted, Started
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest
from airflow_streamstate.protocol.positions import QueryPosition

AT = datetime(2026, 1, 1, tzinfo=timezone.utc)


def started(attempt: int, spark_version: str) -> Event:
    return Started(
        stream_id="orders", deployment_id="d-0002", attempt=attempt, at=AT, write_id="w",
        spark_version=spark_version, application_id="local-1",
    )  # fmt: skip


def query(attempt: int, batch_id: int | None, name: str = "counts") -> Event:
    return QueryStarted(
        stream_id="orders", deployment_id="d-0002", attempt=attempt, at=AT, write_id="w",
        query_name=name, query_id="q", query_run_id="r", how="continued", batch_id=batch_id, planned_batch_id=None,
        repairs=(), sink="noop", trigger="default", output_mode="append", sources=(), watermarks=(), snapshot_id=None,
    )  # fmt: skip


def snapshot(spark_version: str, *names: str) -> SnapshotManifest:
    queries = {name: QuerySnapshot("q", QueryPosition(4), ()) for name in names}
    return SnapshotManifest(
        snapshot_id="s-1", snapshot_kind="stopped", stream_id="orders", deployment_id="d-0001", attempt=1,
        fencing_token=1, taken_at=AT, taken_by="agent", queries=queries, write_id="w",
        content_digest="", spark_version=spark_version,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("end", "written_by"),
    [
        (4, "4.1.4"),  # it never committed a batch: what the old one left is all there is
        (5, "4.3.0"),
    ],
)
def test_only_a_spark_that_committed_a_batch_wrote_anything(end: int, written_by: str) -> None:
    """An upgrade that never committed goes back to what the old Spark left (Law 10)."""
    events = [started(1, "4.3.0"), query(1, 4)]
    assert spark_that_wrote(events, {"counts": end}, snapshot("4.1.4", "counts")) == written_by


def test_the_newest_of_several_attempts_counts() -> None:
    """State that a newer Spark wrote stays of the newer one, also after a batch of an older one."""
    events = [started(1, "4.0.5"), query(1, None), None, started(2, "4.10.0"), query(2, 3), started(3, "4.2.0")]
    assert spark_that_wrote([*events, query(3, 5)], {"counts": 6}, None) == "4.10.0"
    assert spark_that_wrote([*events, query(3, 3)], {"counts": 6}, None) == "4.2.0"


def test_a_query_that_was_never_started_stands_where_the_snapshot_left_it() -> None:
    """A query that is carried on is of the Spark that wrote the snapshot (1a.12)."""
    events = [started(1, "4.1.4"), query(1, 4)]
    start = snapshot("4.2.0", "counts", "late")
    assert spark_that_wrote(events, {"counts": 9, "late": None}, start) == "4.2.0"
    assert spark_that_wrote(events, {"counts": 9}, start) == "4.1.4"


def test_where_the_spark_is_unknown_none_is_named() -> None:
    """Snapshots of before have no version, and drivers may die before they report."""
    assert spark_that_wrote([], {"counts": 4}, snapshot("", "counts")) == ""
    assert spark_that_wrote([query(1, None)], {"counts": 4}, None) == ""
    assert spark_that_wrote([], {}, None) == ""


def test_a_batch_that_was_written_and_not_committed_counts() -> None:
    """Where the sink holds it, its state is continued from (Law 10): any that found or reached this position may have
    written it.
    """
    start = snapshot("4.1.4", "counts")
    events = [started(1, "4.3.0"), query(1, 4), started(2, "4.2.0"), query(2, 4)]
    assert spark_that_wrote(events, {"counts": 4}, start) == "4.1.4"
    assert spark_that_wrote(events, {"counts": 4}, start, ["counts"]) == "4.3.0"
    assert spark_that_wrote(events[2:], {"counts": 4}, snapshot("4.3.0", "counts"), ["counts"]) == "4.3.0"
    assert spark_that_wrote([started(1, "4.3.0"), query(1, None)], {"counts": None}, None, ["counts"]) == "4.3.0"


def test_over_a_start_snapshot_that_is_lost_every_spark_that_went_on_from_it_counts() -> None:
    """What the snapshot held was readable for all of them, but by which Spark it was written is unknown (Law 10)."""
    events = [started(1, "4.3.0"), query(1, 4), started(2, "4.2.0"), query(2, 4)]
    assert spark_that_wrote(events, {"counts": 4}, None, is_start_lost=True) == "4.3.0"
    assert spark_that_wrote(events, {"counts": 5}, None, is_start_lost=True) == "4.2.0"
    assert spark_that_wrote(events, {"late": None}, None, is_start_lost=True) == ""
