"""``continue``, ``approve``, ``reject`` and ``cancel``: verbs on an upgrade, a rollback or a drain under way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from airflow_streamstate.cli import render
from airflow_streamstate.cli.exits import DONE
from airflow_streamstate.cli.options import (
    Ordering,
    OrderVerb,
    is_given,
    option,
    pass_session,
    stream_argument,
)
from airflow_streamstate.cli.orders import wait_and_emit
from airflow_streamstate.cli.session import ShellSession
from airflow_streamstate.cli.term_options import term_options
from airflow_streamstate.cli.upgrade import OVER, WAIT_SECONDS, run_to_end
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.terms.order import DeploymentChoice, Expiry
from airflow_streamstate.protocol.upgrades import AfterStop

if TYPE_CHECKING:
    from airflow_streamstate.controller.client import Controller
    from airflow_streamstate.controller.upgrade.views import UpgradeView

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


@click.command(cls=OrderVerb, waits_until="it is given up", timeout_seconds=WAIT_SECONDS)
@stream_argument
@option(
    "--after-stop",
    type=click.Choice(["finish", "rollback"]),
    default="rollback",
    show_default=True,
    help="Of an upgrade whose old version was told to stop already: what to do with it.",
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
    """Give up the upgrade or rollback of STREAM that is under way; without one, withdraw its drain.

    An upgrade can be given up at any time: before the old version was told to stop, nothing has happened. A drain can
    be withdrawn until its flush begins. --deployment, --expires-in and --request-id are about a drain.
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
            next_step=f"`streamstate cancel {stream_id}` gives up the upgrade, with the drain that it ordered.",
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
        return run_to_end(session, controller.upgrades, view, ordering.timeout_seconds, cancels)
    result = {"stream_id": view.stream_id, "upgrade_id": view.upgrade_id}
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
