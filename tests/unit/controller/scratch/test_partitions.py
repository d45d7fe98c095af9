"""A number of partitions: what is refused, and what is suggested."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.checkpoint.guards import HDFS_BACKED_PROVIDER, PROVIDER, ROCKSDB_PROVIDER
from airflow_streamstate.checkpoint.log import PARTITIONS
from airflow_streamstate.controller.scratch.partitions import (
    BYTES_PER_PARTITION,
    ROWS_PER_PARTITION,
    check_changes,
    partitions_of,
    suggested,
)
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.positions import LagTrend, QueryBeat, SourceLag
from airflow_streamstate.protocol.records import StateRewrite
from airflow_streamstate.protocol.terms.version import Artifact
from support.example_plan import EXAMPLE_PLAN

PINNED = replace(EXAMPLE_PLAN, pinned={PARTITIONS: "7", PROVIDER: ROCKSDB_PROVIDER})
FILE = Artifact("m.py", "9f" * 32)


def test_state_that_is_as_asked_is_not_written_anew() -> None:
    """By what the checkpoint pins, not by the session; not where another query differs, or a migration runs."""
    assert partitions_of(PINNED) == 7
    for rewrite in (
        StateRewrite(partitions=7),
        StateRewrite(state_store="rocksdb"),
        StateRewrite(7, "rocksdb", PINNED.state.checkpoint_format),
    ):
        with pytest.raises(InvalidRequestError, match="as asked already"):
            check_changes({"a": PINNED}, None, rewrite)
    other = replace(PINNED, pinned={**PINNED.pinned, PARTITIONS: "3"})
    hdfs = replace(PINNED, pinned={**PINNED.pinned, PROVIDER: HDFS_BACKED_PROVIDER})
    for plans, rewrite in (
        ({"a": PINNED}, StateRewrite(partitions=3)),
        ({"a": PINNED, "b": other}, StateRewrite(partitions=7)),
        ({"a": hdfs}, StateRewrite(state_store="rocksdb")),
        ({"a": PINNED}, StateRewrite(partitions=7, migration=FILE)),
        ({}, StateRewrite(partitions=7)),
        ({"a": hdfs}, StateRewrite(partitions=7, undoes="d-0002")),
    ):
        check_changes(plans, None, rewrite)
    check_changes({"a": PINNED}, None, None)


def test_what_cannot_be_written_anew_is_refused_at_once() -> None:
    """Another store, no state at all, and the migration that the current deployment started with."""
    hdfs = replace(PINNED, pinned={**PINNED.pinned, PROVIDER: HDFS_BACKED_PROVIDER})
    with pytest.raises(InvalidRequestError, match="RocksDB alone"):
        check_changes({"a": PINNED, "b": hdfs}, None, StateRewrite(partitions=3))
    with pytest.raises(InvalidRequestError, match="no query of this stream keeps state"):
        check_changes({"a": replace(PINNED, operators=())}, None, StateRewrite(partitions=3))
    with pytest.raises(InvalidRequestError, match="a second time"):
        check_changes({"a": PINNED}, StateRewrite(migration=FILE), StateRewrite(migration=FILE))
    check_changes({"a": PINNED}, StateRewrite(migration=FILE, is_inverse=True), StateRewrite(migration=FILE))


@pytest.mark.parametrize(
    ("now", "size", "rows", "expected", "why"),
    [
        (200, 1_000, 10, 1, "each partition of each operator is a task"),
        (2, 10 * BYTES_PER_PARTITION, 10, 10, "more than 256 MiB"),
        (2, 10, 3 * ROWS_PER_PARTITION + 1, 4, "1,000,000 rows in a partition"),
        (1, 10, 10, 1, "about right"),
        (3, None, None, 1, "an unknown size"),
    ],
)
def test_the_size_of_the_state_decides(now: int, size: int | None, rows: int | None, expected: int, why: str) -> None:
    """And the reason reports which."""
    beat = QueryBeat(7, None, True, state_rows=rows, batch_seconds=1.5)
    found = suggested("counts", now, 1, size, beat)
    assert (found.partitions, found.now, found.state_bytes, found.batch_seconds) == (expected, now, size, 1.5)
    assert why in found.reason


def test_a_query_that_falls_behind_gets_more_tasks() -> None:
    """Where its backlog grew in the window; not where it shrank."""
    trend = LagTrend(5, 1_000, 10.0, 2_000, 10.0, least_before=100, least=500, least_lately=900)
    beat = QueryBeat(7, None, True, state_rows=10, lags=(SourceLag("files", trend=trend),))
    assert suggested("counts", 4, 1, 1_000, beat).partitions == 8
    catching_up = replace(trend, least=50)
    beat = replace(beat, lags=(SourceLag("files", trend=catching_up),))
    assert suggested("counts", 4, 1, 1_000, beat).partitions == 1
