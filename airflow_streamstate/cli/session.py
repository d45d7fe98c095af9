"""What all verbs share: the home, the form of the output, and the printing of errors."""

from __future__ import annotations

import getpass
import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.errors import InvalidRequestError, UnavailableError
from airflow_streamstate.protocol.redaction import printable
from airflow_streamstate.protocol.requesters import requester
from airflow_streamstate.protocol.signing import SigningKeys, own_signing_keys

if TYPE_CHECKING:  # rich and the controller are imported on use: `--help` needs neither
    from rich.console import Console
    from rich.text import Text

    from airflow_streamstate.allowed import Allowed
    from airflow_streamstate.cli.allowing import AllowedFile
    from airflow_streamstate.controller.client import Controller
    from airflow_streamstate.controller.home import Home
    from airflow_streamstate.store.options import StoreOptions

Report = Callable[[str], None]
Human: TypeAlias = "Callable[[Console], None]"
HOME_VARIABLE = "STREAMSTATE_HOME"
VERBOSE_VARIABLE = "STREAMSTATE_VERBOSE"
CHECKPOINTS_VARIABLE = "STREAMSTATE_CHECKPOINTS"
WORK_DIR_VARIABLE = "STREAMSTATE_WORK_DIR"
_ENDLESS = 100_000


def no_keys() -> SigningKeys | None:
    """Nothing is signed, and no signature asked for."""
    return None


@dataclass
class ShellSession:
    """One run of the command.

    Attributes:
        checkpoints_uri: None for under the home.
        as_json: stdout is exactly one JSON object.
        is_verbose: errors, and answers about trouble, have all of their lines.
        work_dir: where drivers' code and logs are on this machine; None for the home's own choice.
        verb, stream_id: "" until they are parsed.
        options: how to reach the stores of the home; None for what the environment says.
        allowed_file: what persons have allowed on this machine; None for none.
        named: what this command names, and so allows.
        open_controller: opens the client of a home for a requester; None for this machine's own.
        keys: gives the keys that sign what only controllers write; raises InvalidRequestError.
    """

    home_uri: str | None = None
    checkpoints_uri: str | None = None
    as_json: bool = False
    clock: Clock = SYSTEM_CLOCK
    work_dir: str | None = None
    verb: str = ""
    stream_id: str = ""
    options: StoreOptions | None = None
    allowed_file: AllowedFile | None = None
    named: Allowed | None = None
    open_controller: Callable[[Home, Clock, str], Controller] | None = None
    keys: Callable[[], SigningKeys | None] = no_keys
    is_verbose: bool = False

    @classmethod
    def of(cls, environ: Mapping[str, str], *, as_json: bool) -> ShellSession:
        """A session with the home of the environment, which options may override."""
        from airflow_streamstate.cli.allowing import AllowedFile

        return cls(
            environ.get(HOME_VARIABLE),
            environ.get(CHECKPOINTS_VARIABLE),
            as_json,
            work_dir=environ.get(WORK_DIR_VARIABLE),
            allowed_file=AllowedFile.of(environ),
            keys=partial(own_signing_keys, environ),
            is_verbose=bool(environ.get(VERBOSE_VARIABLE)),
        )

    def home(self) -> Home:
        """The opened home; raises InvalidRequestError if none was given."""
        if not self.home_uri:
            raise InvalidRequestError(
                "no home was given",
                next_step="Give --home URI, or set STREAMSTATE_HOME; a folder is enough to begin with.",
            )
        from airflow_streamstate.controller.home import Home, HomeConfig
        from airflow_streamstate.store.options import StoreOptions

        config = HomeConfig(
            self.home_uri,
            self.checkpoints_uri,
            self.options or StoreOptions(),
            self.work_dir,
            self._allowed(self.home_uri),
            self.keys(),
        )
        return Home(config, self.clock)

    def _allowed(self, home_uri: str) -> Allowed:
        from airflow_streamstate.allowed import Allowed

        kept = Allowed() if self.allowed_file is None else self.allowed_file.read(home_uri)
        return kept if self.named is None else kept.joined(self.named)

    def allow(self, named: Allowed, *, is_kept: bool = True) -> None:
        """Allow what a person names in this command, and keep it on this machine for the next ones; call it before
        ``home`` and ``controller``.

        Args:
            is_kept: False for this command alone.

        Raises:
            InvalidRequestError: the list of this machine is malformed.
        """
        if named == type(named)():
            return
        self.named = named if self.named is None else self.named.joined(named)
        if not self.home_uri or self.allowed_file is None or not is_kept:
            return
        what = f"allowed for {self.home_uri}: {named.summary}"
        is_news = True
        try:
            is_news = not (named.is_default and self.allowed_file.read(self.home_uri).is_default)
            if self.allowed_file.add(self.home_uri, named) and is_news:
                self.note(f"{what}; kept in {self.allowed_file.path}")
        except (InvalidRequestError, UnavailableError) as error:
            if is_news:
                self.note(f"{what}; only for this command: {error.message}")

    def note(self, line: str) -> None:
        """Say a line on stderr, with --json, too."""
        click.echo(printable(line), err=True)

    def controller(self) -> Controller:
        """The client, with this machine's spark-submit."""
        if self.open_controller is not None:
            return self.open_controller(self.home(), self.clock, self.requested_by)
        from airflow_streamstate.controller.client import Controller

        return Controller.local(self.home(), clock=self.clock, requested_by=self.requested_by)

    @property
    def requested_by(self) -> str:
        """The user of this shell, for records."""
        return requester(_user(), "shell")

    def emit(self, value: Mapping[str, object], human: Human) -> None:
        """Print the result as one JSON object or for a person."""
        if self.as_json:
            _echo_json(value)
        else:
            _print(human)

    def say(self, human: Human) -> None:
        """Print something before the result, on stderr; nothing with --json."""
        if not self.as_json:
            _print(human, stderr=True)

    def call(self, line: str) -> None:
        """With --json, which shows no progress: say on stderr what a person has to know while the command waits."""
        if self.as_json:
            click.echo(printable(line), err=True)

    @contextmanager
    def progress(self, title: str) -> Iterator[Report]:
        """Show progress on stderr; nothing with --json."""
        if self.as_json:
            yield lambda _text: None
            return
        from rich.console import Console

        console = Console(stderr=True, highlight=False)
        if not console.is_terminal:
            from airflow_streamstate.controller.wait.progress import only_news

            yield only_news(lambda text: click.echo(printable(f"{title}: {text}"), err=True), self.clock)
            return
        # One line that never wraps: a spinner of changing height leaves lines behind.
        with console.status(_one_line(title)) as status:
            yield lambda text: status.update(_one_line(f"{title}: {text}"))

    def fail(self, error: Mapping[str, Any]) -> None:
        """Print an error ``{type, message, context, next_step}``."""
        if self.as_json:
            _echo_json({"error": error})
        else:
            from airflow_streamstate.cli import render

            _print(lambda console: render.error(console, error, verbose=self.is_verbose), stderr=True)


def _one_line(text: str) -> Text:
    from rich.text import Text

    return Text(printable(text.replace("\n", " ")), no_wrap=True, overflow="ellipsis")


def _echo_json(value: Mapping[str, object]) -> None:
    # ASCII survives every locale, and any bytes in an argument.
    click.echo(json.dumps(value, default=str, ensure_ascii=True, allow_nan=False))


def _print(human: Human, *, stderr: bool = False) -> None:
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False)
    if console.is_terminal:
        human(console)
        return
    # A file or a pipe has no width: nothing is cut or padded.
    page = io.StringIO()
    human(Console(file=page, highlight=False, width=_ENDLESS))
    for line in page.getvalue().splitlines():
        click.echo(line.rstrip(), err=stderr)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
