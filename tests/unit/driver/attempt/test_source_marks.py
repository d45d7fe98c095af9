"""The source's marks at the time when an offset was taken, not when they were read."""

from __future__ import annotations

import pytest

from airflow_streamstate.driver.attempt.query_sources import FARTHEST_BACK, MarkHistory, Sighting

OLD, NEW = {"id": "T1"}, {"id": "T2"}


def lines(*offsets: int) -> dict[int, str]:
    return {number: str(offset) for number, offset in enumerate(offsets)}


def marks(history: MarkHistory, batch_id: int, offsets: dict[int, str]) -> dict[str, str]:
    return history.at(batch_id, offsets.get, lambda first, second: int(second) < int(first))


def seen(*sightings: Sighting, kept: dict[str, str] | None = None) -> MarkHistory:
    history = MarkHistory(kept or {})
    for sighting in sightings:
        history.add(sighting)
    return history


START = Sighting(OLD, -1, -1)


def test_a_batch_between_two_answers_that_agree_has_their_marks() -> None:
    """Ids are never reused: marks that were equal before and after held in between."""
    history = seen(START, Sighting(OLD, 3, 4), Sighting(OLD, 5, 6))
    assert marks(history, 5, lines(1, 2, 3, 4, 5, 6)) == OLD


def test_a_batch_planned_after_the_new_ones_were_seen_has_the_new_marks() -> None:
    """The query runs on in the recreated topic."""
    history = seen(START, Sighting(OLD, 3, 4), Sighting(NEW, 5, 6), Sighting(NEW, 8, 9))
    offsets = lines(*range(10, 30))
    assert marks(history, 8, offsets) == NEW
    assert marks(history, 4, offsets) == OLD


@pytest.mark.parametrize("batch_id", [5, 6])
def test_a_batch_between_two_answers_that_differ_keeps_the_old_marks(batch_id: int) -> None:
    """Otherwise an old offset would count as one of the recreated topic, and rows below it would be lost silently.
    (Law 5)"""
    history = seen(START, Sighting(OLD, 3, 4), Sighting(NEW, batch_id, 6))
    assert marks(history, batch_id, lines(*range(10, 30))) == OLD


def test_an_offset_that_went_back_is_one_of_the_new_source() -> None:
    """Offsets of one source never go back."""
    history = seen(START, Sighting(OLD, 3, 4), Sighting(NEW, 5, 6))
    assert marks(history, 5, lines(10, 20, 30, 40, 50, 7)) == NEW
    assert marks(history, 5, lines(10, 20, 30, 40, 50, 57)) == OLD


def test_batches_without_input_repeat_an_offset_of_before() -> None:
    """A flush runs at the offsets of the batch before it."""
    history = seen(START, Sighting(OLD, 0, 1), Sighting(NEW, 2, 2), Sighting(NEW, 3, 4))
    assert marks(history, 3, lines(10, 20, 30, 30)) == OLD
    assert marks(history, 3, lines(10, 20, 30, 40)) == NEW


def test_what_a_query_began_with_keeps_its_marks_until_a_batch_is_planned() -> None:
    """The answer at the start is later than the offset."""
    history = seen(Sighting(NEW, 7, 7), Sighting(NEW, 7, 8), kept=OLD)
    assert marks(history, 7, {7: "70"}) == OLD
    assert marks(history, 8, {7: "70", 8: "5"}) == NEW


def test_nothing_kept_is_as_the_first_answer_was() -> None:
    """Of an earlier version's snapshot."""
    assert marks(seen(Sighting(OLD, 7, 7), Sighting(NEW, 8, 9)), 7, {7: "70"}) == OLD
    assert marks(seen(), 7, {7: "70"}) == {}


def test_a_source_that_stood_still_for_long_keeps_what_it_began_with() -> None:
    """The log no longer holds the batch that took its offset."""
    history = seen(START, Sighting(NEW, 1, 2), Sighting(NEW, FARTHEST_BACK + 9, FARTHEST_BACK + 10))
    assert marks(history, FARTHEST_BACK + 9, lines(10, *[20] * (FARTHEST_BACK + 9))) == OLD


def test_parts_that_came_later_are_added_and_what_went_is_kept() -> None:
    """A pattern finds more topics; a topic that was just deleted still counts."""
    history = seen(START, Sighting({"other": "X"}, 5, 6), Sighting({"other": "X"}, 9, 9))
    assert marks(history, 3, lines(*range(10, 30))) == {**OLD, "other": "X"}


def test_answers_that_agree_are_kept_in_two() -> None:
    """A query that runs for years is asked every minute; a change is reported once."""
    history = seen(START, *(Sighting(OLD, number, number + 1) for number in range(1000)))
    assert len(history._sightings) == 2
    assert history.add(Sighting({}, 1000, 1001)) == ()
    assert history.add(Sighting(NEW, 1001, 1002)) == ("id",)
    assert history.add(Sighting(NEW, 1002, 1003)) == ()


def test_a_source_that_did_not_answer_at_the_start_is_held_against_what_was_kept() -> None:
    """A topic that was recreated in the meantime is reported, and not skipped."""
    history = seen(kept=OLD)
    assert history.add(Sighting(NEW, 8, 9)) == ("id",)
    assert history.add(Sighting(NEW, 10, 11)) == ()
