"""Whether a query ever had a checkpoint, by what its deployment reported."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

from airflow_streamstate.control.journal import had_checkpoint, missing_checkpoint
from airflow_streamstate.protocol.events import QueryStarted, Stopped
from airflow_streamstate.protocol.positions import QueryPosition

AT = datetime(2026, 3, 1, tzinfo=timezone.utc)
STARTED = QueryStarted(
    stream_id="s",
    deployment_id="d-0001",
    attempt=1,
    at=AT,
    write_id="w",
    query_name="q",
    query_id="i",
    query_run_id="r",
    how="fresh",
    batch_id=None,
    planned_batch_id=None,
    repairs=(),
    sink="file:parquet",
    trigger="default",
    output_mode="append",
)
STOPPED = Stopped("s", "d-0001", 1, AT, "w", "d-0001-stopped-000001", {"q": QueryPosition(3)})


def test_a_query_that_was_started_had_a_checkpoint() -> None:
    """Spark writes the metadata before the start returns. (Law 5)"""
    assert had_checkpoint([None, STARTED], "q")


def test_a_query_that_was_only_carried_on_had_none_here() -> None:
    """What a snapshot carried on proves nothing about a checkpoint in this deployment. (Law 5)"""
    assert not had_checkpoint([STOPPED], "q")
    assert not had_checkpoint([replace(STARTED, query_name="other", how="restored")], "q")


def test_the_error_names_the_folder_and_the_ways_out() -> None:
    """It reports which folder is gone, and that a fresh start has to be named. (Law 5)"""
    error = missing_checkpoint("q", "s/deployments/d-0001/checkpoints/q")
    assert "checkpoints/q" in str(error)
    assert "--start fresh" in error.next_step
