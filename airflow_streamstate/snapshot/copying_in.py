"""A checkpoint that lies somewhere else, copied into a place of ours: it is never linked, nor written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from airflow_streamstate.checkpoint.files import files_of
from airflow_streamstate.checkpoint.fork import at_home, names_places, wipe
from airflow_streamstate.checkpoint.log import Checkpoint, Position
from airflow_streamstate.errors import ObjectMissingError, SnapshotCorruptError
from airflow_streamstate.snapshot.checksums import ChecksumCheck, companion_of, parse_checksums
from airflow_streamstate.snapshot.data import read_chunks
from airflow_streamstate.snapshot.fetch import LARGE_BYTES
from airflow_streamstate.snapshot.meanwhile import until_done
from airflow_streamstate.store.base import ManyAtOnce, ObjectInfo
from airflow_streamstate.store.transfer import put_pieces

TRIES = 3
READERS = 8
"""Files under way at once, where a server keeps them."""
_LARGE_AT_ONCE = threading.Semaphore(2)
"""Of large ones: each holds what its upload has under way."""


@dataclass(frozen=True)
class Copied:
    """What was copied."""

    files: int
    size_bytes: int


def copy_in(
    source: Checkpoint, position: Position, target: Checkpoint, *, go_on: Callable[[], None] = lambda: None
) -> Copied:
    """Make ``target`` a checkpoint at this position of ``source``; whatever lay there is wiped. ``metadata`` is last.

    Files that Spark keeps checksums of are held against them as they pass. A driver that lives, but can claim no batch
    any more, still tends to its state: where that makes an older file superfluous meanwhile, it is copied anew.

    Args:
        source: is not written.
        position: of it; what lies above it is not copied.
        target: a place that nobody uses yet.
        go_on: called again and again; raises to give up.

    Raises:
        ObjectMissingError: a file of the position is not there.
        SnapshotCorruptError: a file is not what Spark wrote.
        DataError, UnsupportedCheckpointError: the source is damaged, or of a format not known here.
    """
    for _ in range(TRIES - 1):
        with suppress(ObjectMissingError):
            return _copy_all(source, position, target, go_on)
    return _copy_all(source, position, target, go_on)


def _copy_all(source: Checkpoint, position: Position, target: Checkpoint, go_on: Callable[[], None]) -> Copied:
    keys = files_of(source, position)
    wipe(target)
    paths = [key[len(source.prefix) + 1 :] for key in keys]
    last: list[str] = [path for path in (".metadata.crc", "metadata.crc", "metadata") if path in paths]
    first = [path for path in paths if path not in last]
    there = frozenset(paths)
    sizes: list[int] = []
    for some in (first, last):
        sizes += _many(source, target, some, there, go_on)
    return Copied(len(sizes), sum(sizes))


def _many(
    source: Checkpoint, target: Checkpoint, paths: list[str], there: frozenset[str], go_on: Callable[[], None]
) -> list[int]:
    is_served = isinstance(source.store, ManyAtOnce) or isinstance(target.store, ManyAtOnce)
    sizes: list[int] = []

    def each(found: Iterable[int]) -> None:
        for size in found:
            sizes.append(size)
            go_on()

    if not is_served or "metadata" in paths:
        each(_copy(source, target, path, there, go_on) for path in paths)
        return sizes
    given_up = threading.Event()

    def unless_given_up() -> None:
        if given_up.is_set():
            raise CancelledError

    with ThreadPoolExecutor(READERS, "streamstate-copy") as pool:
        tasks = [pool.submit(_copy, source, target, path, there, unless_given_up) for path in paths]
        try:
            each(until_done(task, go_on) for task in tasks)
        finally:
            given_up.set()
            for task in tasks:
                task.cancel()
    return sizes


def _copy(
    source: Checkpoint,
    target: Checkpoint,
    path: str,
    there: frozenset[str],
    go_on: Callable[[], None] = lambda: None,
) -> int:
    if names_places(path) and path.endswith(".crc"):
        return 0  # of a file that is written anew
    companion = companion_of(path)
    checksums = _read(source, companion) if companion in there else None
    held = _held(source, path)
    if held is None:
        return _copy_large(source, target, path, checksums, go_on)
    body = b"".join(_checked(source, path, held, checksums))
    target.store.put(target.key(path), at_home(body, target, source.key(path)) if names_places(path) else body)
    return len(body)


def _copy_large(
    source: Checkpoint, target: Checkpoint, path: str, checksums: bytes | None, go_on: Callable[[], None]
) -> int:
    """Piece by piece: nobody sees the copy before it proved to be one version of the file, as Spark wrote it."""
    key = source.key(path)
    before, chunks = source.store.head(key), read_chunks(source.store, key)
    if before is None or chunks is None:
        raise _gone(key)

    def pieces() -> Iterator[bytes]:
        size_bytes = 0
        for chunk in _checked(source, path, chunks, checksums):
            size_bytes += len(chunk)
            if size_bytes > before.size_bytes:
                break
            yield chunk
            go_on()
        after = source.store.head(key)
        if size_bytes != before.size_bytes or after is None or _stamp(after) != _stamp(before):
            raise _gone(key)

    with _LARGE_AT_ONCE:
        put_pieces(target.store, target.key(path), pieces(), before.size_bytes)
    return before.size_bytes


def _stamp(info: ObjectInfo) -> tuple[object, ...]:
    return info.size_bytes, info.version, info.modified_at


def _held(source: Checkpoint, path: str) -> list[bytes] | None:
    """The file; None where it is large."""
    chunks = read_chunks(source.store, source.key(path))
    if chunks is None:
        raise _gone(source.key(path))
    held, size_bytes = [], 0
    for chunk in chunks:
        held.append(chunk)
        size_bytes += len(chunk)
        if size_bytes > LARGE_BYTES:
            return None
    return held


def _read(source: Checkpoint, path: str) -> bytes:
    stored = source.store.get(source.key(path))
    if stored is None:
        raise _gone(source.key(path))
    return stored.body


def _gone(key: str) -> ObjectMissingError:
    return ObjectMissingError("a file went while it was being copied", key=key)


def _checked(source: Checkpoint, path: str, chunks: Iterable[bytes], checksums: bytes | None) -> Iterator[bytes]:
    """The same bytes; raises after the last one where Spark's checksums speak against them."""
    if checksums is None:
        yield from chunks
        return
    check = ChecksumCheck(parse_checksums(checksums, key=source.key(companion_of(path))))
    for chunk in chunks:
        check.update(chunk)
        yield chunk
    altered_at = check.finish()
    if altered_at is not None:
        raise SnapshotCorruptError(
            "a file of this checkpoint is not what Spark wrote",
            key=source.key(path),
            altered_from_byte=altered_at,
            next_step="Put the file back from a backup; nothing was changed.",
        )
