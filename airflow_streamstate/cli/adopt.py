"""``adopt``: continue a query that ran without streamstate, as a stream."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from airflow_streamstate.cli import render
from airflow_streamstate.cli.changes import deploy_request, literal_secrets_option
from airflow_streamstate.cli.naming import allow_checkpoints, allow_request
from airflow_streamstate.cli.options import (
    Ordering,
    OrderVerb,
    deadline_option,
    option,
    pass_session,
    stream_argument,
)
from airflow_streamstate.cli.session import ShellSession
from airflow_streamstate.cli.start import HEALTHY, wait_and_emit
from airflow_streamstate.cli.term_options import term_options
from airflow_streamstate.protocol.adoptions import ADOPT_SECONDS
from airflow_streamstate.protocol.terms.start import HandoverTerms
from airflow_streamstate.protocol.terms.version import Version

if TYPE_CHECKING:
    from airflow_streamstate.controller.client import Controller
    from airflow_streamstate.controller.observe.views import DeploymentView


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
@literal_secrets_option
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
    from airflow_streamstate.controller.adopt.requests import AdoptRequest, read_checkpoints

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
    """SIGTERM and SIGHUP act as Ctrl-C, so that the barrier is taken back first (Law 12).

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
        raise click.UsageError("--give-up only takes back what was begun: leave out --checkpoint and --app.")
    result = controller.adoptions.give_up(stream_id).to_json()
    session.emit(result, lambda console: render.given_up(console, result))
