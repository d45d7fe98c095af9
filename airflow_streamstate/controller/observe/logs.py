"""Reads the log of a driver as it grows, in whole lines, secrets hidden."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Protocol

from airflow_streamstate.launch.folder import MOST_BYTES, open_own
from airflow_streamstate.protocol.redaction import redact_text

FOLLOWED_BYTES = 1 << 20
"""So much of a log elsewhere is asked for at each read: what a driver writes between two reads is to fit into it."""
_OVERLAP_BYTES = 4096


class Log(Protocol):
    """A log that grows."""

    def read(self) -> bytes:
        """What is new since the last call; at first its end."""


class FileLog:
    """A log on this machine. Of more than ``MOST_BYTES`` between two reads the beginning is left out.

    Raises:
        UntrustedRecordError: it is not surely a log of this user's launch.

    Args:
        path: None if there is no log.
        tail_bytes: how far before the end the first read starts; a line that this cuts in two is left out.
        top: the folder for launches, as of ``open_own``.
    """

    def __init__(self, path: Path | None, tail_bytes: int, top: Path | None = None) -> None:
        self._path = path
        self._top = top
        self._offset, self._is_within_line = 0, False
        size, _ = self._read(0)
        # One byte earlier, to see whether a line starts there: half a line may start with half a secret.
        self._skip_to(size - tail_bytes - 1)

    def read(self) -> bytes:
        """As ``Log.read``."""
        size, _ = self._read(0)
        self._skip_to(size - MOST_BYTES)
        _, body = self._read(MOST_BYTES)
        self._offset += len(body)
        if self._is_within_line:
            _, newline, body = body.partition(b"\n")
            self._is_within_line = not newline
        return body

    def _skip_to(self, offset: int) -> None:
        """Leave out what comes before, and the line that this cuts in two."""
        if offset > self._offset:
            self._offset, self._is_within_line = offset, True

    def _read(self, count: int) -> tuple[int, bytes]:
        """The size of the log, and ``count`` bytes of it from where this reader is."""
        if self._path is None:
            return 0, b""
        try:
            with os.fdopen(open_own(self._path, self._top), "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(self._offset)
                return size, file.read(count)
        except OSError:
            return 0, b""


class TailedLog:
    """A log elsewhere, of which a launcher reports the last bytes.

    Args:
        tail: gives the last bytes of the log, at most the given number.
        tail_bytes: as of ``FileLog``.
    """

    def __init__(self, tail: Callable[[int], str], tail_bytes: int) -> None:
        self._tail = tail
        self._tail_bytes = tail_bytes
        self._before: bytes | None = None

    def read(self) -> bytes:
        """As ``Log.read``. Where more than ``FOLLOWED_BYTES`` came between two reads, the middle is missing."""
        count = max(self._tail_bytes, FOLLOWED_BYTES if self._before is not None else 0)
        body = self._tail(count).encode(errors="replace")
        before, self._before = self._before, body[-_OVERLAP_BYTES:] or self._before
        is_cut = len(body) >= count
        if before:
            _, seen, new = body.rpartition(before)
            if seen:
                return new
        return body.partition(b"\n")[2] if is_cut else body


class LogReader:
    """One driver's log.

    Args:
        secrets: what must not be shown, asked for once there is something to show; raises if that is unknown.
        has_ended: whether the driver writes no more.
    """

    def __init__(self, log: Log, secrets: Callable[[], tuple[str, ...]], has_ended: Callable[[], bool]) -> None:
        self._log = log
        self._secrets_of = secrets
        self._has_ended = has_ended
        self._rest = b""

    def has_ended(self) -> bool:
        """Whether the driver writes no more."""
        return self._has_ended()

    def read_all(self) -> str:
        """Everything from where this reader is, an unfinished line too."""
        body, self._rest = self._rest + self._log.read(), b""
        return self._hidden(body)

    def read_new(self) -> str:
        """The whole lines since the last call; at first the end of the log. After the driver's end, everything."""
        if self.has_ended():
            return self.read_all()
        body = self._rest + self._log.read()
        cut = body.rfind(b"\n") + 1  # whole lines: a secret that is cut in two would not be recognised
        self._rest = body[cut:]
        return self._hidden(body[:cut])

    def _hidden(self, body: bytes) -> str:
        return redact_text(body.decode("utf-8", "replace"), self._secrets) if body else ""

    @cached_property
    def _secrets(self) -> tuple[str, ...]:
        return self._secrets_of()
