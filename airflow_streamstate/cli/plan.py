"""``plan``: what a change would do, before anything is stopped."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from airflow_streamstate.cli import plan_tables
from airflow_streamstate.cli.changes import change_of, change_options, names_anything
from airflow_streamstate.cli.exits import DONE, status_of_rehearsal
from airflow_streamstate.cli.options import (
    HelpfulCommand,
    Seconds,
    pass_session,
    request_option,
    shared,
    stream_argument,
)
from airflow_streamstate.cli.session import Session
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.rehearsal.planning import DEADLINE_SECONDS
from airflow_streamstate.controller.request.changes import ChangeRequest
from airflow_streamstate.plan.report import PlanReport, to_markdown
from airflow_streamstate.plan.tree import plan_tree_text


@click.command(cls=HelpfulCommand, short_help="Say whether a change fits, before anything is stopped.")
@stream_argument
@click.option(
    "--rehearse/--no-rehearsal",
    "runs_batches",
    default=True,
    help="Run an empty batch of each query on a fork of its state, into no sink; or compare the plans alone. The "
    "script runs once in both, with STREAMSTATE_REHEARSAL=1 in its environment.",
)
@change_options
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the report as Markdown, for a pull request.")
@request_option
@click.option(
    "--wait",
    "wait_seconds",
    type=Seconds(1.0),
    default=DEADLINE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long the rehearsal may take; then it is ended.",
)
@shared
@pass_session
def plan(
    session: Session,
    /,
    stream_id: str,
    runs_batches: bool,
    as_markdown: bool,
    wait_seconds: float,
    request_id: str | None,
    **change: Any,
) -> int:
    """Say whether a change of STREAM fits, before anything is stopped.

    What is not given stays as the current deployment has it. The new script runs once, in a driver of its own: each
    of its queries is compared with the one that runs now, and tried with an empty batch on a fork of its state.
    Neither the stream nor its checkpoints, its sources' positions or any sink is touched, and what the rehearsal made
    is removed.

    Exit status 0 where the change is `same` or `state-compatible` and its rehearsal went well, 4 where it does not
    fit, 1 where the script failed, 3 where it was not over in time.

    Without a change: the recorded plan of what runs, as a tree.
    """
    controller = session.controller()
    if not names_anything(change):
        return _show(session, controller, stream_id)
    request = change_of(stream_id, change)
    report = _rehearsed(session, controller, request, request_id, runs_batches=runs_batches, seconds=wait_seconds)
    if as_markdown and not session.as_json:
        click.echo(to_markdown(report), nl=False)
    else:
        session.emit(report.to_json(), lambda console: plan_tables.report(console, report))
    return status_of_rehearsal(report.outcome)


def _rehearsed(
    session: Session,
    controller: Controller,
    request: ChangeRequest,
    request_id: str | None,
    *,
    runs_batches: bool,
    seconds: float,
) -> PlanReport:
    view = controller.plans.begin(request, request_id=request_id, runs_batches=runs_batches, deadline_seconds=seconds)
    session.say(lambda console: plan_tables.rehearsing(console, view, runs_batches=runs_batches))
    try:
        with session.progress(f"{view.stream_id} {view.rehearsal_id}") as on_progress:
            return controller.plans.wait(view, on_progress)
    except KeyboardInterrupt:
        controller.plans.give_up(view.stream_id, view.rehearsal_id)
        raise


def _show(session: Session, controller: Controller, stream_id: str) -> int:
    found = controller.plans.recorded(stream_id)
    result = {
        "stream_id": found.stream_id,
        "deployment_id": found.deployment_id,
        "queries": {name: asdict(known) for name, known in found.queries.items()},
        "unknown": list(found.unknown),
        "notes": list(found.notes),
    }
    trees = {name: plan_tree_text(known) for name, known in found.queries.items()}
    session.emit(result, lambda console: plan_tables.recorded(console, found, trees))
    return DONE
