"""Lends the terminal to debuggers of a replay's processes, which connect over a Unix socket, one after the other."""

from __future__ import annotations

import os
import select
import shutil
import socket
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import click

_BYTES = 65_536
_POLL_SECONDS = 0.2
_TERMINAL = "/dev/tty"
_AT_ONCE = 64  # more tasks than a machine has cores


class TerminalDebugger:
    """A socket in a folder of this user alone, there for as long as the context is open.

    Raises:
        click.UsageError: there is no terminal.
    """

    def __init__(self) -> None:
        try:
            self._terminal = os.open(_TERMINAL, os.O_RDWR | os.O_NOCTTY) if sys.stdin.isatty() else -1
        except OSError:
            self._terminal = -1
        if self._terminal < 0:
            raise click.UsageError("--pdb opens a debugger on the terminal, and this is none: leave it out.")
        self._is_over = threading.Event()

    def __enter__(self) -> str:
        """The path of the socket.

        Raises:
            click.UsageError: none can be made among the temporary files.
        """
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._folder = ""
        try:
            self._folder = tempfile.mkdtemp(prefix="streamstate-pdb-")
            path = str(Path(self._folder) / "pdb")
            self._listener.bind(path)
            self._listener.listen(_AT_ONCE)
        except OSError as error:
            self._clean_up()
            raise click.UsageError(
                f"--pdb needs a Unix socket among the temporary files, and none can be made in {tempfile.gettempdir()} "
                f"({error}): name a folder with a short path in TMPDIR."
            ) from None
        self._thread = threading.Thread(target=self._serve, name="streamstate-pdb", daemon=True)
        self._thread.start()
        return path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        self._clean_up()

    def _clean_up(self) -> None:
        self._listener.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._terminal)

    def _serve(self) -> None:
        while not self._is_over.is_set():
            if select.select([self._listener], [], [], _POLL_SECONDS)[0]:
                connection, _ = self._listener.accept()
                with connection, suppress(OSError):  # its process has ended
                    self._relay(connection)

    def _relay(self, connection: socket.socket) -> None:
        """Until the other side closes."""
        while not self._is_over.is_set():
            ready = select.select([connection.fileno(), self._terminal], [], [], _POLL_SECONDS)[0]
            if connection.fileno() in ready:
                said = connection.recv(_BYTES)
                if not said:
                    return
                os.write(self._terminal, said)
            elif self._terminal in ready:
                typed = os.read(self._terminal, _BYTES)
                if typed:
                    connection.sendall(typed)
                else:
                    connection.shutdown(socket.SHUT_WR)  # Ctrl-D, by which pdb quits
