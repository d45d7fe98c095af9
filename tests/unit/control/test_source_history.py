"""Which start of a query shows what its sources were."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from airflow_streamstate.control.stream import identities_taken_over, identities_when_planned
from airflow_streamstate.protocol.events import Draining, Event, QueryStarted, SnapshotReady, Stopped
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest
from airflow_streamstate.protocol.positions import QueryPosition, SourceIdentity
from airflow_streamstate.protocol.records import StartPlan
from support.examples import EXAMPLES

(EXAMPLE,) = (event for event in EXAMPLES if isinstance(event, QueryStarted))
(READY,) = (event for event in EXAMPLES if isinstance(event, SnapshotReady))
(MANIFEST,) = (example for example in EXAMPLES if isinstance(example, SnapshotManifest))


def identities(mark: str) -> tuple[SourceIdentity, ...]:
    return (SourceIdentity("kafka", "kafka subscribe a", 0, {"topic_id a": mark}),) if mark else ()


def started(mark: str, batch_id: int | None, planned_batch_id: int | None = None) -> QueryStarted:
    return dataclasses.replace(
        EXAMPLE, query_name="counts", batch_id=batch_id, planned_batch_id=planned_batch_id, identities=identities(mark)
    )


def ready(mark: str, batch_id: int | None, attempt: int = 1) -> SnapshotReady:
    """A snapshot whose id states what its manifest does."""
    positions = {"counts": QueryPosition(batch_id)}
    return dataclasses.replace(READY, attempt=attempt, snapshot_id=f"s-{mark}", queries=positions)


def manifest_of(snapshot_id: str) -> SnapshotManifest | None:
    mark = snapshot_id.removeprefix("s-")
    query = QuerySnapshot("q", QueryPosition(0), (), identities=identities("" if mark == "silent" else mark))
    return None if mark == "gone" else dataclasses.replace(MANIFEST, queries={"counts": query})


def mark_of(events: Sequence[Event], batch_id: int | None) -> str:
    found = identities_when_planned([None, *events], "counts", batch_id, manifest_of)
    return found[0].marks["topic_id a"] if found else ""


def test_a_start_speaks_for_the_batches_that_were_planned_after_it() -> None:
    """It asked its sources when older batches stood in the log already: those are as the start before it reported."""
    events = [started("T1", None), started("T2", 7), started("T3", 9, 10)]
    assert [mark_of(events, batch_id) for batch_id in (0, 7, 8, 10, 11)] == ["T1", "T1", "T2", "T2", "T3"]
    assert mark_of(events[1:], 3) == "T2"
    assert mark_of(events, None) == "T1"


def test_a_start_that_says_nothing_is_passed_over() -> None:
    """One of an earlier version, or of a script that failed before its sources were known."""
    assert mark_of([started("T1", None), started("", 4)], 6) == "T1"
    assert mark_of([], 6) == ""
    assert identities_when_planned([started("T1", None)], "others", 6, manifest_of) == ()


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([started("T1", None), ready("T2", 5)], {4: "T1", 5: "T2", 9: "T2"}),
        # Snapshots that follow each other, of whichever attempt: reported late, the newer position counts.
        ([started("T1", None), ready("T3", 8), ready("T2", 5)], {7: "T2", 8: "T3"}),
        ([started("T1", None), ready("T2", 5), started("T3", 7)], {6: "T2", 7: "T2", 8: "T3"}),
        ([started("T1", None), ready("T2", 5), started("T3", 7, 8)], {8: "T2", 9: "T3"}),
        # Older than the start that follows it, which asked again; reported late by the attempt that continues.
        ([started("T1", None), started("T3", 7), ready("T2", 5)], {7: "T2", 8: "T3"}),
        ([started("T1", None), started("T3", 7), ready("T2", 7)], {7: "T2", 8: "T3"}),
        ([started("T1", None), started("T2", 7), ready("T3", 8)], {8: "T3"}),
        # A start and a snapshot that record nothing, and one that cannot be read.
        ([started("T1", None), ready("T2", 5), started("", 7), ready("silent", 8, 2), ready("gone", 9)], {9: "T2"}),
        ([started("", None), ready("T2", 5)], {4: "", 6: "T2"}),
    ],
)  # fmt: skip
def test_a_snapshot_speaks_for_its_batch_and_those_after_it(events: list[Event], said: dict[int, str]) -> None:
    """A source that was recreated while it was read is known by the snapshots since then: a start that was before that
    would have the next one refuse its offsets, and read all again once that is accepted."""
    assert {batch_id: mark_of(events, batch_id) for batch_id in said} == said


def test_what_a_snapshot_carried_says_nothing_of_what_was_built_of_it() -> None:
    """Taken before the query's first start, or while that built the checkpoint: its offsets may have been moved on to
    another source of the name, at the same batch."""
    assert mark_of([ready("T1", 7), started("T2", 7), ready("T1", 7)], 7) == "T2"
    assert mark_of([ready("T1", 7), started("", 7), started("T2", 9)], 9) == "T2"
    assert mark_of([ready("T1", 7)], 9) == ""


def test_ends_and_drains_tell_of_snapshots_too() -> None:
    """A flush that another attempt runs to its end knows whose its offsets are by the snapshot before it."""
    values = {field.name: getattr(READY, field.name) for field in dataclasses.fields(Event)}
    stopped = Stopped(**values, snapshot_id="s-T2", queries={"counts": QueryPosition(5)})
    assert mark_of([started("T1", None), stopped], 6) == "T2"
    draining = Draining(**values, command_id="c", snapshot_id="s-T2", flush_batch_ids={"counts": 6})
    assert mark_of([started("T1", None), draining], 6) == "T2"
    assert mark_of([started("T1", None), dataclasses.replace(draining, snapshot_id=None)], 6) == "T1"


def test_where_no_start_said_it_the_snapshot_does() -> None:
    """Not of a seed, whose sources may be in another order; and without marks where another source was accepted."""
    identity = SourceIdentity("kafka", "kafka subscribe a", 0, {"topic_id a": "T1"})
    known = QuerySnapshot("q", QueryPosition(7, ("{}",)), (), identities=(identity,))
    start = StartPlan("restore", "s-1", "d-0001")
    assert identities_taken_over(known, "counts", start) == (identity,)
    accepted = dataclasses.replace(start, accept_lost_input=("counts",))
    assert identities_taken_over(known, "counts", accepted)[0].marks == {}
    assert identities_taken_over(dataclasses.replace(known, drained=True), "counts", start) == ()
    assert identities_taken_over(None, "counts", start) == ()


def test_of_an_attempt_that_says_nothing_one_snapshot_is_read() -> None:
    """What it does not know at its newest batch it knew at none before: a start reads no thousand manifests for it."""
    asked = []

    def look(snapshot_id: str) -> SnapshotManifest | None:
        asked.append(snapshot_id)
        return manifest_of(snapshot_id)

    events = [started("T1", None), ready("T2", 5, 1), *(ready("silent", batch_id, 2) for batch_id in range(6, 100))]
    (found,) = identities_when_planned([*events, ready("gone", 100, 2)], "counts", 100, look)
    assert (found.marks["topic_id a"], asked) == ("T2", ["s-gone", "s-silent", "s-T2"])
