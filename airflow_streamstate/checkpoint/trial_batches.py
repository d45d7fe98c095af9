"""Trial batches on a fork that no other query uses: an empty batch, a flush, and committed batches a second time.

An empty batch repeats the last offsets as the entry of the next batch. Started with ``Trigger.Once``, Spark runs just
that batch: it reads nothing, and opens the state of every operator of the plan or fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from airflow_streamstate.checkpoint.entries import OffsetEntry, flush_entry, format_offset_entry, unmarked
from airflow_streamstate.checkpoint.file_source import parse_log_name
from airflow_streamstate.checkpoint.files import files_of
from airflow_streamstate.checkpoint.fork import fork
from airflow_streamstate.checkpoint.log import Checkpoint, Position, delete_with_crc
from airflow_streamstate.checkpoint.moved_sources import moved_logs
from airflow_streamstate.errors import DataError, ObjectMissingError
from airflow_streamstate.protocol.moved_sources import NO_MOVES, Moves
from airflow_streamstate.store.transfer import keys_below

MOST_BACK = 100
"""Spark keeps that many batches by default."""


def plan_empty_batch(fork: Checkpoint) -> int:
    """Plan an empty batch in place of a planned one; returns its id.

    Raises:
        DataError: nothing is committed there, so there are no offsets to repeat; or the log is damaged.
    """
    return _plan(fork, unmarked)


def plan_flush(fork: Checkpoint, batch_timestamp_ms: int | None = None) -> int:
    """Plan the batch that a drain would run (``entries.drain_entry``); otherwise as ``plan_empty_batch``."""
    return _plan(fork, lambda last: flush_entry(last, batch_timestamp_ms))


@dataclass(frozen=True)
class ReadBatch:
    """A batch of the log.

    Attributes:
        before: the source lines at its beginning; () for a first batch.
        entry: its entry in the offset log, without a mark of ours.
    """

    batch_id: int
    before: tuple[str, ...]
    entry: OffsetEntry


def newest_read_batches(checkpoint: Checkpoint, count: int) -> list[ReadBatch]:
    """The newest committed batch that read something, and those right before it: at most ``count``, ascending.

    Works while the query runs on. Fewer where the log does not reach back far enough; none where nothing was read.

    Raises:
        DataError: the log is damaged.
    """
    committed = checkpoint.position().batch_id
    if committed is None:
        return []
    found: list[ReadBatch] = []
    for batch_id in range(committed, max(committed - MOST_BACK, -1), -1):
        batch = _read_batch(checkpoint, batch_id)
        if batch is None:
            break
        if found or batch.entry.source_lines != batch.before:
            found.insert(0, batch)
        if len(found) == count:
            break
    return found


def _read_batch(checkpoint: Checkpoint, batch_id: int) -> ReadBatch | None:
    return batch_at(checkpoint, batch_id) if checkpoint.is_committed(batch_id) else None


def planned_batches(checkpoint: Checkpoint) -> list[int]:
    """The batches that Spark ran here or planned, whose bounds are in the log: ascending, committed but for the last.

    Works while the query runs on.

    Raises:
        DataError: the log is damaged.
    """
    position = checkpoint.position()
    entries, commits = set(checkpoint.offset_ids()), set(checkpoint.commit_ids())
    found = {batch_id for batch_id in entries & commits if not batch_id or batch_id - 1 in entries}
    if position.planned_id is not None:
        found.add(position.planned_id)
    return sorted(found)


def batch_at(checkpoint: Checkpoint, batch_id: int) -> ReadBatch | None:
    """A batch of ``planned_batches``, committed or not; None where its bounds are not in the log."""
    entry = checkpoint.read_offset(batch_id)
    before = checkpoint.read_offset(batch_id - 1) if batch_id else None
    if entry is None or (before is None and batch_id):
        return None
    return ReadBatch(batch_id, () if before is None else before.source_lines, unmarked(entry))


def can_fork_before(checkpoint: Checkpoint, batch_id: int) -> bool:
    """Whether the files of right before a batch are there, its state among them.

    Raises:
        DataError, UnsupportedCheckpointError: as ``files_of``.
    """
    try:
        files_of(checkpoint, Position(batch_id - 1 if batch_id else None))
    except ObjectMissingError:
        return False
    return True


def fork_before(
    source: Checkpoint, first: ReadBatch, target: Checkpoint, query_id: str, moves: Moves = NO_MOVES
) -> None:
    """Build ``target`` as the checkpoint was right before a batch; ``plan_again`` then plans that batch.

    Args:
        moves: the folders of its file sources that were moved since.

    Raises:
        ObjectMissingError: a file is not there any more.
        ConflictError, DataError: as ``fork``.
    """
    position = Position(first.batch_id - 1 if first.batch_id else None)
    # What a source logged later is not read: the bounds of a planned batch are those of its entry.
    keys = {*files_of(source, position), *keys_below(source.store, source.key("sources/"))}
    files = {key.removeprefix(f"{source.prefix}/"): key for key in keys}
    instead = moved_logs(source.store, files, moves)
    # Spark ends a running query when another one starts with the same id.
    fork(source.store, files, target, {**instead, "metadata": json.dumps({"id": query_id}).encode()})


def plan_again(trial: Checkpoint, batch: ReadBatch, source_lines: Sequence[str]) -> int:
    """Plan a batch over these bounds as the next one of a fork that stands right before it; returns its id."""
    trial.store.create(
        trial.offset_key(batch.batch_id),
        format_offset_entry(replace(batch.entry, source_lines=tuple(source_lines))),
    )
    return batch.batch_id


def bring_source_logs(source: Checkpoint, trial: Checkpoint, moves: Moves = NO_MOVES) -> None:
    """Link what the logs of the file sources have got since the position of a fork, so that later batches can be read.

    Args:
        source: the checkpoint that the fork was made of, by a snapshot; it may run on.
    """
    newest: dict[str, int] = {}
    for key in keys_below(trial.store, trial.key("sources/")):
        folder, _, name = key[len(trial.prefix) + 1 :].rpartition("/")
        found = parse_log_name(name)
        if found is not None:
            newest[folder] = max(newest.get(folder, -1), found[0])
    for key in keys_below(source.store, source.key("sources/")):
        path = key[len(source.prefix) + 1 :]
        folder, _, name = path.rpartition("/")
        found = parse_log_name(name)
        if found is not None and found[0] > newest.get(folder, found[0]):
            moved = moved_logs(source.store, {path: key}, moves)
            if path in moved:
                trial.store.put(trial.key(path), moved[path])
            else:
                trial.store.link(key, trial.key(path))


def plan_upon(trial: Checkpoint, batch: ReadBatch, source_lines: Sequence[str]) -> int:
    """Plan a batch over these bounds above the committed batch of a fork that stands elsewhere, as a seed does; returns
    its id.

    Its rows are read into the state of that fork, with the watermark of when the batch ran.

    Raises:
        DataError: nothing is committed there.
    """
    position = trial.position()
    newest = None if position.batch_id is None else trial.read_offset(position.batch_id)
    if position.batch_id is None or newest is None:
        raise DataError("there is no committed batch to go on from", checkpoint=trial.prefix)
    key = trial.offset_key(position.batch_id)
    delete_with_crc(trial.store, key)
    trial.store.create(key, format_offset_entry(replace(newest, source_lines=batch.before)))
    again = replace(newest, source_lines=tuple(source_lines), batch_watermark_ms=batch.entry.batch_watermark_ms)
    trial.store.create(trial.offset_key(position.next_batch_id), format_offset_entry(again))
    return position.next_batch_id


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
