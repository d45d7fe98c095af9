"""``stop``, ``drain``, ``kill``, ``skip``; ``continue``, ``approve``, ``reject`` and ``cancel``."""

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
    term_options,
    terms_given,
    values_given,
)
from airflow_streamstate.cli.session import DONE, ShellSession
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.forms import selected
from airflow_streamstate.protocol.terms.order import DeploymentChoice, DrainTerms, Expiry, SkipTerms, StopTerms
from airflow_streamstate.protocol.terms.version import StartTerms
from airflow_streamstate.protocol.upgrades import AfterStop

if TYPE_CHECKING:
    from airflow_streamstate.controller.client import Controller
    from airflow_streamstate.controller.deploy.skips import SkipView
    from airflow_streamstate.controller.observe.views import CommandView, Outcome
    from airflow_streamstate.controller.upgrade.upgrade_views import UpgradeView


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
        raise click.UsageError("--deadline withdraws an order that is not started by then: leave out --expires-in.")
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
    out a query that the script does not start. `cancel` withdraws a drain until its flush starts.

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
        result |= selected(outcome, "outcome state")
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


# ``continue``, ``approve``, ``reject`` and ``cancel``: verbs on an upgrade, a rollback or a drain under way.

WAIT_SECONDS = 3_600.0
OVER = "it has ended; at the timeout it stays under way, and `continue` continues it"
_ANSWER = ("timeout", "async", "reason")


@click.command(cls=OrderVerb, waits_until=OVER, timeout_seconds=WAIT_SECONDS, takes=("timeout",))
@stream_argument
@pass_session
def continue_(session: ShellSession, /, stream_id: str, ordering: Ordering) -> int:
    """Continue the upgrade or rollback of STREAM that is under way.

    Every step is recorded, so any machine can continue it, and several processes at once.
    """
    controller = session.controller()
    return _finish(session, controller, _under_way(controller, stream_id), ordering)


@click.command(cls=OrderVerb, waits_until=OVER, timeout_seconds=WAIT_SECONDS, takes=_ANSWER)
@stream_argument
@pass_session
def approve(session: ShellSession, /, stream_id: str, ordering: Ordering) -> int:
    """Approve the plan of the upgrade of STREAM that waits for it, and continue the upgrade."""
    return _answer(session, stream_id, ordering, is_approved=True)


@click.command(cls=OrderVerb, waits_until=OVER, timeout_seconds=WAIT_SECONDS, takes=_ANSWER)
@stream_argument
@pass_session
def reject(session: ShellSession, /, stream_id: str, ordering: Ordering) -> int:
    """Reject the plan of the upgrade of STREAM that waits for it: nothing was stopped, and STREAM runs on."""
    return _answer(session, stream_id, ordering, is_approved=False)


@click.command(cls=OrderVerb, waits_until="it is abandoned", timeout_seconds=WAIT_SECONDS)
@stream_argument
@option(
    "--after-stop",
    type=click.Choice(["finish", "rollback"]),
    default="rollback",
    show_default=True,
    help="What to do with an upgrade whose old version was already ordered to stop.",
)
@term_options(DeploymentChoice)
@term_options(Expiry)
@pass_session
def cancel(
    session: ShellSession,
    /,
    stream_id: str,
    after_stop: AfterStop,
    deployment_id: str | None,
    expires_in_seconds: float | None,
    ordering: Ordering,
) -> int:
    """Abandon the upgrade or rollback of STREAM that is under way; without one, withdraw its drain.

    An upgrade can be abandoned at any time: before the old version's stop, nothing has happened. A drain can be
    withdrawn until its flush starts. --deployment, --expires-in and --request-id are about a drain.
    """
    controller = session.controller()
    view = controller.upgrades.under_way(stream_id)
    if view is None:
        if is_given("after_stop"):
            raise _none_under_way(stream_id)
        given = controller.order(
            "cancel", stream_id, deployment_id=deployment_id, expires_in_seconds=expires_in_seconds, **ordering.facts
        )
        wait_and_emit(session, controller, given, ordering)
        return DONE
    if deployment_id is not None or expires_in_seconds is not None or ordering.request_id is not None:
        raise InvalidRequestError(
            "an upgrade of this stream is under way, and --deployment, --expires-in and --request-id are about a drain",
            stream_id=stream_id,
            upgrade_id=view.upgrade_id,
            next_step=f"`streamstate cancel {stream_id}` abandons the upgrade, with the drain that it ordered.",
        )
    controller.upgrades.cancel(stream_id, view.upgrade_id, after_stop=after_stop, reason=ordering.reason)
    return _finish(session, controller, view, ordering, after_stop)


def _answer(session: ShellSession, stream_id: str, ordering: Ordering, *, is_approved: bool) -> int:
    controller = session.controller()
    view = _under_way(controller, stream_id)
    controller.upgrades.approve(stream_id, view.upgrade_id, is_approved=is_approved, reason=ordering.reason)
    return _finish(session, controller, view, ordering, None if is_approved else "rollback")


def _finish(
    session: ShellSession,
    controller: Controller,
    view: UpgradeView,
    ordering: Ordering,
    cancels: AfterStop | None = None,
) -> int:
    if ordering.timeout_seconds is not None:
        from airflow_streamstate.cli.upgrade import run_to_end

        return run_to_end(session, controller.upgrades, view, ordering.timeout_seconds, cancels)
    result = selected(view, "stream_id upgrade_id")
    session.emit(result, lambda console: render.answered(console, result))
    return DONE


def _under_way(controller: Controller, stream_id: str) -> UpgradeView:
    view = controller.upgrades.under_way(stream_id)
    if view is None:
        raise _none_under_way(stream_id)
    return view


def _none_under_way(stream_id: str) -> InvalidRequestError:
    return InvalidRequestError(
        "no upgrade of this stream is under way",
        stream_id=stream_id,
        next_step=f"`streamstate status {stream_id}` shows its state.",
    )
