"""``airflow_streamstate.protocol.script_reads``: what differs between two records, in sentences."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

from airflow_streamstate.protocol.script_reads import FileRead, ScriptReads, compare_reads, told

AT = datetime(2026, 11, 28, 13, 0, tzinfo=timezone.utc)
FEEDS = FileRead("feeds.json", "script", 10, AT - timedelta(days=3), "aa" * 32)
BEFORE = ScriptReads(
    "orders", "d-0001", 3, "counts", (FEEDS,), "w", AT, variables={"BUCKET": "=3fa", "TOKEN": "secret"}
)
NOW = replace(BEFORE, attempt=4, recorded_at=AT + timedelta(hours=2))


def changes(now: ScriptReads, before: ScriptReads = BEFORE) -> list[str]:
    return [change.text for change in compare_reads(before, now)]


def with_file(**fields: object) -> ScriptReads:
    return replace(NOW, files=(replace(FEEDS, **fields),))  # type: ignore[arg-type]


def test_nothing_differs_between_equal_records() -> None:
    """Also where a file was only written again with the same bytes."""
    assert changes(NOW) == []
    assert changes(with_file(modified_at=AT + timedelta(hours=1))) == []


def test_a_file_with_other_bytes_is_named_with_the_time_of_its_change() -> None:
    """Of an older file that took its place, that time shows nothing."""
    other = {"sha256": "bb" * 32}
    after = AT + timedelta(hours=1, minutes=2)
    assert changes(with_file(**other, modified_at=after)) == ["feeds.json changed at 14:02 UTC since attempt 3"]
    later = replace(with_file(**other, modified_at=after), recorded_at=AT + timedelta(days=1))
    assert changes(later) == ["feeds.json changed at 2026-11-28 14:02 UTC since attempt 3"]
    assert changes(with_file(**other)) == ["feeds.json was replaced since attempt 3, by a file of 2026-11-25 13:00 UTC"]
    elsewhere = replace(with_file(**other, modified_at=after), deployment_id="d-0002", attempt=1)
    assert changes(elsewhere) == ["feeds.json changed at 14:02 UTC since attempt 3 of d-0001"]


def test_a_large_file_is_told_by_its_size_and_time() -> None:
    """It has no digest."""
    large = replace(FEEDS, sha256="", size_bytes=2 << 20)
    before = replace(BEFORE, files=(large,))
    assert changes(replace(NOW, files=(large,)), before) == []
    grown = replace(large, size_bytes=3 << 20, modified_at=AT + timedelta(minutes=5))
    assert changes(replace(NOW, files=(grown,)), before) == ["feeds.json changed at 13:05 UTC since attempt 3"]


def test_files_of_one_side_alone_are_named_where_both_sides_are_whole() -> None:
    """Of ten thousand files only the first ones are recorded, in whichever order they were opened."""
    more = replace(NOW, files=(FEEDS, replace(FEEDS, name="late.json")))
    assert changes(more) == ["late.json was not read by attempt 3, and was read now"]
    assert changes(replace(NOW, files=())) == ["feeds.json was read by attempt 3, and was not read now"]
    assert changes(replace(more, others=1)) == []


def test_a_variable_is_named_and_never_its_value() -> None:
    """A secret, and a variable that one side alone knows, are not compared."""
    assert changes(replace(NOW, variables={"BUCKET": "=3fb", "TOKEN": "=111", "NEW": "=222"})) == [
        "variable BUCKET changed since attempt 3"
    ]
    assert changes(replace(NOW, variables={"BUCKET": "unset"})) == [
        "variable BUCKET is not set, and was set in attempt 3"
    ]
    unset = replace(BEFORE, variables={"BUCKET": "unset"})
    assert changes(NOW, unset) == ["variable BUCKET is set, and was not set in attempt 3"]


def test_of_many_changes_the_first_are_told() -> None:
    """A refusal must stay readable."""
    many = tuple(replace(FEEDS, name=f"{number}.json") for number in range(9))
    texts = told(compare_reads(BEFORE, replace(NOW, files=(FEEDS, *many))))
    assert len(texts) == 6
    assert texts[-1] == "4 more files or variables differ"
