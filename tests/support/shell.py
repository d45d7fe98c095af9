"""The shell in this process: arguments in, exit status, stdout and stderr out; and a home for it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from rich.console import Console

from airflow_streamstate.cli.main import cli, run
from airflow_streamstate.cli.verbs import SECTIONS
from airflow_streamstate.protocol import layout
from airflow_streamstate.store.local import LocalStore
from support.launches import end_processes
from support.scripted_stream import ScriptedAttempt, ScriptedStream

VERBS = [
    " ".join((name, *verb))
    for entries in SECTIONS.values()
    for name, entry in entries.items()
    for verb in ([(one,) for one in entry.verbs] or [()])
]
"""Each as it is typed: ``deploy``, ``snapshot create``."""
_OF_NO_STREAM = ("list", "watch", "home doctor", "home restore", "home sign", "validate", "diff", "apply")
STREAM_VERBS = [verb for verb in VERBS if verb not in _OF_NO_STREAM]


@dataclass(frozen=True)
class Answer:
    """What one run of the command left."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object on stdout; nothing else may be there."""
        value, end = json.JSONDecoder().raw_decode(self.out)
        assert self.out[end:] == "\n", f"not one JSON object: {self.out!r}"
        assert isinstance(value, dict)
        return value

    @property
    def json_lines(self) -> list[dict[str, Any]]:
        """What a command that continues prints: on each line one JSON object, and nothing else."""
        assert self.out.endswith("\n"), f"not JSON lines: {self.out!r}"
        values = [json.loads(line) for line in self.out.splitlines()]
        assert all(isinstance(value, dict) for value in values)
        return values

    @property
    def error(self) -> dict[str, Any]:
        """The ``error`` of the one JSON object, with just the fields that every error has."""
        assert set(self.json) == {"error"}, self.json
        error: dict[str, Any] = self.json["error"]
        assert set(error) == {"type", "message", "context", "next_step"}
        assert all(isinstance(error[name], str) for name in ("type", "message", "next_step"))
        assert isinstance(error["context"], Mapping)
        return error


class Terminal(io.StringIO):
    """A stream that reports it is a terminal."""

    def isatty(self) -> bool:
        return True


def command_of(verb: str) -> click.Command:
    """The command of a verb, as it is typed."""
    command: click.Command = cli
    for word in verb.split():
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None, verb
        command = found
    return command


def parameters_of(verb: str) -> list[click.Parameter]:
    """Every option and argument that a verb takes."""
    command = command_of(verb)
    return command.get_params(click.Context(command))


def shell(*words: object, terminal: bool = False) -> Answer:
    """Run ``streamstate WORDS``.

    Args:
        words: of the command line; a verb of a group may be one of them.
        terminal: stdout and stderr report that they are one.
    """
    out, err = (Terminal(), Terminal()) if terminal else (io.StringIO(), io.StringIO())
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run([part for word in words for part in (str(word).split() if word in VERBS else [str(word)])])
    answer = Answer(status, out.getvalue(), err.getvalue())
    assert not any(line.startswith("Traceback") for line in answer.err.splitlines()), answer.err
    return answer


def done(verb: str, stream_id: str, *words: object) -> dict[str, Any]:
    """The JSON of a verb that succeeds; fails with the end of the driver's log."""
    answer = shell(verb, "--json", stream_id, *words)
    assert answer.status == 0, f"{answer}\n{shell('logs', stream_id).out[-4000:]}"
    return answer.json


def printed(show: Callable[..., None], *facts: Any, width: int = 2000) -> str:
    """What a function of the shell prints on a screen of this width."""
    page = io.StringIO()
    show(Console(file=page, width=width, highlight=False), *facts)
    return page.getvalue()


@dataclass(frozen=True)
class Desk:
    """A home on disk that ``streamstate`` is used on; STREAMSTATE_HOME names it.

    Attributes:
        base: an empty folder of the test; the home is ``home`` below it.
    """

    base: Path

    @property
    def home(self) -> Path:
        return self.base / "home"

    def stream(self, stream_id: str = "flights") -> ScriptedStream:
        """A stream of it, written by hand."""
        store = LocalStore(self.home)
        return ScriptedStream(store, store.uri, stream_id)

    def files(self) -> set[str]:
        """Every file of the test's folder, but the feed of the home, which is written at any time."""
        return {str(path.relative_to(self.base)) for path in _without_feed(self.base) if path.is_file()}

    def texts(self) -> dict[str, str]:
        """The text of every file of the home but its feed, which is written at any time."""
        files = [path for path in _without_feed(self.home) if path.is_file()]
        return {str(path.relative_to(self.home)): path.read_text("utf-8", "replace") for path in files}

    def end_drivers(self) -> None:
        """End every driver that was launched for this home."""
        for folder in self.home.rglob("launches/[dr]-*"):
            if folder.is_dir():
                end_processes(str(folder))


def words_of(verb: str, stream_id: str, desk: Desk) -> list[str]:
    """The shortest complete command line of a verb."""
    first, second = "d-0001-stopped-000001", "d-0001-stopped-000002"
    options = {
        "deploy": ["--app", str(desk.base / "job.py")],
        "adopt": ["--give-up"],
        "rescale": ["--partitions", "3"],
        "skip": ["--batch", "7", "--reason", "a bad row"],
        "snapshot export": ["--out", str(desk.base / "out")],
    }
    snapshots = {f"snapshot {verb}": [first] for verb in ("verify", "pin", "unpin")}
    more = {**snapshots, "snapshot diff": [first, second], "export": [str(desk.base / "exported")]}
    return [*verb.split(), *options.get(verb, []), "--json", "--", stream_id, *more.get(verb, [])]


@contextlib.contextmanager
def desk_with(
    base: Path, monkeypatch: pytest.MonkeyPatch, hidden: tuple[str, ...], variables: Mapping[str, str] | None = None
) -> Iterator[Desk]:
    """A desk in its own environment; no driver is left of it afterwards.

    Args:
        hidden: the prefixes of variables that the test must not see.
        variables: that it sees besides STREAMSTATE_HOME, which they may set, too.
    """
    for name in [name for name in os.environ if name.startswith(hidden)]:
        monkeypatch.delenv(name)
    desk = Desk(base)
    for name, value in {"STREAMSTATE_HOME": str(desk.home), **(variables or {})}.items():
        monkeypatch.setenv(name, value)
    try:
        yield desk
    finally:
        desk.end_drivers()


def obeying(attempt: ScriptedAttempt, words: str = "") -> AbstractContextManager[None]:
    """Within this block the attempt obeys its orders, as its driver would."""
    return meanwhile(lambda: attempt.obey(words))


@contextlib.contextmanager
def meanwhile(step: Callable[[], object]) -> Iterator[None]:
    """Within this block a thread does this again and again, until it gives something true."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(0.02) and not step():
            pass

    thread = threading.Thread(target=work, name="meanwhile")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=20)


def _without_feed(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if layout.FEED_FOLDER not in path.parts)
