"""The shell at a terminal, with what a person types."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import subprocess
import sys
import termios
from pathlib import Path
from types import TracebackType

import airflow_streamstate
from airflow_streamstate.clock import SYSTEM_CLOCK

WAIT_SECONDS = 200.0
_ROOT = str(Path(airflow_streamstate.__file__).parents[1])
_RUN = f"import sys; sys.path.insert(0, {_ROOT!r}); from airflow_streamstate.cli.main import main; sys.exit(main())"


class Typed:
    """One run of the command; as a context manager it ends it.

    Attributes:
        status: its exit status, after the context.
    """

    status: int | None = None

    def __init__(self, *words: str) -> None:
        self._terminal, inner = pty.openpty()
        command = (sys.executable, "-c", _RUN, *words)
        self._process = subprocess.Popen(
            command, stdin=inner, stdout=inner, stderr=inner, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(inner)

    def __enter__(self) -> Typed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._process.terminate()
        self.status = self._process.wait(WAIT_SECONDS)
        os.close(self._terminal)

    def answer(self, prompt: str, line: str) -> str:
        """Type a line at the next prompt; what was printed before it."""
        said = self._read(prompt)
        os.write(self._terminal, f"{line}\n".encode())
        return said

    def rest(self) -> str:
        """All that is printed until the end."""
        return self._read(None)

    def _read(self, until: str | None) -> str:
        said = ""
        end = SYSTEM_CLOCK.monotonic_seconds() + WAIT_SECONDS
        while until is None or until not in said:
            left = end - SYSTEM_CLOCK.monotonic_seconds()
            assert left > 0, f"{until!r} was never said: {said}"
            if not select.select([self._terminal], [], [], min(left, 1.0))[0]:
                continue
            try:
                read = os.read(self._terminal, 65_536).decode(errors="replace")
            except OSError:  # the other end is closed
                read = ""
            if not read:
                assert until is None, f"{until!r} was never said: {said}"
                return said
            said += read
        return said
