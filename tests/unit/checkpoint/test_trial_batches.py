"""Batches that are planned on a fork."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.checkpoint.entries import FLUSH_WATERMARK_MS, drain_entry, format_offset_entry, stop_entry
from airflow_streamstate.checkpoint.log import Checkpoint, crc_key_of
from airflow_streamstate.checkpoint.trial_batches import plan_empty_batch, plan_flush, plan_last_again
from airflow_streamstate.errors import DataError
from support.checkpoints import barrier_mark, commit_batch, memory_checkpoint, plan_batch, run_batches


def entry_of(checkpoint: Checkpoint, batch_id: int) -> bytes:
    stored = checkpoint.store.get(checkpoint.offset_key(batch_id))
    return stored.body


def test_the_last_offsets_are_planned_once_more() -> None:
    """Word for word, as the batch after the last one: a query that runs it reads nothing."""
    fork = run_batches(memory_checkpoint(), 2)
    assert plan_empty_batch(fork) == 3
    assert entry_of(fork, 3) == entry_of(fork, 2)
    assert fork.position().planned_id == 3


def test_a_planned_batch_is_put_aside() -> None:
    """It would read its input; and Spark's checksum of it would refuse the entry that stands there now."""
    fork = run_batches(memory_checkpoint(), 2)
    plan_batch(fork, 3)
    assert fork.store.get(crc_key_of(fork.offset_key(3))) is not None
    assert plan_empty_batch(fork) == 3
    assert entry_of(fork, 3) == entry_of(fork, 2)
    assert fork.store.get(crc_key_of(fork.offset_key(3))) is None


def test_barriers_are_put_aside_and_their_mark_is_not_carried_on() -> None:
    """What is left is an entry as Spark's own (1a.1)."""
    fork = run_batches(memory_checkpoint(), 2)
    last = fork.read_offset(2)
    assert last is not None
    fork.store.put(fork.offset_key(3), format_offset_entry(stop_entry(last, barrier_mark("stop"))))
    fork.store.put(fork.offset_key(2), format_offset_entry(drain_entry(last, barrier_mark("drain"))))
    plan_empty_batch(fork)
    planned = fork.position().planned
    assert planned.mark is None


def test_without_a_committed_batch_there_is_nothing_to_repeat() -> None:
    """Told by name, and nothing is written."""
    fork = memory_checkpoint()
    with pytest.raises(DataError, match="no committed batch"):
        plan_empty_batch(fork)
    assert fork.offset_ids() == []


def test_a_flush_is_what_a_drain_would_run() -> None:
    """The last offsets, the watermark at the end of time, and none of our marks."""
    fork = run_batches(memory_checkpoint(), 2)
    last = fork.read_offset(2)
    assert plan_flush(fork) == 3
    entry = fork.read_offset(3)
    assert last is not None
    assert entry == replace(last, batch_watermark_ms=FLUSH_WATERMARK_MS)
    assert plan_flush(fork, 99) == 3
    entry = fork.read_offset(3)
    assert entry.batch_timestamp_ms == 99


def test_the_last_batch_that_read_anything_is_planned_again() -> None:
    """Above an empty one, which now ends where that batch had begun; what is linked from elsewhere is not written."""
    fork = run_batches(memory_checkpoint(), 4)
    plan_empty_batch(fork)
    commit_batch(fork, 5)
    before = {number: entry_of(fork, number) for number in range(5)}
    third, fourth = fork.read_offset(3), fork.read_offset(4)
    assert plan_last_again(fork) == 6
    empty, again = fork.read_offset(5), fork.read_offset(6)
    assert (empty.source_lines, again.source_lines) == (third.source_lines, fourth.source_lines)
    assert again.batch_watermark_ms == fourth.batch_watermark_ms
    assert {number: entry_of(fork, number) for number in range(5)} == before


def test_a_batch_is_planned_again_at_the_time_of_the_newest() -> None:
    """Batches that read nothing lie between: processing time never goes back, so no timer is set in the past."""
    fork = run_batches(memory_checkpoint(), 4)
    fourth = fork.read_offset(4)
    fork.store.put(fork.offset_key(5), format_offset_entry(replace(fourth, batch_timestamp_ms=99)))
    commit_batch(fork, 5)
    plan_empty_batch(fork)
    commit_batch(fork, 6)
    assert plan_last_again(fork) == 7
    assert fork.read_offset(7) == replace(fourth, batch_timestamp_ms=99)


@pytest.mark.parametrize("reaches", [0, 1])
def test_where_its_beginning_is_not_known_nothing_is_planned(reaches: int) -> None:
    """The first batch of all, or a log whose older entries are purged."""
    fork = run_batches(memory_checkpoint(), reaches)
    plan_empty_batch(fork)
    commit_batch(fork, reaches + 1)
    for number in range(reaches):
        fork.store.delete(fork.offset_key(number))
    before = fork.offset_ids()
    assert plan_last_again(fork) is None
    assert fork.offset_ids() == before
    assert plan_last_again(memory_checkpoint()) is None
