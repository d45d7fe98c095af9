"""``skip``: a batch that always fails, passed over by name."""

from __future__ import annotations

from typing import Any

import click

from airflow_streamstate.cli import tables
from airflow_streamstate.cli.options import (
    HelpfulCommand,
    pass_session,
    request_option,
    shared,
    stream_argument,
    wait_option,
)
from airflow_streamstate.cli.session import Session
from airflow_streamstate.controller.deploy.skips import SkipView, SkipWish


@click.command(cls=HelpfulCommand, short_help="Commit a batch that always fails without its rows, and go on.")
@stream_argument
@click.option("--batch", "batch_id", type=click.IntRange(min=0), required=True, metavar="N", help="The planned batch.")
@click.option("--reason", required=True, metavar="TEXT", help="Why; kept with the gap that it leaves.")
@click.option("--query", "query_name", metavar="NAME", help="Whose batch, where several queries have that one planned.")
@click.option(
    "--accept-written-rows",
    "accepts_written",
    is_flag=True,
    help="The sink may hold some of its output, and that stays there.",
)
@click.option("--assume-dead", is_flag=True, help="Go on although nobody can say whether the old driver is dead.")
@click.option("--show", is_flag=True, help="Only show what would be passed over.")
@request_option
@wait_option("the batch is skipped")
@shared
@pass_session
def skip(
    session: Session,
    /,
    stream_id: str,
    show: bool,
    request_id: str | None,
    wait_seconds: float | None,
    **given: Any,
) -> None:
    """Commit a batch of STREAM that is planned and always fails, without reading its rows, and go on behind it.

    For a STREAM that has ended: the next attempt is started, and does it before the query starts. The state stays as it
    was, the offsets between which nobody reads are a gap with a name, in `status` and in `audit`. Where the sink may
    hold some of that batch it is refused, unless --accept-written-rows.
    """
    controller, wish = session.controller(), SkipWish(stream_id, **given)
    if show:
        view = controller.starts.what_skip_passes_over(wish).to_json()
        session.emit(view, lambda console: tables.moved(console, view))
        return
    said: dict[str, object] = {}

    def say(view: SkipView) -> None:
        said.update(view.to_json())
        session.say(lambda console: tables.moved(console, said))

    order = controller.starts.skip(wish, request_id, say)
    result: dict[str, object] = {"query": given["query_name"], "batch_id": wish.batch_id, **said, **order.to_json()}
    if wait_seconds is not None:
        with session.progress(f"{order.stream_id} {order.deployment_id}") as report:
            where = order.stream_id, order.deployment_id, order.command_id
            outcome = controller.wait_for_command(*where, timeout_seconds=wait_seconds, on_progress=report)
        result |= {"outcome": outcome.outcome, "state": outcome.state}
    session.emit(result, lambda console: tables.skipped(console, result))
