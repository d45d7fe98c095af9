"""``stop``, ``drain``, ``kill`` and ``skip``: orders to one deployment."""

from __future__ import annotations

from typing import Any

import click

from airflow_streamstate.cli import render
from airflow_streamstate.cli.options import (
    Order,
    Ordering,
    Seconds,
    Verb,
    assume_dead_option,
    deployment_option,
    expires_in_option,
    is_given,
    option,
    pass_session,
    stream_argument,
)
from airflow_streamstate.cli.session import Session
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.commands.forced_stop import ON_DEADLINE, OnDeadline
from airflow_streamstate.controller.deploy.skips import SkipOrder, SkipView
from airflow_streamstate.controller.observe.views import CommandView
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.protocol.commands import DrainMode, DrainTerms, OnDrainDeadline

DRAIN_DEADLINES: tuple[OnDrainDeadline, ...] = ("fail", "stop", "kill")
_NOT_YET = {"snapshot": {"kind": None, "files": None, "bytes": None}}


@click.command(cls=Order, waits_until="it has stopped and its snapshot is complete")
@stream_argument
@deployment_option
@option(
    "--deadline",
    "deadline_seconds",
    type=Seconds(0.1),
    metavar="SECONDS",
    help="By when it has stopped and its snapshot is complete. Waits until then, instead of --timeout.",
)
@option(
    "--on-deadline",
    type=click.Choice(ON_DEADLINE),
    help="What is done at the deadline. fail (the default) withdraws an order that is not begun, and fails; kill ends"
    " the driver, and keeps its end in a snapshot.",
)
@expires_in_option
@pass_session
def stop(
    session: Session,
    /,
    stream_id: str,
    deployment_id: str | None,
    deadline_seconds: float | None,
    on_deadline: OnDeadline | None,
    expires_in_seconds: float | None,
    ordering: Ordering,
) -> None:
    """End STREAM after the batch in flight, and keep its state in a snapshot.

    The next `deploy` restores from that snapshot; `resume` starts the same version again.
    """
    controller = session.controller()
    order: dict[str, Any] = {"deployment_id": deployment_id, **ordering.facts}
    if deadline_seconds is None:
        if on_deadline is not None:
            raise click.UsageError("--on-deadline says what is done at a --deadline, and none was given.")
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


@click.command(cls=Order, waits_until="it is drained and its snapshot is complete")
@stream_argument
@deployment_option
@option(
    "--mode",
    type=click.Choice(["default", "event_time"]),
    default="default",
    show_default=True,
    help="Flush all that the queries have, or move the event-time watermark only.",
)
@option(
    "--rehearse/--no-rehearsal",
    default=True,
    help="Try the flush on a fork of the state first, while the stream runs on.",
)
@option(
    "--allow-state-loss",
    "discard_state",
    is_flag=True,
    help="State that the flush leaves is no reason to reject the drain.",
)
@option(
    "--batches-deadline",
    "batches_within_seconds",
    type=Seconds(0.1),
    metavar="SECONDS",
    help="By when the batches in flight are committed, from the order on.",
)
@option(
    "--on-batches-deadline",
    type=click.Choice(DRAIN_DEADLINES),
    help="What is done where they are not. fail (the default) takes the drain back, and the stream runs on; stop makes"
    " it a stop, state kept; kill cuts the batch, for the next start to run it again.",
)
@option(
    "--flush-deadline",
    "flush_within_seconds",
    type=Seconds(0.1),
    metavar="SECONDS",
    help="By when the flush is committed, from its begin on.",
)
@option("--on-flush-deadline", type=click.Choice(DRAIN_DEADLINES), help="What is done where it is not: the same three.")
@expires_in_option
@pass_session
def drain(
    session: Session,
    /,
    stream_id: str,
    mode: DrainMode,
    rehearse: bool,
    discard_state: bool,
    batches_within_seconds: float | None,
    on_batches_deadline: OnDrainDeadline | None,
    flush_within_seconds: float | None,
    on_flush_deadline: OnDrainDeadline | None,
    ordering: Ordering,
    **order: Any,
) -> None:
    """Take no new input, flush every window and timer of STREAM, and end it.

    The flush is tried first on a fork of the state, into no sink: where it would fail, or leave state that the next
    version could not take over, the drain is rejected, and STREAM runs on as before. `cancel` takes a drain back until
    its flush begins.

    The next `deploy` goes on at the drained offsets with empty state. Windows come out early, so a drain is for
    upgrades that the state cannot survive; for all others, stop and deploy. A STREAM that is stopped or has failed is
    started for the flush alone.
    """
    for name, value, needed in (
        ("--on-batches-deadline", on_batches_deadline, batches_within_seconds),
        ("--on-flush-deadline", on_flush_deadline, flush_within_seconds),
    ):
        if value is not None and needed is None:
            raise click.UsageError(f"{name} says what is done at a --{name.removeprefix('--on-')}: none was given.")
    terms = DrainTerms(
        mode,
        rehearse,
        discard_state,
        batches_within_seconds,
        on_batches_deadline or "fail",
        flush_within_seconds,
        on_flush_deadline or "fail",
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
    help="How long its processes may take to end by themselves.",
)
@pass_session
def kill(session: Session, /, stream_id: str, grace_seconds: float) -> None:
    """End the driver of STREAM at once, batch in flight or not.

    No row is lost by it: `resume` and `deploy` go on from where the log stands.
    """
    with session.progress(f"killing {stream_id}"):
        result = session.controller().kill(stream_id, grace_seconds=grace_seconds).to_json()
    session.emit(result, lambda console: render.killed(console, result))


@click.command(cls=Order, waits_until="the batch is skipped")
@stream_argument
@option("--batch", "batch_id", type=click.IntRange(min=0), required=True, metavar="N", help="The planned batch.")
@option("--query", "query_name", metavar="NAME", help="Whose batch, where several queries have that one planned.")
@option("--show", is_flag=True, help="Only show what would be passed over.")
@option(
    "--accept-written-rows",
    "accepts_written",
    is_flag=True,
    help="The sink may hold some of its output, and that stays there.",
)
@assume_dead_option
@pass_session
def skip(session: Session, /, stream_id: str, show: bool, ordering: Ordering, **given: Any) -> None:
    """Commit a batch of STREAM that is planned and always fails, without reading its rows, and go on behind it.

    For a STREAM that has ended: the next attempt is started, and does it before the query starts. The state stays as it
    was; the offsets that are passed over are a gap with a name, in `status` and in `audit`, with the --reason, which
    has to be given. Where the sink may hold some of that batch it is refused, unless --accept-written-rows.
    """
    if not is_given("reason"):
        raise click.UsageError("Missing option '--reason'.")
    controller, request = session.controller(), SkipOrder(stream_id, reason=ordering.reason, **given)
    if show:
        view = controller.starts.what_skip_passes_over(request).to_json()
        session.emit(view, lambda console: render.moved(console, view))
        return
    said: dict[str, object] = {}

    def say(view: SkipView) -> None:
        said.update(view.to_json())
        session.say(lambda console: render.moved(console, said))

    order = controller.starts.skip(request, ordering.request_id, say)
    result: dict[str, object] = {"query": given["query_name"], "batch_id": request.batch_id, **said, **order.to_json()}
    if ordering.timeout_seconds is not None:
        with session.progress(f"{order.stream_id} {order.deployment_id}") as report:
            outcome = controller.wait(WaitCondition.of(order), ordering.timeout_seconds, report).end
        result |= {"outcome": outcome.outcome, "state": outcome.state}
    session.emit(result, lambda console: render.skipped(console, result))


def wait_and_emit(session: Session, controller: Controller, order: CommandView, ordering: Ordering) -> None:
    """Print what came of an order, once it is over; or at once that it was given."""
    result = as_ordered(order)
    if ordering.timeout_seconds is not None:
        with session.progress(f"{order.stream_id} {order.deployment_id}") as report:
            outcome = controller.wait(WaitCondition.of(order), ordering.timeout_seconds, report).end
        result |= outcome.to_json()
    session.emit(result, lambda console: render.ordered(console, result, order.verb))


def as_ordered(order: CommandView) -> dict[str, object]:
    """The same fields, whether it is known yet or not what comes of the order."""
    return {"snapshot_id": None, "queries": {}, **_NOT_YET.get(order.verb, {}), **order.to_json()}
