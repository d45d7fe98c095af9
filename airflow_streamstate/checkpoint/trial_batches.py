"""Trial batches on a fork that no other query uses: an empty batch, a flush, and the last batch a second time.

An empty batch repeats the last offsets as the entry of the next batch. Started with ``Trigger.Once``, Spark runs just
that batch: it reads nothing, and opens the state of every operator of the plan or fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from airflow_streamstate.checkpoint.entries import OffsetEntry, flush_entry, format_offset_entry, unmarked
from airflow_streamstate.checkpoint.log import Checkpoint, delete_with_crc
from airflow_streamstate.errors import DataError


def plan_empty_batch(fork: Checkpoint) -> int:
    """Plan an empty batch in place of a planned one; returns its id.

    Raises:
        DataError: nothing is committed there, so there are no offsets to repeat; or the log is damaged.
    """
    return _plan(fork, unmarked)


def plan_flush(fork: Checkpoint, batch_timestamp_ms: int | None = None) -> int:
    """Plan the batch that a drain would run (``entries.drain_entry``); otherwise as ``plan_empty_batch``."""
    return _plan(fork, lambda last: flush_entry(last, batch_timestamp_ms))


def plan_last_again(fork: Checkpoint) -> int | None:
    """Plan the last batch that read anything again, above the committed empty batch of this fork; returns its id.

    Its rows enter the state a second time, so the fork is of no use after it.

    Returns:
        None where the log does not reach back far enough, or nothing was ever read.

    Raises:
        DataError: the log is damaged.
    """
    position = fork.position()
    if position.batch_id is None or position.planned is not None or position.barriers:
        return None
    newest = fork.read_offset(position.batch_id)
    for batch_id in reversed([number for number in fork.offset_ids() if number < position.batch_id]):
        last, before = fork.read_offset(batch_id), fork.read_offset(batch_id - 1) if batch_id > 0 else None
        if newest is None or last is None or before is None:
            return None
        if last.source_lines != before.source_lines:
            key = fork.offset_key(position.batch_id)
            delete_with_crc(fork.store, key)
            fork.store.create(key, format_offset_entry(replace(newest, source_lines=before.source_lines)))
            again = replace(unmarked(last), batch_timestamp_ms=newest.batch_timestamp_ms)
            fork.store.create(fork.offset_key(position.next_batch_id), format_offset_entry(again))
            return position.next_batch_id
    return None


def _plan(fork: Checkpoint, entry_over: Callable[[OffsetEntry], OffsetEntry]) -> int:
    position = fork.position()
    last = fork.read_offset(position.batch_id) if position.batch_id is not None else None
    if last is None:
        raise DataError("there is no committed batch whose offsets could be repeated", checkpoint=fork.prefix)
    batch_id = position.next_batch_id
    for entry_id in (batch_id, *(barrier.batch_id for barrier in position.barriers)):
        delete_with_crc(fork.store, fork.offset_key(entry_id))
    # Created, never written over: the files of a fork are links of its source's files.
    fork.store.create(fork.offset_key(batch_id), format_offset_entry(entry_over(last)))
    return batch_id
