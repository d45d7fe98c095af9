"""A new checkpoint made of links to the files of an existing one (1a.10), and trial batches on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from airflow_streamstate.checkpoint.file_source import moved_logs, parse_log_name
from airflow_streamstate.checkpoint.log import (
    Checkpoint,
    OffsetEntry,
    Position,
    delete_with_crc,
    flush_entry,
    format_offset_entry,
    parse_offset_entry,
    unmarked,
)
from airflow_streamstate.checkpoint.state_files import files_of, is_join_schema, with_nulls
from airflow_streamstate.errors import ConflictError, DataError, ObjectMissingError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.manifest import NO_MOVES, Moves
from airflow_streamstate.store.base import Link, Store, missing_source
from airflow_streamstate.store.options import s3a_uri
from airflow_streamstate.store.transfer import delete_many, keys_below, link_many

_SCHEMA_FOLDER = "/_stateSchema/"


def fork(
    store: Store, files: Mapping[str, str], target: Checkpoint, instead: Mapping[str, bytes] | None = None
) -> bool:
    """Build ``target`` from these files; doing it twice is doing it once.

    Args:
        files: the files of one position as ``files_of`` lists them: path inside a checkpoint -> key of the object.
        target: the new checkpoint; whatever is there without ``metadata`` is half built and wiped.
        instead: path inside a checkpoint -> other content for the new one.

    Returns:
        False if the target was whole already, and was left as it is.

    Raises:
        ConflictError: the target is another query's checkpoint, or the source was drained (Law 11).
        DataError: the files carry an entry of ours that is not committed, or lack what makes a checkpoint.
        ObjectMissingError: a file is not there any more.
    """
    metadata_key = files.get("metadata")
    if metadata_key is None:
        raise DataError("there is no metadata among the files to fork", files=len(files))
    if target.exists():
        _check_same_query(store, metadata_key, target)
        return False
    _check_entries(store, files)
    wipe_half_built(target, built_of=_committed_in(files))
    last = [path for path in (".metadata.crc", "metadata.crc", "metadata") if path in files]
    instead = instead or {}
    left_out = {*last, *instead, *(crc_path(path) for path in instead)}
    place_files(store, {path: files[path] for path in sorted(files) if path not in left_out}, target)
    for path in sorted(instead, key=lambda path: path == "metadata"):
        store.put(target.key(path), instead[path])
    for path in last if "metadata" not in instead else ():
        store.link(files[path], target.key(path))
    return True


def crc_path(path: str) -> str:
    """The path of Hadoop's checksum next to a file."""
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}.{name}.crc"


def place_files(store: Store, files: Mapping[str, str], target: Checkpoint) -> None:
    """Link files (path in the target -> key of the object) into a checkpoint that is being built, in no fixed order.

    The metadata of ``transformWithState`` names its schema files by absolute path: as a link, the new checkpoint would
    read from the old one, and later clean up there (Law 4). So that file is rewritten; so are the schemas of joins, as
    Spark 3.5 records them so that no other Spark and no empty batch fits them.

    Raises:
        ObjectMissingError: one of them is not there.
    """
    anew = {path for path in files if names_places(path) or is_join_schema(path)}
    checksums = {crc_path(path) for path in anew}
    linked = {path: key for path, key in files.items() if path not in anew and path not in checksums}
    link_many(store, [Link(key, target.key(path)) for path, key in linked.items()])
    for path in [path for path in files if path in anew and not path.endswith(".crc")]:
        stored = store.get(files[path])
        if stored is None:
            raise missing_source(files[path])
        body, key = stored.body, files[path]
        store.put(target.key(path), with_nulls(body, key) if is_join_schema(path) else at_home(body, target, key))


def names_places(path: str) -> bool:
    """Whether this file of a checkpoint names others by absolute path, so that a fork writes it again."""
    return "/_metadata/v2/" in path


def wipe_half_built(target: Checkpoint, *, built_of: set[int]) -> None:
    """Delete a checkpoint without ``metadata``, which is half built of the committed batches ``built_of``.

    Raises:
        DataError: it has other committed batches: it ran and lost its metadata, and building it again would run them
            again over other bounds (Law 14).
    """
    ran = sorted(set(target.commit_ids()) - built_of)
    if ran:
        raise DataError(
            "this checkpoint has committed its own batches, but has no metadata",
            checkpoint=target.prefix,
            batches=ran[-5:],
            next_step="Put its metadata back: one JSON line with the query's id, as in the snapshot it was made of.",
        )
    wipe(target)


def wipe(checkpoint: Checkpoint) -> None:
    """Delete a checkpoint that is half built or not needed any more; metadata first."""
    checkpoint.store.delete(checkpoint.metadata_key)
    delete_many(checkpoint.store, keys_below(checkpoint.store, f"{checkpoint.prefix}/"))


def checkpoint_uri(checkpoint: Checkpoint) -> str:
    """The checkpoint's folder as Spark writes it."""
    root = s3a_uri(checkpoint.store.uri)
    return f"{'file:' if root.startswith('/') else ''}{root}/{checkpoint.prefix}"


def at_home(body: bytes, target: Checkpoint, key: str) -> bytes:
    """The body of a file that ``names_places``, with the places of ``target``; ``key`` is named in errors.

    Raises:
        DataError: it is damaged.
    """
    version, _, text = body.decode().partition("\n")
    try:
        raw = json.loads(text)
        for store_info in raw["stateStoreInfo"]:
            paths = store_info.get("stateSchemaFilePaths", [])
            store_info["stateSchemaFilePaths"] = [_path_at_home(path, target, key) for path in paths]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError("the metadata of a stateful operator is damaged", key=key) from None
    return f"{version}\n{json.dumps(raw, separators=(',', ':'), ensure_ascii=False)}".encode()


def _path_at_home(path: str, target: Checkpoint, key: str) -> str:
    head, marker, tail = path.rpartition(_SCHEMA_FOLDER)
    _, state, operator = head.rpartition("/state/")
    if not marker or not state:
        raise DataError("a stateful operator's schema is stored where none is expected", key=key, path=path)
    return f"{checkpoint_uri(target)}/state/{operator}{_SCHEMA_FOLDER}{tail}"


def _check_same_query(store: Store, metadata_key: str, target: Checkpoint) -> None:
    source = store.get(metadata_key)
    there = store.get(target.metadata_key)
    if source is not None and there is not None and source.body != there.body:
        raise ConflictError(
            "another query's checkpoint is where this one will be built",
            checkpoint=target.prefix,
            next_step="This is a defect, or another program put it there; nothing was changed.",
        )


def _committed_in(files: Mapping[str, str]) -> set[int]:
    names = (path.partition("commits/")[2] for path in files if path.startswith("commits/"))
    return {int(name) for name in names if name.isdigit()}


def _check_entries(store: Store, files: Mapping[str, str]) -> None:
    committed = _committed_in(files)
    for path, key in files.items():
        folder, _, name = path.partition("/")
        if folder != "offsets" or not name.isdigit():
            continue
        stored = store.get(key)
        entry = parse_offset_entry(stored.body, key=key) if stored is not None else None
        if entry is None or not entry.is_ours:
            continue
        if int(name) not in committed:
            raise DataError("a barrier of ours is among the files to fork", key=key)
        if entry.mark is not None and entry.mark.kind == "drain":
            raise ConflictError(
                "a drained checkpoint cannot be continued",
                key=key,
                next_step="Start from it with fresh state (seed), or from the snapshot taken before the drain.",
            )


# Trial batches on a fork that no other query uses: an empty batch, a flush, and committed batches a second time.
#
# An empty batch repeats the last offsets as the entry of the next batch. Started with ``Trigger.Once``, Spark runs
# just that batch: it reads nothing, and opens the state of every operator of the plan or fails.

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
    """Plan a batch over these bounds as the next one of a fork whose last batch is right before it; returns its id."""
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
    """Plan a batch above the committed batch of a fork that ends elsewhere, as a seed does; returns its id.

    Its rows are read into the state of that fork, with the watermark of when the batch ran.

    Raises:
        DataError: nothing is committed there.
    """
    position = trial.position()
    newest = None if position.batch_id is None else trial.read_offset(position.batch_id)
    if position.batch_id is None or newest is None:
        raise DataError("there is no committed batch to continue from", checkpoint=trial.prefix)
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
