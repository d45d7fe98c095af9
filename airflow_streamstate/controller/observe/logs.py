"""Reads the log of a driver as it grows, in whole lines, secrets hidden."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from airflow_streamstate.protocol.redaction import redact_text


class LogReader:
    """One driver's log.

    Args:
        path: the log on this machine; None where there is none.
        tail_bytes: how far before the end of the log the first read begins; a line that this cuts in two is left out.
        secrets: what must not be shown, asked for once there is something to show; raises where that is unknown.
        has_ended: whether the driver writes no more.
    """

    def __init__(
        self, path: Path | None, tail_bytes: int, secrets: Callable[[], tuple[str, ...]], has_ended: Callable[[], bool]
    ) -> None:
        self._path = path
        self._secrets_of = secrets
        self._has_ended = has_ended
        self._rest = b""
        # One byte earlier, to see whether a line begins there: half a line may begin with half a secret.
        self._offset = max(0, _size(path) - tail_bytes - 1)
        self._is_within_line = self._offset > 0

    def has_ended(self) -> bool:
        """Whether the driver writes no more."""
        return self._has_ended()

    def read_all(self) -> str:
        """Everything from where this reader stands, an unfinished line too."""
        body, self._rest = self._rest + self._read(), b""
        return self._hidden(body)

    def read_new(self) -> str:
        """The whole lines since the last call; at first the last ``tail_bytes``. After the end, everything."""
        if self.has_ended():
            return self.read_all()
        body = self._rest + self._read()
        cut = body.rfind(b"\n") + 1  # whole lines: a secret that is cut in two would not be recognised
        self._rest = body[cut:]
        return self._hidden(body[:cut])

    def _hidden(self, body: bytes) -> str:
        return redact_text(body.decode("utf-8", "replace"), self._secrets) if body else ""

    @cached_property
    def _secrets(self) -> tuple[str, ...]:
        return self._secrets_of()

    def _read(self) -> bytes:
        if self._path is None:
            return b""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                body = file.read()
        except OSError:
            return b""
        self._offset += len(body)
        if self._is_within_line:
            _, newline, body = body.partition(b"\n")
            self._is_within_line = not newline
        return body


def _size(path: Path | None) -> int:
    try:
        return 0 if path is None else path.stat().st_size
    except OSError:
        return 0
