"""Commits a planned batch without reading its rows: the offsets go on, the state stays as it was.

On a fork beside the checkpoint an empty batch takes the place of the planned one: with the last offsets, and all times
at zero, so that no window closes and no timer is due. So the next version of the state that Spark writes there is the
state of before. ``finish_skip`` puts that version into the checkpoint and then, as its last act, the commit. The entry
of the planned batch stays, and the next batch begins at its end. Cut off anywhere before the commit, begin again.
"""

from __future__ import annotations

import dataclasses
import re

from airflow_streamstate.checkpoint.entries import NO_OFFSET, format_commit_entry, format_offset_entry
from airflow_streamstate.checkpoint.files import files_of
from airflow_streamstate.checkpoint.fork import fork, place_files, wipe
from airflow_streamstate.checkpoint.log import Checkpoint, Position, crc_key_of
from airflow_streamstate.errors import ConflictError, DataError, ObjectExistsError, OutcomeUnknownError
from airflow_streamstate.store.transfer import delete_many, keys_below

_VERSION = re.compile(r"\.?([1-9][0-9]*)(?:_[0-9a-f-]+)?\.(?:zip|changelog|delta|snapshot)(?:\.crc)?")


def prepare_skip(building: Checkpoint, checkpoint: Checkpoint, batch_id: int) -> None:
    """Lay out the fork on which the empty batch runs with ``Trigger.Once`` into no sink; what lay there is wiped.

    Args:
        building: beside the checkpoint, see ``protocol.layout.building_folder``.
        checkpoint: of a query that does not run.
        batch_id: the planned batch.

    Raises:
        ConflictError: that batch is not planned there.
        ObjectMissingError, DataError: the checkpoint is damaged.
    """
    position, planned = checkpoint.position(), checkpoint.read_offset(batch_id)
    if planned is None or position.planned_id != batch_id:
        raise ConflictError(
            "this batch is not planned, so it cannot be skipped",
            checkpoint=checkpoint.prefix,
            batch_id=batch_id,
            last_committed=position.batch_id,
            planned=position.planned_id,
        )
    wipe(building)
    lines = (NO_OFFSET,) * len(planned.source_lines)
    if position.batch_id is not None:
        last = checkpoint.read_offset(position.batch_id)
        if last is None:
            raise DataError("the entry of the last committed batch is gone", key=checkpoint.offset_key(batch_id - 1))
        lines = last.source_lines
        start = len(checkpoint.prefix) + 1
        keys = files_of(checkpoint, Position(position.batch_id))
        fork(checkpoint.store, {key[start:]: key for key in keys}, building)
    else:
        checkpoint.store.link(checkpoint.metadata_key, building.metadata_key)
    empty = dataclasses.replace(planned, source_lines=lines, batch_watermark_ms=0, batch_timestamp_ms=0)
    building.store.create(building.offset_key(batch_id), format_offset_entry(empty))


def finish_skip(building: Checkpoint, checkpoint: Checkpoint, batch_id: int) -> None:
    """Put the state of the empty batch into the checkpoint, commit the planned batch, and wipe ``building``.

    Raises:
        ConflictError: the empty batch is not committed, or another process committed the batch meanwhile.
        DataError: the planned entry is gone.
    """
    commit, planned = building.read_commit(batch_id), checkpoint.read_offset(batch_id)
    if commit is None or building.position().batch_id != batch_id:
        raise ConflictError(
            "the empty batch in the place of the skipped one has not run",
            checkpoint=building.prefix,
            batch_id=batch_id,
            next_step="Resume the deployment: it is run again.",
        )
    if planned is None:
        raise DataError("the entry of the planned batch is gone", key=checkpoint.offset_key(batch_id))
    _place_state(building, checkpoint, batch_id + 1)
    # The watermark that the batch was planned with stays: what is due by it comes out with the next batch.
    body = format_commit_entry(dataclasses.replace(commit, next_batch_watermark_ms=planned.batch_watermark_ms))
    key = checkpoint.commit_key(batch_id)
    checkpoint.store.delete(crc_key_of(key))
    try:
        checkpoint.store.create(key, body)
    except (ObjectExistsError, OutcomeUnknownError):
        there = checkpoint.store.get(key)
        if there is None or there.body != body:
            raise
    wipe(building)


def _place_state(building: Checkpoint, checkpoint: Checkpoint, version: int) -> None:
    """Put the fork's state at this version in place of what a failed run of the batch left of it."""
    prefix = checkpoint.key("state/")
    there = {key[len(prefix) :] for key in keys_below(checkpoint.store, prefix)}
    stale = {path for path in there if _is_of(path, version)}
    delete_many(checkpoint.store, [prefix + path for path in sorted(stale)])
    source = building.key("state/")
    made = {key[len(source) :]: key for key in keys_below(building.store, source)}
    new = {f"state/{path}": key for path, key in made.items() if path not in there or path in stale}
    place_files(checkpoint.store, {path: key for path, key in new.items() if not _is_temporary(path)}, checkpoint)


def _is_of(path: str, version: int) -> bool:
    match = _VERSION.fullmatch(path.rpartition("/")[2])
    return match is not None and int(match[1]) == version


def _is_temporary(path: str) -> bool:
    return path.endswith((".tmp", ".tmp.crc"))
