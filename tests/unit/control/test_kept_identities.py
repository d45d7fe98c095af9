"""Which start of a query says what its sources were."""

from __future__ import annotations

import dataclasses

from airflow_streamstate.control.kept_identities import identities_taken_over, identities_when_planned
from airflow_streamstate.protocol.events import QueryStarted
from airflow_streamstate.protocol.manifest import QuerySnapshot
from airflow_streamstate.protocol.positions import QueryPosition, SourceIdentity
from airflow_streamstate.protocol.records import StartPlan
from support.examples import EXAMPLES

(EXAMPLE,) = (event for event in EXAMPLES if isinstance(event, QueryStarted))


def started(mark: str, batch_id: int | None, planned_batch_id: int | None = None) -> QueryStarted:
    identities = (SourceIdentity("kafka", "kafka subscribe a", 0, {"topic_id a": mark}),) if mark else ()
    return dataclasses.replace(
        EXAMPLE, query_name="counts", batch_id=batch_id, planned_batch_id=planned_batch_id, identities=identities
    )


def mark_of(events: list[QueryStarted], batch_id: int | None) -> str:
    found = identities_when_planned([None, *events], "counts", batch_id)
    return found[0].marks["topic_id a"] if found else ""


def test_a_start_speaks_for_the_batches_that_were_planned_after_it() -> None:
    """It asked its sources when older batches stood in the log already: those are as the start before it said."""
    events = [started("T1", None), started("T2", 7), started("T3", 9, 10)]
    assert [mark_of(events, batch_id) for batch_id in (0, 7, 8, 10, 11)] == ["T1", "T1", "T2", "T2", "T3"]
    assert mark_of(events[1:], 3) == "T2"
    assert mark_of(events, None) == "T1"


def test_a_start_that_says_nothing_is_passed_over() -> None:
    """One of an earlier version, or of a script that failed before its sources were known."""
    assert mark_of([started("T1", None), started("", 4)], 6) == "T1"
    assert mark_of([], 6) == ""
    assert identities_when_planned([started("T1", None)], "others", 6) == ()


def test_where_no_start_said_it_the_snapshot_does() -> None:
    """Not of a seed, whose sources may stand in another order; and without marks where another source was accepted."""
    identity = SourceIdentity("kafka", "kafka subscribe a", 0, {"topic_id a": "T1"})
    known = QuerySnapshot("q", QueryPosition(7, ("{}",)), (), identities=(identity,))
    start = StartPlan("restore", "s-1", "d-0001")
    assert identities_taken_over(known, "counts", start) == (identity,)
    accepted = dataclasses.replace(start, accept_lost_input=("counts",))
    assert identities_taken_over(known, "counts", accepted)[0].marks == {}
    assert identities_taken_over(dataclasses.replace(known, drained=True), "counts", start) == ()
    assert identities_taken_over(None, "counts", start) == ()
