"""Where a query started and ended: by its log, else by the records."""

from __future__ import annotations

from dataclasses import replace

from airflow_streamstate.controller.observe.lineage import end_in_snapshot, end_of, start_of
from airflow_streamstate.protocol.events import QueryStarted
from airflow_streamstate.protocol.manifest import QuerySnapshot
from support.examples import example
from support.snapshots import QUERY, Shelf, plan_stateful, run_stateful


def started(how: str) -> QueryStarted:
    """The event of a start behind batch 3."""
    return replace(example(QueryStarted), how=how, batch_id=3)


def snapshotted(shelf: Shelf) -> QuerySnapshot:
    """The query as it stood behind batch 3."""
    run_stateful(shelf.checkpoint(), 3)
    return shelf.capture().queries[QUERY]


def test_an_end_is_where_the_log_ends_and_what_was_planned_behind_it() -> None:
    """However far the earlier snapshot had reached (Law 9)."""
    shelf = Shelf()
    known = snapshotted(shelf)
    run_stateful(shelf.checkpoint(), 5, first=4)
    plan_stateful(shelf.checkpoint(), 6)
    found = end_of(shelf.checkpoint(), known)
    assert (found.batch_id, found.planned_batch_id, found.evidence) == (5, 6, "logs")
    assert found.lines != known.position.end_offsets


def test_without_a_log_an_end_is_what_was_recorded_and_says_so() -> None:
    """Without a record it is unknown."""
    known = snapshotted(Shelf())
    found = end_of(None, known)
    assert (found.batch_id, found.lines, found.evidence) == (3, known.position.end_offsets, "records")
    assert end_of(None, None) is None


def test_an_end_in_a_snapshot_stays_where_it_was() -> None:
    """The deployment continued behind it; of a log that reaches back no more the manifest speaks."""
    shelf = Shelf()
    known = snapshotted(shelf)
    run_stateful(shelf.checkpoint(), 5, first=4)
    by_log, by_record = end_in_snapshot(shelf.checkpoint(), known), end_in_snapshot(None, known)
    assert (by_log.batch_id, by_log.evidence) == (3, "logs")
    assert (by_record.batch_id, by_record.evidence) == (3, "records")
    assert by_log.lines == by_record.lines == known.position.end_offsets


def test_a_query_that_was_restored_began_where_its_first_start_said() -> None:
    """By its own log; without a record, the beginning of a query that continued is unknown."""
    shelf = Shelf()
    known = snapshotted(shelf)
    found = start_of(shelf.checkpoint(), started("restored"), known, None)
    assert (found.batch_id, found.lines, found.evidence) == (3, known.position.end_offsets, "logs")
    assert start_of(shelf.checkpoint(), started("continued"), None, None) is None
