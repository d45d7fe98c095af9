from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from airflow_streamstate.controller.scratch.readings import (
    check_pair,
    export_uri,
    is_stateful,
    newest_with_state,
    parse_key,
    queries_with_state,
    shared_queries,
)
from airflow_streamstate.errors import InvalidRequestError, SnapshotNotFoundError
from airflow_streamstate.protocol.manifest import FileEntry, QuerySnapshot, SnapshotManifest
from airflow_streamstate.protocol.positions import QueryPosition

AT = datetime(2026, 3, 1, 10, tzinfo=timezone.utc)
STATE = (FileEntry("state/0/0/5.delta", 3),)
COUNTS = QuerySnapshot("id", QueryPosition(4), STATE)
FLUSHED = replace(COUNTS, drained=True, files=())
PASSED_ON = QuerySnapshot("id", QueryPosition(4), (FileEntry("offsets/4", 1),))


def manifest(number: int, **queries: QuerySnapshot) -> SnapshotManifest:
    return SnapshotManifest(
        f"d-0001-live-{number:06d}",
        "live",
        "orders",
        "d-0001",
        1,
        1,
        AT + timedelta(hours=number),
        "agent",
        queries,
        "w",
        "",
    )


def test_the_newest_snapshot_with_state_is_read() -> None:
    """What a drain leaves is passed over; of one query the newest that has it."""
    first, second, drained = manifest(1, counts=COUNTS), manifest(2, other=COUNTS), manifest(3, counts=FLUSHED)
    assert newest_with_state([first, second, drained], "orders", None) is second
    assert newest_with_state([first, second, drained], "orders", "counts") is first
    for known in ([], [drained]):
        with pytest.raises(SnapshotNotFoundError, match="no snapshot with state"):
            newest_with_state(known, "orders", None)


def test_positions_alone_are_refused() -> None:
    """By what they are, and where to look instead; a query that was flushed alongside others is left out."""
    with pytest.raises(InvalidRequestError, match="positions only: its state was flushed") as refused:
        queries_with_state(manifest(1, counts=FLUSHED), None)
    assert "pre-drain" in refused.value.next_step
    assert list(queries_with_state(manifest(1, counts=FLUSHED, other=COUNTS), None)) == ["other"]
    with pytest.raises(InvalidRequestError, match="no such query"):
        queries_with_state(manifest(1, counts=COUNTS), "nothing")


def test_a_query_without_state_has_nothing_to_read() -> None:
    """Neither has one that never committed."""
    assert is_stateful(COUNTS)
    assert not is_stateful(PASSED_ON)
    assert not is_stateful(replace(COUNTS, position=QueryPosition(None)))


def test_two_snapshots_are_compared_by_the_queries_that_both_have() -> None:
    """The others are reported; a snapshot and itself are no two."""
    before, after = {"counts": COUNTS, "old": COUNTS, "raw": PASSED_ON}, {"counts": COUNTS, "new": COUNTS}
    assert shared_queries(before, after) == (["counts"], {"new": "after", "old": "before"})
    with pytest.raises(InvalidRequestError, match="share no query with state"):
        shared_queries({"old": COUNTS}, {"new": COUNTS})
    with pytest.raises(InvalidRequestError, match="compared with itself"):
        check_pair(manifest(1), manifest(1))


@pytest.mark.parametrize("text", ["", "ATL", "[1]", "{}", "3", '{"origin"', "[" * 100_000], ids=lambda text: text[:9])
def test_a_key_is_an_object(text: str) -> None:
    """Whatever else is given is refused before anything is read."""
    with pytest.raises(InvalidRequestError, match="given as a JSON object"):
        parse_key(text)
    assert parse_key('{"origin": "ATL"}') == {"origin": "ATL"}


def test_nothing_is_ever_exported_into_a_home(tmp_path: Path) -> None:
    """Nor over one, however its path is spelled, nor through a link (Law 4)."""
    home, linked = tmp_path / "home", tmp_path / "linked"
    home.mkdir()
    linked.symlink_to(home)
    kept = [f"file://{home}", "s3://bucket/streams"]
    assert export_uri(str(tmp_path / "out"), kept) == f"file://{tmp_path / 'out'}"
    assert export_uri("s3://bucket/streams-out/", kept) == "s3a://bucket/streams-out"
    assert export_uri("hdfs://name/out", kept) == "hdfs://name/out"
    for out in (
        home, home / "orders", tmp_path, linked / "orders" / "snapshots", f"file:{home}/x", f"{tmp_path}/o/../home",
        "s3://bucket", "s3a://bucket/streams/orders",
    ):  # fmt: skip
        with pytest.raises(InvalidRequestError, match="are kept"):
            export_uri(str(out), kept)
