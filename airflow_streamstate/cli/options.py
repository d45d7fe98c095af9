"""Options that several verbs have: declared once."""

from __future__ import annotations

import importlib.metadata
import json
import math
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import click

from airflow_streamstate.cli.session import CHECKPOINTS_VARIABLE, HOME_VARIABLE, LAUNCHES_VARIABLE, Session
from airflow_streamstate.protocol.codec import parse_time

Verb = TypeVar("Verb", bound=Callable[..., Any])
MAX_SECONDS = 31_536_000.0


class Seconds(click.ParamType):  # type: ignore[type-arg]  # generic only in newer click
    """A number of seconds; unlike click's own range of floats it knows that ``nan`` is none."""

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


class HelpfulCommand(click.Command):
    """A command whose help is one JSON object, too, where --json was asked for; a word that stands before ``--`` by
    mistake is not taken for the script's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        rest = super().parse_args(ctx, args)
        for_script = tuple(ctx.params.get("arguments") or ()) if runs_script(self) else ()
        if for_script and not ctx.resilient_parsing:
            _refuse_stray(ctx, words, for_script)
        return rest

    def get_help(self, ctx: click.Context) -> str:
        text = super().get_help(ctx)
        session = ctx.find_object(Session)
        return json.dumps({"help": text}) if session is not None and session.as_json else text


def runs_script(command: click.Command) -> bool:
    """Whether what stands behind ``--`` is the script's own."""
    return any(isinstance(one, click.Argument) and one.nargs == -1 for one in command.params)


def _refuse_stray(ctx: click.Context, words: list[str], for_script: tuple[str, ...]) -> None:
    """Only what stands behind ``--`` is the script's; the stream may stand there, too, in front of it."""
    behind = ["--", *for_script], ["--", ctx.params.get("stream_id"), *for_script]
    if any(words[-len(one) :] == one for one in behind):
        return
    own = words[: words.index("--")] if "--" in words else words
    stray = next((word for word in for_script if word in own), for_script[0])
    raise click.UsageError(
        f"nobody knows what {stray!r} is for: before `--` stands the stream alone, beside options; what is for the"
        " script comes behind it",
        ctx,
    )


def _set_stream(context: click.Context, _parameter: click.Parameter, value: str) -> str:
    context.ensure_object(Session).stream_id = value
    return value


def _set_home(context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    if value:
        context.ensure_object(Session).home_uri = value


def _set_checkpoints(context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    if value:
        context.ensure_object(Session).checkpoints_uri = value


def _set_launches(context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    if value:
        context.ensure_object(Session).launches_folder = value


def _set_json(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        context.ensure_object(Session).as_json = True


def _show_version(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if not value or context.resilient_parsing:
        return
    version = importlib.metadata.version("airflow-streamstate")
    session = context.ensure_object(Session)
    session.emit({"version": version}, lambda console: console.print(f"streamstate {version}"))
    context.exit()


show_version = click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version, help="Show the version."
)


def shared(verb: Verb) -> Verb:
    """--home, --checkpoints, --launches and --json, accepted before the verb and after it."""
    for option in (
        click.option(
            "--json", "as_json", is_flag=True, expose_value=False, callback=_set_json, is_eager=True,
            help="Print exactly one JSON object on stdout.",
        ),
        click.option(
            "--launches", metavar="FOLDER", expose_value=False, callback=_set_launches,
            help=f"Where drivers' code and logs lie on this machine, if not beside the checkpoints. "
            f"Also from {LAUNCHES_VARIABLE}.",
        ),
        click.option(
            "--checkpoints", metavar="URI", expose_value=False, callback=_set_checkpoints,
            help=f"Where checkpoints lie, if not under the home. Also from {CHECKPOINTS_VARIABLE}.",
        ),
        click.option(
            "--home", metavar="URI", expose_value=False, callback=_set_home,
            help=f"Where streams are kept: a folder, s3://bucket/prefix, gs://…, az://…. Also from {HOME_VARIABLE}.",
        ),
    ):  # fmt: skip
        verb = option(verb)
    return verb


stream_argument = click.argument("stream_id", metavar="STREAM", callback=_set_stream)
pass_session = click.make_pass_decorator(Session, ensure=True)


def wait_option(what: str) -> Callable[[Verb], Verb]:
    """--wait S: until when a verb waits for ``what``."""
    return click.option(
        "--wait", "wait_seconds", type=Seconds(0.1), metavar="SECONDS",
        help=f"Wait until {what}, so long at most. Without it: return when the order is recorded.",
    )  # fmt: skip


wait_caught_up_option = click.option(
    "--wait-caught-up",
    "caught_up_seconds",
    type=Seconds(0.1),
    metavar="SECONDS",
    help="Wait until it runs and has nothing left to read, so long at most; instead of --wait.",
)
behind_at_most_option = click.option(
    "--behind-at-most",
    type=click.IntRange(min=0),
    metavar="N",
    help="With --wait-caught-up: so much may be left of each source, in its own unit; 0 by default.",
)
expires_in_option = click.option(
    "--expires-in",
    "expires_in_seconds",
    type=Seconds(0.1),
    metavar="SECONDS",
    help="The order expires: if the driver reads it only later than this, it does not begin.",
)
reason_option = click.option("--reason", default="", metavar="TEXT", help="Why; kept with the order.")
request_option = click.option(
    "--request-id",
    metavar="ID",
    help="An id of your own for this order: the same id again is the same order. A new one by default.",
)
deployment_option = click.option(
    "--deployment", "deployment_id", metavar="ID", help="Which deployment; the current one by default."
)


def key_values(_context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """``K=V`` options as a mapping; the error names the key only, since a value may be a secret."""
    found: dict[str, str] = {}
    for value in values:
        key, equals, rest = value.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter("must be KEY=VALUE", param=parameter)
        found[key.strip()] = rest
    return found


# What a version may be given: deploy and plan take the same.

discard_state_option = click.option("--discard-state", is_flag=True, help="Drop state that the drain could not flush.")
fresh_query_option = click.option(
    "--fresh-query",
    "fresh_queries",
    multiple=True,
    metavar="NAME",
    help="A query that may start with nothing although the snapshot does not know it. Repeatable.",
)
accept_lost_input_option = click.option(
    "--accept-lost-input",
    multiple=True,
    metavar="NAME",
    help="A query that may go on although input behind its offsets is lost at the source. Repeatable.",
)
on_query_failure_option = click.option(
    "--on-query-failure",
    type=click.Choice(["script", "degrade", "fail"]),
    help="What a query that fails does to the others: `fail` stops them and ends the deployment, `degrade` lets them "
    "run on, `script` leaves it to the script. The default of a new stream is `script`.",
)
max_snapshot_age_option = click.option(
    "--max-snapshot-age",
    "max_snapshot_age_seconds",
    type=Seconds(0.1, 315_360_000),
    metavar="SECONDS",
    help="Refuse to start from what is older.",
)
conf_option = click.option(
    "--conf", multiple=True, metavar="K=V", callback=key_values, help="Spark configuration. Repeatable."
)
env_option = click.option(
    "--env",
    "environment",
    multiple=True,
    metavar="K=V",
    callback=key_values,
    help="A variable for the driver's environment. Repeatable.",
)
literal_secrets_option = click.option(
    "--allow-literal-secrets",
    is_flag=True,
    help="Record values under secret-like names as they are; without it they are refused.",
)


_CODE_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    conf_option,
    env_option,
    literal_secrets_option,
    click.option("--packages", multiple=True, metavar="COORDINATES", help="Maven packages, with commas or repeated."),
    click.option("--jars", multiple=True, metavar="PATH", help="Jars, with commas or repeated; not pinned."),
    click.option("--py-files", multiple=True, metavar="PATH", help="Python files and zips, with commas or repeated."),
    click.option("--files", multiple=True, metavar="PATH", help="Files beside the script, with commas or repeated."),
)


def code_options(verb: Verb) -> Verb:
    """What the driver of a script is given beside it: configuration, environment, packages, jars and files."""
    for option in reversed(_CODE_OPTIONS):
        verb = option(verb)
    return verb
