"""Many objects or many bytes with any store: copies, deletions, and the removal of abandoned uploads."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.errors import InvalidRequestError, OutcomeUnknownError, UnavailableError
from airflow_streamstate.retry import Retry
from airflow_streamstate.store.base import (
    TEMPORARY_PREFIX,
    HoldsMarkers,
    HoldsUploads,
    Link,
    ListsKeys,
    ManyAtOnce,
    ObjectInfo,
    PutsPieces,
    ReadsRanges,
    Store,
    missing_source,
)
from airflow_streamstate.store.folder_lock import LOCK_NAME
from airflow_streamstate.store.local import LocalStore, disk_errors

if TYPE_CHECKING:
    from concurrent.futures import Future

    from typing_extensions import Self


Result = TypeVar("Result")


# names


def keys_below(store: Store, prefix: str) -> list[str]:
    """The keys of ``Store.list_objects``, in its order; raises what it raises."""
    if isinstance(store, ListsKeys):
        return store.list_keys(prefix)
    return [info.key for info in store.list_objects(prefix)]


def versions_below(store: Store, prefix: str) -> dict[str, ObjectInfo]:
    """The objects of ``Store.list_objects`` by key, if that reports versions; {} where it does not, as on a disk."""
    if isinstance(store, ListsKeys):
        return {}
    return {info.key: info for info in store.list_objects(prefix) if info.version}


# many objects

LINK = Retry(tries=3)
"""Linking the same bytes again settles whether they are linked (Law 8)."""


def link_many(store: Store, links: Iterable[Link]) -> list[str]:
    """``Store.link`` each of them; the checksums of the targets, "" where the store keeps none.

    Raises:
        ObjectMissingError: a source is not there (any more).
        UnavailableError, OutcomeUnknownError: as ``Store.link``; the same call may be repeated.
    """
    wanted = list(links)
    if isinstance(store, ManyAtOnce):
        return store.link_many(wanted)
    for link in wanted:
        LINK.call(SYSTEM_CLOCK, partial(store.link, link.source_key, link.target_key), OutcomeUnknownError)
    return [""] * len(wanted)


def delete_many(store: Store, keys: Iterable[str]) -> None:
    """``Store.delete`` each of them, in this order unless the store is ``ManyAtOnce``."""
    wanted = list(keys)
    if isinstance(store, ManyAtOnce):
        store.delete_many(wanted)
        return
    for key in wanted:
        store.delete(key)


def checksum_of(store: Store, key: str) -> str | None:
    """As ``ManyAtOnce.checksum_of``; a store that keeps none is read."""
    if isinstance(store, ManyAtOnce):
        return store.checksum_of(key)
    stored = store.get(key)
    return None if stored is None else f"sha256:{hashlib.sha256(stored.body).hexdigest()}"


# parts of an object


def read_range(store: Store, key: str, start: int, size_bytes: int) -> bytes | None:
    """As ``ReadsRanges.read_range``; raises what ``Store.get`` raises."""
    if isinstance(store, ReadsRanges):
        return store.read_range(key, start, size_bytes)
    stored = store.get(key)
    return None if stored is None else stored.body[start : start + size_bytes]


UPLOAD_PART_BYTES = 8 * 1024**2
"""The body of one request; a larger object goes in parts."""
UPLOADS_AT_ONCE = 4
"""Parts under way at once; these and two more are held in memory."""
PIECE_BYTES = 8 * 1024**2
"""What ``pieces_of`` reads at once."""
MOST_PARTS = 10_000
"""The servers' limit for one object: the parts of a very large one are larger."""


def pieces_of(store: Store, key: str) -> Iterator[bytes]:
    """The bytes of an object that nothing writes to, in pieces of ``PIECE_BYTES``; the last one is smaller.

    Raises:
        ObjectMissingError: there is no object.
    """
    start, piece = 0, read_range(store, key, 0, PIECE_BYTES)
    while piece is not None:
        yield piece
        if len(piece) < PIECE_BYTES:
            return
        start += len(piece)
        piece = read_range(store, key, start, PIECE_BYTES)
    raise missing_source(key)


def put_pieces(store: Store, key: str, pieces: Iterable[bytes], size_bytes: int) -> str:
    """As ``PutsPieces.put_pieces``; raises what ``Store.put`` raises.

    Raises:
        ValueError: there were more bytes than that, or fewer; nothing was changed.
    """
    exact = _exactly(pieces, size_bytes)
    if isinstance(store, PutsPieces):
        return store.put_pieces(key, exact, size_bytes)
    return store.put(key, b"".join(exact))


def in_parts(pieces: Iterable[bytes], part_bytes: int) -> Iterator[bytes]:
    """The same bytes in parts of one size; the last may be smaller."""
    held = bytearray()
    for piece in pieces:
        held += piece
        while len(held) >= part_bytes:
            yield bytes(memoryview(held)[:part_bytes])
            del held[:part_bytes]
    if held:
        yield bytes(held)


class Feed:
    """The parts of ``in_parts`` for a client library that reports little of what went wrong; a context manager.

    They are made in their own thread: pieces mostly come from a store, and obstore would panic in a call within its own
    call.

    Attributes:
        is_begun: whether any part was asked for.
        is_ended: whether the last part was given.
        failure: the exception of the pieces.
    """

    def __init__(self, pieces: Iterable[bytes], part_bytes: int) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._parts = in_parts(pieces, part_bytes)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="streamstate-feed")
        self.is_begun = self.is_ended = False
        self.failure: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        self.is_begun = True
        try:
            return self._pool.submit(next, self._parts).result()
        except StopIteration:
            self.is_ended = True
            raise
        except BaseException as failure:
            self.failure = failure
            raise


def part_bytes_of(size_bytes: int, part_bytes: int = UPLOAD_PART_BYTES) -> int:
    """The size of the parts of an object of this size."""
    return max(part_bytes, -(-size_bytes // MOST_PARTS))


def _exactly(pieces: Iterable[bytes], size_bytes: int) -> Iterator[bytes]:
    count = 0
    for piece in pieces:
        count += len(piece)
        if count > size_bytes:
            break
        yield piece
    if count != size_bytes:
        raise ValueError(f"{size_bytes} bytes were expected, not {count}")


# requests side by side

THREADS = 16


def side_by_side(acts: Sequence[Callable[[], Result]], threads: int = THREADS) -> list[Result]:
    """Call them all, some at a time; their results in order. After a failure no other starts, and none is left running.

    Raises:
        Exception: the first failure.
    """
    if len(acts) < 2:
        return [act() for act in acts]
    from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait

    failures: list[BaseException] = []

    def unless_failed(act: Callable[[], Result]) -> Result:
        if failures:  # the pool continues until it is stopped
            raise CancelledError
        try:
            return act()
        except BaseException as failure:
            failures.append(failure)
            raise

    with ThreadPoolExecutor(min(threads, len(acts)), thread_name_prefix="streamstate-store") as pool:
        futures: list[Future[Result]] = [pool.submit(unless_failed, act) for act in acts]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    if failures:
        raise failures[0]
    return [future.result() for future in futures]


def in_rounds(acts: Sequence[Callable[[], Result]]) -> list[Result]:
    """As ``side_by_side`` for acts that may be done twice: those that fail come again, until a round gets none done.

    Raises:
        UnavailableError, OutcomeUnknownError: of the last round.
        Exception: the first failure of a different kind.
    """
    done: dict[int, Result] = {}

    def act(number: int) -> None:
        done[number] = acts[number]()

    while True:
        left = [number for number in range(len(acts)) if number not in done]
        try:
            side_by_side([partial(act, number) for number in left])
        except (UnavailableError, OutcomeUnknownError):
            if all(number not in done for number in left):
                raise
        else:
            return [done[number] for number in range(len(acts))]


# one act that takes long

LOOK_SECONDS = 1.0


def until_done(task: Future[Result], go_on: Callable[[], None]) -> Result:
    """The result of a task, or what it raised; ``go_on`` is called every ``LOOK_SECONDS``.

    Raises:
        Exception: what ``go_on`` raised; the task is then left alone.
    """
    from concurrent.futures import wait

    while not wait([task], LOOK_SECONDS).done:
        go_on()
    return task.result()


# Deletes what is below a folder, and what killed processes left there: temporary files, uploads in parts.

STALE_SECONDS = 86_400.0
STALE_UPLOAD_SECONDS = 7 * 86_400.0
"""Since its start, as no server reports if parts still arrive: the upload of the largest file may take this long."""


def left_temporaries(store: Store, folder: str, before: datetime) -> Iterator[Path]:
    """The store's own temporary files below a folder that were last written before a moment; only a disk has any."""
    if not isinstance(store, LocalStore):
        return
    for place, _, names in os.walk(store.path_of(folder)):
        for name in names:
            if name.startswith(TEMPORARY_PREFIX) and name != LOCK_NAME:
                path = Path(place) / name
                with suppress(OSError):
                    if path.lstat().st_mtime < before.timestamp():
                        yield path


def remove_temporaries(paths: Iterable[Path]) -> int:
    """Remove these files; how many there were."""
    count = 0
    for path in paths:
        with suppress(OSError):
            path.unlink()
            count += 1
    return count


def end_uploads(store: Store, folder: str, before: datetime, *, is_dry: bool = False) -> int:
    """End the uploads below a folder that were started before a moment, or (``is_dry``) count them; their number.

    0 where the store keeps none, does not answer, or refuses the listing: left uploads only cost space.
    """
    if isinstance(store, HoldsUploads):
        with suppress(UnavailableError, InvalidRequestError):
            return store.end_uploads(folder, before, is_dry=is_dry)
    return 0


def clear_left(store: Store, folder: str, now: datetime, *, is_dry: bool = False) -> int:
    """Remove what killed processes left below a folder, and end their uploads, or (``is_dry``) count both; how many.

    A temporary file that is a day old, or an upload that is a week old, has no writer any more.
    """
    stale = list(left_temporaries(store, folder, now - timedelta(seconds=STALE_SECONDS)))
    count = len(stale) if is_dry else remove_temporaries(stale)
    return count + end_uploads(store, folder, now - timedelta(seconds=STALE_UPLOAD_SECONDS), is_dry=is_dry)


def delete_below(store: Store, folder: str, *, but: Collection[str] = ()) -> None:
    """Delete what is below a folder; calling it again continues.

    Args:
        folder: its key, without a slash at its end.
        but: names of objects and folders right below it that stay, each with all that is in it.

    Raises:
        UnavailableError, InvalidRequestError: something cannot be deleted.
    """
    start = len(folder) + 1
    keys = [key for key in keys_below(store, f"{folder}/") if key[start:].partition("/")[0] not in but]
    delete_many(store, keys)
    if isinstance(store, HoldsMarkers):
        store.delete_markers(folder, but)
    if not isinstance(store, LocalStore):
        return
    path = store.path_of(folder)
    with disk_errors("delete", folder, store.root):
        for child in sorted(path.iterdir()) if path.is_dir() else ():
            if child.name in but:
                continue
            if child.is_symlink():
                child.unlink(missing_ok=True)
            elif child.is_dir():
                shutil.rmtree(child, ignore_errors=True)
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
