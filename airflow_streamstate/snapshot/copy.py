"""Copies objects from several sources at once, piece by piece, each verified as it arrives.

Every source has readers of its own, which take the next piece from one queue, so a fast source gives more. A source
that leaves a piece unanswered for too long is dropped, and the others read its pieces. A file is put when all its
pieces have arrived and its check has no complaint; a large one is put as its pieces come, so that only some of them are
held. A second copy continues one that was cut short: the caller copies the manifest, or ``metadata``, last (Law 3).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass as mutable_dataclass
from dataclasses import field
from typing import Protocol

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.errors import (
    OutcomeUnknownError,
    SnapshotCorruptError,
    SnapshotIncompleteError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.retry import Retry
from airflow_streamstate.snapshot.data import read_chunks
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.transfer import put_pieces, read_range


class CopyCheck(Protocol):
    """Compares one file with what is known of it while its bytes arrive."""

    def update(self, data: bytes) -> None:
        """The next bytes."""

    def complaint(self) -> str:
        """After the last bytes: what is wrong with the file; "" for nothing.

        Raises:
            StreamStateError: neither another source nor another try would help: the copy ends.
        """


@dataclass(frozen=True)
class FileToCopy:
    """One object to copy, under the same key at every source.

    Attributes:
        check: makes the check of one try.
        target_key: its key at the target; "" for the same.
    """

    key: str
    size_bytes: int
    check: Callable[[], CopyCheck]
    target_key: str = ""

    @property
    def goes_to(self) -> str:
        """Its key at the target."""
        return self.target_key or self.key


@dataclass(frozen=True)
class CopyProgress:
    """The progress of a copy."""

    files: int
    files_done: int
    size_bytes: int
    bytes_done: int

    @property
    def sentence(self) -> str:
        """The progress, human-readable."""
        return f"{self.files_done} of {self.files} files, {self.bytes_done:,} of {self.size_bytes:,} bytes"


@dataclass(frozen=True)
class Copied:
    """The result of a copy.

    Attributes:
        files, size_bytes: without those that were at the target already.
        dropped: the URIs of dropped sources, each with the reason.
    """

    files: int
    size_bytes: int
    dropped: tuple[tuple[str, str], ...] = ()

    def __add__(self, other: Copied) -> Copied:
        dropped = tuple(dict((*self.dropped, *other.dropped)).items())
        return Copied(self.files + other.files, self.size_bytes + other.size_bytes, dropped)


class CopyErrors:
    """The errors of a copy of a snapshot that is kept at several places."""

    def no_source(self, dropped: Mapping[str, StreamStateError]) -> StreamStateError:
        """For when every source was dropped; by URI, the reason."""
        return UnavailableError(
            "no place of the snapshot answers",
            places={uri: str(why) for uri, why in dropped.items()},
            next_step="Try again when one does: the copy continues.",
        )

    def no_copy(self, key: str, problems: Mapping[str, str], *, is_missing: bool) -> StreamStateError:
        """For when no answering source has the file as it should be; by URI, the problem."""
        kind = SnapshotIncompleteError if is_missing else SnapshotCorruptError
        return kind(
            "no place has a file of the snapshot as it was captured",
            key=key,
            places=dict(problems),
            next_step="Take an older snapshot, or put the file back from a backup.",
        )


def is_there(target: Store, file: FileToCopy, go_on: Callable[[], None] = lambda: None) -> bool:
    """Whether the file is at the target, and its check has no complaint; ``go_on`` is called while it is read."""
    info = target.head(file.goes_to)
    if info is None or info.size_bytes != file.size_bytes:
        return False
    chunks, check = read_chunks(target, file.goes_to), file.check()
    for chunk in chunks or ():
        check.update(chunk)
        go_on()
    return chunks is not None and not check.complaint()


class GivenUpError(Exception):
    """The file starts again, or the copy has ended: the target drops what it has of it."""


class InOrder:
    """The pieces of one large file in their order, though they arrive in any; few are held at a time.

    Args:
        changed: the lock under which all methods but ``pieces`` are called; notified of every change.
        piece_bytes: of each piece but the last.
        most_pieces: the most that are under way or held.
        ask: called with the first byte of each piece that may be asked for.
    """

    def __init__(
        self,
        changed: threading.Condition,
        size_bytes: int,
        piece_bytes: int,
        most_pieces: int,
        ask: Callable[[int], None],
    ) -> None:
        self._changed = changed
        self._starts = range(0, size_bytes, piece_bytes)
        self._unasked = iter(self._starts)
        self._most_pieces = most_pieces
        self._ask = ask
        self._held: dict[int, bytes] = {}
        self._is_given_up = False

    def begin(self) -> None:
        """Ask for the first pieces."""
        for _ in range(self._most_pieces):
            self._ask_for_one()

    def put(self, start: int, piece: bytes) -> None:
        """A piece has arrived."""
        self._held[start] = piece
        self._changed.notify_all()

    def give_up(self) -> None:
        """End it: ``pieces`` raises GivenUpError."""
        self._is_given_up = True
        self._held.clear()
        self._changed.notify_all()

    def pieces(self) -> Iterator[bytes]:
        """All pieces, each as soon as it has arrived; raises GivenUpError."""
        for start in self._starts:
            with self._changed:
                while start not in self._held and not self._is_given_up:
                    self._changed.wait()
                if self._is_given_up:
                    raise GivenUpError
                piece = self._held.pop(start)
                self._ask_for_one()
            yield piece

    def _ask_for_one(self) -> None:
        start = next(self._unasked, None)
        if start is not None:
            self._ask(start)
            self._changed.notify_all()


COPY_BATCH_BYTES = AgentSettings.fetch_batch_bytes
COPY_TIMEOUT_SECONDS = AgentSettings.fetch_timeout_seconds
READERS = 8
"""Of all sources together; each source has at least half as many."""
OPEN_BYTES = 64 * 1024 * 1024
"""The most bytes of all files under way."""
LARGE_BYTES = OPEN_BYTES // 4
"""A larger file is put piece by piece, about so much of it held; others are held whole before they are put."""
WRITE = Retry(tries=3)
"""Putting the same bytes again settles whether they landed (Law 8)."""
LOOK_SECONDS = 0.05
CLEAR_SECONDS = 5.0
"""How long a copy that ends early waits until the target has dropped a part of a large file."""


@mutable_dataclass
class _File:
    wanted: FileToCopy
    body: bytearray
    left: int
    in_order: InOrder | None = None
    """Of a large file, which has no body."""
    writes: int = 0
    sources: set[int] = field(default_factory=set)
    refused: dict[int, str] = field(default_factory=dict)
    only: int | None = None
    """The one source to read from, after pieces of several did not make the file."""


@mutable_dataclass(eq=False)
class _Piece:
    file: _File
    start: int
    size_bytes: int


def copy(
    sources: Sequence[Store],
    target: Store,
    files: Sequence[FileToCopy],
    *,
    batch_bytes: int = COPY_BATCH_BYTES,
    timeout_seconds: float = COPY_TIMEOUT_SECONDS,
    clock: Clock = SYSTEM_CLOCK,
    on_progress: Callable[[CopyProgress], None] = lambda _progress: None,
    go_on: Callable[[], None] = lambda: None,
    is_new: bool = False,
    errors: CopyErrors | None = None,
) -> Copied:
    """Copy these objects to the target, whole or not at all; calling it again continues.

    Args:
        batch_bytes: the largest piece of one request.
        timeout_seconds: a source that leaves a piece unanswered for longer is dropped.
        on_progress: called after each file, from the calling thread.
        go_on: called again and again, from the calling thread; raises to abort.
        is_new: the target is empty, and is not looked at. However the copy ends, it waits until no put is under way;
            else it waits at most ``CLEAR_SECONDS``.
        errors: raised where the sources do not give a file.

    Raises:
        UnavailableError: no source answers any more (``CopyErrors.no_source``), or the target does not.
        SnapshotIncompleteError: a file is at none of the sources that answer (``CopyErrors.no_copy``).
        SnapshotCorruptError: no source that answers has a file that its check accepts (``CopyErrors.no_copy``).
    """
    run = _Copy(sources, target, batch_bytes, timeout_seconds, clock, errors or CopyErrors(), is_new=is_new)
    return run.run(files, on_progress, go_on)


class _Copy:
    def __init__(
        self,
        sources: Sequence[Store],
        target: Store,
        batch_bytes: int,
        timeout_seconds: float,
        clock: Clock,
        errors: CopyErrors,
        *,
        is_new: bool,
    ) -> None:
        self._sources = list(sources)
        self._errors = errors
        self._is_new = is_new
        self._writes = 0
        self._readers = max(READERS // 2, READERS // max(1, len(self._sources)))
        self._target = target
        self._batch_bytes = max(1, batch_bytes)
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._changed = threading.Condition()
        self._pieces: deque[_Piece] = deque()
        self._asked: dict[_Piece, tuple[int, float]] = {}
        self._dropped: dict[int, StreamStateError] = {}
        self._done: list[_File] = []
        self._open: list[_File] = []
        self._writers: list[threading.Thread] = []
        self._failure: BaseException | None = None
        self._is_over = False

    def run(
        self,
        wanted: Sequence[FileToCopy],
        on_progress: Callable[[CopyProgress], None],
        go_on: Callable[[], None],
    ) -> Copied:
        left = deque[FileToCopy]()
        for one in wanted:
            go_on()
            if self._is_new or not is_there(self._target, one, go_on):
                left.append(one)
        files, size_bytes = len(wanted), sum(one.size_bytes for one in wanted)
        files_done, bytes_done = files - len(left), size_bytes - sum(one.size_bytes for one in left)
        there = files_done, bytes_done
        on_progress(CopyProgress(files, files_done, size_bytes, bytes_done))
        if not left:
            return Copied(0, 0)
        for number in range(len(self._sources)):
            for _ in range(self._readers):
                threading.Thread(target=self._read, args=(number,), name="streamstate-copy", daemon=True).start()
        try:
            while left or self._open:
                go_on()
                self._begin(left)
                for file in self._wait():
                    files_done, bytes_done = files_done + 1, bytes_done + file.wanted.size_bytes
                    on_progress(CopyProgress(files, files_done, size_bytes, bytes_done))
        finally:
            self._end()
        dropped = tuple((self._sources[number].uri, str(why)) for number, why in sorted(self._dropped.items()))
        return Copied(files_done - there[0], bytes_done - there[1], dropped)

    # the calling thread

    def _end(self) -> None:
        with self._changed:
            self._is_over = True
            for file in self._open:
                if file.in_order is not None:
                    file.in_order.give_up()
            self._changed.notify_all()
            if self._is_new:
                self._changed.wait_for(lambda: not self._writes)
        for writer in self._writers:
            writer.join(None if self._is_new else CLEAR_SECONDS)

    def _begin(self, left: deque[FileToCopy]) -> None:
        with self._changed:
            under_way = sum(_weight(file.wanted) for file in self._open)
            while left and (not self._open or under_way + _weight(left[0]) <= OPEN_BYTES):
                one = left.popleft()
                file = _File(one, bytearray(0 if _is_large(one) else one.size_bytes), 0)
                self._open.append(file)
                under_way += _weight(one)
                self._ask_for(file)
            self._changed.notify_all()

    def _ask_for(self, file: _File) -> None:
        # One byte more than the size is asked for: a longer file is another one.
        starts = range(0, file.wanted.size_bytes, self._batch_bytes) or range(1)

        def ask(start: int) -> None:
            size_bytes = min(self._batch_bytes, file.wanted.size_bytes - start)
            is_last = start + size_bytes >= file.wanted.size_bytes
            self._pieces.append(_Piece(file, start, size_bytes + is_last))

        file.left = len(starts)
        file.sources.clear()
        if not _is_large(file.wanted):
            for start in starts:
                ask(start)
            return
        at_once = max(2, min(LARGE_BYTES // self._batch_bytes, 2 * self._readers * len(self._sources)))
        file.in_order = InOrder(self._changed, file.wanted.size_bytes, self._batch_bytes, at_once, ask)
        file.in_order.begin()
        writer = threading.Thread(
            target=self._put_large, args=(file, file.in_order), name="streamstate-copy", daemon=True
        )
        self._writers.append(writer)
        writer.start()

    def _wait(self) -> list[_File]:
        """The files that were done since the last call; waits a moment for one."""
        with self._changed:
            self._drop_silent()
            if self._failure is None and not self._done:
                if len(self._dropped) == len(self._sources) and any(file.left for file in self._open):
                    raise self._no_source()
                self._changed.wait(LOOK_SECONDS)
            if self._failure is not None:
                raise self._failure
            done, self._done = self._done, []
            return done

    def _drop_silent(self) -> None:
        now = self._clock.monotonic_seconds()
        for number, asked_at in list(self._asked.values()):
            if now - asked_at > self._timeout_seconds:
                self._drop(number, UnavailableError(f"it did not answer within {self._timeout_seconds:g} s"))

    def _drop(self, number: int, why: StreamStateError) -> None:
        """Called with the lock held."""
        if number in self._dropped:
            return
        self._dropped[number] = why
        for piece in [piece for piece, (asked, _) in self._asked.items() if asked == number]:
            del self._asked[piece]
            self._pieces.appendleft(piece)
        for file in [file for file in self._open if file.only == number and file.left]:
            file.only = None
            self._again(file, number, str(why))
        self._changed.notify_all()

    def _no_source(self) -> StreamStateError:
        return self._errors.no_source({self._sources[number].uri: why for number, why in self._dropped.items()})

    # readers

    def _read(self, number: int) -> None:
        source = self._sources[number]
        while (piece := self._next(number)) is not None:
            try:
                part = read_range(source, piece.file.wanted.key, piece.start, piece.size_bytes)
            except StreamStateError as error:
                with self._changed:
                    self._drop(number, error)
                return
            except BaseException as error:
                self._fail(error)
                return
            try:
                self._take(number, piece, part)
            except BaseException as error:
                self._fail(error)
                return

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def _next(self, number: int) -> _Piece | None:
        with self._changed:
            while True:
                if self._is_over or number in self._dropped:
                    return None
                for piece in self._pieces:
                    file = piece.file
                    if number not in file.refused and file.only in (None, number):
                        self._pieces.remove(piece)
                        self._asked[piece] = (number, self._clock.monotonic_seconds())
                        return piece
                self._changed.wait(1.0)

    def _take(self, number: int, piece: _Piece, part: bytes | None) -> None:
        file = piece.file
        with self._changed:
            if self._asked.pop(piece, None) is None:
                return  # dropped in the meantime: another reader has it
            expected = min(piece.size_bytes, file.wanted.size_bytes - piece.start)
            if part is None or len(part) != expected:
                self._again(file, number, "missing" if part is None else "of another size")
                return
            file.sources.add(number)
            file.left -= 1
            if file.in_order is not None:
                file.in_order.put(piece.start, part)
                return
            file.body[piece.start : piece.start + expected] = part
            if file.left:
                return
        body, check = bytes(file.body), file.wanted.check()
        check.update(body)
        complaint = check.complaint()
        if complaint:
            with self._changed:
                self._mistrust(file, complaint)
            return
        self._write(file, body)
        self._finish(file)

    def _finish(self, file: _File) -> None:
        with self._changed:
            self._open.remove(file)
            self._done.append(file)
            self._changed.notify_all()

    def _mistrust(self, file: _File, complaint: str) -> None:
        """Refuse the source of a file; of several the wrong one is not known, so each is tried alone."""
        self._again(file, next(iter(file.sources)) if len(file.sources) == 1 else None, complaint)

    def _again(self, file: _File, refused: int | None, why: str) -> None:
        """Read a file again, without the refused source; called with the lock held."""
        if self._is_over:
            return  # no reader is left to serve a new writer
        if refused is not None:
            file.refused[refused] = why
        for piece in [piece for piece in self._asked if piece.file is file]:
            del self._asked[piece]
        self._pieces = deque(piece for piece in self._pieces if piece.file is not file)
        if file.in_order is not None:
            file.in_order.give_up()
        open_sources = [
            number for number in range(len(self._sources)) if number not in file.refused and number not in self._dropped
        ]
        if not open_sources:
            self._failure = self._failure or self._lost(file)
        else:
            file.only = open_sources[0]
            self._ask_for(file)
        self._changed.notify_all()

    def _lost(self, file: _File) -> StreamStateError:
        if len(self._dropped) == len(self._sources):
            return self._no_source()
        problems = {**{number: str(why) for number, why in self._dropped.items()}, **file.refused}
        is_missing = set(file.refused.values()) <= {"missing"}
        said = {self._sources[number].uri: why for number, why in problems.items()}
        return self._errors.no_copy(file.wanted.key, said, is_missing=is_missing)

    def _write(self, file: _File, body: bytes) -> None:
        with self._changed:
            if self._is_over:
                return
            self._writes += 1
        try:
            WRITE.call(self._clock, lambda: self._target.put(file.wanted.goes_to, body), OutcomeUnknownError)
        finally:
            with self._changed:
                self._writes -= 1
                self._changed.notify_all()

    # writers of large files, a thread for each try

    def _put_large(self, file: _File, in_order: InOrder) -> None:
        try:
            put_pieces(self._target, file.wanted.goes_to, self._checked(file, in_order), file.wanted.size_bytes)
        except GivenUpError:
            return
        except OutcomeUnknownError as error:
            with self._changed:
                file.writes += 1
                if file.writes < (WRITE.tries or 0):
                    self._again(file, None, str(error))
                    return
            self._fail(error)
        except BaseException as error:
            self._fail(error)
        else:
            self._finish(file)

    def _checked(self, file: _File, in_order: InOrder) -> Iterator[bytes]:
        """The pieces; a complaint after the last one ends the put before the file is at the target."""
        check = file.wanted.check()
        for piece in in_order.pieces():
            check.update(piece)
            yield piece
        complaint = check.complaint()
        if complaint:
            with self._changed:
                self._mistrust(file, complaint)
            raise GivenUpError


def _is_large(wanted: FileToCopy) -> bool:
    return wanted.size_bytes > LARGE_BYTES


def _weight(wanted: FileToCopy) -> int:
    """The bytes that count for a file in ``OPEN_BYTES``; the upload of a large one holds as much again."""
    return 2 * LARGE_BYTES if _is_large(wanted) else wanted.size_bytes
