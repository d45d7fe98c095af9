"""``stop``, ``drain``, ``kill`` and ``skip``: orders to one deployment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from airflow_streamstate.cli import render
from airflow_streamstate.cli.options import (
    Ordering,
    OrderVerb,
    Seconds,
    Verb,
    is_given,
    option,
    pass_session,
    stream_argument,
)
from airflow_streamstate.cli.session import ShellSession
from airflow_streamstate.cli.term_options import term_options, terms_given, values_given
from airflow_streamstate.protocol.terms.order import DeploymentChoice, DrainTerms, Expiry, SkipTerms, StopTerms
from airflow_streamstate.protocol.terms.start import StartTerms

if TYPE_CHECKING:
    from airflow_streamstate.controller.client import Controller
    from airflow_streamstate.controller.deploy.skips import SkipView
    from airflow_streamstate.controller.observe.views import CommandView, Outcome

_NOT_YET = {"snapshot": {"kind": None, "files": None, "bytes": None}}


@click.command(cls=OrderVerb, waits_until="it has stopped and its snapshot is complete")
@stream_argument
@term_options(DeploymentChoice)
@term_options(StopTerms)
@term_options(Expiry)
@pass_session
def stop(session: ShellSession, /, stream_id: str, ordering: Ordering, **given: Any) -> None:
    """Stop STREAM after the batch in flight, and keep its state in a snapshot.

    The next `deploy` restores from that snapshot; `resume` starts the same version again.
    """
    terms = terms_given(StopTerms, given)
    order = {**values_given(DeploymentChoice, given), **ordering.facts}
    expiry = values_given(Expiry, given)
    controller = session.controller()
    if terms.deadline_seconds is None:
        wait_and_emit(session, controller, controller.order("stop", stream_id, **order, **expiry), ordering)
        return
    if ordering.timeout_seconds is None or ordering.is_timeout_given:
        raise click.UsageError("--deadline waits by itself: leave out --timeout and --async.")
    if expiry:
        raise click.UsageError("--deadline withdraws an order that is not begun by then: leave out --expires-in.")
    with session.progress(f"stopping {stream_id}") as report:
        outcome = controller.forced_stops.stop(
            stream_id,
            deadline_seconds=terms.deadline_seconds,
            on_deadline=terms.on_deadline,
            on_progress=report,
            **order,
        )
    result = outcome.to_json()
    session.emit(result, lambda console: render.ordered(console, result, "stop"))


@click.command(cls=OrderVerb, waits_until="it is drained and its snapshot is complete")
@stream_argument
@term_options(DeploymentChoice)
@term_options(DrainTerms)
@term_options(Expiry)
@pass_session
def drain(session: ShellSession, /, stream_id: str, ordering: Ordering, **given: Any) -> None:
    """Take no new input, flush every window and timer of STREAM, and end it.

    The driver first tries the flush on a fork of the state, without a sink. If it would fail, or leave state that the
    next version could not take over, the drain is rejected, and STREAM runs on as before. So it is where it would leave
    out a query that the script does not start. `cancel` withdraws a drain until its flush begins.

    The next `deploy` continues at the drained offsets with empty state. Windows are written early, so use a drain for
    upgrades that the state cannot survive; for all others, stop and deploy. A stopped or failed STREAM is started for
    the flush alone.
    """
    terms = terms_given(DrainTerms, given)
    controller = session.controller()
    order = controller.order(
        "drain",
        stream_id,
        terms=terms,
        **values_given(DeploymentChoice, given),
        **values_given(Expiry, given),
        **ordering.facts,
    )
    wait_and_emit(session, controller, order, ordering)


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
@term_options(SkipTerms, needs_required=True)
@option("--show", is_flag=True, help="Only show what would be skipped.")
@term_options(StartTerms, "skip")
@pass_session
def skip(session: ShellSession, /, stream_id: str, show: bool, ordering: Ordering, **given: Any) -> None:
    """Commit a planned batch of STREAM that always fails, without reading its rows, and continue after it.

    For a STREAM that has ended: the next attempt skips the batch before it starts the query. The state is unchanged;
    `status` and `audit` show the skipped offsets as a gap, with the --reason, which is required. If the sink may hold
    some of the batch, the skip is refused without --accept-written-rows.
    """
    from airflow_streamstate.controller.deploy.skips import SkipOrder

    if not is_given("reason"):
        raise click.UsageError("Missing option '--reason'.")
    terms = terms_given(SkipTerms, given)
    request = SkipOrder(stream_id, terms, ordering.reason, **values_given(StartTerms, given))
    controller = session.controller()
    if show:
        view = controller.skips.look(request).to_json()
        session.emit(view, lambda console: render.moved(console, view))
        return
    said: dict[str, object] = {}

    def say(view: SkipView) -> None:
        said.update(view.to_json())
        session.say(lambda console: render.moved(console, said))

    order = controller.skips.skip(request, ordering.request_id, say)
    result: dict[str, object] = {"query": terms.query_name, "batch_id": terms.batch_id, **said, **order.to_json()}
    if (outcome := wait_for(session, controller, order, ordering)) is not None:
        result |= {"outcome": outcome.outcome, "state": outcome.state}
    session.emit(result, lambda console: render.skipped(console, result))


def wait_and_emit(session: ShellSession, controller: Controller, order: CommandView, ordering: Ordering) -> None:
    """Print the end of an order, or with ``--async`` that it is recorded."""
    emit_order(session, order, wait_for(session, controller, order, ordering))


def wait_for(session: ShellSession, controller: Controller, order: CommandView, ordering: Ordering) -> Outcome | None:
    """The end of an order; None with ``--async``."""
    from airflow_streamstate.controller.wait.condition import WaitCondition

    if ordering.timeout_seconds is None:
        return None
    with session.progress(f"{order.stream_id} {order.deployment_id}") as report:
        return controller.wait(WaitCondition.of(order), ordering.timeout_seconds, report).end


def emit_order(session: ShellSession, order: CommandView, outcome: Outcome | None) -> None:
    """Print an order and its end, with the same fields whether it has ended or not."""
    result: dict[str, object] = {"snapshot_id": None, "queries": {}, **_NOT_YET.get(order.verb, {}), **order.to_json()}
    result |= {} if outcome is None else outcome.to_json()
    session.emit(result, lambda console: render.ordered(console, result, order.verb))
