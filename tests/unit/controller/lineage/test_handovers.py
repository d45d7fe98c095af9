"""Two edges compared: gaps, overlaps, and neither."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

import pytest

from airflow_streamstate.connectors.files import FileSource
from airflow_streamstate.connectors.kafka import KafkaSource
from airflow_streamstate.connectors.plain import SocketSource
from airflow_streamstate.controller.observe.handovers import Break, Compared, Edge, compare_edges, move_breaks, moves_in
from airflow_streamstate.protocol.events import Repositioned, Skipped
from airflow_streamstate.protocol.positions import SourceIdentity, SourceMove

AT = datetime(2026, 3, 1, tzinfo=timezone.utc)
ADAPTERS = (KafkaSource(), FileSource(), SocketSource())
FLIGHTS = SourceIdentity("kafka", "topic flights")
FILES = SourceIdentity("file", "files of /in")


def compared(end: Edge, start: Edge, **said: bool) -> Compared:
    return compare_edges(end, start, "d-0002", "counts", ADAPTERS, **said)


def between(end: Edge, start: Edge, **said: bool) -> list[Break]:
    found = compared(end, start, **said)
    assert found.uncompared == ""
    return list(found.breaks)


def kafka(*offsets: int) -> str:
    numbers = ",".join(f'"{part}":{offset}' for part, offset in enumerate(offsets))
    return f'{{"flights":{{{numbers}}}}}'


def files(number: int) -> str:
    return f'{{"logOffset":{number}}}'


def test_the_same_offsets_are_no_break_however_they_are_written() -> None:
    """Text is compared as the JSON that it is. (Law 9)"""
    end = Edge(4, ('{"flights":{"0":5,"1":6}}',), identities=(FLIGHTS,))
    start = Edge(4, ('{"flights": {"1": 6, "0": 5}}',), identities=(FLIGHTS,))
    assert between(end, start) == []


@pytest.mark.parametrize("identities", [(FLIGHTS,), ()])
def test_each_partition_tells_its_own_gap_or_overlap(identities: tuple[SourceIdentity, ...]) -> None:
    """One partition continued from too far ahead, another from too far behind; the third is exact."""
    end = Edge(4, (kafka(10, 10, 10),), identities=identities)
    start = Edge(4, (kafka(12, 7, 10),), identities=identities)
    gap, overlap = between(end, start)
    assert (gap.kind, gap.source, gap.ended_at, gap.began_at) == ("gap", "flights[0]", "10", "12")
    assert (overlap.kind, overlap.source, overlap.ended_at, overlap.began_at) == ("overlap", "flights[1]", "10", "7")


@pytest.mark.parametrize(("began", "kind"), [(3, "overlap"), (6, "gap")])
def test_files_are_compared_by_their_connector(began: int, kind: str) -> None:
    """A source whose offset has no partitions is named by what it is."""
    found = between(Edge(4, (files(5),), identities=(FILES,)), Edge(4, (files(began),), identities=(FILES,)))
    assert [(one.kind, one.source) for one in found] == [(kind, "files of /in")]


def test_a_source_that_sends_once_and_begins_anew_is_a_gap() -> None:
    """Nothing of it was read twice; what was sent in the meantime is lost, as was accepted."""
    socket = SourceIdentity("socket", "socket a:1")
    (gap,) = between(Edge(4, ("69",), identities=(socket,)), Edge(4, ("-",), identities=(socket,)), accepted=True)
    assert (gap.kind, gap.source, gap.accepted) == ("gap", "socket a:1", True)
    assert "what was sent in between is lost" in gap.detail


def test_sources_are_matched_by_what_they_are() -> None:
    """They changed places, one was left, one is new: no break. (1a.12)"""
    left = SourceIdentity("kafka", "topic left")
    new = SourceIdentity("kafka", "topic new")
    end = Edge(4, (kafka(1), files(2), kafka(9)), identities=(FLIGHTS, FILES, left))
    start = Edge(4, (files(2), kafka(1), "-"), identities=(FILES, FLIGHTS, new))
    assert between(end, start) == []


def test_offsets_without_an_order_are_a_gap() -> None:
    """Another topic in the same place: the input between them is unknown."""
    (found,) = between(Edge(4, (kafka(5),)), Edge(4, ('{"other":{"0":5}}',)))
    assert (found.kind, found.source) == ("gap", "source 0")
    assert "not of the same input" in found.detail


@pytest.mark.parametrize(
    ("ended", "began", "kind", "words"),
    [
        (6, 4, "overlap", "batches 5 to 6 of the predecessor"),
        (4, 5, "gap", "after batch 5"),
        (None, 0, "gap", "after batch 0"),
        (0, None, "overlap", "batch 0 of the predecessor"),
    ],
)
def test_batch_ids_go_on(ended: int | None, began: int | None, kind: str, words: str) -> None:
    """Batches beyond the handover are reported before any offsets. (Laws 9 and 14; 1a.8)"""
    (found,) = between(Edge(ended, (files(5),)), Edge(began, (files(5),)))
    assert found.kind == kind
    assert words in found.detail


@pytest.mark.parametrize("ended", [4, None])
def test_a_planned_batch_keeps_its_bounds(ended: int | None) -> None:
    """The successor runs it first, over the same bounds (Law 14; 1a.6)."""
    lines = () if ended is None else (files(4),)
    planned = 0 if ended is None else ended + 1
    end = Edge(ended, lines, planned_batch_id=planned, planned_lines=(files(5),))
    assert between(end, replace(end)) == []
    (found,) = between(end, replace(end, planned_lines=(files(6),)))
    assert (found.kind, found.source) == ("overlap", f"batch {planned}")
    assert between(end, replace(end, planned_lines=())) == []  # purged, or not run yet: nothing is known of it


def test_restored_sources_keep_their_places() -> None:
    """Whatever they are called by now: each continues from the offset in its own place. (1a.6)"""
    end = Edge(4, (files(5),), identities=(SourceIdentity("file", "files of s3://b/in"),))
    start = Edge(4, (files(9),), identities=(SourceIdentity("file", "files of s3a://b/in"),))
    (found,) = between(end, start, keeps_places=True)
    assert (found.kind, found.source) == ("gap", "files of s3a://b/in")


def test_sources_that_cannot_be_matched_are_named() -> None:
    """One source is gone and another started behind an offset: it may be the same one in other words."""
    end = Edge(4, (files(5),), identities=(FILES,))
    found = compared(end, Edge(4, (files(9),), identities=(SourceIdentity("file", "files of /other"),)))
    assert found.breaks == ()
    assert found.uncompared == "files of /in ended, and files of /other started, after an offset"


def test_named_sources_are_matched_by_their_names() -> None:
    """Two of one topic, and a new one before them that shifts their places: no break. One that moved is found."""
    same = (FLIGHTS, FLIGHTS)
    end = Edge(4, (kafka(10), kafka(20)), ("x", "y"), same)
    start = Edge(4, ("-", kafka(10), kafka(20)), ("a", "x", "y"), (FLIGHTS, *same))
    assert between(end, start) == []
    (found,) = between(end, replace(start, lines=("-", kafka(10), kafka(21))))
    assert (found.kind, found.ended_at, found.began_at) == ("gap", "20", "21")


def test_a_named_gap_is_a_break_that_was_accepted() -> None:
    """With its offsets, size, requester and reason; an unknown size is left out."""
    head = {"stream_id": "s", "deployment_id": "d-0001", "attempt": 1, "at": AT, "write_id": "w"}
    skipped = Skipped(
        **head, command_id="c", command_number=1, query_name="q", batch_id=4, requested_by="ada", reason="bad row",
        moves=(SourceMove("file /in", "a", "b", 3, 0, "files"), SourceMove("rate", "1", "2")),
    )  # fmt: skip
    gap, uncounted = move_breaks(skipped)
    assert (gap.kind, gap.source, gap.ended_at, gap.began_at, gap.accepted) == ("gap", "file /in", "a", "b", True)
    assert gap.detail == "batch 4 was skipped, as ada asked for: bad row (3 files)"
    assert (uncounted.kind, uncounted.source) == ("gap", "rate")
    moved = Repositioned(
        **head, query_name="q", batch_id=4,
        moves=(SourceMove("kafka", "a", "b", 0, 5, "rows"), SourceMove("same", "1", "1")),
    )  # fmt: skip
    (overlap,) = move_breaks(moved)
    assert (overlap.kind, overlap.accepted) == ("overlap", True)
    assert overlap.detail == "it started at other offsets, as was asked for (5 rows)"


def test_a_start_that_was_cut_off_tells_of_no_gap() -> None:
    """It asked for the offsets of a time, and died; the next one found others, and those are what was built. (Law 2)"""
    head = {"stream_id": "orders", "deployment_id": "d-0002", "at": AT, "write_id": "w"}
    cut, built = (
        Repositioned(**head, attempt=attempt, query_name="q", batch_id=4, moves=(SourceMove("kafka", "a", to),))
        for attempt, to in ((1, "b"), (2, "c"))
    )
    other = replace(cut, query_name="other")
    assert moves_in([cut, None, other, built]) == [other, built]
