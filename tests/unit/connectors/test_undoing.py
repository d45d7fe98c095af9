"""What can be done about batches that a sink is to give back, by its format alone."""

from __future__ import annotations

import pytest

from airflow_streamstate.connectors.plain import NoopSink
from airflow_streamstate.connectors.sink import Skips, UndoingSink, known_sinks, means_of, undo_means


@pytest.mark.parametrize(
    ("sink_format", "means"),
    [
        ("parquet", "exact by undo"),
        ("json", "exact by undo"),
        ("delta", "exact by undo"),
        ("iceberg", "exact by undo"),
        ("foreachbatch", "by command"),
        ("foreach", "by command"),
        ("kafka", "only doubled"),
        ("console", "only doubled"),
        ("noop", "only doubled"),
        ("memory", "only doubled"),
        ("hudi", "unknown"),
        ("", "unknown"),
    ],
)
def test_the_format_of_a_recorded_plan_tells(sink_format: str, means: str) -> None:
    """So a controller knows before anything is touched; the page has the same table."""
    assert undo_means(sink_format, known_sinks().connectors) == means


class _AnothersSink(NoopSink):
    """Skips what it knows, and cannot be undone."""

    skips: Skips = "batch_id"


def test_a_sink_that_skips_and_cannot_be_undone_is_unknown() -> None:
    """Its rows would be lost, not doubled: it is no sink that takes everything again. (Law 14)"""
    assert means_of(_AnothersSink()) == "unknown"
    assert not isinstance(_AnothersSink(), UndoingSink)
