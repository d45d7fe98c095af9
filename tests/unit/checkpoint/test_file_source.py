"""The file source's own log."""

from __future__ import annotations

import math

import pytest

from airflow_streamstate.checkpoint.file_source import (
    FileSourceEntry,
    cut_files,
    files_taken,
    format_file_source_log,
    is_file_source_log,
    needed_numbers,
    parse_file_source_log,
    parse_file_source_offset,
    parse_log_name,
)
from airflow_streamstate.errors import DataError
from support.checkpoints import memory_checkpoint, write_source_log

BODY = (
    b'v1\n{"path":"file:///tmp/in/f0000.json","timestamp":1795260750770,"batchId":0}'
    b'\n{"path":"file:///tmp/in/%C3%BC.json","timestamp":1795260750780,"batchId":1}'
)


@pytest.mark.parametrize(
    ("line", "offset"),
    [
        ('{"logOffset":11}', 11),
        ('{"logOffset":0}', 0),
        ("-", None),
        ('{"orders":{"0":17}}', None),
        ('{"logOffset":"11"}', None),
        ('{"logOffset":1,"more":2}', None),
        ("17", None),
        ("{", None),
    ],
)
def test_only_a_file_sources_line_has_a_log_offset(line: str, offset: int | None) -> None:
    """Lines of other sources are not taken for the file source's."""
    assert parse_file_source_offset(line) == offset


def test_log_is_read_as_spark_wrote_it() -> None:
    """Path, time and log offset of each file, in order."""
    assert parse_file_source_log(BODY, key="c/sources/0/9.compact") == [
        FileSourceEntry("file:///tmp/in/f0000.json", 1795260750770, 0),
        FileSourceEntry("file:///tmp/in/%C3%BC.json", 1795260750780, 1),
    ]


def test_log_is_written_as_spark_writes_it() -> None:
    """Byte for byte what Spark wrote, a name outside of ASCII as it is: it looks its files up by that text."""
    assert format_file_source_log(parse_file_source_log(BODY, key="c/sources/0/9.compact")) == BODY
    named = format_file_source_log([FileSourceEntry("file:///in/ü.json", 1, 2)])
    assert named == 'v1\n{"path":"file:///in/ü.json","timestamp":1,"batchId":2}'.encode()


@pytest.mark.parametrize(
    "body", [b"", b"v2\n", b"v1\n{", BODY[:-9], b'v1\n{"path":1,"timestamp":2,"batchId":3}', b"\xff"]
)
def test_damaged_log_is_named(body: bytes) -> None:
    """Half a file of the log is an error that names its key."""
    with pytest.raises(DataError) as error:
        parse_file_source_log(body, key="c/sources/0/3")
    assert error.value.context["key"] == "c/sources/0/3"
    assert not is_file_source_log(body)


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("7", (7, False)),
        ("9.compact", (9, True)),
        (".7.crc", None),
        ("07", None),
        (".9.compact.u.tmp", None),
        ("x", None),
    ],
)
def test_names_in_the_log(name: str, parsed: tuple[int, bool] | None) -> None:
    """Numbers and compactions are files of the log, nothing else is."""
    assert parse_log_name(name) == parsed


def names(last: int, interval: int = 10) -> list[str]:
    return [f"{n}.compact" if (n + 1) % interval == 0 else str(n) for n in range(last + 1)]


@pytest.mark.parametrize(
    ("last", "first", "upto", "needed"),
    [
        (5, 4, 5, range(6)),
        (12, 11, 12, range(13)),
        (25, 24, 25, range(9, 26)),
        (25, 18, 20, range(21)),
        (35, 29, 30, range(19, 31)),
        (35, 28, 29, range(9, 30)),
    ],
)
def test_needed_part_of_the_log_begins_at_the_second_newest_compaction(
    last: int, first: int, upto: int, needed: range
) -> None:
    """One compaction is read; the distance of two gives Spark the interval that the log was written with."""
    assert needed_numbers(names(last), first, upto) == set(needed)


def test_all_files_up_to_an_offset() -> None:
    """Whatever compactions are in between, each file up to the offset is listed once, and none after it."""
    checkpoint = memory_checkpoint()
    write_source_log(checkpoint, 24, interval=10)
    for last in (0, 8, 9, 10, 19, 24):
        taken = files_taken(checkpoint.store, checkpoint.key("sources/0"), last)
        assert [entry.log_offset for entry in taken] == list(range(last + 1))


def test_missing_file_of_the_log_is_named() -> None:
    """A gap in the log is an error."""
    checkpoint = memory_checkpoint()
    write_source_log(checkpoint, 5)
    checkpoint.store.delete(checkpoint.key("sources/0/3"))
    with pytest.raises(DataError):
        files_taken(checkpoint.store, checkpoint.key("sources/0"), 5)


@pytest.mark.parametrize(("last", "after"), [(4, 3), (9, 7), (12, 8), (4, -1)])
def test_a_share_of_the_files_of_a_batch_stays_in_the_log(last: int, after: int) -> None:
    """The first ones, at least one, also where the log was compacted in the meantime; older files stay listed."""
    checkpoint = memory_checkpoint()
    write_source_log(checkpoint, last)
    folder = checkpoint.key("sources/0")
    before = files_taken(checkpoint.store, folder, last)
    there = last - after
    assert cut_files(checkpoint.store, folder, last, after, 0.5) == (math.ceil(there / 2), there)
    left = files_taken(checkpoint.store, folder, last)
    assert left == [*before[: after + 1], *before[after + 1 : after + 1 + math.ceil(there / 2)]]
    assert cut_files(checkpoint.store, folder, last, after, 0.0)[0] == 1
    assert len(files_taken(checkpoint.store, folder, last, after)) == 1
