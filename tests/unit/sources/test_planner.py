"""Batches of a partitioned source: what each reads, what a restart reads, and what a broken source comes to."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from airflow_streamstate.errors import SourceError
from airflow_streamstate.sources.interface import Json, Part, PartitionedSource
from airflow_streamstate.sources.offsets import compare, to_text
from airflow_streamstate.sources.planner import MAX_OFFSET_BYTES, MAX_STATE_BYTES
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore
from support.listed_source import ListedPart, ListedSource, PlannedSource, Reading, Shelf, counts, numbers, written

BOTH = pytest.mark.parametrize("kind", [ListedSource, PlannedSource], ids=["polled", "planned"])


# Malstrom's four tests of its stateful source, by name


@BOTH
def test_one_partition(kind: type[ListedSource]) -> None:
    """One part's messages come out, each once, in order."""
    reading = Reading(kind(Shelf({"a": numbers(0, 99)})))
    assert reading.rest(7) == {"a": list(range(100))}


@BOTH
def test_several_partitions(kind: type[ListedSource]) -> None:
    """The messages of several parts come out, each part's in order."""
    shelf = Shelf({"a": numbers(0, 49), "b": numbers(100, 109), "c": []})
    assert Reading(kind(shelf)).rest(8) == {"a": list(range(50)), "b": list(range(100, 110))}


@BOTH
def test_state_is_loaded_from_persistence(kind: type[ListedSource]) -> None:
    """0 to 10 before, 11 to 15 after: in another process, with what the offset holds and nothing else."""
    shelf = Shelf({"a": numbers(0, 10)})
    before = Reading(kind(shelf))
    assert before.rest() == {"a": list(range(11))}
    shelf.parts["a"] += numbers(11, 15)
    assert Reading(kind(shelf)).begin(before.at).rest() == {"a": [11, 12, 13, 14, 15]}


@BOTH
def test_the_final_timestamp_only_when_all_are_done(kind: type[ListedSource]) -> None:
    """The source is finished when each part is, and a new listing finds no other one."""
    shelf = Shelf({"a": numbers(0, 4), "b": numbers(0, 4)}, ended={"a"})
    reading = Reading(kind(shelf))
    reading.rest()
    assert reading.at.parts["a"].is_finished
    assert not reading.at.is_finished
    shelf.ended |= {"b", "c"}
    shelf.parts["c"] = numbers(0, 2)  # listed only now
    assert reading.rest() == {"c": [0, 1, 2]}
    assert reading.at.is_finished
    shelf.parts["d"] = numbers(0, 2)  # it had waited for new parts
    assert reading.batch() == {"d": [0, 1, 2]}
    assert not reading.at.is_finished


# once each, whatever is cut off


@BOTH
def test_a_planned_batch_gives_the_same_rows_again(kind: type[ListedSource]) -> None:
    """By a new process, although the source has more rows, and other ones, by then."""
    shelf = Shelf({"a": numbers(0, 9), "b": numbers(50, 55)})
    store = MemoryStore("spool")
    first = Reading(kind(shelf), store=store)
    start = first.at
    rows = first.batch(6)
    shelf.parts["a"] += numbers(10, 19)
    if kind is ListedSource:
        shelf.parts["a"][0] = (999, shelf.parts["a"][0][1])  # what only knows by reading may give others
    again = Reading(kind(shelf), store=store).begin(start)
    assert again.rows(start, first.at) == rows
    assert again.begin(first.at).rest(6) == {"a": list(range(3, 20)), "b": [53, 54, 55]}


def test_rows_that_were_read_ahead_and_not_planned_are_read_once() -> None:
    """The first driver's rows count: a barrier may end its query between the reading and the plan."""
    shelf, store = Shelf({"a": numbers(0, 3)}), MemoryStore("spool")
    first = Reading(ListedSource(shelf), store=store)
    start = first.at
    first.planner.next(start, 2)  # never written to the log
    shelf.parts["a"][0] = (999, shelf.parts["a"][0][1])
    second = Reading(ListedSource(shelf), store=store).begin(start)
    assert second.rest(2) == {"a": [0, 1, 2, 3]}
    assert len([poll for poll in shelf.polls if poll == ("a", 2)]) >= 2


def test_two_drivers_of_one_state_give_the_same_rows() -> None:
    """A zombie and its successor read on from one offset: whoever keeps rows first decides for both."""
    shelf, store = Shelf({"a": numbers(0, 3)}), MemoryStore("spool")
    zombie = Reading(ListedSource(shelf), store=store)
    successor = Reading(ListedSource(shelf), store=store).begin(zombie.at)
    assert successor.batch(2) == {"a": [0, 1]}
    shelf.parts["a"] = [(-1, row[1]) for row in shelf.parts["a"]]
    assert zombie.batch(2) == {"a": [0, 1]}
    assert zombie.at == successor.at


def test_another_version_of_a_source_reads_its_rows_anew() -> None:
    """But for a batch that is planned already, which gives the rows of the version that planned it."""
    shelf, store = Shelf({"a": numbers(0, 3)}), MemoryStore("spool")

    class Fixed(ListedSource):
        version = 2

    old = Reading(ListedSource(shelf), store=store)
    start = old.at
    rows = old.batch(2)
    shelf.parts["a"] = [(n + 100, at) for n, at in shelf.parts["a"]]
    new = Reading(Fixed(shelf), store=store).begin(start)
    assert new.rows(start, old.at) == rows
    assert new.rest(2) == {"a": [100, 101, 102, 103]}


def test_another_version_gives_the_rest_of_a_chunk_as_it_was_read() -> None:
    """In mid-chunk: the rows that were read, whatever the new version would read there; behind them its own."""
    shelf, store = Shelf({"a": numbers(0, 9), "slow": numbers(0, 1)}), MemoryStore("spool")

    class Fixed(ListedSource):
        version = 2

    old = Reading(ListedSource(shelf), store=store, ahead_seconds=1.0)
    old.batch(10)
    assert old.at.parts["a"].taken == 3
    shelf.parts["slow"] += numbers(2, 10)
    shelf.parts["a"] = [(n + 100, at) for n, at in shelf.parts["a"]] + numbers(10, 11)
    new = Reading(Fixed(shelf), store=store, ahead_seconds=1.0).begin(old.at)
    first = new.batch(2)
    assert new.at.parts["a"].taken
    between = new.at
    found = [*first["a"], *new.rest(4)["a"]]
    assert found == [3, 4, 105, 106, 107, 108, 109, 10, 11]
    again = Reading(Fixed(shelf), store=store)
    assert again.rows(old.at, between)["a"] + again.rows(between, new.at)["a"] == found


def test_rows_of_another_schema_are_read_anew_or_refused_by_name() -> None:
    """Chunks that no batch has started are read again; the rest of a chunk, and a planned batch, keep their schema."""
    shelf, store = Shelf({"a": numbers(0, 9), "slow": numbers(0, 1)}), MemoryStore("spool")
    other = StructType().add("n", "string").add("at", "timestamp")
    old = Reading(ListedSource(shelf), store=store, ahead_seconds=2.0)
    start = old.at
    old.batch(10)
    for part in ("a", "slow"):
        shelf.parts[part] = [(str(n), at) for n, at in shelf.parts[part]]
    for act in (
        lambda: Reading(ListedSource(shelf), store=store, schema=other).begin(old.at).batch(10),
        lambda: Reading(ListedSource(shelf), store=store, schema=other).rows(start, old.at),
    ):
        with pytest.raises(SourceError, match="have another schema than the source has now"):
            act()
    anew = Reading(ListedSource(shelf), store=store, schema=other).begin(start)
    assert anew.batch(4) == {"a": ["0", "1"], "slow": ["0", "1"]}


def test_a_fresh_start_has_a_spool_of_its_own() -> None:
    """The same states, from the beginning, and none of the rows of before."""
    shelf, store = Shelf({"a": numbers(0, 3)}), MemoryStore("spool")
    Reading(ListedSource(shelf), store=store).rest()
    shelf.parts["a"] = numbers(10, 12)
    fresh = Reading(ListedSource(shelf), store=store)
    fresh.at = Reading(ListedSource(shelf), store=store).planner.initial()
    other = Reading(ListedSource(shelf), store=store)
    other.clock.new_uuid()
    assert Reading(ListedSource(shelf), store=MemoryStore("other")).rest() == {"a": [10, 11, 12]}
    assert other.begin(other.planner.initial()).rest() == {"a": [10, 11, 12]}


def test_a_spool_that_is_gone_is_an_error_and_loses_nothing() -> None:
    """Rows of a planned batch, and the rest of a chunk that was given in part, must be those that were read."""
    shelf, store = Shelf({"a": numbers(0, 9), "slow": numbers(0, 1)}), MemoryStore("spool")
    first = Reading(ListedSource(shelf), store=store, ahead_seconds=2.0)
    start = first.at
    assert first.batch(10) == {"a": [0, 1, 2, 3], "slow": [0, 1]}  # the rest of a's chunk waits
    assert first.at.parts["a"].taken
    for info in list(store.list_objects("")):
        store.delete(info.key)
    with pytest.raises(SourceError, match="gone from the spool"):
        Reading(ListedSource(shelf), store=store).begin(start).rows(start, first.at)
    shelf.parts["a"][4] = (999, shelf.parts["a"][4][1])
    with pytest.raises(SourceError, match="gives others now"):
        Reading(ListedSource(shelf), store=store).begin(first.at).batch(10)


def test_other_rows_under_the_name_of_those_that_were_planned_are_refused() -> None:
    """The sink may hold some of that batch already (Law 14)."""
    shelf, store, other_store = Shelf({"a": numbers(0, 9), "slow": numbers(0, 1)}), MemoryStore("spool"), MemoryStore()
    first = Reading(ListedSource(shelf), store=store, ahead_seconds=2.0)
    start = first.at
    assert first.batch(10) == {"a": [0, 1, 2, 3], "slow": [0, 1]}
    shelf.parts["a"][1] = (999, shelf.parts["a"][1][1])
    Reading(ListedSource(shelf), store=other_store, ahead_seconds=2.0).begin(start).batch(10)
    for info in list(store.list_objects("")):
        other = other_store.get(info.key)
        assert other is not None
        store.put(info.key, other.body)
    with pytest.raises(SourceError, match="gone from the spool"):
        Reading(ListedSource(shelf), store=store).begin(start).rows(start, first.at)


def test_given_rows_leave_the_spool_after_their_time(tmp_path: Path) -> None:
    """Rows of the last days stay for replays; those of a chunk that was not given whole stay for ever."""
    shelf, store = Shelf({"a": numbers(0, 19), "slow": numbers(0, 1)}), LocalStore(tmp_path)
    reading = Reading(ListedSource(shelf), store=store, ahead_seconds=4.0, keep_spool_seconds=60.0)
    while reading.batch(6):
        pass
    assert reading.at.parts["a"].taken

    def kept() -> set[Path]:
        return {*tmp_path.rglob("*.arrow")}

    everything = kept()
    reading.clock.advance(100)
    reading.planner.commit(reading.at)
    assert kept() == everything  # by the disk they are young
    long_ago = reading.clock.now().timestamp() - 1_000
    for path in everything:
        os.utime(path, (long_ago, long_ago))
    reading.planner.commit(reading.at)
    assert kept() == everything  # it was cleaned up a moment ago
    reading.clock.advance(100)
    reading.planner.commit(reading.at)
    assert len(kept()) == 1
    shelf.parts["slow"] += numbers(2, 19)
    again = Reading(ListedSource(shelf), store=store, ahead_seconds=4.0).begin(reading.at)
    assert again.rest()["a"] == list(range(6, 20))


def test_young_chunks_of_one_part_do_not_keep_old_ones_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One cleanup deletes two chunks, whatever is young."""
    monkeypatch.setattr("airflow_streamstate.sources.offsets.MOST_DELETED", 2)
    shelf, store = Shelf({"a": numbers(0, 9), "b": numbers(0, 9)}), LocalStore(tmp_path)
    reading = Reading(ListedSource(shelf), store=store, keep_spool_seconds=60.0)
    reading.rest(2)
    long_ago = reading.clock.now().timestamp() - 1_000
    old = sorted(path for path in tmp_path.rglob("*.arrow") if path.parent.name.startswith("b-"))
    for path in old:
        os.utime(path, (long_ago, long_ago))
    for cleanups in range(1, 4):
        reading.clock.advance(100)
        reading.planner.commit(reading.at)
        assert [path.exists() for path in old] == [False] * 2 * cleanups + [True] * (len(old) - 2 * cleanups)


def test_a_batch_that_was_just_planned_is_given_although_the_spool_is_away() -> None:
    """Its rows are still in memory, those of several chunks of a part too."""
    store = MemoryStore("spool")
    reading = Reading(ListedSource(Shelf({"a": numbers(0, 9), "b": numbers(0, 1)})), store=store)
    start = reading.at
    end = reading.planner.next(start, 8)
    for info in list(store.list_objects("")):
        store.delete(info.key)
    assert reading.rows(start, end) == {"a": [0, 1, 2, 3, 4, 5], "b": [0, 1]}


# limits, turns


@BOTH
def test_a_batch_keeps_to_its_limit_and_to_equal_shares(kind: type[ListedSource]) -> None:
    """No part waits for another one, however much that has."""
    shelf = Shelf({"a": numbers(0, 999), "b": numbers(0, 999), "c": numbers(0, 4)})
    reading = Reading(kind(shelf))
    for _ in range(20):
        found = counts(reading.batch(30))
        assert sum(found.values()) <= 30
        assert min(found[name] for name in "ab") >= 10


def test_a_limit_below_the_number_of_parts_takes_them_in_turn() -> None:
    """Each of ten parts is read within ten batches of one row."""
    shelf = Shelf({f"p{number}": numbers(0, 99) for number in range(10)})
    reading = Reading(ListedSource(shelf))
    taken = [next(iter(reading.batch(1))) for _ in range(10)]
    assert sorted(taken) == sorted(shelf.parts)


@BOTH
def test_a_bounded_read_ends_with_what_was_there(kind: type[ListedSource]) -> None:
    """As ``Trigger.AvailableNow`` asks: rows and parts that come later wait for the next run."""
    shelf = Shelf({"a": numbers(0, 9)})
    reading = Reading(kind(shelf))
    reading.planner.begin_bounded()
    found = reading.batch(4)["a"]
    shelf.parts["a"] += numbers(10, 19)
    shelf.parts["b"] = numbers(0, 9)
    found += reading.rest(4)["a"]
    assert found == list(range(10))


def test_a_part_that_had_nothing_rests() -> None:
    """Spark asks a hundred times a second; a part is not polled as often."""
    (shelf,) = (Shelf({"a": numbers(0, 1)}),)
    reading = Reading(ListedSource(shelf), poll_seconds=1.0)
    for _ in range(100):
        reading.batch(10)
        reading.clock.advance(0.01)
    assert len(shelf.polls) == 1
    reading.clock.advance(1)
    shelf.parts["a"] += numbers(2, 3)
    assert reading.batch(10) == {"a": [2, 3]}


# event time


@BOTH
def test_no_part_runs_ahead_of_the_slowest_open_one(kind: type[ListedSource]) -> None:
    """Spark's watermark follows the newest row of all, so rows far ahead wait; every row still comes."""
    ahead = 10
    shelf = Shelf({"slow": numbers(0, 99), "fast": numbers(0, 599)}, ended={"slow", "fast"})
    reading = Reading(kind(shelf), ahead_seconds=float(ahead))
    slow = fast = -1
    for _ in range(400):
        batch = reading.batch(8)
        watermark = max(slow, fast) - ahead
        late = [row for rows in batch.values() for row in rows if row < watermark]
        assert not late, f"late behind {watermark}: {late}"
        slow, fast = max([slow, *batch.get("slow", [])]), max([fast, *batch.get("fast", [])])
        if reading.at.is_finished:
            break
    assert (slow, fast) == (99, 599)


@pytest.mark.parametrize("limit", [1, 3, None])
def test_rows_out_of_order_do_not_stop_the_parts(limit: int | None) -> None:
    """A row far ahead of a later one of its part is given, since no part could continue otherwise."""
    unsorted = [0, 1, 90, 80, 2, 3, 50, 4]
    shelf = Shelf({"a": [row for n in unsorted for row in numbers(n, n)], "b": numbers(0, 99)}, ended={"a", "b"})
    reading = Reading(ListedSource(shelf), ahead_seconds=5.0)
    assert reading.rest(limit) == {"a": unsorted, "b": list(range(100))}
    assert reading.at.is_finished


def test_an_idle_part_is_left_out_after_its_time() -> None:
    """It holds the others until then, and again when it has rows."""
    shelf = Shelf({"idle": numbers(0, 0), "busy": numbers(0, 99)})
    reading = Reading(ListedSource(shelf), ahead_seconds=5.0, idle_seconds=60.0)
    found = reading.rest()
    assert found == {"idle": [0], "busy": [0, 1, 2, 3, 4, 5]}
    reading.clock.advance(61)
    assert reading.rest() == {"busy": list(range(6, 100))}


def test_a_finished_part_holds_no_other() -> None:
    """What has ended has no event time to wait for."""
    shelf = Shelf({"over": numbers(0, 0), "busy": numbers(0, 99)}, ended={"over"})
    assert len(Reading(ListedSource(shelf), ahead_seconds=5.0).rest()["busy"]) == 100


# listing


@BOTH
def test_a_new_part_is_taken_up_and_the_others_keep_their_state(kind: type[ListedSource]) -> None:
    """Restored state beats a fresh listing."""
    shelf = Shelf({"a": numbers(0, 4)})
    reading = Reading(kind(shelf))
    reading.rest()
    shelf.parts = {"b": numbers(7, 8), **shelf.parts}
    assert reading.rest() == {"b": [7, 8]}


def test_parts_are_listed_as_often_as_is_said() -> None:
    """A listing may be dear."""
    shelf = Shelf({"a": numbers(0, 4)})
    reading = Reading(ListedSource(shelf), list_seconds=10.0)
    reading.batch()
    shelf.parts["b"] = numbers(0, 1)
    assert reading.batch() == {}
    reading.clock.advance(10)
    assert reading.batch() == {"b": [0, 1]}


def test_a_part_that_vanished_is_an_error_or_is_finished() -> None:
    """As the source decides; a part that was finished may always go."""
    for vanished in ("error", "finished"):
        shelf = Shelf({"a": numbers(0, 4), "b": numbers(0, 4), "c": numbers(0, 1)}, ended={"b", "c"})
        reading = Reading(ListedSource(shelf, vanished=vanished))
        reading.rest()
        del shelf.parts["a"], shelf.parts["b"]
        assert reading.rest() == {}
        reading.clock.advance(300)
        if vanished == "error":
            with pytest.raises(SourceError, match="not there any more") as caught:
                reading.batch()
            assert caught.value.context["parts"] == ["a"]
        else:
            reading.rest()
            assert set(reading.at.parts) == {"a", "c"}
            assert reading.at.is_finished


@BOTH
def test_a_part_that_is_not_listed_for_a_while_goes_on_from_its_state(kind: type[ListedSource]) -> None:
    """Whether it counted as vanished in the meantime or not, and in another process too."""
    for away in (10, 1_000):
        shelf, store = Shelf({"a": numbers(0, 4), "b": numbers(0, 4)}), MemoryStore("spool")
        reading = Reading(kind(shelf, vanished="finished"), store=store)
        reading.rest(6)
        kept = shelf.parts.pop("a")
        for _ in range(3):
            shelf.parts["b"] += numbers(0, 0)
            assert reading.rest() == {"b": [0]}
            reading.clock.advance(away / 2)
        assert not reading.at.is_finished
        again = Reading(kind(shelf, vanished="finished"), store=store, clock=reading.clock).begin(reading.at)
        shelf.parts["a"] = kept + numbers(5, 6)
        assert again.rest() == {"a": [5, 6]}


@BOTH
def test_a_part_that_is_away_holds_the_others_until_it_counts_as_vanished(kind: type[ListedSource]) -> None:
    """Its rows may still come, and must not be late."""
    shelf = Shelf({"a": numbers(0, 0), "b": numbers(0, 0)})
    reading = Reading(kind(shelf, vanished="finished"), ahead_seconds=2.0, fail_after_seconds=60.0, idle_seconds=600.0)
    reading.rest()
    kept = shelf.parts.pop("a")
    shelf.parts["b"] += numbers(1, 9)
    assert reading.rest(1) == {"b": [1, 2]}
    shelf.parts["a"] = [*kept, *numbers(1, 4)]
    assert reading.rest(1)["b"] == [3, 4, 5, 6]
    del shelf.parts["a"]
    reading.rest(1)
    reading.clock.advance(60)
    assert reading.rest(1) == {"b": [7, 8, 9]}


def test_a_part_that_begins_again_is_not_given_the_rows_of_before() -> None:
    """One that was finished and is forgotten: its chunks are still in the spool."""
    shelf, store = Shelf({"a": numbers(0, 4), "b": numbers(0, 1)}, ended={"a"}), MemoryStore("spool")
    reading = Reading(ListedSource(shelf), store=store)
    reading.rest()
    del shelf.parts["a"]
    reading.rest()
    reading.clock.advance(300)
    reading.rest()
    assert set(reading.at.parts) == {"b"}
    shelf.parts["a"] = numbers(50, 54)
    start = reading.at
    assert reading.rest(6) == {"a": [50, 51, 52, 53, 54]}
    assert Reading(ListedSource(shelf), store=store).rows(start, reading.at) == {"a": [50, 51, 52, 53, 54]}


def test_a_bounded_read_waits_for_a_part_that_is_away() -> None:
    """It must not end as if the part had nothing more."""
    shelf = Shelf({"a": numbers(0, 4), "b": numbers(0, 4)})
    away: list[str] = []

    class Source(ListedSource):
        def list_parts(self) -> list[str]:
            return [away.pop()] if away else list(self.shelf.parts)

    reading = Reading(Source(shelf))
    reading.rest()
    shelf.parts["a"] += numbers(5, 6)
    away += ["b"] * 10
    reading.planner.begin_bounded()
    assert reading.rest() == {"a": [5, 6]}


def test_a_part_that_vanished_is_waited_for_once() -> None:
    """The next bounded read finds it in the offset; and one that came back has its whole time again."""
    shelf, store = Shelf({"a": numbers(0, 4), "b": numbers(0, 4)}), MemoryStore("spool")
    first = Reading(ListedSource(shelf, vanished="finished"), store=store)
    first.rest()
    kept = shelf.parts.pop("a")
    first.planner.begin_bounded()
    first.rest()
    assert sum(first.clock.slept_seconds) >= 300
    second = Reading(ListedSource(shelf, vanished="finished"), store=store).begin(first.at)
    second.clock.advance(1_000)
    second.planner.begin_bounded()
    second.rest()
    assert not second.clock.slept_seconds
    shelf.parts["a"] = kept
    second.rest()
    assert second.at.parts["a"].away_ms is None


def test_an_offset_keeps_the_states_of_the_parts_that_vanished_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source whose parts come and go does not outgrow its offset."""
    monkeypatch.setattr("airflow_streamstate.sources.planner.MOST_VANISHED", 2)
    shelf = Shelf({"stays": numbers(0, 0)})
    reading = Reading(ListedSource(shelf, vanished="finished"), fail_after_seconds=10.0)
    for day in range(5):
        shelf.parts[f"day {day}"] = numbers(0, 1)
        reading.rest()
        del shelf.parts[f"day {day}"]
        reading.rest()
        reading.clock.advance(20)
    shelf.parts["stays"] += numbers(1, 1)
    reading.rest()
    assert set(reading.at.parts) == {"stays", "day 3", "day 4"}


# bad input


def test_a_listing_that_fails_once_costs_nothing() -> None:
    """It is asked again after a pause; no batch, no row, no part is lost."""
    shelf = Shelf({"a": numbers(0, 4)}, failing={"list_parts": [ConnectionError("refused")]})
    reading = Reading(ListedSource(shelf))
    assert reading.batch() == {}
    assert "list_parts() of the source failed and is tried again: ConnectionError: refused" in reading.said
    reading.clock.advance(1)
    assert reading.rest() == {"a": [0, 1, 2, 3, 4]}
    assert "list_parts() of the source works again" in reading.said


@BOTH
def test_a_part_that_goes_away_for_a_minute_gives_every_row_once(kind: type[ListedSource]) -> None:
    """The other parts continue in the meantime."""
    shelf = Shelf({"a": numbers(0, 19), "b": numbers(0, 19)})
    reading = Reading(kind(shelf))
    found = reading.batch(4)
    shelf.failing["a"] = [OSError("database is away")] * 4
    for _ in range(120):
        for name, rows in reading.batch(4).items():
            found.setdefault(name, []).extend(rows)
        reading.clock.advance(1)
    assert found == {"a": list(range(20)), "b": list(range(20))}
    assert not shelf.failing["a"]


def test_a_source_that_fails_for_too_long_fails_the_query_by_name() -> None:
    """With the source's own words, and nothing planned."""
    shelf = Shelf({"a": numbers(0, 4)}, failing={"a": [OSError("no route to host")] * 1_000})
    reading = Reading(ListedSource(shelf), fail_after_seconds=60.0)
    before = reading.at
    with pytest.raises(SourceError, match="failed for longer than it may") as caught:
        fail_on(reading, seconds=200)
    assert caught.value.context["error"] == "OSError: no route to host"
    assert reading.at == before


def fail_on(reading: Reading, *, seconds: int) -> None:
    for _ in range(seconds):
        reading.batch()
        reading.clock.advance(1)


def test_a_bounded_read_waits_for_a_source_that_is_away() -> None:
    """It must not end as if there were nothing."""
    shelf = Shelf({"a": numbers(0, 4)}, failing={"list_parts": [OSError("away")] * 3, "a": [OSError("away")] * 3})
    reading = Reading(ListedSource(shelf))
    reading.planner.begin_bounded()
    assert reading.rest() == {"a": [0, 1, 2, 3, 4]}


def broken(**what: Any) -> Reading:
    """A reading of one part with methods of its own."""
    part = type("Broken", (ListedPart,), {name: do for name, do in what.items() if name != "list_parts"})

    class Source(ListedSource):
        def build_part(self, name: str, state: Json) -> Part:
            return part(self.shelf, name, state or 0)

    if "list_parts" in what:
        Source.list_parts = what["list_parts"]  # type: ignore[method-assign]
    return Reading(Source(Shelf({"a": numbers(0, 9)})))


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ({"list_parts": lambda _self: ["a", "b", "a"]}, "same name more than once"),
        ({"list_parts": lambda _self: None}, "gave no list of names"),
        ({"list_parts": lambda _self: "a"}, "gave no list of names"),
        ({"list_parts": lambda _self: ["a", 7]}, "no name of a part"),
        ({"snapshot": lambda _self: {1, 2}}, "is not JSON"),
        ({"snapshot": lambda _self: float("nan")}, "is not JSON"),
        ({"snapshot": lambda _self: "x" * (10 << 20)}, "too large for an offset"),
        ({"snapshot": lambda _self: None}, "its state is the one of before"),
        ({"poll": lambda _self, _limit: numbers(0, _limit)}, "more rows than its limit"),
        ({"poll": lambda _self, _limit: [(1,)], "snapshot": lambda _self: 1}, "do not fit the schema"),
        ({"poll": lambda _self, _limit: ["text"], "snapshot": lambda _self: 1}, "do not fit the schema"),
        ({"poll": lambda _self, _limit: [("text", None)], "snapshot": lambda _self: 1}, "do not fit the schema"),
        ({"poll": lambda _self, _limit: [{"n": 1}], "snapshot": lambda _self: 1}, "do not fit the schema"),
        ({"poll": lambda _self, _limit: None}, "the program of this source is wrong"),
        ({"poll": lambda _self: []}, "the program of this source is wrong"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_a_broken_promise_is_one_sentence_and_plans_nothing(what: dict[str, Any], words: str) -> None:
    """At once, whatever else the source can do."""
    reading = broken(**what)
    before = reading.at
    with pytest.raises(SourceError, match=words):
        reading.batch(5)
    assert reading.at == before


def test_a_source_without_parts_waits() -> None:
    """It is not finished: parts may come."""
    shelf = Shelf()
    reading = Reading(ListedSource(shelf))
    assert reading.rest() == {}
    assert not reading.at.is_finished
    shelf.parts["a"] = numbers(0, 1)
    assert reading.rest() == {"a": [0, 1]}


def test_too_many_states_are_refused_before_they_are_planned() -> None:
    """Each batch keeps two offsets."""

    class Wordy(ListedPart):
        def snapshot(self) -> Json:
            return f"{self.given}:" + "x" * (MAX_STATE_BYTES - 100)

    class Source(ListedSource):
        def build_part(self, part: str, state: Json) -> Part:
            return Wordy(self.shelf, part, 0)

    many = {f"p{number}": numbers(0, 1) for number in range(MAX_OFFSET_BYTES // MAX_STATE_BYTES + 2)}
    with pytest.raises(SourceError, match="offset of this source is too large"):
        Reading(Source(Shelf(many))).batch()


def test_a_source_that_polls_needs_a_spool() -> None:
    """Reported by name, with the option."""
    from airflow_streamstate.sources.offsets import RowFormat
    from airflow_streamstate.sources.planner import Planner
    from support.fake_clock import FakeClock
    from support.listed_source import SCHEMA

    reading = Reading(ListedSource(Shelf({"a": numbers(0, 1)})))
    planner = Planner(reading.source, RowFormat(SCHEMA, "at"), None, FakeClock(), reading.settings, print)
    with pytest.raises(SourceError, match="has no place where its rows are kept") as caught:
        planner.next(planner.initial(), 5)
    assert "spool" in caught.value.next_step


def test_a_part_may_move_on_without_rows() -> None:
    """A page that had nothing is not asked for again, and a replay finds the way."""

    class Skipping(ListedPart):
        def poll(self, limit: int) -> Any:
            rows = list(super().poll(limit))
            return [row for row in rows if row[0] % 10 == 9]

    class Source(ListedSource):
        def build_part(self, part: str, state: Json) -> Part:
            return Skipping(self.shelf, part, state or 0)

    store = MemoryStore("spool")
    reading = Reading(Source(Shelf({"a": numbers(0, 29)})), store=store)
    start = reading.at
    assert reading.rest(3) == {"a": [9, 19, 29]}
    assert Reading(Source(Shelf()), store=store).rows(start, reading.at) == {"a": [9, 19, 29]}


@BOTH
def test_offsets_are_ahead_of_those_before_them(kind: type[ListedSource]) -> None:
    """However little a batch moved on."""
    reading = Reading(kind(Shelf({"a": numbers(0, 9), "b": numbers(0, 9)}, ended={"a", "b"})))
    before = [reading.at]
    while reading.batch(3):
        before.append(reading.at)
    for first, second in itertools.pairwise(before):
        assert compare(second, first) == "ahead"
        assert compare(first, second) == "behind"
    assert to_text(written(reading.at)) == to_text(reading.at)


def test_what_is_open_is_suspended_at_the_end() -> None:
    """Each part once that is open, and finished ones when they are."""
    shelf = Shelf({"a": numbers(0, 1), "b": numbers(0, 1)}, ended={"a"})
    reading = Reading(ListedSource(shelf))
    reading.rest()
    assert shelf.suspended == ["a"]
    reading.planner.close()
    assert shelf.suspended == ["a", "b"]


def test_the_interface_says_what_it_lacks() -> None:
    """A class without its methods cannot be made."""
    with pytest.raises(TypeError, match="list_parts"):
        PartitionedSource({})  # type: ignore[abstract]


def test_a_part_that_always_has_rows_does_not_keep_a_batch_without_a_limit_from_ending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``Trigger.Once`` asks for all there is, and there is no end of it."""

    class Endless(ListedPart):
        def poll(self, limit: int) -> Any:
            self.given += limit
            return numbers(0, limit - 1)

    class Source(ListedSource):
        def build_part(self, part: str, state: Json) -> Part:
            return Endless(self.shelf, part, state or 0)

    monkeypatch.setattr("airflow_streamstate.sources.planner.MOST_UNLIMITED", 15_000)
    assert counts(Reading(Source(Shelf({"a": []}))).batch(None)) == {"a": 20_000}
