"""``deploy`` and ``resume``: the verbs that start a driver."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from airflow_streamstate.cli import render
from airflow_streamstate.cli.naming import allow_request, allow_stores
from airflow_streamstate.cli.options import (
    Moment,
    Ordering,
    OrderVerb,
    accept_hazards_option,
    accept_lost_input_option,
    allow_new_query_option,
    allow_state_loss_option,
    assume_dead_option,
    code_options,
    key_values,
    label_option,
    launcher_options,
    master_option,
    max_lag_option,
    max_snapshot_age_option,
    move_source_option,
    on_query_failure_option,
    option,
    pass_session,
    rename_query_option,
    restart_options,
    restart_policy_of,
    script_arguments,
    stream_argument,
)
from airflow_streamstate.cli.session import Report, ShellSession
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.observe.views import DeploymentView, StreamStatus
from airflow_streamstate.controller.request.requests import DeployRequest
from airflow_streamstate.controller.request.requests import deploy_request as request_to_deploy
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.declarations.reading import DeclaredStream, need_stream
from airflow_streamstate.declarations.versions import deploy_request as declared_request
from airflow_streamstate.launch.options import plain_options
from airflow_streamstate.protocol.events import Noted
from airflow_streamstate.protocol.settings import OF_NO_NUMBER, AgentSettings, default_settings
from airflow_streamstate.protocol.terms.start import StartMode
from airflow_streamstate.protocol.terms.version import LauncherChoice


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


def read_offsets_file(path: str | None) -> dict[str, tuple[str, ...]]:
    """The offsets in the file of ``--offsets``; none for None."""
    if path is None:
        return {}
    try:
        return read_offsets(json.loads(Path(path).read_text()))
    except OSError as error:
        raise click.UsageError(f"--offsets: {path} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"--offsets: {path} holds no offsets ({error})") from None


_PATHS = ("py_files", "files")
LISTS = (*_PATHS, "packages", "jars")
SETTINGS = tuple(field.name for field in fields(AgentSettings) if field.name not in OF_NO_NUMBER)
HEALTHY = "each query has committed a batch, or has found no input"
setting_option = option(
    "--setting",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    callback=key_values,
    heading="Start",
    help=f"A setting of the agent in the driver: {', '.join(SETTINGS)}. Repeatable.",
)


keep_running_option = option(
    "--keep-running",
    is_flag=True,
    heading="Start",
    help="Wait for new parts where every part of every source is finished, instead of draining by itself.",
)
group_option = option(
    "--commit-offsets-to-group",
    metavar="NAME",
    default="",
    heading="Start",
    help="Commit the offsets of each batch to this consumer group of Kafka, for Kafka's own tools; never read back.",
)


@click.command(cls=OrderVerb, waits_until=HEALTHY)
@stream_argument
@option("--app", "application", metavar="PATH", help="The PySpark script, unmodified.")
@option(
    "--spec",
    "spec_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The file of the stream, as `apply` takes it, instead of --app and what else it says.",
)
@option(
    "--root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="FOLDER",
    help="With --spec: refuse a file whose paths leave this folder, links followed.",
)
@option(
    "--start",
    "start_mode",
    type=click.Choice(["restore", "seed", "fresh"]),
    help="Start with the state of the last snapshot, only its offsets, or empty. By default the last snapshot decides"
    " between the first two.",
)
@master_option
@code_options
@launcher_options
@label_option
@max_lag_option
@option(
    "--attach", "attaches", is_flag=True, heading="Code", help="The script calls attach() itself: submit it as it is."
)
@option(
    "--snapshot",
    "snapshot_id",
    metavar="ID",
    heading="Start",
    help="Check that it starts from this snapshot.",
)
@option(
    "--offsets",
    "offsets_path",
    metavar="FILE",
    heading="Start",
    help="With --start seed: start at these offsets, by query, as `snapshot list --json` shows them.",
)
@option(
    "--at",
    "begins_at",
    type=Moment(),
    metavar="TIMESTAMP",
    heading="Start",
    help="With --start seed: start with the input of this time.",
)
@max_snapshot_age_option
@on_query_failure_option
@restart_options("Restart")
@setting_option
@keep_running_option
@group_option
@option(
    "--mirror",
    "mirrors",
    multiple=True,
    metavar="URI",
    heading="Start",
    help="Also copy snapshots there. Repeatable.",
)
@option(
    "--snapshots",
    metavar="none|URI",
    default="",
    heading="Start",
    help="Keep its snapshots there instead of beside its checkpoints; `none`: take none while it runs.",
)
@allow_state_loss_option
@allow_new_query_option
@rename_query_option
@move_source_option
@accept_lost_input_option
@option(
    "--accept-repeated-input",
    multiple=True,
    metavar="NAME",
    heading="Consent",
    help="A query that may read input a second time. Repeatable.",
)
@accept_hazards_option
@assume_dead_option
@option("--revive", "revive", is_flag=True, heading="Consent", help="Deploy although the stream was retired.")
@script_arguments
@pass_session
def deploy(
    session: ShellSession,
    /,
    stream_id: str,
    start_mode: StartMode | None,
    ordering: Ordering,
    max_lag: int | None,
    spec_path: Path | None,
    root: Path | None,
    offsets_path: str | None,
    mirrors: tuple[str, ...],
    **given: Any,
) -> None:
    """Make a script the next version of STREAM, and start it.

    It continues from the last snapshot of the version before: with its state after a stop, at its offsets after a
    drain. The script, --py-files and --files are pinned: every later start of this deployment runs these bytes. The
    words after -- are the script's arguments.

    In --conf, --env and arguments env://NAME stands for a secret of this shell's environment, looked up at each launch.
    """
    if spec_path is not None:
        request = _declared_request(session, stream_id, need_stream(spec_path, root), ordering)
    elif root is not None:
        raise click.UsageError("--root is of the file that --spec names.")
    elif given["application"] is None:
        raise click.UsageError("Name a script by --app, or the file of a stream by --spec.")
    else:
        allow_stores(session, mirrors)
        restarts = restart_policy_of(given)
        request = deploy_request(
            session,
            stream_id,
            ordering,
            **given,
            restart_policy=restarts,
            start=start_mode,
            offsets=read_offsets_file(offsets_path),
            mirrors=tuple(dict.fromkeys(session.controller().mirrors.open(uri).uri for uri in mirrors)),
        )
    _refuse_lag_without_wait(ordering, max_lag)
    allow_request(session, request)
    controller = session.controller()
    said: list[DeploymentView] = []

    def say(start: DeploymentView) -> None:
        said.append(start)
        session.say(lambda console: render.deploying(console, start.to_json()))

    view = controller.deploy(request, say)  # prints the start mode before anything starts
    if not said:
        say(view)  # the request was carried out before
    wait_and_emit(session, controller, view, ordering, max_lag)


@click.command(cls=OrderVerb, waits_until=HEALTHY)
@stream_argument
@max_lag_option
@restart_options("Restart")
@accept_hazards_option
@assume_dead_option
@pass_session
def resume(
    session: ShellSession,
    /,
    stream_id: str,
    accept_hazards: bool,
    assume_dead: bool,
    max_lag: int | None,
    ordering: Ordering,
    **given: Any,
) -> None:
    """Start the current deployment of STREAM again: its recorded code, on its own checkpoints.

    For a deployment that was stopped or killed, has finished or failed. After a drain use deploy.
    """
    _refuse_lag_without_wait(ordering, max_lag)
    controller = session.controller()
    restarts = controller.supervision.checked(stream_id, restart_policy_of(given))
    view = controller.resume(
        stream_id,
        request_id=ordering.request_id,
        assume_dead=assume_dead,
        reason=ordering.reason,
        accept_hazards=accept_hazards,
    )
    if restarts:
        controller.supervision.change_policy(stream_id, restarts)
    session.say(lambda console: render.resuming(console, view.to_json()))
    wait_and_emit(session, controller, view, ordering, max_lag)


def deploy_request(session: ShellSession, stream_id: str, ordering: Ordering, **given: Any) -> DeployRequest:
    """The request of the options that ``deploy`` and ``adopt`` share, with what else is given."""
    given |= {
        **lists_of(given),
        **code_of(given),
        "settings": _settings_of(
            session,
            given["settings"],
            keep_running=given.pop("keep_running", False),
            commit_offsets_to_group=given.pop("commit_offsets_to_group", ""),
        ),
        "on_query_failure": given["on_query_failure"] or "script",
    }
    del given["launcher_options"]
    return request_to_deploy(stream_id, Path(given.pop("application")), **ordering.facts, **given)


def _declared_request(
    session: ShellSession, stream_id: str, declared: DeclaredStream, ordering: Ordering
) -> DeployRequest:
    """The request of a stream's file; beside it only the order, the wait and consents may be given."""
    context = click.get_current_context()
    consents: dict[str, Any] = {}
    for parameter in context.command.params:
        name, heading = str(parameter.name), getattr(parameter, "heading", None)
        if name in ("stream_id", "spec_path", "root", "max_lag") or not context.params.get(name):
            continue
        if name == "start_mode" and context.params[name] == "fresh":
            consents["start"] = "fresh"  # a file that says it would begin again at each later deploy
        elif heading == "Consent":
            consents[name] = context.params[name]
        elif context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            said = "the words after --" if heading is None else parameter.opts[0]
            raise click.UsageError(f"--spec says all of a stream: leave out {said}, or write it into {declared.path}.")
    if declared.stream_id != stream_id:
        raise click.UsageError(f"{declared.path} is the file of {declared.stream_id}, not of {stream_id}.")
    request = declared_request(declared, session.home().home.uri, ordering.request_id)
    terms = replace(request.terms, **consents)
    return replace(request, terms=terms, reason=ordering.reason or request.reason)


def _settings_of(session: ShellSession, named: Mapping[str, str], **plain: Any) -> AgentSettings | None:
    if not named and not any(plain.values()):
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
    return replace(default_settings(session.home().home.uri), **plain, **values)


def split(values: tuple[str, ...]) -> tuple[str, ...]:
    """The parts of an option that is repeated, or given with commas."""
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


def lists_of(given: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """The given options among ``LISTS``, split; ``--py-files`` and ``--files`` as paths."""
    found = {name: split(given[name]) for name in LISTS if name in given}
    return {name: tuple(map(Path, parts)) if name in _PATHS else parts for name, parts in found.items()}


def code_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """``--modules``, ``--working-folder`` and the launcher as a request has them; None where they are not given."""
    folder = given.get("working_folder")
    return {
        "launcher": launcher_of(given.get("launcher"), given.get("launcher_options") or {}),
        "modules": given.get("modules") or None,
        "working_folder": None if folder is None else Path(folder).expanduser().absolute(),
    }


def launcher_of(name: str | None, options: Mapping[str, str]) -> LauncherChoice | None:
    """The launcher of ``--launcher`` and its options: lists and objects read as JSON, ``@FILE`` as that file's text.

    Without a name the options are those of the launcher that the stream has. None where neither is given.
    """
    if name is None and not options:
        return None
    found: dict[str, object] = {}
    for key, text in options.items():
        found[key] = text
        if text.startswith("@"):
            try:
                found[key] = Path(text[1:]).expanduser().read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                reason = getattr(error, "strerror", None) or "it is no UTF-8"
                raise click.UsageError(f"the file of the launcher's option {key} cannot be read: {reason}.") from None
    return LauncherChoice(name or "", plain_options(found))


def _refuse_lag_without_wait(ordering: Ordering, max_lag: int | None) -> None:
    if max_lag is not None and ordering.timeout_seconds is None:
        raise click.UsageError("--max-lag needs a wait, and --async does not wait: leave out one of them.")


def wait_and_emit(
    session: ShellSession, controller: Controller, view: DeploymentView, ordering: Ordering, max_lag: int | None = None
) -> None:
    """Print the started deployment: with ``--async`` at once, else when it is healthy and within ``max_lag``, with what
    its driver has noted by then."""
    result, noted = view.to_json(), list[str]()
    if ordering.timeout_seconds is not None:
        with session.progress(f"{view.stream_id} {view.deployment_id}") as report:
            status = _waited(controller, view, ordering.timeout_seconds, max_lag, report)
        seen, noted = status.to_json(), _noted(controller, view)
        result |= {name: seen[name] for name in ("state", "queries", "proofs", "remarks")}
        result["notes"] = [*view.notes, *noted]
    session.emit(result, lambda console: render.standing(console, result, noted))


def _noted(controller: Controller, view: DeploymentView) -> list[str]:
    """The notes of this attempt's driver, each once, with those of their facts that the text does not have."""
    found = []
    for entry in controller.events(view.stream_id, view.deployment_id):
        event = entry.event
        if isinstance(event, Noted) and event.attempt == view.attempt:
            facts = ", ".join(f"{name}={fact}" for name, fact in event.facts.items() if str(fact) not in event.text)
            found.append(f"{event.text} ({facts})" if facts else event.text)
    return list(dict.fromkeys(found))


def _waited(
    controller: Controller, view: DeploymentView, seconds: float, max_lag: int | None, report: Report
) -> StreamStatus:
    condition = WaitCondition("healthy", view.stream_id, view.deployment_id)
    if max_lag is not None:
        condition = replace(condition, wanted="caught_up", max_lag=max_lag)
    return controller.wait(condition, seconds, report).status
