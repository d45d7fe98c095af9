"""An empty batch on a fork."""

from __future__ import annotations

import pytest

from airflow_streamstate.checkpoint.empty_batch import plan_empty_batch
from airflow_streamstate.checkpoint.entries import drain_entry, format_offset_entry, stop_entry
from airflow_streamstate.checkpoint.log import Checkpoint, crc_key_of
from airflow_streamstate.errors import DataError
from support.checkpoints import barrier_mark, memory_checkpoint, plan_batch, run_batches


def entry_of(checkpoint: Checkpoint, batch_id: int) -> bytes:
    stored = checkpoint.store.get(checkpoint.offset_key(batch_id))
    assert stored is not None
    return stored.body


def test_the_last_offsets_are_planned_once_more() -> None:
    """Word for word, as the batch after the last one: whoever runs it reads nothing."""
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
    assert planned is not None
    assert planned.mark is None


def test_without_a_committed_batch_there_is_nothing_to_repeat() -> None:
    """Told by name, and nothing is written."""
    fork = memory_checkpoint()
    with pytest.raises(DataError, match="no committed batch"):
        plan_empty_batch(fork)
    assert fork.offset_ids() == []
