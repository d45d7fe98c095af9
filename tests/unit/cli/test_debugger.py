"""The terminal lent to debuggers over a socket."""

from __future__ import annotations

import os
import pty
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from airflow_streamstate.cli import replay
from airflow_streamstate.cli.replay import TerminalDebugger


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The end of a terminal at which a person types."""
    person, terminal = pty.openpty()
    monkeypatch.setattr(replay, "_TERMINAL", os.ttyname(terminal))
    with os.fdopen(terminal) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        yield person
    os.close(person)


def test_each_debugger_has_the_terminal_after_the_one_before_it(typed: int) -> None:
    """Two that connect at once; the second is served when the first has gone."""
    with TerminalDebugger() as path:
        assert Path(path).is_socket()
        with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
            for each in (first, second):
                each.settimeout(60)
                each.connect(path)
            second.sendall(b"second")
            first.sendall(b"first")
            assert os.read(typed, 100) == b"first"
            os.write(typed, b"p 1\n")
            assert first.recv(100) == b"p 1\n"
            first.close()
            seen = b""
            while b"second" not in seen:
                seen += os.read(typed, 100)
    assert not Path(path).parent.exists()


def test_a_long_path_of_temporary_files_is_refused(typed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one sentence, and nothing is left there."""
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with pytest.raises(click.UsageError, match="name a folder with a short path in TMPDIR"), TerminalDebugger():
        pass
    assert list(folder.iterdir()) == []
