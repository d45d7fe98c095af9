"""``deploy``, ``resume`` and ``adopt``: the verbs that start a stream or a driver."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from airflow_streamstate.cli import render
from airflow_streamstate.cli.naming import allow_checkpoints, allow_request, allow_stores
from airflow_streamstate.cli.options import (
    Ordering,
    OrderVerb,
    deadline_option,
    is_given,
    option,
    options,
    pass_session,
    stream_argument,
    term_options,
    terms_given,
    values_given,
)
from airflow_streamstate.cli.session import Report, ShellSession
from airflow_streamstate.protocol.events import Noted
from airflow_streamstate.protocol.policies import RestartPolicy
from airflow_streamstate.protocol.records import ADOPT_SECONDS, StateRewrite
from airflow_streamstate.protocol.settings import default_settings
from airflow_streamstate.protocol.terms.declaration import terms_of
from airflow_streamstate.protocol.terms.order import FileTerms
from airflow_streamstate.protocol.terms.version import (
    CodeTerms,
    HandoverTerms,
    LauncherChoice,
    StartTerms,
    StreamTerms,
    Version,
)

if TYPE_CHECKING:
    from airflow_streamstate.controller.client import Controller
    from airflow_streamstate.controller.observe.views import DeploymentView, StreamStatus
    from airflow_streamstate.controller.request.requests import ChangeRequest, DeployRequest
    from airflow_streamstate.declarations.reader import DeclaredStream


# The options of a version, and what is asked for by them: of the verbs that start a stream, and that change it.

code_options = term_options(CodeTerms)
_OF_A_CHANGE = (Version, HandoverTerms, StateRewrite)
change_options = options(
    term_options(Version, "change", stays=True),
    code_options,
    term_options(HandoverTerms, "change", stays=True),
    term_options(StateRewrite, stays=True),
)
"""Of the verbs that change what a stream runs."""


def names_anything(given: Mapping[str, Any]) -> bool:
    """Whether any of the ``change_options`` is given; a label alone changes nothing that runs."""
    labels = {one.name for one in terms_of(Version) if one.declared.changes == "label"}
    is_other_spark = "spark" in values_given(CodeTerms, given)
    return is_other_spark or any(values_given(cls, given).keys() - labels for cls in _OF_A_CHANGE)


def change_of(stream_id: str, given: Mapping[str, Any], ordering: Ordering) -> ChangeRequest:
    """The request; omitted options leave the stream as it is. Raises InvalidRequestError for an invalid one."""
    from airflow_streamstate.controller.request.requests import change_request

    return change_request(
        stream_id,
        reason=ordering.reason,
        **version_given(given),
        **values_given(HandoverTerms, given),
        **values_given(StateRewrite, given),
    )


def deploy_request(
    session: ShellSession, stream_id: str, ordering: Ordering, given: Mapping[str, Any]
) -> DeployRequest:
    """The request of the options of a version, of how it starts, and of its stream. Raises as ``change_of``."""
    from airflow_streamstate.controller.request.requests import deploy_request as request_to_deploy

    version = version_given(given)
    if "settings" in version:
        version["settings"] = replace(default_settings(session.home().home.uri), **version["settings"])
    mirrors = session.controller().mirrors
    for uri in version.get("mirrors", ()):
        mirrors.open(uri)  # refuses the home itself
    return request_to_deploy(
        stream_id,
        **ordering.facts,
        **version,
        **values_given(StartTerms, given),
        **values_given(StreamTerms, given),
    )


def version_given(given: Mapping[str, Any]) -> dict[str, Any]:
    """What is given of a version, as ``read_patch`` takes it; of its settings only those that are given."""
    found = {**values_given(Version, given), **values_given(CodeTerms, given)}
    if "launcher" in found:
        found["launcher"] = launcher_of(given)
    return found


def launcher_of(given: Mapping[str, Any]) -> LauncherChoice | None:
    """The launcher of ``--launcher`` and its options; None where neither is given.

    Without a name the options are those of the launcher that the stream has.
    """
    values = values_given(LauncherChoice, given)
    return LauncherChoice(**{"name": "", **values}) if values else None


HEALTHY = "each query has committed a batch, or has found no input"
max_lag_option = option(
    "--max-lag",
    type=click.IntRange(min=0),
    metavar="N",
    help="Also wait until no source has more than N left to read. In its own unit: rows, files, versions.",
)


@click.command(cls=OrderVerb, waits_until=HEALTHY)
@stream_argument
@term_options(Version)
@code_options
@option(
    "--spec",
    "spec_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The file of the stream, as `apply` takes it, in place of those options; --root limits its paths.",
)
@term_options(FileTerms)
@term_options(StartTerms)
@term_options(StreamTerms)
@max_lag_option
@pass_session
def deploy(
    session: ShellSession,
    /,
    stream_id: str,
    ordering: Ordering,
    max_lag: int | None,
    spec_path: Path | None,
    **given: Any,
) -> None:
    """Make a script the next version of STREAM, and start it.

    It continues from the last snapshot of the version before: with its state after a stop, at its offsets after a
    drain. The script, --py-files and --files are pinned: every later start of this deployment runs these bytes. The
    words after -- are the script's arguments.

    In --conf, --env and arguments env://NAME means a secret of this shell's environment, looked up at each launch.
    """
    from airflow_streamstate.declarations.reader import need_stream

    root = terms_given(FileTerms, given).root
    if spec_path is not None:
        request = _declared_request(session, stream_id, need_stream(spec_path, root), ordering)
    elif root is not None:
        raise click.UsageError("--root is of the file that --spec names.")
    elif given["application"] is None:
        raise click.UsageError("Name a script by --app, or the file of a stream by --spec.")
    else:
        allow_stores(session, given["mirrors"])
        request = deploy_request(session, stream_id, ordering, given)
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
@term_options(RestartPolicy, stays=True)
@term_options(StartTerms, "resume")
@pass_session
def resume(session: ShellSession, /, stream_id: str, max_lag: int | None, ordering: Ordering, **given: Any) -> None:
    """Start the current deployment of STREAM again: its recorded code, on its own checkpoints.

    For a deployment that was stopped or killed, has finished or failed. After a drain use deploy.
    """
    _refuse_lag_without_wait(ordering, max_lag)
    controller = session.controller()
    restarts = controller.details.checked_restarts(stream_id, values_given(RestartPolicy, given))
    view = controller.resume(stream_id, **ordering.facts, **values_given(StartTerms, given))
    if restarts:
        controller.details.change_restart_policy(stream_id, restarts)
    session.say(lambda console: render.resuming(console, view.to_json()))
    wait_and_emit(session, controller, view, ordering, max_lag)


def _declared_request(
    session: ShellSession, stream_id: str, declared: DeclaredStream, ordering: Ordering
) -> DeployRequest:
    """The request of a stream's file; with it only the order, the wait and consents may be given."""
    from airflow_streamstate.declarations.reader import deploy_request as declared_request

    context = click.get_current_context()
    consents: dict[str, Any] = {}
    for parameter in context.command.params:
        name, heading = str(parameter.name), getattr(parameter, "heading", None)
        if name in ("stream_id", "spec_path", "root", "max_lag") or not is_given(name):
            continue
        if name == "start" and context.params[name] == "fresh":
            consents[name] = "fresh"  # a file with it would start again at each later deploy
        elif heading == "Consent":
            consents[name] = context.params[name]
        else:
            said = "the words after --" if heading is None else parameter.opts[0]
            raise click.UsageError(f"--spec declares the stream: leave out {said}, or write it into {declared.path}.")
    if declared.stream_id != stream_id:
        raise click.UsageError(f"{declared.path} is the file of {declared.stream_id}, not of {stream_id}.")
    request = declared_request(declared, session.home().home.uri, ordering.request_id)
    terms = replace(request.terms, **consents)
    return replace(request, terms=terms, reason=ordering.reason or request.reason)


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
    from airflow_streamstate.controller.wait.condition import WaitCondition

    condition = WaitCondition("healthy", view.stream_id, view.deployment_id)
    if max_lag is not None:
        condition = replace(condition, wanted="caught_up", max_lag=max_lag)
    return controller.wait(condition, seconds, report).status


# ``adopt``: continue a query that ran without streamstate, as a stream.


@click.command(cls=OrderVerb, waits_until=HEALTHY)
@stream_argument
@option(
    "--checkpoint",
    "foreign",
    multiple=True,
    metavar="[NAME=]URI",
    help="The query's checkpoint. NAME of the query in the script, by default the folder's name. Repeatable.",
)
@term_options(Version, "adopt")
@code_options
@option("--stopped", "is_stopped", is_flag=True, help="State that nothing runs on these checkpoints.")
@deadline_option(
    ADOPT_SECONDS, "By when a running query must reach its barrier. An idle one does not; then nothing has changed."
)
@option("--give-up", is_flag=True, help="Remove the barriers, so that the query can be started again as it was.")
@term_options(HandoverTerms, "adopt")
@pass_session
def adopt(
    session: ShellSession,
    /,
    stream_id: str,
    foreign: tuple[str, ...],
    is_stopped: bool,
    deadline_seconds: float,
    give_up: bool,
    ordering: Ordering,
    **given: Any,
) -> None:
    """Continue a query that ran without streamstate as the new STREAM, with its state, query id and batch ids.

    A running query ends at a barrier after its next batch; its checkpoint is copied, and --app continues from there.
    The original stays as it was, except for the barrier: Spark refuses to start over it. An idle query does not reach
    it. After an interruption the same command continues.
    """
    from airflow_streamstate.controller.adopt.adoptions import AdoptRequest, read_checkpoints

    if give_up:
        _give_up(session, session.controller(), stream_id, is_alone=not (foreign or given["application"]))
        return
    if not foreign or given["application"] is None:
        raise click.UsageError(f"Missing option '{'--app' if foreign else '--checkpoint'}'.")
    request = AdoptRequest(
        deploy=deploy_request(session, stream_id, ordering, given),
        checkpoints=read_checkpoints(foreign),
        is_stopped=is_stopped,
        deadline_seconds=deadline_seconds,
    )
    allow_request(session, request.deploy)
    allow_checkpoints(session, request.checkpoints.values())
    controller = session.controller()
    with session.progress(f"adopting {stream_id}") as report:

        def say(start: DeploymentView) -> None:
            session.say(lambda console: render.deploying(console, start.to_json()))

        with _ended_in_order():
            view = controller.adoptions.adopt(request, say, report)
    wait_and_emit(session, controller, view, ordering)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP act as Ctrl-C, so that the barrier is withdrawn first (Law 12).

    Only the first signal counts: an init system sends SIGHUP right after SIGTERM.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        ends = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, interrupt) for number in ends}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _give_up(session: ShellSession, controller: Controller, stream_id: str, *, is_alone: bool) -> None:
    if not is_alone:
        raise click.UsageError("--give-up only withdraws what was started: leave out --checkpoint and --app.")
    result = controller.adoptions.give_up(stream_id).to_json()
    session.emit(result, lambda console: render.given_up(console, result))
