"""The text of the two logs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_streamstate.checkpoint.log import (
    FLUSH_WATERMARK_MS,
    MARK_KEY,
    SOURCES_NAMED,
    OffsetEntry,
    drain_entry,
    format_commit_entry,
    format_offset_entry,
    offset_order,
    parse_commit_entry,
    parse_offset_entry,
    stop_entry,
    unmarked,
)
from airflow_streamstate.errors import DataError, UnsupportedCheckpointError
from support.checkpoints import barrier_mark, spark_commit_text

KEY = "c/offsets/7"
SPARK_4_2 = (
    b'v1\n{"batchWatermarkMs":1704067870000,"batchTimestampMs":1795260788689,"conf":{'
    b'"spark.sql.streaming.stateStore.providerClass":'
    b'"org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",'
    b'"spark.sql.streaming.stateStore.rocksdb.mergeOperatorVersion":"2",'
    b'"spark.sql.streaming.queryEvolution.enableSourceEvolution":"false",'
    b'"spark.sql.shuffle.partitions":"2","spark.sql.streaming.stateStore.compression.codec":"lz4"}}'
    b'\n{"logOffset":11}\n-\n{"orders \xc3\xbc":{"0":17,"1":4}}'
)


def test_sparks_entry_survives_parse_and_format_byte_for_byte() -> None:
    """What Spark wrote comes out as Spark wrote it, down to the missing newline at its end (1a.1)."""
    entry = parse_offset_entry(SPARK_4_2, key=KEY)
    assert format_offset_entry(entry) == SPARK_4_2
    assert entry.source_lines == ('{"logOffset":11}', "-", '{"orders ü":{"0":17,"1":4}}')
    assert (entry.batch_watermark_ms, entry.batch_timestamp_ms, entry.mark) == (1704067870000, 1795260788689, None)


def test_unknown_fields_of_an_entry_are_kept() -> None:
    """A field that a later Spark adds to the JSON line is neither lost nor understood (Law 7)."""
    body = b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{},"later":{"a":[1]}}\n-'
    assert format_offset_entry(parse_offset_entry(body, key=KEY)) == body


def test_commit_entry_survives_parse_and_format_byte_for_byte() -> None:
    """The commit log's text is Spark's own."""
    body = spark_commit_text(1704067330000)
    assert parse_commit_entry(body, key="c/commits/7").next_batch_watermark_ms == 1704067330000
    assert format_commit_entry(parse_commit_entry(body, key="c/commits/7")) == body


@given(
    st.integers(0, 10**15),
    st.dictionaries(st.text(), st.text(), max_size=4),
    st.lists(st.sampled_from(["-", '{"logOffset":3}', "17"]), max_size=3),
)
def test_format_and_parse_are_each_others_inverse(watermark_ms: int, conf: dict[str, str], lines: list[str]) -> None:
    """Any entry comes back equal."""
    conf.pop(MARK_KEY, None)
    entry = OffsetEntry(watermark_ms, 1, conf, tuple(lines))
    assert parse_offset_entry(format_offset_entry(entry), key=KEY) == entry


def test_stop_entry_copies_everything_and_adds_one_key() -> None:
    """A stop entry is entry N with our mark: same version, conf, times and sources (1a.1)."""
    base = parse_offset_entry(SPARK_4_2, key=KEY)
    entry = stop_entry(base, barrier_mark())
    assert entry.mark == barrier_mark()
    assert unmarked(entry) == base
    assert set(entry.conf) - set(base.conf) == {MARK_KEY}
    assert list(entry.conf)[:-1] == list(base.conf)


def test_mark_survives_the_log() -> None:
    """Kind, stream, deployment, attempt, command and write id are read back from the log (1a.1)."""
    entry = stop_entry(parse_offset_entry(SPARK_4_2, key=KEY), barrier_mark("fence", attempt=3))
    assert parse_offset_entry(format_offset_entry(entry), key=KEY).mark == barrier_mark("fence", attempt=3)


def test_drain_entry_moves_the_watermark_to_the_end_of_time() -> None:
    """A drain entry has the same offsets, the flush watermark, and by default the batch time of N (1a.5)."""
    base = parse_offset_entry(SPARK_4_2, key=KEY)
    entry = drain_entry(base, barrier_mark("drain"))
    assert (entry.source_lines, entry.batch_watermark_ms) == (base.source_lines, FLUSH_WATERMARK_MS)
    assert entry.batch_timestamp_ms == base.batch_timestamp_ms
    assert drain_entry(base, barrier_mark("drain"), 5).batch_timestamp_ms == 5


def test_stop_entry_over_no_batch_names_no_source() -> None:
    """Without a batch to copy the entry is one that Spark refuses to run rather than one it could run."""
    entry = stop_entry(None, barrier_mark())
    assert (entry.source_lines, entry.mark) == ((), barrier_mark())


NAMED = (
    b'v2\n{"batchWatermarkMs":0,"batchTimestampMs":1795299724953,"conf":{'
    b'"spark.sql.streaming.queryEvolution.enableSourceEvolution":"true"},"sourceMetadataInfo":{}}'
    b'\nfirst:{"logOffset":2}\nsecond:{"a:b":{"0":17}}\nthird:-'
)


def test_an_entry_of_offset_log_2_survives_parse_and_format_byte_for_byte() -> None:
    """Keys precede their offsets, up to the first colon; what Spark does not fill in yet is kept (1a.1)."""
    entry = parse_offset_entry(NAMED, key=KEY)
    assert (entry.version, entry.source_names) == ("v2", ("first", "second", "third"))
    assert entry.source_lines == ('{"logOffset":2}', '{"a:b":{"0":17}}', "-")
    assert format_offset_entry(entry) == NAMED
    stopped = stop_entry(entry, barrier_mark())
    assert parse_offset_entry(format_offset_entry(stopped), key=KEY) == stopped


def test_sources_without_names_come_in_the_order_of_the_plan() -> None:
    """Spark writes its map as it comes: 1 before 0, 10 before 9."""
    numbers = [10, 1, 0, 9]
    lines = "".join(f'\n{number}:{{"logOffset":{number}}}' for number in numbers)
    entry = parse_offset_entry(
        f'v2\n{{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{{}}}}{lines}'.encode(), key=KEY
    )
    assert entry.source_keys == ("0", "1", "9", "10")
    assert entry.source_lines == tuple(f'{{"logOffset":{number}}}' for number in sorted(numbers))
    assert entry.source_names == ()


@given(st.dictionaries(st.from_regex(r"[A-Za-z0-9_]+", fullmatch=True), st.sampled_from(["-", '{"a":3}', "17"])))
def test_format_and_parse_of_named_sources_are_each_others_inverse(offsets: dict[str, str]) -> None:
    """Any names, any offsets: an entry comes back equal, its names in the one order that is used here."""
    keys = tuple(sorted(offsets, key=offset_order))
    lines = tuple(offsets[key] for key in keys)
    entry = OffsetEntry(0, 1, {SOURCES_NAMED: "true"}, lines, version="v2", source_keys=keys)
    assert parse_offset_entry(format_offset_entry(entry), key=KEY) == entry


@pytest.mark.parametrize("line", ["", '{"logOffset":2}', ":-", "first:", "first:{", "first:-\nfirst:-"])
def test_a_line_of_offset_log_2_without_a_key_of_its_own_is_damaged(line: str) -> None:
    """Nothing is guessed of an offset whose source is not known (Law 7)."""
    with pytest.raises(DataError):
        parse_offset_entry(f'v2\n{{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{{}}}}\n{line}'.encode(), key=KEY)


@pytest.mark.parametrize("text", ["v3", "v17"])
def test_other_versions_of_the_logs_are_refused_by_name(text: str) -> None:
    """Offset log and commit log of a different version are refused, not guessed at (Law 10)."""
    with pytest.raises(UnsupportedCheckpointError) as offset_error:
        parse_offset_entry(SPARK_4_2.replace(b"v1", text.encode(), 1), key=KEY)
    assert offset_error.value.context["version"] == text
    with pytest.raises(UnsupportedCheckpointError):
        parse_commit_entry(spark_commit_text().replace(b"v1", text.encode(), 1), key="c/commits/7")


def test_commit_of_state_format_2_tells_the_ids_of_its_state() -> None:
    """Commit log version 2 names the state's files by unique ids; it survives parse and format byte for byte."""
    body = b'v2\n{"nextBatchWatermarkMs":7,"stateUniqueIds":{"0":[["a"],["b"]],"1":[["c","d"]]}}'
    entry = parse_commit_entry(body, key="c/commits/7")
    assert format_commit_entry(entry) == body
    assert (entry.next_batch_watermark_ms, entry.has_state_ids) == (7, True)
    assert (entry.state_ids(0, 1), entry.state_ids(1, 0)) == (frozenset("b"), frozenset("cd"))
    assert (entry.state_ids(0, 2), entry.state_ids(5, 0)) == (frozenset(), frozenset())
    plain = parse_commit_entry(b'v1\n{"nextBatchWatermarkMs":7}', key="c/commits/7")
    assert (plain.has_state_ids, plain.state_ids(0, 0)) == (False, frozenset())


@pytest.mark.parametrize("length", [0, 1, 2, 3, 20, 60, 400, len(SPARK_4_2) - 3, len(SPARK_4_2) - 30])
def test_cut_short_offset_entry_is_damaged_and_named(length: int) -> None:
    """Half an entry is never taken for a whole one; the error names the key."""
    with pytest.raises(DataError) as error:
        parse_offset_entry(SPARK_4_2[:length], key=KEY)
    assert error.value.context["key"] == KEY


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00\x00\x00",
        b"v1",
        b"v1\n",
        b"v1\n{",
        b"v1\n[]",
        b'v1\n{"nextBatchWatermarkMs":"7"}',
        b'v1\n{"nextBatchWatermarkMs":true}',
        b"v1\n{}",
        b"\xff\xfe",
        b"nonsense\n{}",
        spark_commit_text() + b"\nmore",
    ],
)
def test_damaged_commit_entry_is_named(body: bytes) -> None:
    """What a crash of the machine may leave (empty, zeros, half) is an error that names the key, not a commit."""
    with pytest.raises(DataError) as error:
        parse_commit_entry(body, key="c/commits/7")
    assert error.value.context["key"] == "c/commits/7"


@pytest.mark.parametrize("text", ["{", "[]", '{"kind":"stop"}', '"x"', "null"])
def test_unreadable_mark_is_refused(text: str) -> None:
    """A mark that this version cannot read is neither obeyed nor taken for Spark's own entry (Law 7)."""
    entry = OffsetEntry(0, 0, {MARK_KEY: text}, ())
    assert entry.is_ours
    with pytest.raises(DataError):
        _ = entry.mark


def test_unknown_kind_of_barrier_is_refused() -> None:
    """A kind of barrier that a newer release invented is refused (Law 7)."""
    entry = stop_entry(None, barrier_mark())
    newer = OffsetEntry(0, 0, {MARK_KEY: entry.conf[MARK_KEY].replace('"stop"', '"pause"')}, ())
    with pytest.raises(DataError):
        _ = newer.mark
