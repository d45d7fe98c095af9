"""The options of verbs, made from the declaration of the terms, and a help that fits one screen."""

from __future__ import annotations

import json
import math
import shlex
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
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
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.launch.interface import plain_options
from airflow_streamstate.protocol.codec import parse_time
from airflow_streamstate.protocol.terms.declaration import WORDS, Term, terms_of

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
        help="Where drivers' code and logs are on this machine, if not next to the checkpoints. "
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


# The file of ``--offsets``: where each source of a query starts.


def read_offsets(content: object) -> dict[str, tuple[str, ...]]:
    """Offsets by query, one text for each source.

    Args:
        content: ``{NAME: [OFFSET, …]}``, or an object whose ``queries`` have ``end_offsets``. An offset is Spark's
            text, or its JSON.

    Raises:
        ValueError: it has another form.
    """
    queries = content.get("queries", content) if isinstance(content, dict) else None
    if not isinstance(queries, dict) or not queries:
        raise ValueError("no offsets by query")
    found = {}
    for name, lines in queries.items():
        offsets = lines.get("end_offsets") if isinstance(lines, dict) else lines
        if not isinstance(offsets, list) or not offsets:
            raise ValueError(f"query {name} has no list of offsets")
        found[str(name)] = tuple(
            offset if isinstance(offset, str) else json.dumps(offset, separators=(",", ":")) for offset in offsets
        )
    return found


def read_offsets_file(option: str, path: str) -> dict[str, tuple[str, ...]]:
    """The offsets in the file of this option. Raises UsageError where it cannot be read, or holds none."""
    try:
        return read_offsets(json.loads(Path(path).read_text()))
    except OSError as error:
        raise click.UsageError(f"{option}: {path} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"{option}: {path} holds no offsets ({error})") from None


# The options of a verb, and the terms that they set, both made from the declaration of the terms.

Terms = TypeVar("Terms")
_BY_DEFAULT = ". By default "
"""What follows is of a new version, and not of what stays."""
_REPEATED = ("texts", "mapping", "paths")


def term_options(
    cls: type,
    verb: str = "",
    *,
    stays: bool = False,
    heading: str | None = None,
    has_all: bool = False,
    needs_required: bool = False,
) -> Callable[[Callback], Callback]:
    """An option for each term of a class that the shell has; of a part one for each of its terms, without a default.

    Args:
        verb: only for the terms that this verb takes, too.
        stays: what is not given stays as it is, so no option has a default; the help names that of a new stream.
        heading: of all of them in the help, in place of the declared ones.
        has_all: also for those that are otherwise values of the option of their part.
        needs_required: click refuses a command without a term that is required; else the verb reports what is missing.
    """
    several = terms_of(cls, verb)
    if not has_all:
        several = tuple(one for one in several if one.declared.in_shell is True)
    return options(
        *(
            each
            for one in several
            for each in _options(one, _Wanted(stays=stays, heading=heading, needs_required=needs_required))
        )
    )


def terms_given(cls: type[Terms], given: Mapping[str, Any], **fixed: Any) -> Terms:
    """The terms of the values of these options; a verb that does not take a term has its default.

    Args:
        fixed: terms that the verb decides itself.

    Raises:
        InvalidRequestError: a term is wrong, or contradicts another.
    """
    return cls(**{**values_given(cls, given), **fixed})


def values_given(cls: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """What these options give of a class, by the names of its terms; of a part, the same of its class. What is not
    given is left out.

    Raises:
        UsageError: a file cannot be read, or a setting is not one.
        InvalidRequestError: a value cannot be read.
    """
    found = {}
    for one in terms_of(cls):
        name = one.name_on("shell")
        value = _part_given(one, given) if one.kind == "part" else given.get(name)
        if value == "" and (one.kind == "path" or one.metavar == "PATH"):
            raise click.UsageError(f"{_long_name(one)} is empty: give a path, or leave it out.")
        if _is_given(one, value):
            found[one.name] = _READERS.get(one.kind, _as_it_is)(one, value)
    return found


def split(values: tuple[str, ...]) -> tuple[str, ...]:
    """The parts of an option that is repeated, or given with commas."""
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


# options


@dataclass(frozen=True)
class _Wanted:
    """As of ``term_options``; ``of_part``: the option is of a term of a part."""

    stays: bool
    heading: str | None
    of_part: bool = False
    needs_required: bool = False

    def heading_of(self, one: Term) -> str:
        return one.declared.heading if self.heading is None else self.heading


def _options(one: Term, wanted: _Wanted) -> Iterator[Callable[[Any], Any]]:
    if one.flag == WORDS:
        yield script_arguments
    elif one.kind != "part":
        yield _option(one, wanted)
    else:
        for each in terms_of(one.part):
            if each.declared.in_shell is True:
                yield _option(each, replace(wanted, of_part=True))
        if one.declared.flag:
            yield _rest_option(one, wanted)


def _option(one: Term, wanted: _Wanted) -> Callable[[Any], Any]:
    has_default = not (wanted.stays or wanted.of_part)
    attributes: dict[str, Any] = {
        "heading": wanted.heading_of(one),
        "help": f"{_sentences(one, stays=wanted.stays)}{_form_of(one)}",
    }
    if wanted.needs_required and one.is_required:
        attributes["required"] = True
    else:
        attributes["default"] = one.default if has_default and one.default != "" else None
    if one.kind == "flag":
        attributes["default"] = one.default if has_default or not _has_two_forms(one) else None
        return option(one.flag, one.name_on("shell"), is_flag=True, **attributes)
    if one.kind in (*_REPEATED, "command", "lists"):
        attributes |= {"multiple": one.kind in _REPEATED, "default": None}
    elif one.default not in (None, ""):
        attributes |= {"show_default": True} if has_default else {"help": f"{attributes['help']}{_default_of(one)}"}
    if one.kind == "mapping":
        attributes["callback"] = key_values
    return option(one.flag, one.name_on("shell"), type=_type(one), metavar=one.metavar or None, **attributes)


def _rest_option(part: Term, wanted: _Wanted) -> Callable[[Any], Any]:
    """The option for the terms of a part that have no option of their own."""
    return option(
        part.flag,
        part.name_on("shell"),
        multiple=True,
        default=None,
        metavar=part.metavar,
        callback=key_values,
        heading=wanted.heading_of(part),
        help=f"{_sentences(part, stays=False)[:-1]}: {', '.join(_rest_of(part))}. Repeatable.",
    )


def _rest_of(part: Term) -> dict[str, Term]:
    return {one.name: one for one in terms_of(part.part) if one.declared.in_shell is not True}


def _sentences(one: Term, *, stays: bool) -> str:
    text = one.help_for(_long_name)
    if stays:
        text, _, _ = text.partition(_BY_DEFAULT)
    return f"{text[:1].upper()}{text[1:]}."


def _form_of(one: Term) -> str:
    """How its value is written, if that is not obvious."""
    if one.declared.takes_commas:
        return " With commas or repeated."
    if _has_facts(one):
        return " Lists and objects in JSON, @FILE for a file's text. Repeatable."
    forms = {"command": "One line, split as by a shell.", "lists": "A JSON file."} | dict.fromkeys(
        _REPEATED, "Repeatable."
    )
    return f" {forms[one.kind]}" if one.kind in forms else ""


def _default_of(one: Term) -> str:
    default = f"{one.default:,.15g}" if one.is_number else f"`{one.default}`"
    return f" The default of a new stream is {default}."


def _type(one: Term) -> Any:
    if one.kind == "choice":
        return click.Choice(one.choices)
    if one.kind == "seconds":
        return Seconds(*one.bounds)
    if one.kind == "whole":
        return click.IntRange(_bound(one.declared.least), _bound(one.declared.most))
    if one.kind == "number":
        return click.FloatRange(one.declared.least, one.declared.most)
    return Moment() if one.kind == "moment" else str


def _bound(number: float | None) -> int | None:
    return None if number is None else int(number)


def _long_name(one: Term) -> str:
    return one.flag.partition("/")[0]


def _has_two_forms(one: Term) -> bool:
    return "/" in one.flag


def _has_facts(one: Term) -> bool:
    """Whether its values by name may be lists and objects."""
    return one.kind == "mapping" and typing.get_args(one.hint)[1] is object


# values


def _is_given(one: Term, value: Any) -> bool:
    if value is None or value == () or value == {}:
        return False
    if value is False:
        return _has_two_forms(one)
    return value != "" or one.kind in ("text", "choice")


def _part_given(part: Term, given: Mapping[str, Any]) -> dict[str, Any]:
    if part.declared.in_shell is not True:
        return {}
    found = values_given(part.part, given)
    texts = given.get(part.name_on("shell")) if part.declared.flag else None
    return {**found, **_rest_given(part, texts or {})}


def _rest_given(part: Term, texts: Mapping[str, str]) -> dict[str, Any]:
    known = _rest_of(part)
    if unknown := sorted(set(texts) - set(known)):
        raise click.UsageError(f"no such setting: {', '.join(unknown)}; there are {', '.join(known)}")
    try:
        return {name: int(text) if known[name].kind == "whole" else float(text) for name, text in texts.items()}
    except ValueError:
        raise click.UsageError("a setting is a number of seconds, or of bytes: NAME=VALUE") from None


def _as_it_is(_one: Term, value: Any) -> Any:
    return value


def _words(_one: Term, command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise InvalidRequestError(
            "this command cannot be split into words", reason=str(error), next_step="Close its quotes."
        ) from None


def _texts(one: Term, values: tuple[str, ...]) -> tuple[str, ...]:
    return split(values) if one.declared.takes_commas else tuple(values)


def _paths(one: Term, values: tuple[str, ...]) -> tuple[Path, ...]:
    return tuple(map(Path, _texts(one, values)))


def _path(one: Term, value: str) -> Path:
    """A path that is recorded as it is means the same from any folder."""
    return Path(value).expanduser().absolute() if one.hint is str else Path(value)


def _offsets(one: Term, path: str) -> dict[str, tuple[str, ...]]:
    return read_offsets_file(_long_name(one), path)


def _mapping(one: Term, texts: Mapping[str, str]) -> Mapping[str, object]:
    if not _has_facts(one):
        return texts
    return plain_options({name: _text_or_file(one, name, text) for name, text in texts.items()})


def _text_or_file(one: Term, name: str, text: str) -> str:
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8"
        raise click.UsageError(f"{_long_name(one)}: the file of {name} cannot be read: {reason}.") from None


_READERS: Mapping[str, Callable[[Term, Any], Any]] = {
    "command": _words,
    "texts": _texts,
    "path": _path,
    "paths": _paths,
    "lists": _offsets,
    "mapping": _mapping,
}
"""By kind: what makes the value of a term of what the option has."""
