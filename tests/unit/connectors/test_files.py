"""The sink of files: what its log holds, and what a folder under ids that continue needs."""

from __future__ import annotations

import json

import pytest

from airflow_streamstate.connectors.files import (
    INTERVAL_SETTING,
    FileSink,
    compact_interval,
    log_folder,
    missing_entries,
)
from airflow_streamstate.connectors.sink import FoundUndo, HeldBatches, Sink, UndoOrder
from airflow_streamstate.connectors.testing import SinkPlace, check_sink, check_undo
from airflow_streamstate.errors import InvalidRequestError, UnsupportedCheckpointError
from support.sink_reach import QUERY_ID, DictReach

OUT = Sink("json", "/data/out")
LOG = "/data/out/_spark_metadata"


def test_it_keeps_what_an_connector_promises() -> None:
    """The suite for any connector."""
    files = {f"{LOG}/{number}": "v1\n{}" for number in range(5)}
    check_sink(FileSink(), SinkPlace(OUT, DictReach()), SinkPlace(OUT, DictReach(files), QUERY_ID, 4))


def test_merged_entries_count_and_strays_do_not() -> None:
    """A merged entry represents all before it; checksums, temporary files and data are no entries."""
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
    """Where it will be is not known, and without its log the query would die later."""
    with pytest.raises(InvalidRequestError, match="does not exist yet") as caught:
        FileSink().prepare(Sink("json", None, "db.t"), 10, DictReach())
    assert "CREATE TABLE" in caught.value.next_step


def test_a_log_of_another_version_is_left_alone() -> None:
    """What is not known is not written over (Law 10)."""
    reach = DictReach({f"{LOG}/0": "v2\n{}"})
    with pytest.raises(UnsupportedCheckpointError, match="unknown version"):
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


def test_a_table_of_files_of_unknown_place_cannot_tell() -> None:
    """It is there, and may hold anything; under ids that continue its log cannot be made ready."""
    table = Sink("parquet", None, "db.t", is_there=True)
    assert "does not state where it is stored" in FileSink().held_batches(table, None, 0, DictReach()).unknown_reason
    with pytest.raises(InvalidRequestError, match="does not state where"):
        FileSink().prepare(table, 14, DictReach())


def _line(name: str) -> str:
    return json.dumps({"path": f"file:///data/out/{name}", "size": 1, "action": "add"})


def _written(newest: int, interval: int = 3) -> DictReach:
    """A folder as Spark leaves it: a data file for each batch, and its log with the merged entries."""
    reach, lines = DictReach(), list[str]()
    for batch_id in range(newest + 1):
        reach.files[f"/data/out/part-{batch_id}.json"] = f"rows of {batch_id}"
        lines.append(_line(f"part-{batch_id}.json"))
        merged = (batch_id + 1) % interval == 0
        name, body = (f"{batch_id}.compact", lines) if merged else (f"{batch_id}", lines[-1:])
        reach.files[f"{LOG}/{name}"] = "\n".join(("v1", *body))
    reach.files["/data/out/theirs.json"] = "rows that were put there without the log"
    return reach


def _wish(to_batch_id: int, last_batch_id: int | None = None, undo_id: str = "u-1") -> UndoOrder:
    return UndoOrder(undo_id, to_batch_id, frozenset({QUERY_ID}), last_batch_id)


def _undo(reach: DictReach, request: UndoOrder) -> FoundUndo:
    found = FileSink().find_undo(OUT, request, reach)
    FileSink().undo_batches(OUT, request, found, reach)
    return found


def test_it_keeps_what_an_undoing_connector_promises() -> None:
    """The suite for any connector."""
    check_undo(FileSink(), SinkPlace(OUT, _written(7), QUERY_ID, 7), 3)


@pytest.mark.parametrize("to_batch_id", range(-1, 8))
def test_law_14_the_log_is_as_it_was_at_the_batch(to_batch_id: int) -> None:
    """Whatever was merged since; the data files of later batches are where no reader looks, and are named."""
    reach = _written(7)
    found = _undo(reach, _wish(to_batch_id, 7))
    before = _written(to_batch_id).files if to_batch_id >= 0 else {"/data/out/theirs.json": ""}
    there = {name for name in reach.files if "/_undone/" not in name}
    assert there == set(before)
    assert all(reach.files[name] == text for name, text in before.items() if text)
    later = range(to_batch_id + 1, 8)
    assert found.batch_ids == tuple(later)
    assert found.removed == tuple(f"file:///data/out/part-{batch_id}.json" for batch_id in later)
    aside = {name for name in reach.files if name.startswith("/data/out/_undone/u-1/")}
    assert aside == {f"/data/out/_undone/u-1/part-{batch_id}.json" for batch_id in later}
    assert FileSink().held_batches(OUT, None, to_batch_id + 1, reach).lacks(to_batch_id + 1)
    assert FileSink().prepare(OUT, to_batch_id + 1, reach) == ()


class _Mortal(DictReach):
    """Dies before the given number of writes is done."""

    lives = 10_000

    def _live(self) -> None:
        self.lives -= 1
        if self.lives < 0:
            raise OSError("killed")

    def create_text(self, uri: str, text: str) -> None:
        self._live()
        super().create_text(uri, text)

    def delete(self, uri: str) -> None:
        self._live()
        super().delete(uri)

    def move(self, uri: str, to_uri: str) -> None:
        self._live()
        super().move(uri, to_uri)


def test_law_2_an_undo_that_is_cut_off_at_any_write_is_carried_on() -> None:
    """The same in the end, and the same is reported; in between readers see a log as it was at some batch."""
    whole, request = _written(7), _wish(3, 7)
    told = _undo(whole, request)
    cuts = 0
    while True:
        reach = _Mortal(_written(7).files)
        reach.lives = cuts
        try:
            _undo(reach, request)
        except OSError:
            log = [name for name in reach.files if name.startswith(LOG)]
            newest = max(FileSink().held_batches(OUT, None, 0, reach).batch_ids)
            assert set(log) == {name for name in _written(newest).files if name.startswith(LOG)}
        else:
            break
        reach.lives = 10_000
        assert _undo(reach, request) == told
        assert reach.files == whole.files
        cuts += 1
    assert cuts == 1 + 4 + 4
    assert _undo(whole, request) == told


def test_law_14_batches_that_none_of_ours_planned_are_another_writers() -> None:
    """Before the undo, and between two tries of it; nothing is touched."""
    reach = _written(9)
    with pytest.raises(InvalidRequestError, match="another writer writes to it") as caught:
        _undo(reach, _wish(3, 7))
    assert caught.value.context["newest_held_batch_id"] == 9
    assert reach.files == _written(9).files
    reach = _written(7)
    _undo(reach, _wish(3, 7))
    reach.files[f"{LOG}/4"] = "v1\n" + _line("of-another.json")
    with pytest.raises(InvalidRequestError, match="another writer writes to it"):
        _undo(reach, _wish(3, 7))
    assert f"{LOG}/4" in reach.files
    _undo(reach, _wish(3, 7, "u-2"))  # another undo takes it for what its own chain planned
    assert f"{LOG}/4" not in reach.files


def test_law_14_a_log_whose_entries_of_the_time_are_gone_is_refused() -> None:
    """Spark deletes what it has merged, in time: then which file is of which batch is unknown."""
    reach = _written(7)
    del reach.files[f"{LOG}/0"]
    _undo(_written(7), _wish(1, 7))
    with pytest.raises(InvalidRequestError, match="entries that it had at that batch are gone"):
        _undo(reach, _wish(1, 7))
    assert f"{LOG}/7" in reach.files
    _undo(reach, _wish(2, 7))


def test_files_of_partitions_and_files_elsewhere() -> None:
    """Places are spelled as URIs in the log; what is elsewhere stays, and is named all the same."""
    path = "file:///data/out/k=a%2520b/part-1.json"
    elsewhere, namesake = "file:///data/old/part-2.json", "/data/out/part-2.json"
    lines = [json.dumps({"path": each}) for each in (path, elsewhere)]
    files = {f"{LOG}/0": "v1", f"{LOG}/1": "\n".join(("v1", *lines)), "/data/out/k=a%20b/part-1.json": ""}
    reach = DictReach({**files, namesake: ""})
    found = _undo(reach, _wish(0))
    assert found.removed == (path, elsewhere)
    assert "/data/out/_undone/u-1/k=a%20b/part-1.json" in reach.files
    assert namesake in reach.files


def test_nothing_is_undone_where_nothing_is_and_without_a_place_nothing_is_undone() -> None:
    """A table that is not there yet, a folder that ends with the batch, a table without a place."""
    assert _undo(_written(3), _wish(3)) == FoundUndo()
    assert FileSink().find_undo(Sink("json", None, "db.t"), _wish(3), DictReach()) == FoundUndo()
    with pytest.raises(InvalidRequestError, match="its location is unknown"):
        FileSink().find_undo(Sink("json", None, "db.t", is_there=True), _wish(3), DictReach())
