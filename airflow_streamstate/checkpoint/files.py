"""Exactly the files that make a position (1a.6): the content of a snapshot and of a fork.

They are the entries of the last two committed batches (Spark reads both at a start), Spark's own planned entry, the
source logs that these name, and the state at the version that the last commit left, from the newest full one on. With a
planned entry goes the state that its batch has already written: a sink that holds the batch makes Spark skip it, and
its state is then not written again. No entry of ours, no temporary file and nothing above belongs to a position.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from airflow_streamstate.checkpoint.entries import OffsetEntry
from airflow_streamstate.checkpoint.file_source import (
    is_file_source_log,
    needed_numbers,
    parse_file_source_offset,
    parse_log_name,
)
from airflow_streamstate.checkpoint.log import Checkpoint, Position, crc_key_of
from airflow_streamstate.checkpoint.state_files import state_file_keys
from airflow_streamstate.errors import ObjectMissingError
from airflow_streamstate.store.transfer import keys_below

KEPT_COMMITS = 2


def files_of(
    checkpoint: Checkpoint, position: Position, *, with_state: bool = True, among: Container[str] | None = None
) -> list[str]:
    """The keys of the files of a position, sorted, with the checksums that lie beside them.

    Works while the query runs on: Spark never changes a listed file, and deletes it only when it is long superseded.

    Args:
        position: of it, now or a short while ago.
        with_state: False for a drained checkpoint: only its positions are kept.
        among: the keys to look at, as if there were no others; None for all.

    Raises:
        ObjectMissingError: a file is not there (any more): take a newer position, or the checkpoint is incomplete.
        DataError, UnsupportedCheckpointError: something cannot be understood, or is of a format not known here.
    """
    found = keys_below(checkpoint.store, f"{checkpoint.prefix}/")
    there = dict.fromkeys(key for key in found if among is None or key in among)
    keys = [checkpoint.metadata_key, *_log_keys(checkpoint, position), *_source_keys(checkpoint, position, there)]
    if with_state:
        state = [key for key in there if key.startswith(checkpoint.key("state/"))]
        keys += state_file_keys(checkpoint, position.next_batch_id, state, planned=position.planned is not None)
    for key in keys:
        if key not in there:
            raise _gone(key)
    with_checksums = {name for key in keys for name in (key, crc_key_of(key), f"{key}.crc") if name in there}
    return sorted(with_checksums)


def _gone(key: str) -> ObjectMissingError:
    return ObjectMissingError(
        "a file of this position is not there (any more)",
        key=key,
        next_step="Take a newer position of a running query; of one that has ended, the log is incomplete.",
    )


def _log_keys(checkpoint: Checkpoint, position: Position) -> list[str]:
    keys = []
    if position.batch_id is not None:
        for batch_id in _kept_ids(position.batch_id):
            keys += [checkpoint.offset_key(batch_id), checkpoint.commit_key(batch_id)]
    if position.planned_id is not None:
        keys.append(checkpoint.offset_key(position.planned_id))
    return keys


def _kept_ids(batch_id: int) -> range:
    return range(max(0, batch_id - KEPT_COMMITS + 1), batch_id + 1)


def _source_keys(checkpoint: Checkpoint, position: Position, there: Iterable[str]) -> list[str]:
    """The source logs as far as the kept entries name them.

    A source that the plan reads twice has two lines and one folder, so lines and folders do not match by number: the
    log of each file source is kept between the lowest and the highest ``logOffset`` of all lines. Too many files are
    harmless (see ``file_source``).
    """
    prefix = checkpoint.key("sources/")
    folders: dict[str, list[str]] = {}
    for key in there:
        folder, _, name = key[len(prefix) :].rpartition("/") if key.startswith(prefix) else ("", "", "")
        if folder and not name.startswith("."):
            folders.setdefault(folder, []).append(name)
    bounds = _log_offsets(checkpoint, position) if folders else []
    keys = []
    for folder, names in folders.items():
        kept = names
        if bounds and _is_file_source(checkpoint, f"{prefix}{folder}", names):
            numbers = needed_numbers(names, min(bounds), max(bounds))
            kept = [name for name in names if (parse_log_name(name) or (-1, False))[0] in numbers]
        keys += [f"{prefix}{folder}/{name}" for name in kept]
    return keys


def _log_offsets(checkpoint: Checkpoint, position: Position) -> list[int]:
    entries: list[OffsetEntry | None] = [position.planned]
    if position.batch_id is not None:
        entries += [checkpoint.read_offset(batch_id) for batch_id in _kept_ids(position.batch_id)]
    lines = [line for entry in entries if entry is not None for line in entry.source_lines]
    return [offset for offset in map(parse_file_source_offset, lines) if offset is not None]


def _is_file_source(checkpoint: Checkpoint, folder: str, names: list[str]) -> bool:
    numbered = {found[0]: name for name in names for found in [parse_log_name(name)] if found is not None}
    if not numbered:
        return False
    stored = checkpoint.store.get(f"{folder}/{numbered[max(numbered)]}")
    return stored is not None and is_file_source_log(stored.body)
