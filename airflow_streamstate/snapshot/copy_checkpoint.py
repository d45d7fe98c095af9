"""Copies the checkpoint of another program, which is neither linked nor written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from airflow_streamstate.checkpoint.files import files_of
from airflow_streamstate.checkpoint.fork import at_home, names_places, wipe
from airflow_streamstate.checkpoint.log import Checkpoint, Position
from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.errors import ObjectMissingError, SnapshotCorruptError, StreamStateError
from airflow_streamstate.retry import Retry
from airflow_streamstate.snapshot.checksums import ChecksumCheck, companion_of, parse_checksums
from airflow_streamstate.snapshot.copy import COPY_BATCH_BYTES, Copied, CopyErrors, FileToCopy, copy
from airflow_streamstate.store.base import ObjectInfo

COPY = Retry(tries=3)


def copy_checkpoint(
    source: Checkpoint, position: Position, target: Checkpoint, *, go_on: Callable[[], None] = lambda: None
) -> Copied:
    """Make ``target``, which no query uses yet, a checkpoint at this position of ``source``, ``metadata`` last.

    What lies at ``target`` is wiped. Files with checksums of Spark's are compared with them. A driver that can claim no
    batch any more still maintains its state: where it removes a needed file, all is copied anew. ``go_on`` is called
    again and again; it raises to give up.

    Raises:
        ObjectMissingError: a file of the position is not there.
        SnapshotCorruptError: a file is not what Spark wrote.
        DataError, UnsupportedCheckpointError: the source is damaged, or of a format not known here.
    """
    return COPY.call(SYSTEM_CLOCK, lambda: _copy_all(source, position, target, go_on), ObjectMissingError)


def _copy_all(source: Checkpoint, position: Position, target: Checkpoint, go_on: Callable[[], None]) -> Copied:
    prefix = len(source.prefix) + 1
    paths = [key[prefix:] for key in files_of(source, position)]
    wipe(target)
    listed = {info.key[prefix:]: info for info in source.store.list_objects(f"{source.prefix}/")}
    totals = Copied(0, 0)
    for path in paths:
        if names_places(path) and not path.endswith(".crc"):  # its .crc is of the old bytes
            go_on()
            totals += Copied(1, _rewrite(source, target, path, companion_of(path) in paths))
    copied = [path for path in paths if not names_places(path)]
    last = [path for path in (".metadata.crc", "metadata.crc", "metadata") if path in copied]
    first = [path for path in copied if path not in last]
    for some in (first, last):
        wanted = [_file(source, target, path, listed, companion_of(path) in paths) for path in some]
        totals += copy(
            [source.store],
            target.store,
            wanted,
            batch_bytes=COPY_BATCH_BYTES,
            timeout_seconds=float("inf"),
            go_on=go_on,
            is_new=True,
            errors=_Errors(),
        )
    return totals


def _rewrite(source: Checkpoint, target: Checkpoint, path: str, has_checksums: bool) -> int:
    body = _read(source, path)
    check = _CheckpointCheck(source, path, has_checksums, None)
    check.update(body)
    check.complaint()
    target.store.put(target.key(path), at_home(body, target, source.key(path)))
    return len(body)


def _file(
    source: Checkpoint, target: Checkpoint, path: str, listed: Mapping[str, ObjectInfo], has_checksums: bool
) -> FileToCopy:
    key = source.key(path)
    info = listed.get(path)
    if info is None:
        raise _gone(key)
    # One piece is of one version of the file.
    before = source.store.head(key) if info.size_bytes > COPY_BATCH_BYTES else None
    check = partial(_CheckpointCheck, source, path, has_checksums, before)
    return FileToCopy(key, info.size_bytes, check, target.key(path))


class _CheckpointCheck:
    """Compares one file with Spark's checksums of it, if any, and with ``head`` from before its first piece, if any."""

    def __init__(self, source: Checkpoint, path: str, has_checksums: bool, before: ObjectInfo | None) -> None:
        self._source = source
        self._path = path
        self._before = before
        self._checksums: ChecksumCheck | None = None
        if has_checksums:
            companion = companion_of(path)
            self._checksums = ChecksumCheck(parse_checksums(_read(source, companion), key=source.key(companion)))

    def update(self, data: bytes) -> None:
        if self._checksums is not None:
            self._checksums.update(data)

    def complaint(self) -> str:
        key = self._source.key(self._path)
        if self._before is not None:
            after = self._source.store.head(key)
            if after is None or _stamp(after) != _stamp(self._before):
                raise _gone(key)
        altered_at = None if self._checksums is None else self._checksums.finish()
        if altered_at is not None:
            raise SnapshotCorruptError(
                "a file of this checkpoint is not what Spark wrote",
                key=key,
                altered_from_byte=altered_at,
                next_step="Put the file back from a backup; nothing was changed.",
            )
        return ""


class _Errors(CopyErrors):
    """Raises the source's own error; a file that is not as it was listed means that the query has moved on."""

    def no_source(self, dropped: Mapping[str, StreamStateError]) -> StreamStateError:
        return next(iter(dropped.values()))

    def no_copy(self, key: str, problems: Mapping[str, str], *, is_missing: bool) -> StreamStateError:  # noqa: ARG002
        return _gone(key)


def _stamp(info: ObjectInfo) -> tuple[object, ...]:
    return info.size_bytes, info.version, info.modified_at


def _read(source: Checkpoint, path: str) -> bytes:
    stored = source.store.get(source.key(path))
    if stored is None:
        raise _gone(source.key(path))
    return stored.body


def _gone(key: str) -> ObjectMissingError:
    return ObjectMissingError("a file went while it was being copied", key=key)
