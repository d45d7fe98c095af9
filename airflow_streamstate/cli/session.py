"""What every verb shares: the home, the output form, and how an error leaves the process."""

from __future__ import annotations

import getpass
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from airflow_streamstate.cli import tables
from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.home import Home, HomeConfig
from airflow_streamstate.errors import InvalidRequestError

Report = Callable[[str], None]
Human = Callable[[Console], None]
_AGES = re.compile(r"\d+(\.\d+)? s( ago)?")
_COUNTS = re.compile(r"[\d,]+ of ")
_SECONDS_BETWEEN_COUNTS = 5.0
HOME_VARIABLE = "STREAMSTATE_HOME"
CHECKPOINTS_VARIABLE = "STREAMSTATE_CHECKPOINTS"
LAUNCHES_VARIABLE = "STREAMSTATE_LAUNCHES"
_ENDLESS = 100_000


@dataclass
class Session:
    """One run of the command.

    Attributes:
        home_uri: where streams are kept; None until given.
        checkpoints_uri: where checkpoints lie; None for under the home.
        as_json: stdout is exactly one JSON object.
        launches_folder: where drivers' code and logs lie on this machine; None for the home's own choice.
        verb, stream_id: what is asked for, and of which stream; "" as long as nobody has read it.
    """

    home_uri: str | None = None
    checkpoints_uri: str | None = None
    as_json: bool = False
    clock: Clock = SYSTEM_CLOCK
    launches_folder: str | None = None
    verb: str = ""
    stream_id: str = ""

    @classmethod
    def of(cls, environ: Mapping[str, str], *, as_json: bool) -> Session:
        """A session whose home is the one that the environment names, until an option says another."""
        return cls(
            environ.get(HOME_VARIABLE),
            environ.get(CHECKPOINTS_VARIABLE),
            as_json,
            launches_folder=environ.get(LAUNCHES_VARIABLE),
        )

    def home(self) -> Home:
        """The opened home.

        Raises:
            InvalidRequestError: none was given.
        """
        if not self.home_uri:
            raise InvalidRequestError(
                "no home was given",
                next_step="Give --home URI, or set STREAMSTATE_HOME; a folder is enough to begin with.",
            )
        config = HomeConfig(
            home_uri=self.home_uri, checkpoints_uri=self.checkpoints_uri, launches_folder=self.launches_folder
        )
        return Home(config, self.clock)

    def controller(self) -> Controller:
        """The verbs, on this machine's spark-submit."""
        return Controller.local(self.home(), clock=self.clock, requested_by=self.requested_by)

    @property
    def requested_by(self) -> str:
        """Who asks, for records."""
        return f"{_user()} (shell)"

    def emit(self, value: Mapping[str, object], human: Human) -> None:
        """Print the result: one JSON object, or what a person reads."""
        if self.as_json:
            _echo_json(value)
        else:
            _print(human)

    def say(self, human: Human) -> None:
        """Tell a person something before the result is known: on stderr, and not with --json."""
        if not self.as_json:
            _print(human, stderr=True)

    def call(self, line: str) -> None:
        """Tell a person that he is waited for, on stderr where --json keeps progress silent."""
        if self.as_json:
            click.echo(tables.shown(line).plain, err=True)

    @contextmanager
    def progress(self, title: str) -> Iterator[Report]:
        """Show long work on stderr while it goes on; silent with --json."""
        if self.as_json:
            yield lambda _text: None
            return
        console = Console(stderr=True, highlight=False)
        if not console.is_terminal:
            yield _line_by_line(title, self.clock)
            return
        # One line that never wraps: a spinner that changes its height leaves its old lines behind.
        with console.status(_one_line(title)) as status:
            yield lambda text: status.update(_one_line(f"{title}: {text}"))

    def fail(self, error: Mapping[str, Any]) -> None:
        """Print an error ``{type, message, context, next_step}``."""
        if self.as_json:
            _echo_json({"error": error})
        else:
            _print(lambda console: tables.error(console, error), stderr=True)


def _line_by_line(title: str, clock: Clock) -> Report:
    last, told_at_seconds = "", 0.0

    def report(text: str) -> None:
        nonlocal last, told_at_seconds
        news = _AGES.sub("", text)  # a line per second of age would be no news
        uncounted = _COUNTS.sub("", news) != _COUNTS.sub("", last)
        if uncounted or (news != last and clock.monotonic_seconds() - told_at_seconds >= _SECONDS_BETWEEN_COUNTS):
            click.echo(tables.shown(f"{title}: {text}").plain, err=True)
            last, told_at_seconds = news, clock.monotonic_seconds()

    return report


def _one_line(text: str) -> Text:
    line = tables.shown(text.replace("\n", " "))
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _echo_json(value: Mapping[str, object]) -> None:
    # ASCII on purpose: it survives every locale, and whatever bytes somebody put into an argument.
    click.echo(json.dumps(value, default=str, ensure_ascii=True, allow_nan=False))


def _print(human: Human, *, stderr: bool = False) -> None:
    console = Console(stderr=stderr, highlight=False)
    if console.is_terminal:
        human(console)
        return
    # Into a file or a pipe nothing is cut to the width of a screen that is not there, or filled up to it.
    page = io.StringIO()
    human(Console(file=page, highlight=False, width=_ENDLESS))
    for line in page.getvalue().splitlines():
        click.echo(line.rstrip(), err=stderr)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
