"""``adopt``: a query that ran without streamstate goes on as a stream."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import click

from airflow_streamstate.cli import tables
from airflow_streamstate.cli.options import (
    HelpfulCommand,
    Seconds,
    code_options,
    fresh_query_option,
    on_query_failure_option,
    pass_session,
    reason_option,
    request_option,
    shared,
    stream_argument,
    wait_option,
)
from airflow_streamstate.cli.session import Session
from airflow_streamstate.cli.start import Goal, setting_option, settings_of, split, wait_and_emit
from airflow_streamstate.controller.adopt.requests import DEADLINE_SECONDS, AdoptRequest, read_checkpoints
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.observe.views import DeploymentView
from airflow_streamstate.controller.request.requests import DeployRequest
from airflow_streamstate.protocol.records import OnQueryFailure


@click.command(cls=HelpfulCommand, short_help="Go on with a query that ran without streamstate, as a stream.")
@stream_argument
@click.option(
    "--checkpoint",
    "foreign",
    multiple=True,
    metavar="[NAME=]URI",
    help="The query's checkpoint; NAME as the script will start it, the folder's own by default. Repeatable.",
)
@click.option("--app", "application", metavar="PATH", help="The PySpark script that goes on with it, unmodified.")
@click.option("--stopped", "is_stopped", is_flag=True, help="Nothing runs on these checkpoints: you say so.")
@click.option(
    "--deadline",
    "deadline_seconds",
    type=Seconds(1.0),
    default=DEADLINE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Until when a running query must have met its barrier; an idle one does not. Then all is as it was.",
)
@click.option("--give-up", is_flag=True, help="Take the barriers back: the query may be started again as it was.")
@click.option("--master", metavar="URL", help="Spark's master; local[*] by default.")
@code_options
@setting_option
@fresh_query_option
@on_query_failure_option
@click.option("--label", "version_label", default="", metavar="TEXT", help="Your own name of this version.")
@reason_option
@request_option
@wait_option("each query has committed a batch, or has found no input")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS]...")
@shared
@pass_session
def adopt(
    session: Session,
    /,
    stream_id: str,
    foreign: tuple[str, ...],
    application: str | None,
    is_stopped: bool,
    deadline_seconds: float,
    give_up: bool,
    wait_seconds: float | None,
    arguments: tuple[str, ...],
    py_files: tuple[str, ...],
    files: tuple[str, ...],
    packages: tuple[str, ...],
    jars: tuple[str, ...],
    settings: dict[str, str],
    on_query_failure: OnQueryFailure | None,
    **rest: Any,
) -> None:
    """Go on with a query that ran without streamstate, as the new STREAM: its state, its query id, its batch ids.

    A running query ends at a barrier behind its next batch; its checkpoint is copied, and --app goes on from there. The
    original stays as it was, but for the barrier: Spark refuses to start over it. While the query is idle it does not
    notice. Cut short, or asked for twice at once, the same command goes on where it was.
    """
    controller = session.controller()
    if give_up:
        _give_up(session, controller, stream_id, is_alone=not (foreign or application))
        return
    if not foreign or application is None:
        raise click.UsageError(f"Missing option '{'--app' if foreign else '--checkpoint'}'.")
    request = AdoptRequest(
        deploy=DeployRequest(
            stream_id=stream_id,
            application=Path(application),
            arguments=arguments,
            py_files=tuple(Path(part) for part in split(py_files)),
            files=tuple(Path(part) for part in split(files)),
            packages=split(packages),
            jars=split(jars),
            settings=settings_of(session, settings),
            on_query_failure=on_query_failure or "script",
            **rest,
        ),
        checkpoints=read_checkpoints(foreign),
        is_stopped=is_stopped,
        deadline_seconds=deadline_seconds,
    )
    with session.progress(f"adopting {stream_id}") as report:

        def say(start: DeploymentView) -> None:
            session.say(lambda console: tables.deploying(console, start.to_json()))

        with _ended_in_order():
            view = controller.adoptions.adopt(request, say, report)
    wait_and_emit(session, controller, view, Goal(wait_seconds))


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Who ends this process politely ends it as ctrl-c does: the barrier is taken back first (Law 12).

    Only the first such signal counts: an init system sends SIGHUP right behind SIGTERM, and would end the taking back.
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


def _give_up(session: Session, controller: Controller, stream_id: str, *, is_alone: bool) -> None:
    if not is_alone:
        raise click.UsageError("--give-up takes back what was begun: it needs no checkpoint and no script.")
    result = controller.adoptions.give_up(stream_id).to_json()
    session.emit(result, lambda console: tables.given_up(console, result))
