"""Logs of file sources whose folder was moved (``--move-source``)."""

from __future__ import annotations

import pytest

from airflow_streamstate.checkpoint.file_source import (
    FileSourceEntry,
    format_file_source_log,
    moved_entries,
    moved_logs,
    moved_path,
    parse_file_source_log,
    plain_moves,
)
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.manifest import check_moves
from airflow_streamstate.store.memory import MemoryStore


@pytest.mark.parametrize(
    ("path", "old", "new", "now"),
    [
        ("file:///data/in/a.json", "/data/in", "/mnt/in", "file:///mnt/in/a.json"),
        ("file:///data/in/a.json", "/data", "/mnt", "file:///mnt/in/a.json"),
        ("file:///data/in2/a.json", "/data/in", "/mnt/in", "file:///data/in2/a.json"),
        ("file:///data/my%20in/a%20b.json", "/data/my in", "/mnt/100% new", "file:///mnt/100%25%20new/a%20b.json"),
        ("file:///data/in/ä.json", "/data/in", "/mnt/ö[x]", "file:///mnt/ö%5Bx%5D/ä.json"),
        ("hdfs://name:8020/data/in/a.json", "/data/in", "/new", "hdfs://name:8020/new/a.json"),
        ("hdfs://name:8020/data/in/a.json", "hdfs://name:8020/data", "s3a://lake/x", "s3a://lake/x/in/a.json"),
        ("s3a://lake/in/a.json", "s3a://lake/in", "s3://other/in", "s3a://other/in/a.json"),
        ("s3n://lake/in/a.json", "s3://lake", "s3a://other", "s3n://other/in/a.json"),
        ("file:///data/in/a.json", "file:///data/in/", "s3a://lake/in", "s3a://lake/in/a.json"),
        ("file:///elsewhere/a.json", "/data/in", "/mnt/in", "file:///elsewhere/a.json"),
    ],
)
def test_a_path_of_the_log_is_spelled_as_spark_spells_it(path: str, old: str, new: str, now: str) -> None:
    """What differs by one sign is another file to Spark, and would be read again."""
    moves = plain_moves({old: new})
    assert moved_path(path, moves) == now
    assert moved_path(now, moves) == now


@pytest.mark.parametrize(
    "moves",
    [
        {"in": "/mnt/in"},
        {"/data": "/"},
        {"/data/../x": "/mnt"},
        {"/data/*/in": "/mnt/in"},
        {"/data": "/data/new"},
        {"/data/new": "/data"},
        {"/a": "/x", "/b": "/x"},
        {"/a": "/b", "/b": "/c"},
        {"s3a://lake/in": "/mnt"},
    ],
)
def test_moves_that_are_not_certain_are_refused(moves: dict[str, str]) -> None:
    """Made twice, or in another order, they would give other paths."""
    with pytest.raises(InvalidRequestError):
        check_moves(plain_moves(moves))


def test_whole_logs_are_moved_and_nothing_else() -> None:
    """Compactions as well; a log of a different folder stays a link."""
    store = MemoryStore("checkpoints")
    entries = [FileSourceEntry("file:///a/1.json", 10, 0), FileSourceEntry("file:///a/2.json", 20, 1)]
    store.create("old/sources/0/9.compact", format_file_source_log(entries))
    store.create("old/sources/1/0", format_file_source_log([FileSourceEntry("file:///b/1.json", 10, 0)]))
    store.create("old/sources/2/0", b"v1\n{}")
    store.create("old/offsets/0", b"v1\n{}\n{}")
    files = {f"{path}": f"old/{path}" for path in ("sources/0/9.compact", "sources/1/0", "sources/2/0", "offsets/0")}
    found = moved_logs(store, files, {"/a": "/c"})
    assert list(found) == ["sources/0/9.compact"]
    moved = parse_file_source_log(found["sources/0/9.compact"], key="")
    assert [(one.path, one.timestamp_ms, one.log_offset) for one in moved] == [
        ("file:///c/1.json", 10, 0),
        ("file:///c/2.json", 20, 1),
    ]


def test_a_copy_that_is_newer_is_known_by_its_new_time() -> None:
    """Spark reads a file again that is newer than what it remembers, once it has forgotten the entry by its age."""
    (moved,) = moved_entries([FileSourceEntry("file:///a/1.json", 10, 0)], {"/a": "/c"}, {"file:///c/1.json": 99})
    assert moved == FileSourceEntry("file:///c/1.json", 99, 0)
    (moved,) = moved_entries([FileSourceEntry("file:///a/1.json", 10, 0)], {"/a": "/c"}, {"file:///c/1.json": 5})
    assert moved.timestamp_ms == 10
