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

from airflow_streamstate.cli import render
from airflow_streamstate.cli.options import (
    Order,
    Ordering,
    Seconds,
    allow_new_query_option,
    code_options,
    label_option,
    master_option,
    on_query_failure_option,
    option,
    pass_session,
    script_arguments,
    stream_argument,
)
from airflow_streamstate.cli.session import Session
from airflow_streamstate.cli.start import HEALTHY, setting_option, settings_of, split, wait_and_emit
from airflow_streamstate.controller.adopt.requests import DEADLINE_SECONDS, AdoptRequest, read_checkpoints
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.observe.views import DeploymentView
from airflow_streamstate.controller.request.requests import DeployRequest
from airflow_streamstate.protocol.records import OnQueryFailure


@click.command(cls=Order, waits_until=HEALTHY)
@stream_argument
@option(
    "--checkpoint",
    "foreign",
    multiple=True,
    metavar="[NAME=]URI",
    help="The query's checkpoint. NAME as the script will start it, the folder's own by default. Repeatable.",
)
@option("--app", "application", metavar="PATH", help="The PySpark script that goes on with it, unmodified.")
@option("--stopped", "is_stopped", is_flag=True, help="Nothing runs on these checkpoints: you say so.")
@option(
    "--deadline",
    "deadline_seconds",
    type=Seconds(1.0),
    default=DEADLINE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="By when a running query must have met its barrier. An idle one does not. Then all is as it was.",
)
@option("--give-up", is_flag=True, help="Take the barriers back: the query may be started again as it was.")
@master_option
@code_options
@label_option
@on_query_failure_option
@setting_option
@allow_new_query_option
@script_arguments
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
    ordering: Ordering,
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
            **ordering.facts,
            **rest,
        ),
        checkpoints=read_checkpoints(foreign),
        is_stopped=is_stopped,
        deadline_seconds=deadline_seconds,
    )
    with session.progress(f"adopting {stream_id}") as report:

        def say(start: DeploymentView) -> None:
            session.say(lambda console: render.deploying(console, start.to_json()))

        with _ended_in_order():
            view = controller.adoptions.adopt(request, say, report)
    wait_and_emit(session, controller, view, ordering)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """A signal that asks this process to end acts as Ctrl-C: the barrier is taken back first (Law 12).

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
    session.emit(result, lambda console: render.given_up(console, result))
