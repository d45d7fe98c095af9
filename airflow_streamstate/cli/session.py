"""What all verbs share: the home, the form of the output, the printing of errors, and the exit statuses."""

from __future__ import annotations

import getpass
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass as mutable_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import click

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.errors import (
    ConflictError,
    DeadlineExceededError,
    DeploymentRefusedError,
    FencedError,
    HomeFormatError,
    IncompatibleUpgradeError,
    InputLostError,
    InvalidRequestError,
    ReadOnlyError,
    StartRefusedError,
    StreamStateError,
    UnavailableError,
    UnsupportedCheckpointError,
)
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.ids import requester
from airflow_streamstate.protocol.redaction import printable
from airflow_streamstate.protocol.signing import SigningKeys, own_signing_keys

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from airflow_streamstate.allowed import Allowed
    from airflow_streamstate.cli.naming import AllowedFile
    from airflow_streamstate.controller.client import Controller
    from airflow_streamstate.controller.home import Home
    from airflow_streamstate.controller.upgrade.upgrade_views import UpgradeView
    from airflow_streamstate.protocol.upgrades import AfterStop
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


@mutable_dataclass
class ShellSession:
    """One run of the command.

    Attributes:
        checkpoints_uri: None for under the home.
        as_json: stdout is exactly one JSON object.
        is_verbose: errors, and answers about trouble, have all of their lines.
        work_dir: where drivers' code and logs are on this machine; None for the home's own choice.
        verb, stream_id: "" until they are parsed.
        options: how to reach the stores of the home; None for those of the environment.
        allowed_file: what persons have allowed on this machine; None if not set.
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
        from airflow_streamstate.cli.naming import AllowedFile

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
                next_step="Give --home URI, or set STREAMSTATE_HOME; a folder is enough to start with.",
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
        """Print a line on stderr, with --json, too."""
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
        """With --json, which shows no progress: print on stderr what a person has to know while the command waits."""
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
            from airflow_streamstate.controller.wait.condition import only_news

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

    console = Console(stderr=stderr, highlight=False, emoji=False)
    if console.is_terminal:
        human(console)
        return
    # A file or a pipe has no width: nothing is cut or padded.
    page = io.StringIO()
    human(Console(file=page, highlight=False, emoji=False, width=_ENDLESS))
    for line in page.getvalue().splitlines():
        click.echo(line.rstrip(), err=stderr)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


# Exit statuses: the only place that decides them.
#
# | status | when | |---|---| | 0 | the command has succeeded; with --async: the order is recorded | | 1 | the command
# has failed; or the inspected object is not well | | 2 | the command line is wrong, or names something that does not
# exist | | 3 | the awaited end did not come in time | | 4 | refused: the stream, its data or another caller's work
# forbids it; nothing was changed |

DONE = 0
FAILED = 1
USAGE = 2
DEADLINE = 3
REFUSED = 4
NOT_WELL = frozenset({"degraded", "failed", "lost", "silent", "unreadable"})
"""States in which a stream, or a query of it, has failed, has ended without a record, or is unknown."""
_REFUSALS = (
    ConflictError,
    DeploymentRefusedError,
    FencedError,
    HomeFormatError,
    IncompatibleUpgradeError,
    InputLostError,
    StartRefusedError,
    UnsupportedCheckpointError,
)


def exit_status_of(error: StreamStateError) -> int:
    """The exit status of a command that ends with this error."""
    if isinstance(error, DeadlineExceededError):
        return DEADLINE
    if isinstance(error, _REFUSALS):
        return REFUSED
    if isinstance(error, InvalidRequestError) and not isinstance(error, ReadOnlyError):
        return USAGE  # a read-only disk is no error of the command line
    return FAILED


def status_of_findings(*, is_well: bool) -> int:
    """Of a command that only looks: 1 if the object is not well."""
    return DONE if is_well else FAILED


def status_of_states(states: Iterable[str]) -> int:
    """Of ``status`` and ``list``: 1 if a stream is not well."""
    return status_of_findings(is_well=NOT_WELL.isdisjoint(states))


def status_of_several(errors: Sequence[StreamStateError], done: int) -> int:
    """Of a command that acts on several streams, of which ``done`` succeeded.

    1 if there is an error; if none succeeded and all errors have the same status, that one.
    """
    statuses = {exit_status_of(error) for error in errors}
    if not statuses:
        return DONE
    return statuses.pop() if len(statuses) == 1 and not done else FAILED


def status_of_applied(results: Iterable[str]) -> int:
    """Of ``apply``, by the results of the streams that are not as declared."""
    left = set(results)
    if not left:
        return DONE
    return REFUSED if left == {"refused"} else FAILED


def status_of_rehearsal(outcome: Literal["fits", "refused", "failed", "deadline"], *, is_as_asked: bool = True) -> int:
    """Of a rehearsal; ``is_as_asked``: whether the rows of its replay are those that were asked for."""
    return {
        "fits": status_of_findings(is_well=is_as_asked),
        "refused": REFUSED,
        "failed": FAILED,
        "deadline": DEADLINE,
    }[outcome]


def status_of_replay(outcome: Literal["done", "refused", "failed", "deadline"], *, is_as_asked: bool = True) -> int:
    """Of a replay; ``is_as_asked``: whether its rows are those that were asked for."""
    done = status_of_findings(is_well=is_as_asked)
    return {"done": done, "refused": REFUSED, "failed": FAILED, "deadline": DEADLINE}[outcome]


def status_of_upgrade(view: UpgradeView, cancelled: AfterStop | None = None) -> int:
    """Of an upgrade or rollback.

    ``cancelled`` is the end that the caller has asked for by a cancellation or a rejection, else None.
    """
    if view.is_what_was_asked if cancelled is None else view.is_end_of_cancel(cancelled):
        return DONE
    # ``upgraded``: the cancellation came too late.
    return REFUSED if view.outcome in ("refused", "upgraded") else FAILED


# The answer of a verb: the fact, then the next step, then the rest; of trouble at most six lines, all by --verbose.

MOST_LINES = 6
MOST_CHARACTERS = 400
_LONG_FACT = 100
"""A longer fact is shown up to the limit; a shorter one is shown or left out."""


class Printer(Protocol):
    """What lines and tables are printed on: a console, or an answer."""

    def print(self, what: Any, /, *, style: str = "", soft_wrap: bool = False) -> None:
        """Print one line, one table or one text of several lines."""


@dataclass(frozen=True)
class AnswerPart:
    """One line, table or text of an answer.

    Attributes:
        name: what the last line of a short answer calls it.
        is_main: whether a short answer may show it, cut to one line.
    """

    name: str
    what: Text | Table | str
    style: str
    soft_wrap: bool
    is_main: bool

    @property
    def lines(self) -> int:
        """The number of its lines, without the terminal's wrapping."""
        from rich.table import Table

        return self.what.row_count + 1 if isinstance(self.what, Table) else str(self.what).count("\n") + 1

    @property
    def is_long(self) -> bool:
        """Whether it is more than one line of limited length."""
        return self.lines > 1 or len(str(self.what)) > MOST_CHARACTERS

    @property
    def first_line(self) -> Text | Table | str:
        """Its text in one line of limited length; a table as it is."""
        from rich.text import Text

        if not self.is_long or not isinstance(self.what, Text):
            return self.what
        return self.what.split()[0][: MOST_CHARACTERS - 1] + Text("…")

    def print(self, console: Console, what: Text | Table | str) -> None:
        """Print it as it is, or what is left of it."""
        console.print(what, style=self.style or None, soft_wrap=self.soft_wrap or None)


class Answer:
    """Collects what a verb has to report; the fact is printed first.

    Args:
        name, is_main: of the parts that are printed on it (``Part``).
        parts: those of the answer that this is a view of; None for a new one.
    """

    def __init__(self, name: str = "", *, is_main: bool = True, parts: list[AnswerPart] | None = None) -> None:
        self._name = name
        self._is_main = is_main
        self._parts = [] if parts is None else parts

    def main(self, name: str) -> Answer:
        """The same answer, for parts that a short one shows while there is room."""
        return Answer(name, is_main=True, parts=self._parts)

    def more(self, name: str) -> Answer:
        """The same answer, for parts that a short one only names."""
        return Answer(name, is_main=False, parts=self._parts)

    def print(self, what: Any, /, *, style: str = "", soft_wrap: bool = False) -> None:
        """Add one line, one table or one text of several lines."""
        self._parts.append(AnswerPart(self._name, what, style, soft_wrap, self._is_main))

    def block(self, title: str, text: str) -> None:
        """Add a text of several lines below its title; nothing for an empty one."""
        from rich.text import Text

        if text:
            rows = "".join(f"\n    {row}" for row in text.splitlines())
            self.more(title).print(Text(printable(f"{title}:"), "bold") + Text(printable(rows)), soft_wrap=True)

    def show(self, console: Console, next_step: str, *, is_short: bool, cut: Sequence[str] = ()) -> None:
        """Print the answer.

        Args:
            next_step: "" if there is nothing to do.
            is_short: print at most ``MOST_LINES`` lines; the last one names what was left out.
            cut: what else was left out, for the same line.
        """
        from rich.text import Text

        fact, *rest = self._parts
        fact.print(console, fact.what)
        if next_step:
            words = " ".join(next_step.splitlines()) if is_short else next_step
            console.print(Text(printable(f"-> {words}")))
        room = MOST_LINES - 1 - bool(next_step)
        if not is_short or _fit(rest, room - bool(cut)):
            left = list(cut)
            for part in rest:
                part.print(console, part.what)
        else:
            kept = [part for part in rest if part.is_main][: room - 1]
            left = [*cut, *_names([part for part in rest if part not in kept or part.is_long])]
            for part in kept:
                part.print(console, part.first_line)
        if left:
            console.print(Text(printable(f"… {', '.join(left)}: --verbose")))


def _fit(parts: Sequence[AnswerPart], room: int) -> bool:
    return sum(part.lines for part in parts) <= room and not any(part.is_main and part.is_long for part in parts)


def facts_within(sentence: str, facts: Sequence[str]) -> tuple[str, int]:
    """The sentence with the facts that fit into a short answer, and how many do not."""
    text = sentence
    for number, fact in enumerate(facts):
        room = MOST_CHARACTERS - len(text) - 1
        if len(fact) > room:
            begin = f"{fact[:room]}" if len(fact) > _LONG_FACT and room > _LONG_FACT else ""
            return f"{text} {begin}…", len(facts) - number
        text = f"{text} {fact}"
    return text, 0


def _names(parts: Sequence[AnswerPart]) -> list[str]:
    """The names of the parts, each once, with its number of lines if these are several."""
    lines: dict[str, int] = {}
    for part in parts:
        lines[part.name] = lines.get(part.name, 0) + part.lines
    return [name if count == 1 else f"{name} ({count} lines)" for name, count in lines.items()]
