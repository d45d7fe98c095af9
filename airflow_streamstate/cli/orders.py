"""``stop``, ``drain``, ``snapshot`` and ``kill``: orders to what runs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from airflow_streamstate.cli import tables
from airflow_streamstate.cli.options import (
    HelpfulCommand,
    Moment,
    Seconds,
    deployment_option,
    expires_in_option,
    pass_session,
    reason_option,
    request_option,
    shared,
    stream_argument,
    wait_option,
)
from airflow_streamstate.cli.session import Session
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.commands.forced_stop import ON_DEADLINE, OnDeadline
from airflow_streamstate.controller.deploy.skips import SkipOrder, SkipView
from airflow_streamstate.controller.observe.views import CommandView
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.protocol.commands import (
    DEFAULT_TERMS,
    DrainMode,
    DrainTerms,
    OnDrainDeadline,
    SnapshotTerms,
)

# ``skip``: a batch that always fails, passed over by name.


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
    controller, wish = session.controller(), SkipOrder(stream_id, **given)
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
            outcome = controller.wait(WaitCondition.of(order), wait_seconds, report).end
        result |= {"outcome": outcome.outcome, "state": outcome.state}
    session.emit(result, lambda console: tables.skipped(console, result))


DRAIN_DEADLINES: tuple[OnDrainDeadline, ...] = ("fail", "stop", "kill")
_NOT_YET = {"snapshot": {"kind": None, "files": None, "bytes": None}}


@click.command(cls=HelpfulCommand, short_help="End after the batch in flight, and keep the state.")
@stream_argument
@deployment_option
@expires_in_option
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
    if order.pop("expires_in_seconds") is not None:
        raise click.UsageError("--deadline withdraws an order that is not begun by then: leave out --expires-in.")
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
@click.option(
    "--batches-deadline",
    "batches_within_seconds",
    type=Seconds(0.1),
    metavar="SECONDS",
    help="The batches in flight are to be committed so long after the order.",
)
@click.option(
    "--on-batches-deadline",
    type=click.Choice(DRAIN_DEADLINES),
    help="What is done where they are not: take the drain back, and run on (fail, the default); make it a stop, state"
    " kept (stop); or cut the batch, for the next start to run it again (kill).",
)
@click.option(
    "--flush-deadline",
    "flush_within_seconds",
    type=Seconds(0.1),
    metavar="SECONDS",
    help="The flush is to be committed so long after it has begun.",
)
@click.option(
    "--on-flush-deadline",
    type=click.Choice(DRAIN_DEADLINES),
    help="What is done where it is not: the same three.",
)
@click.option("--cancel", is_flag=True, help="Take back the drain that is under way: until its flush begins.")
@expires_in_option
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
    cancel: bool,
    batches_within_seconds: float | None,
    on_batches_deadline: OnDrainDeadline | None,
    flush_within_seconds: float | None,
    on_flush_deadline: OnDrainDeadline | None,
    **order: str | float | None,
) -> None:
    """Take no new input, flush every window and timer of STREAM, and end it.

    The flush is tried first on a fork of the state, into no sink: where it would fail, or leave state that the next
    version could not take over, the drain is rejected, and STREAM runs on as if nothing had been asked.
    The next `deploy` goes on at the drained offsets with empty state. Windows come out early, so a drain is for
    upgrades that the state cannot survive; for all others, stop and deploy. A STREAM that is stopped or has failed is
    started for the flush alone.
    """
    for option, value, needed in (
        ("--on-batches-deadline", on_batches_deadline, batches_within_seconds),
        ("--on-flush-deadline", on_flush_deadline, flush_within_seconds),
    ):
        if value is not None and needed is None:
            raise click.UsageError(f"{option} says what is done at a --{option.removeprefix('--on-')}: none was given.")
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
    if cancel:
        if terms != DEFAULT_TERMS:
            raise click.UsageError("--cancel takes a drain back: leave out how one is to be done.")
        _wait_and_emit(session, controller, controller.cancel_drain(stream_id, **order), wait_seconds)  # type: ignore[arg-type]
        return
    _wait_and_emit(session, controller, controller.drain(stream_id, terms=terms, **order), wait_seconds)  # type: ignore[arg-type]


@click.command(cls=HelpfulCommand, short_help="Keep a committed batch of every query, while it runs on.")
@stream_argument
@click.option(
    "--requested-at",
    type=Moment(),
    metavar="TIME",
    help="The time of asking, with a time zone: now by default, and anew each time that it is asked for again.",
)
@click.option(
    "--ttl",
    "ttl_seconds",
    type=Seconds(0.001),
    metavar="SECONDS",
    help="Read when it is older than this, the request is ignored; by default as the deployment's settings say.",
)
@click.option(
    "--consistent",
    is_flag=True,
    help="All queries stand at one barrier when it is taken: they finish their batches, and go on by themselves.",
)
@expires_in_option
@reason_option
@request_option
@click.option("--pin", "pins", is_flag=True, help="Keep it whatever is pruned, until `pin --off`.")
@wait_option("the snapshot is complete, and ask again while nobody takes the request up")
@shared
@pass_session
def snapshot(
    session: Session,
    /,
    stream_id: str,
    wait_seconds: float | None,
    requested_at: datetime | None,
    ttl_seconds: float | None,
    consistent: bool,
    pins: bool,
    **order: Any,
) -> None:
    """Keep a committed batch of every query of STREAM, while it runs on.

    One request id is one snapshot, however often it is asked for: a driver that was started again, or another version
    that runs by now, is asked anew until the first snapshot is ready.
    """
    controller = session.controller()
    asked = controller.snapshot(stream_id, terms=SnapshotTerms(requested_at, ttl_seconds, consistent), **order)
    if pins:
        controller.retention.pin_ordered(asked)
    result = _as_ordered(asked)
    if wait_seconds is not None:
        with session.progress(f"{asked.stream_id} {asked.deployment_id}") as report:
            outcome = controller.wait(WaitCondition.of(asked), wait_seconds, report).end
        if pins and outcome.snapshot_id is not None:  # of another attempt, maybe, than the one that was asked first
            controller.retention.pin(stream_id, outcome.snapshot_id)
        result |= outcome.to_json()
    session.emit(result, lambda console: tables.ordered(console, result, asked.verb))


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
    session.emit(result, lambda console: tables.killed(console, result))


def _wait_and_emit(session: Session, controller: Controller, order: CommandView, wait_seconds: float | None) -> None:
    result = _as_ordered(order)
    if wait_seconds is not None:
        with session.progress(f"{order.stream_id} {order.deployment_id}") as report:
            outcome = controller.wait(WaitCondition.of(order), wait_seconds, report).end
        result |= outcome.to_json()
    session.emit(result, lambda console: tables.ordered(console, result, order.verb))


def _as_ordered(order: CommandView) -> dict[str, object]:
    """The same fields, whether it is known yet or not what comes of the order."""
    return {"snapshot_id": None, "queries": {}, **_NOT_YET.get(order.verb, {}), **order.to_json()}
