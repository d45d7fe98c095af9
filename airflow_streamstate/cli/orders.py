"""``stop``, ``drain``, ``kill`` and ``skip``: orders to one deployment."""

from __future__ import annotations

from typing import Any

import click

from airflow_streamstate.cli import render
from airflow_streamstate.cli.options import (
    Ordering,
    OrderVerb,
    Seconds,
    Verb,
    deployment_option,
    expires_in_option,
    is_given,
    option,
    pass_session,
    stream_argument,
)
from airflow_streamstate.cli.session import ShellSession
from airflow_streamstate.cli.term_options import term_options
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.commands.forced_stop import ON_DEADLINE, OnDeadline
from airflow_streamstate.controller.deploy.skips import SkipOrder, SkipView
from airflow_streamstate.controller.observe.views import CommandView, Outcome
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.protocol.commands import DrainMode, DrainTerms, OnDrainDeadline
from airflow_streamstate.protocol.terms.start import StartTerms

DRAIN_DEADLINES: tuple[OnDrainDeadline, ...] = ("fail", "stop", "kill")
_NOT_YET = {"snapshot": {"kind": None, "files": None, "bytes": None}}


@click.command(cls=OrderVerb, waits_until="it has stopped and its snapshot is complete")
@stream_argument
@deployment_option
@option(
    "--deadline",
    "deadline_seconds",
    type=Seconds(0.1),
    metavar="SECONDS",
    help="Seconds until it must have stopped with a complete snapshot; replaces --timeout.",
)
@option(
    "--on-deadline",
    type=click.Choice(ON_DEADLINE),
    help="At the deadline: fail (the default) withdraws an order that is not begun, and fails; kill ends the driver,"
    " and keeps its end in a snapshot.",
)
@expires_in_option
@pass_session
def stop(
    session: ShellSession,
    /,
    stream_id: str,
    deployment_id: str | None,
    deadline_seconds: float | None,
    on_deadline: OnDeadline | None,
    expires_in_seconds: float | None,
    ordering: Ordering,
) -> None:
    """Stop STREAM after the batch in flight, and keep its state in a snapshot.

    The next `deploy` restores from that snapshot; `resume` starts the same version again.
    """
    controller = session.controller()
    order: dict[str, Any] = {"deployment_id": deployment_id, **ordering.facts}
    if deadline_seconds is None:
        if on_deadline is not None:
            raise click.UsageError("--on-deadline needs a --deadline.")
        given = controller.stop(stream_id, expires_in_seconds=expires_in_seconds, **order)
        wait_and_emit(session, controller, given, ordering)
        return
    if ordering.timeout_seconds is None or ordering.is_timeout_given:
        raise click.UsageError("--deadline waits by itself: leave out --timeout and --async.")
    if expires_in_seconds is not None:
        raise click.UsageError("--deadline withdraws an order that is not begun by then: leave out --expires-in.")
    with session.progress(f"stopping {stream_id}") as report:
        outcome = controller.forced_stops.stop(
            stream_id,
            deadline_seconds=deadline_seconds,
            on_deadline=on_deadline or "fail",
            on_progress=report,
            **order,
        )
    result = outcome.to_json()
    session.emit(result, lambda console: render.ordered(console, result, "stop"))


@click.command(cls=OrderVerb, waits_until="it is drained and its snapshot is complete")
@stream_argument
@deployment_option
@option(
    "--mode",
    type=click.Choice(["default", "event_time"]),
    default="default",
    show_default=True,
    help="Flush all state of the queries, or only move the event-time watermark.",
)
@option(
    "--rehearse/--no-rehearsal",
    default=True,
    help="First try the flush on a fork of the state, while the stream runs on.",
)
@option(
    "--allow-state-loss",
    "allow_state_loss",
    is_flag=True,
    help="Accept state that the flush leaves.",
)
@option(
    "--batches-deadline",
    "batches_within_seconds",
    type=Seconds(0.1),
    metavar="SECONDS",
    help="Seconds from the order until the batches in flight must be committed.",
)
@option(
    "--on-batches-deadline",
    type=click.Choice(DRAIN_DEADLINES),
    help="At that deadline: fail (the default) withdraws the drain, and the stream runs on; stop stops with the state"
    " kept; kill cuts the batch, and the next start runs it again.",
)
@option(
    "--flush-deadline",
    "flush_within_seconds",
    type=Seconds(0.1),
    metavar="SECONDS",
    help="Seconds from the begin of the flush until it must be committed.",
)
@option("--on-flush-deadline", type=click.Choice(DRAIN_DEADLINES), help="At that deadline: the same three.")
@option(
    "--leave-query",
    "leave_queries",
    multiple=True,
    metavar="NAME",
    help="A query that the script does not start: leave its state as it is, for the next deployment; repeatable.",
)
@expires_in_option
@pass_session
def drain(
    session: ShellSession,
    /,
    stream_id: str,
    mode: DrainMode,
    rehearse: bool,
    allow_state_loss: bool,
    batches_within_seconds: float | None,
    on_batches_deadline: OnDrainDeadline | None,
    flush_within_seconds: float | None,
    on_flush_deadline: OnDrainDeadline | None,
    leave_queries: tuple[str, ...],
    ordering: Ordering,
    **order: Any,
) -> None:
    """Take no new input, flush every window and timer of STREAM, and end it.

    The driver first tries the flush on a fork of the state, without a sink. If it would fail, or leave state that the
    next version could not take over, the drain is rejected, and STREAM runs on as before. So it is where it would leave
    out a query that the script does not start. `cancel` withdraws a drain until its flush begins.

    The next `deploy` continues at the drained offsets with empty state. Windows are written early, so use a drain for
    upgrades that the state cannot survive; for all others, stop and deploy. A stopped or failed STREAM is started for
    the flush alone.
    """
    for name, value, needed in (
        ("--on-batches-deadline", on_batches_deadline, batches_within_seconds),
        ("--on-flush-deadline", on_flush_deadline, flush_within_seconds),
    ):
        if value is not None and needed is None:
            raise click.UsageError(f"{name} needs a --{name.removeprefix('--on-')}.")
    terms = DrainTerms(
        mode,
        rehearse,
        allow_state_loss,
        batches_within_seconds,
        on_batches_deadline or "fail",
        flush_within_seconds,
        on_flush_deadline or "fail",
        leave_queries,
    )
    controller = session.controller()
    given = controller.drain(stream_id, terms=terms, **order, **ordering.facts)
    wait_and_emit(session, controller, given, ordering)


@click.command(cls=Verb)
@stream_argument
@option(
    "--grace",
    "grace_seconds",
    type=Seconds(0, 3600),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long its processes may take to end.",
)
@pass_session
def kill(session: ShellSession, /, stream_id: str, grace_seconds: float) -> None:
    """End the driver of STREAM at once, batch in flight or not.

    No row is lost: `resume` and `deploy` continue from the log.
    """
    with session.progress(f"killing {stream_id}"):
        result = session.controller().kill(stream_id, grace_seconds=grace_seconds).to_json()
    session.emit(result, lambda console: render.killed(console, result))


@click.command(cls=OrderVerb, waits_until="the batch is skipped")
@stream_argument
@option("--batch", "batch_id", type=click.IntRange(min=0), required=True, metavar="N", help="The planned batch.")
@option("--query", "query_name", metavar="NAME", help="The query, if several have a batch of this number planned.")
@option("--show", is_flag=True, help="Only show what would be skipped.")
@option(
    "--accept-written-rows",
    "accepts_written",
    is_flag=True,
    help="Skip it although the sink may hold some of its output, which stays.",
)
@term_options(StartTerms, "skip")
@pass_session
def skip(session: ShellSession, /, stream_id: str, show: bool, ordering: Ordering, **given: Any) -> None:
    """Commit a planned batch of STREAM that always fails, without reading its rows, and continue after it.

    For a STREAM that has ended: the next attempt skips the batch before it starts the query. The state is unchanged;
    `status` and `audit` show the skipped offsets as a gap, with the --reason, which is required. If the sink may hold
    some of the batch, the skip is refused without --accept-written-rows.
    """
    if not is_given("reason"):
        raise click.UsageError("Missing option '--reason'.")
    controller, request = session.controller(), SkipOrder(stream_id, reason=ordering.reason, **given)
    if show:
        view = controller.skips.look(request).to_json()
        session.emit(view, lambda console: render.moved(console, view))
        return
    said: dict[str, object] = {}

    def say(view: SkipView) -> None:
        said.update(view.to_json())
        session.say(lambda console: render.moved(console, said))

    order = controller.skips.skip(request, ordering.request_id, say)
    result: dict[str, object] = {"query": given["query_name"], "batch_id": request.batch_id, **said, **order.to_json()}
    if (outcome := wait_for(session, controller, order, ordering)) is not None:
        result |= {"outcome": outcome.outcome, "state": outcome.state}
    session.emit(result, lambda console: render.skipped(console, result))


def wait_and_emit(session: ShellSession, controller: Controller, order: CommandView, ordering: Ordering) -> None:
    """Print the end of an order, or with ``--async`` that it is recorded."""
    emit_order(session, order, wait_for(session, controller, order, ordering))


def wait_for(session: ShellSession, controller: Controller, order: CommandView, ordering: Ordering) -> Outcome | None:
    """The end of an order; None with ``--async``."""
    if ordering.timeout_seconds is None:
        return None
    with session.progress(f"{order.stream_id} {order.deployment_id}") as report:
        return controller.wait(WaitCondition.of(order), ordering.timeout_seconds, report).end


def emit_order(session: ShellSession, order: CommandView, outcome: Outcome | None) -> None:
    """Print an order and its end, with the same fields whether it has ended or not."""
    result: dict[str, object] = {"snapshot_id": None, "queries": {}, **_NOT_YET.get(order.verb, {}), **order.to_json()}
    result |= {} if outcome is None else outcome.to_json()
    session.emit(result, lambda console: render.ordered(console, result, order.verb))
