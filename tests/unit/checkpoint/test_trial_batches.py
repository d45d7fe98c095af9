"""Batches that are planned on a fork."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.checkpoint.fork import (
    batch_at,
    bring_source_logs,
    can_fork_before,
    fork_before,
    newest_read_batches,
    plan_again,
    plan_empty_batch,
    plan_flush,
    plan_upon,
    planned_batches,
)
from airflow_streamstate.checkpoint.log import (
    FLUSH_WATERMARK_MS,
    Checkpoint,
    crc_key_of,
    drain_entry,
    format_offset_entry,
    stop_entry,
)
from airflow_streamstate.errors import DataError
from support.checkpoints import (
    barrier_mark,
    commit_batch,
    memory_checkpoint,
    plan_batch,
    run_batches,
    store_folders,
    write_hdfs_state,
    write_operator_metadata,
    write_source_log,
)


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
    """It would read its input; and Spark's checksum of it would refuse the entry that is there now."""
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
    """Reported by name, and nothing is written."""
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


def idle_batch(checkpoint: Checkpoint, batch_id: int) -> None:
    """A committed batch that reads nothing, as Spark runs one to move its watermark."""
    before = checkpoint.read_offset(batch_id - 1)
    assert before is not None
    checkpoint.store.create(checkpoint.offset_key(batch_id), format_offset_entry(before))
    commit_batch(checkpoint, batch_id)


def test_the_newest_batches_that_read_something_are_found() -> None:
    """Behind batches without input; with the bounds of each, and without a mark of ours."""
    checkpoint = run_batches(memory_checkpoint(), 4)
    idle_batch(checkpoint, 5)
    plan_batch(checkpoint, 6)
    (last,) = newest_read_batches(checkpoint, 1)
    assert (last.batch_id, last.before) == (4, ('{"logOffset":3}',))
    assert last.entry == checkpoint.read_offset(4)
    assert [batch.batch_id for batch in newest_read_batches(checkpoint, 3)] == [2, 3, 4]
    all_of_them = newest_read_batches(checkpoint, 100)
    assert [batch.batch_id for batch in all_of_them] == [0, 1, 2, 3, 4]
    assert all_of_them[0].before == ()


def test_where_nothing_was_read_or_the_log_is_purged_there_is_less() -> None:
    """No batch, batches without input alone, and a log that does not reach back."""
    assert newest_read_batches(memory_checkpoint(), 2) == []
    checkpoint = run_batches(memory_checkpoint(), 3)
    for number in (0, 1):
        checkpoint.store.delete(checkpoint.offset_key(number))
        checkpoint.store.delete(checkpoint.commit_key(number))
    assert [batch.batch_id for batch in newest_read_batches(checkpoint, 9)] == [3]


def test_a_fork_stands_right_before_a_batch_and_runs_it_as_it_was() -> None:
    """With the state before it, its own query id, and nothing of that batch or later ones. (Rule 1a.6)"""
    source = run_batches(memory_checkpoint(), 5)
    write_operator_metadata(source)
    write_hdfs_state(source, range(1, 7))
    write_source_log(source, 5)
    (batch,) = newest_read_batches(source, 1)
    target = Checkpoint(source.store, "trial/counts")
    before = {info.key for info in source.store.list_objects("")}
    fork_before(source, batch, target, "an-id-of-its-own")
    assert target.query_id() == "an-id-of-its-own"
    assert target.position().batch_id == 4
    kept = [key for key in keys_of(target, "state/0/0/") if key.endswith(".delta")]
    assert sorted(kept) == [f"trial/counts/state/0/0/{version}.delta" for version in range(1, 6)]
    assert target.store.get(target.key("sources/0/5")) is not None
    assert plan_again(target, batch, batch.entry.source_lines) == 5
    assert entry_of(target, 5) == entry_of(source, 5)
    assert target.position().planned_id == 5
    assert {info.key for info in source.store.list_objects("") if not info.key.startswith("trial/")} == before


def test_a_first_batch_runs_again_over_no_state() -> None:
    """Its fork has the query's metadata and the logs of its sources alone."""
    source = run_batches(memory_checkpoint(), 0)
    write_source_log(source, 0)
    (batch,) = newest_read_batches(source, 1)
    target = Checkpoint(source.store, "trial/counts")
    fork_before(source, batch, target, "own")
    assert target.position().batch_id is None
    assert plan_again(target, batch, batch.entry.source_lines) == 0
    assert target.position().planned_id == 0


def test_a_batch_is_planned_upon_a_fork_that_stands_elsewhere() -> None:
    """Above its committed batch, which then ends where that batch started; what is linked from elsewhere is not
    written."""
    source = run_batches(memory_checkpoint(), 4)
    (batch,) = newest_read_batches(source, 1)
    seed = run_batches(memory_checkpoint("seed/counts"), 7)
    assert plan_upon(seed, batch, batch.entry.source_lines) == 8
    newest, again = seed.read_offset(7), seed.read_offset(8)
    assert newest is not None
    assert again is not None
    assert newest.source_lines == batch.before
    assert (again.source_lines, again.batch_watermark_ms) == (batch.entry.source_lines, batch.entry.batch_watermark_ms)
    assert again.conf == newest.conf
    with pytest.raises(DataError, match="no committed batch"):
        plan_upon(memory_checkpoint("empty/counts"), batch, batch.entry.source_lines)


def test_the_log_of_a_file_source_goes_on_in_a_fork_of_an_older_position() -> None:
    """What the query has listed since the snapshot is there, once; of a different source's folder nothing is."""
    source = run_batches(memory_checkpoint(), 6)
    write_source_log(source, 6)
    write_source_log(source, 6, folder=1)
    trial = Checkpoint(source.store, "seeds/counts")
    for number in (3, 4):
        key = source.key(f"sources/0/{number}")
        source.store.link(key, trial.key(f"sources/0/{number}"))
    for _ in range(2):
        bring_source_logs(source, trial)
        found = sorted(key for key in keys_of(trial, "sources/") if ".crc" not in key)
        assert found == [f"seeds/counts/sources/0/{number}" for number in (3, 4, 5, 6)]


def keys_of(checkpoint: Checkpoint, below: str) -> list[str]:
    return [info.key for info in checkpoint.store.list_objects(checkpoint.key(below))]


def test_planned_batches_are_those_with_bounds_and_the_planned_one_is_the_last() -> None:
    """A barrier of ours above is none of them, nor a batch whose beginning is cleaned up."""
    checkpoint = run_batches(memory_checkpoint(), 4)
    plan_batch(checkpoint, 5)
    assert planned_batches(checkpoint) == [0, 1, 2, 3, 4, 5]
    batch = batch_at(checkpoint, 5)
    assert batch is not None
    assert (batch.batch_id, batch.before) == (5, ('{"logOffset":4}',))
    for batch_id in (0, 1):
        checkpoint.store.delete(checkpoint.offset_key(batch_id))
    assert planned_batches(checkpoint) == [3, 4, 5]
    assert batch_at(checkpoint, 2) is None
    assert planned_batches(memory_checkpoint()) == []


def test_a_fork_before_a_batch_needs_its_log_and_its_state() -> None:
    """Spark cleans up the oldest first; before the first batch of all nothing is needed."""
    checkpoint = run_batches(memory_checkpoint(), 4)
    write_operator_metadata(checkpoint)
    write_hdfs_state(checkpoint, range(1, 6))
    assert [can_fork_before(checkpoint, batch_id) for batch_id in range(6)] == [True] * 6
    for folder in store_folders():
        checkpoint.store.delete(checkpoint.key(f"state/{folder}/1.delta"))
        checkpoint.store.put(checkpoint.key(f"state/{folder}/3.snapshot"), b"s3")
    assert [can_fork_before(checkpoint, batch_id) for batch_id in range(6)] == [True, False, False, True, True, True]
