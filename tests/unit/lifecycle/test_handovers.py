"""Two edges held against each other: what is a gap, what an overlap, and what is neither."""

from __future__ import annotations

import pytest

from airflow_streamstate.adapters.file_source import FileSource
from airflow_streamstate.adapters.kafka_source import KafkaSource
from airflow_streamstate.lifecycle.handovers import Break, Edge, breaks_between
from airflow_streamstate.protocol.positions import SourceIdentity

ADAPTERS = (KafkaSource(), FileSource())
FLIGHTS = SourceIdentity("kafka", "topic flights")
FILES = SourceIdentity("file", "files of /in")


def between(end: Edge, start: Edge) -> list[Break]:
    return breaks_between(end, start, "d-0002", "counts", ADAPTERS)


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
    """One partition went on too far ahead, another too far behind; the third is exact."""
    end = Edge(4, (kafka(10, 10, 10),), identities=identities)
    start = Edge(4, (kafka(12, 7, 10),), identities=identities)
    gap, overlap = between(end, start)
    assert (gap.kind, gap.source, gap.ended_at, gap.began_at) == ("gap", "flights[0]", "10", "12")
    assert (overlap.kind, overlap.source, overlap.ended_at, overlap.began_at) == ("overlap", "flights[1]", "10", "7")


@pytest.mark.parametrize(("began", "kind"), [(3, "overlap"), (6, "gap")])
def test_files_are_compared_by_their_adapter(began: int, kind: str) -> None:
    """A source whose offset has no partitions is named by what it is."""
    found = between(Edge(4, (files(5),), identities=(FILES,)), Edge(4, (files(began),), identities=(FILES,)))
    assert [(one.kind, one.source) for one in found] == [(kind, "files of /in")]


def test_sources_are_matched_by_what_they_are() -> None:
    """They changed places, one was left, one is new: no break. (1a.12)"""
    left = SourceIdentity("kafka", "topic left")
    new = SourceIdentity("kafka", "topic new")
    end = Edge(4, (kafka(1), files(2), kafka(9)), identities=(FLIGHTS, FILES, left))
    start = Edge(4, (files(2), kafka(1), "-"), identities=(FILES, FLIGHTS, new))
    assert between(end, start) == []


def test_offsets_that_nobody_can_order_are_a_gap() -> None:
    """Another topic under the same place: what was read by whom cannot be told."""
    (found,) = between(Edge(4, (kafka(5),)), Edge(4, ('{"other":{"0":5}}',)))
    assert (found.kind, found.source) == ("gap", "source 0")
    assert "not of the same input" in found.detail


@pytest.mark.parametrize(
    ("ended", "began", "kind", "words"),
    [
        (6, 4, "overlap", "batches 5 to 6 of the predecessor"),
        (4, 5, "gap", "behind batch 5"),
        (None, 0, "gap", "behind batch 0"),
        (0, None, "overlap", "batch 0 of the predecessor"),
    ],
)
def test_batch_ids_go_on(ended: int | None, began: int | None, kind: str, words: str) -> None:
    """Batches beyond the handover are told before any offsets. (Laws 9 and 14; 1a.8)"""
    (found,) = between(Edge(ended, (files(5),)), Edge(began, (files(5),)))
    assert found.kind == kind
    assert words in found.detail


@pytest.mark.parametrize("ended", [4, None])
def test_a_planned_batch_keeps_its_bounds(ended: int | None) -> None:
    """The successor runs it first, over the same bounds (Law 14; 1a.6)."""
    lines = () if ended is None else (files(4),)
    planned = 0 if ended is None else ended + 1
    end = Edge(ended, lines, planned, (files(5),))
    assert between(end, Edge(ended, lines, planned, (files(5),))) == []
    (found,) = between(end, Edge(ended, lines, planned, (files(6),)))
    assert (found.kind, found.source) == ("overlap", f"batch {planned}")
    assert between(end, Edge(ended, lines, planned)) == []  # purged since: nothing is known of it
