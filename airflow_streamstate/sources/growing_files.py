"""``growing_files``: the lines of files that grow, across rotation and truncation, each file of a pattern a part.

A state records which file, how far, and a digest of the bytes right before that place. So a file is found again under
another name (rotation by renaming), as a copy (``copytruncate``), or not at all (truncation).
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal, TypeVar

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.errors import SourceError
from airflow_streamstate.sources.interface import Json, Lost, PartitionedSource, PlannedEnd, PlannedPart, Unit

_ROTATED = re.compile(r"(?P<base>.+?)(?:\.[0-9]{1,4}|[-.][0-9]{4}-?[0-9]{2}-?[0-9]{2}[-_T:.0-9]*)")
"""``app.log.1``, ``app.log-20260102``, ``app.log.2026-01-02``."""
_MARK_BYTES = 256
_LOOK_BYTES = 64 << 10
_BLOCK_BYTES = 1 << 20
_MOST_LOOKS = 5
_LOOK_AGAIN_SECONDS = 0.1
"""Between two polls that must both find that something is lost."""
Answer = TypeVar("Answer")
BEGINNINGS = ("beginning", "oldest", "end")


@dataclass(frozen=True)
class Place:
    """The position of a part.

    Attributes:
        turn: how many files of the part were left behind.
        inode: of the file.
        at: the byte behind the last line.
        mark: the digest of the bytes before it; "" at the beginning.
    """

    turn: int
    inode: int
    at: int
    mark: str

    def to_json(self) -> Json:
        return {"turn": self.turn, "inode": self.inode, "at": self.at, "mark": self.mark}

    @classmethod
    def from_json(cls, state: Json) -> Place:
        try:
            return cls(int(state["turn"]), int(state["inode"]), int(state["at"]), str(state["mark"]))
        except (KeyError, TypeError, ValueError):
            raise SourceError("this is no state of a growing file", state=str(state)[:100]) from None


@dataclass(frozen=True)
class _GrowingFile:
    """A file as it was at a poll.

    Attributes:
        is_done: its marker was there before its size was read, so that it has nothing behind that.
    """

    path: str
    inode: int
    size: int
    modified_seconds: float
    is_live: bool
    is_done: bool

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """This file, and not another one that has taken its name since.

        Raises:
            _RacedError: it was renamed, removed or truncated since the look, or is while it is read.
        """
        try:
            with Path(self.path).open("rb") as opened:
                self._check(opened)
                yield opened
                self._check(opened)
        except FileNotFoundError:
            raise _RacedError(self.path) from None

    def _check(self, opened: BinaryIO) -> None:
        status = os.fstat(opened.fileno())
        if status.st_ino != self.inode or status.st_size < self.size:
            raise _RacedError(self.path)

    def has_read(self, place: Place) -> bool:
        """Whether it has the bytes before a place."""
        if self.size < place.at:
            return False
        if place.at == 0:
            return True
        with self.opened() as opened:
            return mark_at(opened, place.at) == place.mark


class _RacedError(OSError):
    """A file is not any more what it was at the look."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} was renamed or truncated while it was looked at")


class GrowingFiles(PartitionedSource):
    """The lines of growing files.

    Options: ``path``: a pattern, or several with commas between; ``startAt``: ``beginning`` of each file (default),
    ``oldest`` of what rotation left, or ``end``; ``rotateSeconds``: a rotated file is left once it was not written for
    this long (10); ``withFile``: ``true`` for a column ``file`` with the name of the part; ``doneSuffix``: a file is
    finished once there is one of its name with this suffix; ``vanished``: ``error`` (default) or ``finished``.
    """

    name: ClassVar[str] = "growing_files"
    schema: ClassVar[str] = "value string"
    unit: ClassVar[Unit] = "bytes"
    identifying: ClassVar[Sequence[str]] = ("path",)

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._patterns = [_local(one.strip()) for one in options.get("path", "").split(",") if one.strip()]
        if not self._patterns:
            raise SourceError("growing_files needs the option path", next_step="Give it a pattern: /var/log/app/*.log.")
        self.start_at = options.get("startat", "beginning")
        if self.start_at not in BEGINNINGS:
            raise SourceError("startAt of growing_files is unknown", value=self.start_at, known=BEGINNINGS)
        self.with_file = options.get("withfile", "false").strip().lower() == "true"
        self.done_suffix = options.get("donesuffix", "")
        self.rotate_seconds = _seconds(options.get("rotateseconds", "10"))
        self.vanished: Literal["error", "finished"] = "error"
        if options.get("vanished", "error") == "finished":
            self.vanished = "finished"
        elif options.get("vanished", "error") != "error":
            raise SourceError("vanished of growing_files is error or finished", value=options["vanished"])

    def row_schema(self) -> str:
        return "value string, file string" if self.with_file else self.schema

    def list_parts(self) -> list[str]:
        """A file counts as there while rotation has left something of it: between two files it is missing."""
        found: set[str] = set()
        for pattern in self._patterns:
            _check_folders(pattern)
            there = _matching(pattern)
            self._check_names(pattern, there)
            found.update(path for path in there if not self._is_other(path))
            for path in _matching(f"{pattern}[-.]*"):
                base = base_of(path)
                if base is not None and Path(base).match(Path(pattern).name):
                    found.add(base)
        return sorted(found)

    def build_part(self, part: str, state: Json) -> GrowingFile:
        return GrowingFile(self, part, None if state is None else Place.from_json(state))

    def remarks(self) -> Sequence[str]:
        return ("growing_files reads on executors: every executor must see the files under the same paths",)

    def _check_names(self, pattern: str, paths: Sequence[str]) -> None:
        """A file that is named as if it were rotated from one that the pattern does not mean would never be read."""
        for path in paths:
            base = base_of(path)
            if base is not None and not Path(base).match(Path(pattern).name) and Path(path).is_file():
                raise SourceError(
                    "a file has a name as rotation gives it, and the file before it is not of this pattern",
                    file=path,
                    growing=base,
                    pattern=pattern,
                    next_step="Name the growing files in the pattern, or give these files other names: digits or a date"
                    " behind the last dot or dash are a rotated file's.",
                )

    def _is_other(self, path: str) -> bool:
        is_marker = bool(self.done_suffix) and path.endswith(self.done_suffix)
        return is_marker or base_of(path) is not None or not Path(path).is_file()


class GrowingFile(PlannedPart):
    """One file and what rotation left of it."""

    def __init__(self, source: GrowingFiles, path: str, place: Place | None) -> None:
        self._source = source
        self._path = path
        self._place = place

    def snapshot(self) -> Json:
        return None if self._place is None else self._place.to_json()

    def plan_end(self, limit: int | None) -> PlannedEnd | None:
        return _unraced(lambda: self._plan(limit))

    def _plan(self, limit: int | None) -> PlannedEnd | None:
        files = self._files()
        if self._place is None:
            return self._begin(files, limit)
        now = self._find(files, self._place)
        if now is None:
            self._look_again(files, self._place)
            return self._begin_again(files)
        return self._go_on(files, now, self._place, limit)

    def _go_on(
        self, files: Sequence[_GrowingFile], now: _GrowingFile, place: Place, limit: int | None
    ) -> PlannedEnd | None:
        later = files[files.index(now) + 1 :]
        with now.opened() as opened:
            end = self._end_in(opened, now, place.at, limit, is_closed=self._is_closed(now, later))
            mark = mark_at(opened, end)
        if end > place.at:
            self._place = Place(place.turn, now.inode, end, mark)
            return PlannedEnd(self._place.to_json(), end - place.at)
        if later and end == now.size and self._is_closed(now, later):
            if _names(self._files()) != _names(files):
                raise _RacedError(self._path)  # a poll while files are renamed may miss one, which would be passed over
            return self._move_to(later[0], 0)
        return None

    def read(self, end: Json) -> Iterator[Any]:
        last = Place.from_json(end)
        first = self._place or Place(0, last.inode, 0, "")
        if first.turn != last.turn:
            raise SourceError("these two states are not of one file", part=self._path, first=str(first), last=str(last))
        with _unraced(lambda: self._planned(first, last)) as opened:
            yield from read_lines(opened, first.at, last.at, self._path, with_file=self._source.with_file)

    def _planned(self, first: Place, last: Place) -> BinaryIO:
        """The file that has the lines between two places, open."""
        files = self._files()
        file = self._find(files, last)
        if file is None:
            self._look_again(files, last)
            raise SourceError(
                "lines that were planned are not there any more",
                part=self._path,
                first_byte=first.at,
                last_byte=last.at,
                next_step="Keep rotated files next to the growing one until they are read, and truncate only then.",
            )
        with file.opened() as opened:
            return os.fdopen(os.dup(opened.fileno()), "rb")

    def is_finished(self) -> bool:
        return _unraced(self._has_ended)

    def _has_ended(self) -> bool:
        files = self._files()
        if self._place is None or not files or not files[-1].is_done:
            return False
        now = self._find(files, self._place)
        return now is not None and now == files[-1] and self._place.at == now.size

    def behind(self) -> int:
        return _unraced(self._unread_bytes)

    def _unread_bytes(self) -> int:
        files = self._files()
        if self._place is None:
            return 0 if self._source.start_at == "end" else sum(file.size for file in self._unread(files))
        now = self._find(files, self._place)
        if now is None:
            return sum(file.size for file in files if file.is_live)
        return now.size - self._place.at + sum(file.size for file in files[files.index(now) + 1 :])

    def lost(self) -> Lost | None:
        return _unraced(self._lost)

    def _lost(self) -> Lost | None:
        if self._place is None:
            return None
        files = self._files()
        if not self._place.at or self._find(files, self._place) is not None:
            return None
        self._look_again(files, self._place)
        detail = f"no file next to {self._path} has the bytes before {self._place.at}"
        return Lost("removed" if files else "gone", None, detail)

    # files

    def _files(self) -> list[_GrowingFile]:
        """What there is of this part, oldest first, the growing file last."""
        is_done = bool(self._source.done_suffix) and Path(f"{self._path}{self._source.done_suffix}").exists()
        found = []
        for path in (self._path, *_matching(f"{glob.escape(self._path)}[-.]*")):
            is_live = path == self._path
            if not is_live and base_of(path) != self._path:
                continue
            try:
                status = Path(path).stat()
            except FileNotFoundError:
                continue
            found.append(_GrowingFile(path, status.st_ino, status.st_size, status.st_mtime, is_live, is_done))
        return sorted(found, key=lambda file: (file.is_live, file.modified_seconds, file.path))

    def _look_again(self, files: Sequence[_GrowingFile], place: Place) -> None:
        """Raise ``_RacedError`` where a second poll does not find, too, that what was read is in no file."""
        SYSTEM_CLOCK.sleep(_LOOK_AGAIN_SECONDS)
        again = self._files()
        if _names(again) != _names(files) or self._find(again, place) is not None:
            raise _RacedError(self._path)

    def _find(self, files: Sequence[_GrowingFile], place: Place) -> _GrowingFile | None:
        """The file that has what was read: the same one, under whatever name, else a copy of it."""
        same = [file for file in files if file.inode == place.inode and file.has_read(place)]
        if same or place.at == 0:
            return same[-1] if same else None
        copies = [file for file in files if file.has_read(place)]
        return copies[-1] if copies else None

    def _begin(self, files: Sequence[_GrowingFile], limit: int | None) -> PlannedEnd | None:
        unread = self._unread(files)
        if not unread:
            return None
        first = unread[0]
        if self._source.start_at == "end":
            with first.opened() as opened:
                end = self._end_in(opened, first, 0, None, is_closed=False)
                return self._move_to(first, end, mark_at(opened, end))
        return self._go_on(files, first, Place(0, first.inode, 0, ""), limit)

    def _unread(self, files: Sequence[_GrowingFile]) -> list[_GrowingFile]:
        """Of a part that was never read."""
        return [file for file in files if file.is_live or self._source.start_at == "oldest"]

    def _begin_again(self, files: Sequence[_GrowingFile]) -> PlannedEnd | None:
        if not files or not files[-1].is_live:
            return None  # between two files
        at = 0 if self._place is None else self._place.at
        if at:
            print(
                f"streamstate source growing_files: {self._path} was truncated, and no file next to it has its first"
                f" {at} bytes: it is read from its beginning, and what was written behind them is lost",
                file=sys.stderr,
            )
        return self._move_to(files[-1], 0)

    def _move_to(self, file: _GrowingFile, at: int, mark: str = "") -> PlannedEnd:
        turn = 0 if self._place is None else self._place.turn + 1
        self._place = Place(turn, file.inode, at, mark)
        return PlannedEnd(self._place.to_json(), 0)

    def _is_closed(self, file: _GrowingFile, later: Sequence[_GrowingFile]) -> bool:
        """Whether a file will not grow any more: there are newer ones, or it is marked as done."""
        if not later:
            return file.is_done
        age_seconds = SYSTEM_CLOCK.now().timestamp() - file.modified_seconds
        return age_seconds >= self._source.rotate_seconds

    def _end_in(self, opened: BinaryIO, file: _GrowingFile, at: int, limit: int | None, *, is_closed: bool) -> int:
        """Behind the last whole line within the limit, else behind the first one; ``at`` without one."""
        most = file.size if limit is None else min(file.size, at + limit)
        if is_closed and most == file.size:
            return file.size
        end = _last_line_end(opened, at, most)
        if end == at and most < file.size:
            end = _first_line_end(opened, most, file.size) or (file.size if is_closed else at)
        return end


def _unraced(look: Callable[[], Answer]) -> Answer:
    """The answer of a poll during which no file was renamed or truncated."""
    for _ in range(_MOST_LOOKS - 1):
        try:
            return look()
        except _RacedError:
            continue
    return look()


def _names(files: Sequence[_GrowingFile]) -> list[tuple[str, int]]:
    return [(file.path, file.inode) for file in files]


def base_of(path: str) -> str | None:
    """The growing file that this one was rotated from, by its name; None for no rotated file."""
    folder, slash, name = path.rpartition("/")
    found = _ROTATED.fullmatch(name)
    return None if found is None else f"{folder}{slash}{found['base']}"


def mark_at(opened: BinaryIO, at: int) -> str:
    """A digest of the bytes right before a place; "" at the beginning."""
    if at == 0:
        return ""
    first = max(0, at - _MARK_BYTES)
    opened.seek(first)
    return hashlib.sha256(opened.read(at - first)).hexdigest()[:16]


def read_lines(opened: BinaryIO, first: int, last: int, name: str, *, with_file: bool = False) -> Iterator[Any]:
    """The lines between two bytes of a file, as Arrow batches; ``name``: of the part, for a column or an error."""
    opened.seek(first)
    left, rest = last - first, b""
    while left:
        block = opened.read(min(_BLOCK_BYTES, left))
        if not block:
            raise SourceError("a file ended before the line that was planned", part=name, missing_bytes=left)
        left -= len(block)
        cut = block.rfind(b"\n") + 1 if left else len(block)
        if not cut:
            rest += block
            continue
        yield _as_batch(rest + block[:cut], name if with_file else None)
        rest = block[cut:]


def _as_batch(block: bytes, name: str | None) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    lines = pc.split_pattern(pa.array([block.removesuffix(b"\n")], pa.binary()), b"\n").values
    try:
        values = lines.cast(pa.string())
    except pa.ArrowInvalid:  # not UTF-8
        values = pa.array([line.decode("utf-8", "replace") for line in lines.to_pylist()], pa.string())
    if b"\r\n" in block or block.endswith(b"\r"):
        values = pc.replace_substring_regex(values, pattern="\r$", replacement="")
    if name is None:
        return pa.RecordBatch.from_arrays([values], names=["value"])
    names = pa.repeat(pa.scalar(name, pa.string()), len(values))
    return pa.RecordBatch.from_arrays([values, names], names=["value", "file"])


def _last_line_end(opened: Any, first: int, last: int) -> int:
    """Behind the last newline between two bytes; ``first`` without one."""
    end = last
    while end > first:
        begin = max(first, end - _LOOK_BYTES)
        opened.seek(begin)
        found = opened.read(end - begin).rfind(b"\n")
        if found >= 0:
            return int(begin + found + 1)
        end = begin
    return first


def _first_line_end(opened: Any, first: int, last: int) -> int | None:
    """Behind the first newline between two bytes; None without one."""
    opened.seek(first)
    at = first
    while at < last:
        block = opened.read(min(_LOOK_BYTES, last - at))
        found = block.find(b"\n")
        if found >= 0:
            return int(at + found + 1)
        if not block:
            return None
        at += len(block)
    return None


def _matching(pattern: str) -> list[str]:
    return glob.glob(pattern)  # noqa: PTH207  Path.glob takes no absolute pattern


def _check_folders(pattern: str) -> None:
    """Raise OSError where a folder of a pattern cannot be listed, which ``glob`` takes for an empty one."""
    folder = os.path.dirname(pattern) or "."  # noqa: PTH120  a pattern
    if glob.has_magic(folder):
        _check_folders(folder)
    for path in _matching(folder):
        try:
            os.scandir(path).close()
        except FileNotFoundError:
            continue


def _local(pattern: str) -> str:
    return re.sub(r"^file:/+", "/", pattern)


def _seconds(text: str) -> float:
    try:
        return max(0.0, float(text))
    except ValueError:
        raise SourceError("rotateSeconds of growing_files is no number", value=text[:50]) from None
