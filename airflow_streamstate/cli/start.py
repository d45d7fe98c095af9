"""``deploy`` and ``resume``: the verbs that start a driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click

from airflow_streamstate.cli import tables
from airflow_streamstate.cli.options import (
    HelpfulCommand,
    accept_lost_input_option,
    conf_option,
    discard_state_option,
    env_option,
    fresh_query_option,
    key_values,
    literal_secrets_option,
    pass_session,
    reason_option,
    request_option,
    shared,
    stream_argument,
    wait_option,
)
from airflow_streamstate.cli.session import Session
from airflow_streamstate.lifecycle.controller import Controller
from airflow_streamstate.lifecycle.requests import DeployRequest
from airflow_streamstate.lifecycle.views import DeploymentView
from airflow_streamstate.protocol.records import StartMode
from airflow_streamstate.protocol.settings import AgentSettings, default_settings

SETTINGS = tuple(field.name for field in fields(AgentSettings))


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
@click.option("--assume-dead", is_flag=True, help="Take over although nobody can say whether the old driver is dead.")
@click.option("--revive", "revives", is_flag=True, help="Deploy although the stream was retired.")
@click.option("--master", metavar="URL", help="Spark's master; local[*] by default.")
@conf_option
@env_option
@literal_secrets_option
@click.option("--packages", multiple=True, metavar="COORDINATES", help="Maven packages, with commas or repeated.")
@click.option("--jars", multiple=True, metavar="PATH", help="Jars, with commas or repeated; not pinned.")
@click.option("--py-files", multiple=True, metavar="PATH", help="Python files and zips, with commas or repeated.")
@click.option("--files", multiple=True, metavar="PATH", help="Files beside the script, with commas or repeated.")
@click.option(
    "--setting",
    "settings",
    multiple=True,
    metavar="NAME=SECONDS",
    callback=key_values,
    help=f"A setting of the agent in the driver: {', '.join(SETTINGS)}. Repeatable.",
)
@click.option("--label", "version_label", default="", metavar="TEXT", help="Your own name of this version.")
@reason_option
@request_option
@wait_option("each query has committed a batch, or has found no input")
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
    arguments: tuple[str, ...],
    py_files: tuple[str, ...],
    files: tuple[str, ...],
    packages: tuple[str, ...],
    jars: tuple[str, ...],
    settings: dict[str, str],
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
        settings=_settings(session, settings),
        **rest,
    )
    controller = session.controller()
    said: list[DeploymentView] = []

    def say(start: DeploymentView) -> None:
        said.append(start)
        session.say(lambda console: tables.deploying(console, start.to_json()))

    view = controller.deploy(request, say)  # the choice is said before anything starts
    if not said:
        say(view)  # a request that had become something before
    _wait_and_emit(session, controller, view, wait_seconds)


@click.command(cls=HelpfulCommand, short_help="Start the current version of a stream again.")
@stream_argument
@click.option("--assume-dead", is_flag=True, help="Go on although nobody can say whether the old driver is dead.")
@reason_option
@request_option
@wait_option("each query has committed a batch, or has found no input")
@shared
@pass_session
def resume(
    session: Session,
    stream_id: str,
    assume_dead: bool,
    reason: str,
    request_id: str | None,
    wait_seconds: float | None,
) -> None:
    """Start the current deployment of STREAM again: its recorded code, on its own checkpoints.

    For a deployment that was stopped, has finished, has failed or was killed. A drained one cannot be resumed: deploy.
    """
    controller = session.controller()
    view = controller.resume(stream_id, request_id=request_id, assume_dead=assume_dead, reason=reason)
    session.say(lambda console: tables.resuming(console, view.to_json()))
    _wait_and_emit(session, controller, view, wait_seconds)


def _settings(session: Session, named: Mapping[str, str]) -> AgentSettings | None:
    if not named:
        return None
    unknown = sorted(set(named) - set(SETTINGS))
    if unknown:
        raise click.UsageError(f"no such setting: {', '.join(unknown)}; there are {', '.join(SETTINGS)}")
    try:
        values = {name: float(value) for name, value in named.items()}
    except ValueError:
        raise click.UsageError("a setting is a number of seconds: NAME=SECONDS") from None
    return replace(default_settings(session.home().home.uri), **values)


def split(values: tuple[str, ...]) -> tuple[str, ...]:
    """The parts of an option that is repeated, or given with commas."""
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


def _wait_and_emit(session: Session, controller: Controller, view: DeploymentView, wait_seconds: float | None) -> None:
    if wait_seconds is None:
        result = view.to_json()
    else:
        with session.progress(f"{view.stream_id} {view.deployment_id}") as report:
            status = controller.wait_healthy(
                view.stream_id, view.deployment_id, deadline_seconds=wait_seconds, on_progress=report
            )
        result = {**view.to_json(), "state": status.state, "queries": status.to_json()["queries"]}
    session.emit(result, lambda console: tables.standing(console, result))
