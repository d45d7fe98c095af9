"""``deploy`` and ``resume``: the verbs that start a driver."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from airflow_streamstate.cli import tables
from airflow_streamstate.cli.mirrors import mirror_of
from airflow_streamstate.cli.options import (
    HelpfulCommand,
    accept_lost_input_option,
    behind_at_most_option,
    code_options,
    discard_state_option,
    fresh_query_option,
    key_values,
    max_snapshot_age_option,
    on_query_failure_option,
    pass_session,
    reason_option,
    request_option,
    shared,
    stream_argument,
    wait_caught_up_option,
    wait_option,
)
from airflow_streamstate.cli.session import Report, Session
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.observe.views import DeploymentView, StreamStatus
from airflow_streamstate.controller.request.requests import DeployRequest
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.protocol.codec import parse_time
from airflow_streamstate.protocol.records import OnQueryFailure, StartMode
from airflow_streamstate.protocol.settings import AgentSettings, default_settings

# ``--offsets FILE`` and ``--at TIMESTAMP``: where a seed begins, as a user writes it.


class Moment(click.ParamType):  # type: ignore[type-arg]  # generic only in newer click
    """A time with its zone, as RFC 3339 writes it."""

    name = "timestamp"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            return parse_time(str(value))
        except ValueError:
            self.fail(f"{value!r} is no time such as 2026-03-01T10:00:00Z.", param, ctx)


def read_offsets(content: object) -> dict[str, tuple[str, ...]]:
    """Offsets by query, one text for each source.

    Args:
        content: ``{NAME: [OFFSET, …]}``, or an object whose ``queries`` have ``end_offsets``. An offset is Spark's
            text, or the JSON that it holds.

    Raises:
        ValueError: it is neither.
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


def read_offsets_file(path: str | None) -> dict[str, tuple[str, ...]]:
    """The offsets in a file, as ``read_offsets``; none for None.

    Raises:
        click.UsageError: it cannot be read, or holds none.
    """
    if path is None:
        return {}
    try:
        return read_offsets(json.loads(Path(path).read_text()))
    except OSError as error:
        raise click.UsageError(f"--offsets: {path} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"--offsets: {path} holds no offsets ({error})") from None


SETTINGS = tuple(field.name for field in fields(AgentSettings))
setting_option = click.option(
    "--setting",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    callback=key_values,
    help=f"A setting of the agent in the driver: {', '.join(SETTINGS)}. Repeatable.",
)


@click.command(cls=HelpfulCommand, short_help="Make a script the next version of a stream, and start it.")
@stream_argument
@click.option("--app", "application", required=True, metavar="PATH", help="The PySpark script, unmodified.")
@click.option(
    "--start",
    "start_mode",
    type=click.Choice(["restore", "seed", "fresh"]),
    help="How it starts: with the state of the last snapshot, with its offsets only, or with nothing. By default what "
    "the last snapshot is decides; `fresh` is only ever by name.",
)
@click.option("--snapshot", "snapshot_id", metavar="ID", help="The snapshot that is expected to start it.")
@discard_state_option
@fresh_query_option
@accept_lost_input_option
@click.option(
    "--offsets",
    "offsets_path",
    metavar="FILE",
    help="With --start seed: begin at these offsets, by query, as `snapshots --json` shows them.",
)
@click.option(
    "--at", "begins_at", type=Moment(), metavar="TIMESTAMP", help="With --start seed: begin with the input of then."
)
@click.option(
    "--accept-repeated-input",
    multiple=True,
    metavar="NAME",
    help="A query that may read input again that was read before. Repeatable.",
)
@max_snapshot_age_option
@click.option("--assume-dead", is_flag=True, help="Take over although nobody can say whether the old driver is dead.")
@click.option("--revive", "revives", is_flag=True, help="Deploy although the stream was retired.")
@click.option("--master", metavar="URL", help="Spark's master; local[*] by default.")
@code_options
@setting_option
@click.option("--attach", "attaches", is_flag=True, help="The script calls runtime.attach(): submit it itself.")
@click.option(
    "--mirror",
    "mirrors",
    multiple=True,
    metavar="URI",
    help="Copy snapshots there, too. Repeatable.",
)
@click.option(
    "--snapshots",
    metavar="none|URI",
    default="",
    help="Keep its snapshots there instead of with its checkpoints; `none`: take none of it while it runs.",
)
@on_query_failure_option
@click.option("--label", "version_label", default="", metavar="TEXT", help="Your own name of this version.")
@reason_option
@request_option
@wait_option("each query has committed a batch, or has found no input")
@wait_caught_up_option
@behind_at_most_option
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS]...")
@shared
@pass_session
def deploy(
    session: Session,
    /,
    stream_id: str,
    application: str,
    start_mode: StartMode | None,
    wait_seconds: float | None,
    caught_up_seconds: float | None,
    behind_at_most: int | None,
    arguments: tuple[str, ...],
    py_files: tuple[str, ...],
    files: tuple[str, ...],
    packages: tuple[str, ...],
    jars: tuple[str, ...],
    settings: dict[str, str],
    offsets_path: str | None,
    mirrors: tuple[str, ...],
    on_query_failure: OnQueryFailure | None,
    **rest: Any,
) -> None:
    """Make a script the next version of STREAM, and start it.

    It goes on from the snapshot at the end of the version before: with its state after a stop, at its offsets after a
    drain. The script, --py-files and --files are pinned: every later start of this deployment runs these bytes. What
    follows -- are the script's own arguments.

    In --conf, --env and arguments env://NAME stands for a secret of this shell's environment, looked up at each launch.
    """
    request = DeployRequest(
        stream_id=stream_id,
        application=Path(application),
        arguments=arguments,
        start=start_mode,
        py_files=tuple(Path(part) for part in split(py_files)),
        files=tuple(Path(part) for part in split(files)),
        packages=split(packages),
        jars=split(jars),
        settings=settings_of(session, settings),
        offsets=read_offsets_file(offsets_path),
        mirrors=tuple(dict.fromkeys(mirror_of(session, uri).uri for uri in mirrors)),
        on_query_failure=on_query_failure or "script",
        **rest,
    )
    goal = _goal(wait_seconds, caught_up_seconds, behind_at_most)
    controller = session.controller()
    said: list[DeploymentView] = []

    def say(start: DeploymentView) -> None:
        said.append(start)
        session.say(lambda console: tables.deploying(console, start.to_json()))

    view = controller.deploy(request, say)  # the choice is said before anything starts
    if not said:
        say(view)  # a request that had become something before
    wait_and_emit(session, controller, view, goal)


@click.command(cls=HelpfulCommand, short_help="Start the current version of a stream again.")
@stream_argument
@click.option("--assume-dead", is_flag=True, help="Go on although nobody can say whether the old driver is dead.")
@reason_option
@request_option
@wait_option("each query has committed a batch, or has found no input")
@wait_caught_up_option
@behind_at_most_option
@shared
@pass_session
def resume(
    session: Session,
    stream_id: str,
    assume_dead: bool,
    reason: str,
    request_id: str | None,
    wait_seconds: float | None,
    caught_up_seconds: float | None,
    behind_at_most: int | None,
) -> None:
    """Start the current deployment of STREAM again: its recorded code, on its own checkpoints.

    For a deployment that was stopped, has finished, has failed or was killed. A drained one cannot be resumed: deploy.
    """
    goal = _goal(wait_seconds, caught_up_seconds, behind_at_most)
    controller = session.controller()
    view = controller.resume(stream_id, request_id=request_id, assume_dead=assume_dead, reason=reason)
    session.say(lambda console: tables.resuming(console, view.to_json()))
    wait_and_emit(session, controller, view, goal)


def settings_of(session: Session, named: Mapping[str, str]) -> AgentSettings | None:
    if not named:
        return None
    unknown = sorted(set(named) - set(SETTINGS))
    if unknown:
        raise click.UsageError(f"no such setting: {', '.join(unknown)}; there are {', '.join(SETTINGS)}")
    try:
        values: dict[str, Any] = {
            name: int(value) if name.endswith("_bytes") else float(value) for name, value in named.items()
        }
    except ValueError:
        raise click.UsageError("a setting is a number of seconds, or of bytes: NAME=VALUE") from None
    return replace(default_settings(session.home().home.uri), **values)


def split(values: tuple[str, ...]) -> tuple[str, ...]:
    """The parts of an option that is repeated, or given with commas."""
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


@dataclass(frozen=True)
class Goal:
    """Until when a start is waited for: healthy, or caught up but for so much; ``seconds`` None: not at all."""

    seconds: float | None
    behind_at_most: int | None = None


def _goal(wait_seconds: float | None, caught_up_seconds: float | None, behind_at_most: int | None) -> Goal:
    if caught_up_seconds is None:
        if behind_at_most is not None:
            raise click.UsageError("--behind-at-most says when --wait-caught-up is content, and that was not given.")
        return Goal(wait_seconds)
    if wait_seconds is not None:
        raise click.UsageError("--wait-caught-up waits for more than --wait does: give one of them.")
    return Goal(caught_up_seconds, behind_at_most or 0)


def wait_and_emit(session: Session, controller: Controller, view: DeploymentView, goal: Goal) -> None:
    """Print what was started, once it is as far as was asked for."""
    if goal.seconds is None:
        result = view.to_json()
    else:
        with session.progress(f"{view.stream_id} {view.deployment_id}") as report:
            status = _waited(controller, view, goal.seconds, goal.behind_at_most, report)
        seen = status.to_json()
        result = {**view.to_json(), **{name: seen[name] for name in ("state", "queries", "proofs", "remarks")}}
    session.emit(result, lambda console: tables.standing(console, result))


def _waited(
    controller: Controller, view: DeploymentView, seconds: float, behind_at_most: int | None, report: Report
) -> StreamStatus:
    condition = WaitCondition("healthy", view.stream_id, view.deployment_id)
    if behind_at_most is not None:
        condition = replace(condition, wanted="caught_up", behind_at_most=behind_at_most)
    return controller.wait(condition, seconds, report).status
