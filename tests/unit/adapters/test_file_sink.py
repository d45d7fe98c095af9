"""The sink of files: what its log holds, and what a folder under ids that go on needs."""

from __future__ import annotations

import pytest

from airflow_streamstate.adapters.file_sink import (
    INTERVAL_SETTING,
    FileSink,
    compact_interval,
    log_folder,
    missing_entries,
)
from airflow_streamstate.adapters.sink import HeldBatches, Sink
from airflow_streamstate.adapters.sink_conformance import SinkPlace, check_sink
from airflow_streamstate.errors import InvalidRequestError, UnsupportedCheckpointError
from support.sink_reach import QUERY_ID, DictReach

OUT = Sink("json", "/data/out")
LOG = "/data/out/_spark_metadata"


def test_it_keeps_what_an_adapter_promises() -> None:
    """The suite that anybody's adapter can be held to."""
    files = {f"{LOG}/{number}": "v1\n{}" for number in range(5)}
    check_sink(FileSink(), SinkPlace(OUT, DictReach()), SinkPlace(OUT, DictReach(files), QUERY_ID, 4))


def test_merged_entries_count_and_strays_do_not() -> None:
    """A merged entry stands for all before it; checksums, temporary files and data are no entries."""
    reach = DictReach(dict.fromkeys((f"{LOG}/9.compact", f"{LOG}/.10.crc", f"{LOG}/.11.x.tmp", "/data/out/12"), "v1"))
    assert list(FileSink().held_batches(OUT, None, 8, reach).batch_ids) == [8, 9]
    assert FileSink().held_batches(OUT, None, 10, reach).lacks(10)


def test_a_table_that_is_not_there_holds_nothing_and_no_path_cannot_tell() -> None:
    """A missing place is no proof by itself: only where Spark will make the table."""
    assert FileSink().held_batches(Sink("parquet", None, "db.t"), None, 0, DictReach()) == HeldBatches()
    assert FileSink().held_batches(Sink("parquet"), None, 0, DictReach()).unknown_reason


@pytest.mark.parametrize(
    ("next_batch_id", "names"),
    [
        (1, ["0"]),
        (9, [str(number) for number in range(9)]),
        (10, ["9.compact"]),
        (14, ["9.compact", "10", "11", "12", "13"]),
        (1_000_000, ["999999.compact"]),
    ],
)
def test_a_new_folder_gets_the_entries_of_batches_without_rows(next_batch_id: int, names: list[str]) -> None:
    """The last merged entry and those above it, each with the version alone: as many as Spark reads, never more."""
    reach = DictReach()
    words = FileSink().prepare(OUT, next_batch_id, reach)
    assert len(words) == 1
    assert "/data/out" in words[0]
    assert reach.files == dict.fromkeys((f"{LOG}/{name}" for name in names), "v1")


def test_a_gap_is_filled_over_a_merge_with_all_that_was_there() -> None:
    """What the folder held stays readable: the merged entry repeats it."""
    reach = DictReach({f"{LOG}/2.compact": "v1\na\nb", f"{LOG}/3": "v1\nc", f"{LOG}/1": "v1\na", f"{LOG}/4": "v1"})
    reach.settings[INTERVAL_SETTING] = "3"
    assert FileSink().prepare(OUT, 10, reach)
    assert reach.written == [f"{LOG}/8.compact", f"{LOG}/9"]
    assert reach.files[f"{LOG}/8.compact"] == "v1\na\nb\nc"


def test_a_driver_that_died_in_between_goes_on_where_it_was() -> None:
    """Entries are written from the bottom up: what is there is what is done (Law 2)."""
    whole = dict(missing_entries(-1, 14, 10))
    for done in range(len(whole)):
        reach = DictReach({f"{LOG}/{name}": text for name, text in list(whole.items())[:done]})
        FileSink().prepare(OUT, 14, reach)
        assert reach.files == {f"{LOG}/{name}": text for name, text in whole.items()}


def test_nothing_is_prepared_where_nothing_is_missing() -> None:
    """The first batch of all, a log that goes up to it, no path, which Spark refuses by itself."""
    assert FileSink().prepare(OUT, 0, DictReach()) == ()
    assert FileSink().prepare(OUT, 10, DictReach({f"{LOG}/9.compact": "v1"})) == ()
    assert FileSink().prepare(Sink("json"), 10, DictReach()) == ()
    assert FileSink().prepare(Sink("json", None, "db.t"), 0, DictReach()) == ()


def test_a_table_that_is_yet_to_be_made_is_refused_under_ids_that_go_on() -> None:
    """Where it will lie is not known, and without its log the query would die later."""
    with pytest.raises(InvalidRequestError, match="not there yet") as caught:
        FileSink().prepare(Sink("json", None, "db.t"), 10, DictReach())
    assert "CREATE TABLE" in caught.value.next_step


def test_a_log_of_another_version_is_left_alone() -> None:
    """What is not known is not written over (Law 10)."""
    reach = DictReach({f"{LOG}/0": "v2\n{}"})
    with pytest.raises(UnsupportedCheckpointError, match="not known here"):
        FileSink().prepare(OUT, 30, reach)
    assert reach.written == []


@pytest.mark.parametrize(
    ("compact_ids", "wanted", "interval"),
    [
        ((), 10, 10),
        ((9,), 10, 10),
        ((19,), 10, 20),
        ((29,), 10, 10),
        ((9, 19), 3, 10),
        ((11,), 5, 6),
        ((8,), 10, 9),
        ((12,), 5, 13),
    ],
)
def test_the_interval_is_the_one_that_spark_finds(compact_ids: tuple[int, ...], wanted: int, interval: int) -> None:
    """As ``CompactibleFileStreamLog.deriveCompactInterval`` has it."""
    assert compact_interval(compact_ids, wanted) == interval


def test_a_path_with_a_slash_at_its_end_is_the_same_place() -> None:
    """Spark writes its log below the folder, however it was spelled."""
    assert log_folder("s3a://bucket/out/") == log_folder("s3a://bucket/out") == "s3a://bucket/out/_spark_metadata"


def test_a_table_of_files_whose_place_nobody_says_cannot_tell() -> None:
    """It is there, and may hold anything; under ids that go on its log cannot be made ready."""
    table = Sink("parquet", None, "db.t", is_there=True)
    assert "does not say where it lies" in FileSink().held_batches(table, None, 0, DictReach()).unknown_reason
    with pytest.raises(InvalidRequestError, match="does not say where"):
        FileSink().prepare(table, 14, DictReach())
