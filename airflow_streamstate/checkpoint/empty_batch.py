"""An empty batch on a fork: the last offsets once more, as the entry of the next batch.

Started with ``Trigger.Once``, Spark runs just that batch: it reads nothing, opens the state of every operator of the
plan that is started, and says whether it can.
"""

from __future__ import annotations

from airflow_streamstate.checkpoint.entries import format_offset_entry, unmarked
from airflow_streamstate.checkpoint.log import Checkpoint, crc_key_of
from airflow_streamstate.errors import DataError


def plan_empty_batch(fork: Checkpoint) -> int:
    """Plan an empty batch; a batch that is planned there is put aside. Returns its id.

    Args:
        fork: of nobody else: this entry would be the next batch of whoever runs on it.

    Raises:
        DataError: nothing is committed there, so there are no offsets to repeat; or the log is damaged.
    """
    position = fork.position()
    last = fork.read_offset(position.batch_id) if position.batch_id is not None else None
    if last is None:
        raise DataError("there is no committed batch whose offsets could be repeated", checkpoint=fork.prefix)
    batch_id = position.next_batch_id
    for entry_id in (batch_id, *(barrier.batch_id for barrier in position.barriers)):
        key = fork.offset_key(entry_id)
        fork.store.delete(crc_key_of(key))
        fork.store.delete(key)
    # Created, never written over: what a fork holds are other names of its source's files.
    fork.store.create(fork.offset_key(batch_id), format_offset_entry(unmarked(last)))
    return batch_id
