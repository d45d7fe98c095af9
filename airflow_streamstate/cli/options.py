"""What all verbs share: the options that are declared once, and a help that fits one screen."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from airflow_streamstate.cli.session import (
    CHECKPOINTS_VARIABLE,
    HOME_VARIABLE,
    VERBOSE_VARIABLE,
    WORK_DIR_VARIABLE,
    ShellSession,
)
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import parse_time

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Callback = TypeVar("Callback", bound=Callable[..., Any])
MAX_SECONDS = 31_536_000.0
ORDER_TIMEOUT_SECONDS = 600.0
WIDTH = 100


class Seconds(click.ParamType):  # type: ignore[type-arg]  # generic only in newer click
    """A number of seconds; unlike click's own range of floats it refuses ``nan``."""

    name = "seconds"

    def __init__(self, least: float, most: float = MAX_SECONDS) -> None:
        self.least = least
        self.most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not self.least <= seconds <= self.most:
            self.fail(f"{value!r} is not a number of seconds from {self.least:g} to {self.most:,.0f}.", param, ctx)
        return seconds


class Moment(click.ParamType):  # type: ignore[type-arg]  # as above
    """A moment as RFC 3339 has it, with a time zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return parse_time(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a time with a time zone, as 2026-03-01T10:05:00Z.", param, ctx)


class Option(click.Option):
    """An option with its heading in ``--help``; "" for the first screen, which alone describes its options."""

    def __init__(self, *args: Any, heading: str = "", **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.heading = heading


def option(*names: str, heading: str = "", **attributes: Any) -> Callable[[Callback], Callback]:
    """As ``click.option``, under a heading of the help."""
    return click.option(*names, cls=Option, heading=heading, **attributes)


def options(*several: Callable[[Any], Any]) -> Callable[[Callback], Callback]:
    """Several options as one decorator."""

    def decorate(callback: Callback) -> Callback:
        for one in reversed(several):
            callback = one(callback)
        return callback

    return decorate


def _set(name: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """A callback that keeps the value in the session; an empty one changes nothing."""

    def keep(context: click.Context, _parameter: click.Parameter, value: Any) -> Any:
        if value:
            setattr(context.ensure_object(ShellSession), name, value)
        return value

    return keep


def _show_version(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if not value or context.resilient_parsing:
        return
    import importlib.metadata

    version = importlib.metadata.version("airflow-streamstate")
    session = context.ensure_object(ShellSession)
    session.emit({"version": version}, lambda console: console.print(f"streamstate {version}"))
    context.exit()


def _show_all(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if not value or context.resilient_parsing:
        return
    context.meta[_SHOWS_ALL] = True
    click.echo(context.get_help())
    context.exit()


_SHOWS_ALL = "airflow_streamstate.cli.shows_all"
_COMMON = "Common"
COMMON_OPTIONS: tuple[click.Option, ...] = (
    Option(
        ["--home"], metavar="URI", expose_value=False, callback=_set("home_uri"), heading=_COMMON,
        help=f"Where streams are kept: a folder, s3://bucket/prefix, gs://…, az://…. Also from {HOME_VARIABLE}.",
    ),
    Option(
        ["--checkpoints"], metavar="URI", expose_value=False, callback=_set("checkpoints_uri"), heading=_COMMON,
        help=f"Where checkpoints are, if not under the home. Also from {CHECKPOINTS_VARIABLE}.",
    ),
    Option(
        ["--work-dir"], metavar="FOLDER", expose_value=False, callback=_set("work_dir"), heading=_COMMON,
        help="Where drivers' code and logs are on this machine, if not beside the checkpoints. "
        f"Also from {WORK_DIR_VARIABLE}.",
    ),
    Option(
        ["--json"], is_flag=True, is_eager=True, expose_value=False, callback=_set("as_json"), heading=_COMMON,
        help="Print exactly one JSON object on stdout.",
    ),
    Option(
        ["--verbose"], is_flag=True, is_eager=True, expose_value=False, callback=_set("is_verbose"), heading=_COMMON,
        help=f"Print all of an error, and of an answer about trouble. Also from {VERBOSE_VARIABLE}=1.",
    ),
    Option(
        ["--help-all"], is_flag=True, expose_value=False, is_eager=True, callback=_show_all, heading=_COMMON,
        help="Describe every option.",
    ),
)  # fmt: skip
"""Accepted before and after the verb, so no verb has them among its own ``params``."""
_ORDER = "Order"
ORDER_OPTIONS: dict[str, click.Option] = {
    "timeout": Option(
        ["--timeout", "timeout_seconds"], type=Seconds(0.1), metavar="SECONDS", heading=_ORDER,
        help="How long this command waits. After that it exits with status 3; the order stays.",
    ),
    "async": Option(
        ["--async", "is_async"], is_flag=True, heading=_ORDER,
        help="Return when the order is recorded.",
    ),
    "reason": Option(["--reason"], default="", metavar="TEXT", heading=_ORDER, help="Kept with the order."),
    "request-id": Option(
        ["--request-id"], metavar="ID", heading=_ORDER,
        help="Your own id of this order: the same id is the same order. A new one by default.",
    ),
}  # fmt: skip
"""Of the verbs that order something."""
show_version = option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version, help="Show the version."
)


class Shared(click.Command):
    """A command with the common options and a help that fits one screen.

    ``--help`` describes the options of the first screen and names the others; ``--help-all`` describes all. With
    ``--json`` the help is one JSON object.
    """

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), *COMMON_OPTIONS]

    def get_help(self, ctx: click.Context) -> str:
        text = super().get_help(ctx)
        session = ctx.find_object(ShellSession)
        return json.dumps({"help": text}) if session is not None and session.as_json else text

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if is_short(ctx) and self.help:
            first, _, _ = self.help.partition("\n\n")
            with formatter.indentation():
                formatter.write_paragraph()
                formatter.write_text(" ".join(first.split()))
        else:
            super().format_help_text(ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        headed: dict[str, list[click.Option]] = {"": []}
        for one in self.get_params(ctx):
            if isinstance(one, click.Option) and not one.hidden:
                headed.setdefault(getattr(one, "heading", _COMMON), []).append(one)
        headed[_COMMON] = headed.pop(_COMMON)  # last
        first = headed.pop("")
        if not is_short(ctx):
            write_described(ctx, formatter, {"Options": first, **headed})
            return
        if first:
            with formatter.section("Options"):
                formatter.write_dl([_short_record(ctx, one) for one in first])
        write_named(formatter, "More", headed)


def write_described(
    ctx: click.Context, formatter: click.HelpFormatter, headed: Mapping[str, Sequence[click.Option]]
) -> None:
    """Describe the options under their headings."""
    for heading, listed in headed.items():
        if listed:
            with formatter.section(heading):
                formatter.write_dl([record for one in listed if (record := one.get_help_record(ctx))])


def write_named(formatter: click.HelpFormatter, title: str, headed: Mapping[str, Sequence[click.Option]]) -> None:
    """Only name the options, a line for each heading."""
    with formatter.section(f"{title} (`--help-all` describes them)"):
        for heading, listed in headed.items():
            indent = " " * formatter.current_indent
            lines = textwrap.wrap(
                f"{indent}{heading:<10}{' '.join(map(_name_of, listed))}",
                formatter.width,
                subsequent_indent=f"{indent}{'':<10}",
                break_on_hyphens=False,
            )
            formatter.write("".join(f"{line}\n" for line in lines))


class Verb(Shared):
    """A verb; a stray word before ``--`` is refused instead of passed to the script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        session = ctx.find_object(ShellSession)
        if session is not None:
            session.verb = ctx.command_path.partition(" ")[2]
        words = list(args)
        rest = super().parse_args(ctx, args)
        for_script = tuple(ctx.params.get("arguments") or ()) if runs_script(self) else ()
        if for_script and not ctx.resilient_parsing:
            _refuse_stray(ctx, words, for_script)
        return rest


@dataclass(frozen=True)
class Ordering:
    """The options of an order.

    Attributes:
        timeout_seconds: how long the command waits for the end; None for ``--async``.
        is_timeout_given: whether ``--timeout`` is on the command line.
    """

    timeout_seconds: float | None
    is_timeout_given: bool
    reason: str
    request_id: str | None

    @property
    def facts(self) -> dict[str, Any]:
        """``reason`` and ``request_id``, as every order takes them."""
        return {"reason": self.reason, "request_id": self.request_id}


class OrderVerb(Verb):
    """A verb that records an order and waits for its end; its callback gets an ``Ordering`` as ``ordering``.

    Args:
        waits_until: for the help; "" if the verb does not wait.
        timeout_seconds: the default of ``--timeout``.
        takes: names of its ``ORDER_OPTIONS``.
    """

    def __init__(
        self,
        *args: Any,
        waits_until: str = "",
        timeout_seconds: float = ORDER_TIMEOUT_SECONDS,
        takes: Sequence[str] = tuple(ORDER_OPTIONS),
        **attributes: Any,
    ) -> None:
        super().__init__(*args, **attributes)
        self.waits_until = waits_until
        self.timeout_seconds = timeout_seconds
        self.takes = takes

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), *(ORDER_OPTIONS[name] for name in self.takes)]

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        if self.waits_until:
            how = f"--timeout SECONDS ({self.timeout_seconds:g})"
            if "async" in self.takes:
                how += ", or --async not to wait"
            with formatter.indentation():
                formatter.write_paragraph()
                formatter.write_text(f"Waits until {self.waits_until}: {how}.")

    def invoke(self, ctx: click.Context) -> Any:
        given = ctx.params
        seconds, is_async = given.pop("timeout_seconds", None), given.pop("is_async", False)
        if is_async and seconds is not None:
            raise click.UsageError("--async does not wait: leave out --timeout.", ctx)
        timeout_seconds = None if is_async else self.timeout_seconds if seconds is None else seconds
        given["ordering"] = Ordering(
            timeout_seconds, seconds is not None, given.pop("reason", ""), given.pop("request_id", None)
        )
        return super().invoke(ctx)


def is_short(ctx: click.Context) -> bool:
    """Whether this is ``--help``, not ``--help-all``."""
    return not ctx.meta.get(_SHOWS_ALL)


def _short_record(ctx: click.Context, one: click.Option) -> tuple[str, str]:
    names, _ = one.get_help_record(ctx) or ("", "")
    sentence, stop, _ = (one.help or "").partition(". ")
    return names, sentence + stop.strip()


def _name_of(one: click.Option) -> str:
    """The name that changes the default: ``--no-…`` of a flag that is on."""
    return max(one.secondary_opts if one.secondary_opts and one.default is True else one.opts, key=len)


def runs_script(command: click.Command) -> bool:
    """Whether the words after ``--`` are the script's."""
    return any(isinstance(one, click.Argument) and one.name == "arguments" for one in command.params)


def is_given(name: str) -> bool:
    """Whether the option of this parameter is on the command line."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def _refuse_stray(ctx: click.Context, words: list[str], for_script: tuple[str, ...]) -> None:
    """Only words after ``--`` are the script's; the stream may precede them there."""
    behind = ["--", *for_script], ["--", ctx.params.get("stream_id"), *for_script]
    if any(words[-len(one) :] == one for one in behind):
        return
    own = words[: words.index("--")] if "--" in words else words
    stray = next((word for word in for_script if word in own), for_script[0])
    raise click.UsageError(
        f"unexpected argument {stray!r}: before `--` the only argument is the stream; put the script's arguments"
        " after `--`",
        ctx,
    )


def _complete_stream(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The streams of the home; none if it cannot be listed."""
    from click.shell_completion import CompletionItem

    with suppress(Exception):
        found = _context.ensure_object(ShellSession).home().stream_ids()
        return [CompletionItem(name) for name in found if name.startswith(incomplete)]
    return []


stream_argument = click.argument(
    "stream_id", metavar="STREAM", callback=_set("stream_id"), shell_complete=_complete_stream
)
script_arguments = click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS]...")
pass_session = click.make_pass_decorator(ShellSession, ensure=True)


def deadline_option(default_seconds: float, help: str) -> Callable[[Callback], Callback]:
    """By when a driver that is started for this verb alone has done its work."""
    return option(
        "--deadline",
        "deadline_seconds",
        type=Seconds(1.0),
        default=default_seconds,
        show_default=True,
        metavar="SECONDS",
        help=help,
    )


def key_values(_context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """``K=V`` options as a mapping; the error shows no value, which may be a secret."""
    found: dict[str, str] = {}
    for value in values:
        key, equals, rest = value.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter("must be KEY=VALUE", param=parameter)
        found[key.strip()] = rest
    return found
