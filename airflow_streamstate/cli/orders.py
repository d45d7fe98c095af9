"""``stop``, ``drain``, ``snapshot`` and ``kill``: orders to what runs."""

from __future__ import annotations

import click

from airflow_streamstate.cli import tables
from airflow_streamstate.cli.options import (
    HelpfulCommand,
    Seconds,
    begin_within_option,
    deployment_option,
    pass_session,
    reason_option,
    request_option,
    shared,
    stream_argument,
    wait_option,
)
from airflow_streamstate.cli.session import Session
from airflow_streamstate.lifecycle.controller import Controller
from airflow_streamstate.lifecycle.forced_stop import ON_DEADLINE, OnDeadline
from airflow_streamstate.lifecycle.views import CommandView
from airflow_streamstate.protocol.commands import DrainMode, DrainTerms

_NOT_YET = {"snapshot": {"kind": None, "files": None, "bytes": None}}


@click.command(cls=HelpfulCommand, short_help="End after the batch in flight, and keep the state.")
@stream_argument
@deployment_option
@begin_within_option
@reason_option
@request_option
@click.option(
    "--deadline",
    "complete_within_seconds",
    type=Seconds(0.1),
    metavar="SECONDS",
    help="Wait until it has stopped and its snapshot is complete, and have an end of it after so long.",
)
@click.option(
    "--on-deadline",
    type=click.Choice(ON_DEADLINE),
    help="What is done at the deadline: withdraw the order if nobody obeys it yet, and fail (the default); or end the"
    " driver, and keep its end in a snapshot.",
)
@wait_option("it has stopped and its snapshot is complete")
@shared
@pass_session
def stop(
    session: Session,
    /,
    stream_id: str,
    wait_seconds: float | None,
    complete_within_seconds: float | None,
    on_deadline: OnDeadline | None,
    **order: str | float | None,
) -> None:
    """End STREAM after the batch in flight, and keep its state in a snapshot.

    The next `deploy` restores from that snapshot; `resume` starts the same version again.
    """
    if complete_within_seconds is None:
        if on_deadline is not None:
            raise click.UsageError("--on-deadline says what is done at a --deadline, and none was given.")
        controller = session.controller()
        _wait_and_emit(session, controller, controller.stop(stream_id, **order), wait_seconds)  # type: ignore[arg-type]
        return
    if wait_seconds is not None:
        raise click.UsageError("--deadline waits by itself: leave out --wait.")
    if order.pop("deadline_seconds") is not None:
        raise click.UsageError("--deadline and --begin-within are two deadlines of one stop: give one of them.")
    with session.progress(f"stopping {stream_id}") as report:
        result = (
            session.controller()
            .forced_stops.stop(
                stream_id,
                deadline_seconds=complete_within_seconds,
                on_deadline=on_deadline or "fail",
                on_progress=report,
                **order,  # type: ignore[arg-type]
            )
            .to_json()
        )
    session.emit(result, lambda console: tables.ordered(console, result, "stop"))


@click.command(cls=HelpfulCommand, short_help="Take no new input, flush every window and timer, end.")
@stream_argument
@deployment_option
@click.option(
    "--mode",
    type=click.Choice(["default", "event_time"]),
    default="default",
    show_default=True,
    help="Flush all that the queries have, or move the event-time watermark only.",
)
@click.option(
    "--rehearse/--no-rehearsal",
    default=True,
    help="Try the flush on a fork of the state first, while the stream runs on.",
)
@click.option("--discard-state", is_flag=True, help="State that the flush leaves is no reason to reject the drain.")
@begin_within_option
@reason_option
@request_option
@wait_option("it is drained and its snapshot is complete")
@shared
@pass_session
def drain(
    session: Session,
    /,
    stream_id: str,
    wait_seconds: float | None,
    mode: DrainMode,
    rehearse: bool,
    discard_state: bool,
    **order: str | float | None,
) -> None:
    """Take no new input, flush every window and timer of STREAM, and end it.

    The flush is tried first on a fork of the state, into no sink: where it would fail, or leave state that the next
    version could not take over, the drain is rejected, and STREAM runs on as if nothing had been asked.
    The next `deploy` goes on at the drained offsets with empty state. Windows come out early, so a drain is for
    upgrades that the state cannot survive; for all others, stop and deploy. A STREAM that is stopped or has failed is
    started for the flush alone.
    """
    controller, terms = session.controller(), DrainTerms(mode, rehearse, discard_state)
    _wait_and_emit(session, controller, controller.drain(stream_id, terms=terms, **order), wait_seconds)  # type: ignore[arg-type]


@click.command(cls=HelpfulCommand, short_help="Keep a committed batch of every query, while it runs on.")
@stream_argument
@begin_within_option
@reason_option
@request_option
@click.option("--pin", "pins", is_flag=True, help="Keep it whatever is pruned, until `pin --off`.")
@wait_option("the snapshot is complete")
@shared
@pass_session
def snapshot(
    session: Session, /, stream_id: str, wait_seconds: float | None, pins: bool, **order: str | float | None
) -> None:
    """Keep a committed batch of every query of STREAM, while it runs on."""
    controller = session.controller()
    view = controller.snapshot(stream_id, **order)  # type: ignore[arg-type]
    if pins:
        controller.retention.pin_ordered(view)
    _wait_and_emit(session, controller, view, wait_seconds)


@click.command(cls=HelpfulCommand, short_help="End the driver at once, batch in flight or not.")
@stream_argument
@click.option(
    "--grace",
    "grace_seconds",
    type=Seconds(0, 3600),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long its processes may take to end by themselves.",
)
@shared
@pass_session
def kill(session: Session, /, stream_id: str, grace_seconds: float) -> None:
    """End the driver of STREAM at once, batch in flight or not.

    No row is lost by it: `resume` and `deploy` go on from where the log stands.
    """
    with session.progress(f"killing {stream_id}"):
        result = session.controller().kill(stream_id, grace_seconds=grace_seconds).to_json()
    session.emit(result, lambda console: tables.standing(console, result))


def _wait_and_emit(session: Session, controller: Controller, order: CommandView, wait_seconds: float | None) -> None:
    # The same fields, whether it is known yet or not what comes of the order.
    result: dict[str, object] = {"snapshot_id": None, "queries": {}, **_NOT_YET.get(order.verb, {}), **order.to_json()}
    if wait_seconds is not None:
        with session.progress(f"{order.stream_id} {order.deployment_id}") as report:
            outcome = controller.wait_for_command(
                order.stream_id,
                order.deployment_id,
                order.command_id,
                deadline_seconds=wait_seconds,
                on_progress=report,
            )
        result |= outcome.to_json()
    session.emit(result, lambda console: tables.ordered(console, result, order.verb))
