"""``streamstate [--home URI] [--json] VERB STREAM …``: the command's entry."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from airflow_streamstate.cli.options import runs_script, show_version
from airflow_streamstate.cli.session import FAILED, USAGE, ShellSession, exit_status_of
from airflow_streamstate.cli.verbs import ORDERED, SECTIONS, Verbs, entry_of, flags_of
from airflow_streamstate.errors import (
    DeadlineExceededError,
    DeploymentFailedError,
    InvalidRequestError,
    StreamNotFoundError,
    StreamStateError,
)

if TYPE_CHECKING:
    from airflow_streamstate.controller.home import Home

MOST_NAMES = 3
LEAST_ALIKE = 0.7


def name_nearby(error: StreamNotFoundError, open_home: Callable[[], Home]) -> None:
    """Add the streams with similar names to the error's next step, if there are any."""
    with suppress(StreamStateError):
        names = near_names(str(error.context.get("stream_id", "")), open_home())
        if names:
            error.next_step = f"Did you mean {' or '.join(names)}? {error.next_step}".strip()


def near_names(stream_id: str, home: Home) -> list[str]:
    """The streams with the most similar names, the nearest first; raises StreamStateError if the home has no list."""
    import difflib

    from airflow_streamstate.controller.home import is_stream_id
    from airflow_streamstate.protocol import layout

    names = [name for name in home.home.list_folders("") if is_stream_id(name) and name != stream_id]
    near = difflib.get_close_matches(stream_id, names, MOST_NAMES, LEAST_ALIKE)
    return [name for name in near if home.home.head(layout.register_key(name)) is not None]


def name_options(error: InvalidRequestError, verb: str) -> None:
    """Call each term that the error names as the options of the verb do: ``deadline_seconds`` is ``--deadline``."""
    flags = flags_of(verb)
    if flags:
        known = re.compile(rf"\b({'|'.join(map(re.escape, flags))})\b")
        error.message, error.next_step = (
            known.sub(lambda found: flags[found[0]], text) for text in (error.message, error.next_step)
        )


def name_full_disks(error: StreamStateError, open_home: Callable[[], Home]) -> None:
    """Add the full disks of the home to the next step of a failed wait or job, if there are any."""
    from airflow_streamstate.cli.render import full_disk_words
    from airflow_streamstate.controller.observe.observer import full_disks

    with suppress(StreamStateError):
        folders = full_disks(open_home())
        if folders:
            error.next_step = f"{full_disk_words(folders)} {error.next_step}".strip()


def interrupted(verb: str, stream_id: str) -> dict[str, object]:
    """The error of an interrupted command, as ``{type, message, context, next_step}``; "" for what was not parsed."""
    entry = entry_of(verb)
    left = ORDERED if entry is None else entry.interrupted
    return {
        "type": "Interrupted",
        "message": f"interrupted; {left.message}",
        "context": {"stream_id": stream_id} if stream_id else {},
        "next_step": left.next_step.format(stream=stream_id or "STREAM"),
    }


TRACEBACK_VARIABLE = "STREAMSTATE_TRACEBACK"
_HELP = """Savepoints, drains and safe upgrades for Spark Structured Streaming.

\b
streamstate deploy flights --app count.py -- --input in --output out
streamstate upgrade flights --app count_v2.py
streamstate stop flights

STREAM names one logical stream through all its versions: 1 to 63 characters of a-z, 0-9 and '-'. Verbs that record an
order wait for its end. `streamstate VERB --help` describes a verb, `--help-all` all its options.

Shell completion: eval "$(_STREAMSTATE_COMPLETE=bash_source streamstate)"; also zsh_source, fish_source.

Exit status: 0 done, 1 failed, 2 usage, 3 timeout or deadline, 4 refused (incompatible, conflict, fenced)."""


def _no_verb(context: click.Context) -> None:
    if context.invoked_subcommand is None:
        if context.ensure_object(ShellSession).as_json:
            raise click.UsageError("no verb was given", context)
        click.echo(context.get_help(), err=True)
        context.exit(USAGE)


cli = Verbs("streamstate", SECTIONS, _HELP)
cli.callback, cli.invoke_without_command = click.pass_context(_no_verb), True
show_version(cli)


def own_session(words: Sequence[str]) -> ShellSession:
    """The session of a command line: the home of the environment, and the form of the output."""
    return ShellSession.of(os.environ, as_json=_wants_json(list(words)))


def run(arguments: Sequence[str], session: ShellSession | None = None) -> int:
    """Run the command; returns the exit status. Prints every error, without a traceback.

    Args:
        session: None for ``own_session``.
    """
    words = list(arguments)
    session = session or own_session(words)
    try:
        _check_text(words)
        status = cli.main(args=words, prog_name="streamstate", standalone_mode=False, obj=session)
    except StreamStateError as error:
        if isinstance(error, StreamNotFoundError):
            name_nearby(error, session.home)
        if isinstance(error, DeadlineExceededError | DeploymentFailedError):
            name_full_disks(error, session.home)
        if isinstance(error, InvalidRequestError):
            name_options(error, session.verb)
        session.fail(error.to_json())
        return exit_status_of(error)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        session.fail(_usage(error))
        return USAGE
    except (KeyboardInterrupt, click.Abort):
        session.fail(interrupted(session.verb, session.stream_id))
        return FAILED
    except Exception as error:
        session.fail(_defect(error))
        return FAILED
    return status if isinstance(status, int) else 0


def main() -> None:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal cannot show is escaped instead of ending the command.
        with contextlib.suppress(AttributeError, OSError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        sys.exit(run(sys.argv[1:]))
    except BrokenPipeError:
        # The reader has gone (``| head``); Python must not flush to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)


def _check_text(words: list[str]) -> None:
    """Arguments are recorded as text, and every later start passes the same (Law 15)."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise click.UsageError(f"this argument is not UTF-8 text: {word!a}") from None


def _wants_json(words: list[str]) -> bool:
    """Whether an error before all options are parsed is printed as JSON."""
    own = words[: words.index("--")] if "--" in words else words
    return "--json" in own


def _usage(error: click.ClickException) -> dict[str, Any]:
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context is not None else "streamstate"
    next_step = f"`{path} --help` lists the options."
    if isinstance(error, click.NoSuchOption) and context is not None and runs_script(context.command):
        next_step = f"Put the script's arguments after `--`, as in `{path} … -- {error.option_name} …`. {next_step}"
    return {"type": "UsageError", "message": error.format_message(), "context": {}, "next_step": next_step}


def _defect(error: Exception) -> dict[str, Any]:
    """An unexpected error with its place; prints the traceback if the variable is set."""
    import traceback

    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return {
        "type": "InternalError",
        "message": "this is a defect of streamstate, not of the command",
        "context": {"error": f"{type(error).__name__}: {error}", "where": where},
        "next_step": f"Set {TRACEBACK_VARIABLE}=1 to see the traceback, and report it.",
    }
