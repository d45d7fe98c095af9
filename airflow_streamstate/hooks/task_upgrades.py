"""Upgrades for operators and the trigger: find the task's own, take steps, and end it with the task."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from airflow_streamstate.errors import (
    ConflictError,
    DeadlineExceededError,
    InvalidRequestError,
    OutcomeUnknownError,
    UnavailableError,
)
from airflow_streamstate.protocol.ids import upgrade_id_for
from airflow_streamstate.protocol.scratch import Rehearsal
from airflow_streamstate.protocol.upgrades import AfterStop, Phase

if TYPE_CHECKING:
    from airflow_streamstate.controller.client import Controller
    from airflow_streamstate.controller.request.requests import ChangeRequest
    from airflow_streamstate.controller.upgrade.upgrade_views import UpgradeView
    from airflow_streamstate.controller.wait.condition import WaitCondition


Say = Callable[[str], None]

STANDSTILL: frozenset[Phase] = frozenset({"stopping", "ended", "unhealthy", "trying", "returning"})
"""Phases in which no version may be running: a task that can act does not leave then."""
HOLD_SECONDS = 60.0
"""How long a deferrable task stays in its worker while no version may be running; a wake-up would cost seconds."""
MIN_RELOOK_SECONDS, MAX_RELOOK_SECONDS = 20.0, 600.0
"""A worker looks again after this time: a triggerer may be unable to see the driver's process."""
WAKING_SECONDS = 180.0
"""How long a worker may take to start a woken task; after that the task is taken for gone."""
TASK_ENDED = "the Airflow task that drove it was ended"
"""The cancellation reason that makes a later try of the task start again."""


def upgrade_of(controller: Controller, stream_id: str, request_id: str) -> UpgradeView | None:
    """The upgrade of a request, if any.

    Raises:
        StreamNotFoundError: the stream was never deployed.
    """
    from airflow_streamstate.control.upgrade_journal import UpgradeJournal
    from airflow_streamstate.controller.upgrade.upgrade_views import UpgradeView

    journal = UpgradeJournal(controller.home.need_stream(stream_id))
    state = journal.state(upgrade_id_for(request_id))
    return None if state is None else UpgradeView(state)


def refuse_unless_planned(controller: Controller, change: ChangeRequest, rehearsal_id: str) -> None:
    """Check that a rehearsal was about this change, over the deployment that still runs.

    Raises:
        InvalidRequestError: the stream has no such rehearsal.
        ConflictError: the change, or what runs, is another one.
    """
    control = controller.home.need_stream(change.stream_id)
    run = control.scratch_run(rehearsal_id)
    if run is None or not isinstance(run.what, Rehearsal):
        raise InvalidRequestError(
            "the stream has no such rehearsal", stream_id=change.stream_id, rehearsal_id=rehearsal_id
        )
    current = control.need_register().value.deployment_id
    if run.request_digest != change.digest or run.deployment_id != current:
        raise ConflictError(
            "this is not what was planned: the change is another one, or another deployment runs by now",
            stream_id=change.stream_id,
            rehearsal_id=rehearsal_id,
            planned_over_deployment_id=run.deployment_id,
            current_deployment_id=current,
            is_same_change=run.request_digest == change.digest,
            next_step="Plan it again.",
        )


def stands_for_nothing(controller: Controller, view: UpgradeView) -> bool:
    """Whether it missed its end only because a try of its task was ended or gone, or another upgrade came first.

    The next try then starts again.
    """
    from airflow_streamstate.control.upgrade_journal import ABANDONED, LOST_CLAIM, UpgradeJournal

    if not view.is_over or view.is_what_was_asked:
        return False
    cancellation = UpgradeJournal(controller.home.control(view.stream_id)).cancellation(view.upgrade_id)
    if cancellation is None:
        return False
    # A version that had failed before this was recorded was tried.
    is_gone = cancellation.reason in (ABANDONED, LOST_CLAIM) and (view.outcome == "refused" or view.is_cancelled)
    return is_gone or cancellation.reason == TASK_ENDED


def advance_upgrade(
    controller: Controller, view: UpgradeView, *, told: int, hold_seconds: float, on_step: Say, on_progress: Say
) -> UpgradeView:
    """Take all steps that are due; stay up to ``hold_seconds`` while no version may be running.

    ``told`` is the number of the last step that was reported before; ``on_step`` gets each later one once.
    """
    from airflow_streamstate.controller.upgrade.upgrade_views import Telling
    from airflow_streamstate.controller.wait.waiting import poll

    pause_seconds, telling = view.pause_seconds, Telling(on_step, told)
    keep_lease = controller.upgrades.keeps_lease(view.stream_id, view.upgrade_id)

    def look() -> UpgradeView | None:
        nonlocal pause_seconds
        keep_lease()
        try:
            seen = controller.upgrades.advance(view.stream_id, view.upgrade_id, telling)
        except (UnavailableError, OutcomeUnknownError, ConflictError) as error:
            on_progress(str(error))
            return None
        if seen.is_over or seen.state.phase not in STANDSTILL or seen.state.has_touched_nothing:
            return seen
        pause_seconds = seen.pause_seconds
        on_progress(seen.waits_for)
        return None

    found = poll(controller.clock, look, timeout_seconds=hold_seconds, pause_seconds=lambda: pause_seconds)
    return found or controller.upgrades.view(view.stream_id, view.upgrade_id)


def relook_seconds(view: UpgradeView, now: datetime) -> float:
    """How long a deferred task leaves an upgrade to its trigger; the longer, the longer it has waited."""
    return min(max((now - view.state.last.taken_at).total_seconds(), MIN_RELOOK_SECONDS), MAX_RELOOK_SECONDS)


def give_up(
    controller: Controller, stream_id: str, upgrade_id: str, after_stop: AfterStop, patience_seconds: float
) -> UpgradeView:
    """Record that the task of an upgrade was ended, continue the upgrade for at most ``patience_seconds``, and leave
    the rest to watchers."""
    _cancel(controller, stream_id, upgrade_id, after_stop)
    with suppress(DeadlineExceededError):
        return controller.upgrades.run(stream_id, upgrade_id, patience_seconds)
    controller.upgrades.leave(stream_id, upgrade_id)
    return controller.upgrades.view(stream_id, upgrade_id)


def give_up_from_afar(controller: Controller, stream_id: str, upgrade_id: str, after_stop: AfterStop) -> UpgradeView:
    """Record in a triggerer, which starts no driver, that the task of an upgrade was ended.

    An upgrade that has not touched the stream has ended with that; watchers bring another one to its end.
    """
    _cancel(controller, stream_id, upgrade_id, after_stop)
    controller.upgrades.leave(stream_id, upgrade_id)
    view = controller.upgrades.view(stream_id, upgrade_id)
    if view.state.has_touched_nothing:  # only its end is left
        return controller.upgrades.advance(stream_id, upgrade_id)
    return view


def what_remains(view: UpgradeView, after_stop: AfterStop) -> str:
    """The state of an upgrade whose task was ended, for the log; ``after_stop``: what is recorded that is to become of
    it."""
    name = f"upgrade {view.upgrade_id} of {view.stream_id}"
    if view.is_over:
        return f"{name} has ended: {view.outcome}{f': {view.state.text}' if view.state.text else ''}"
    is_finished = after_stop == "finish" or view.state.upgrade.asked == "rollback"
    return (
        f"{name} is still under way, in phase {view.state.phase}: the next try of the task, a watcher or `streamstate"
        f" continue {view.stream_id}` {'finishes it' if is_finished else 'rolls it back'}"
    )


def _cancel(controller: Controller, stream_id: str, upgrade_id: str, after_stop: AfterStop) -> None:
    if not controller.upgrades.view(stream_id, upgrade_id).is_over:
        controller.upgrades.cancel(stream_id, upgrade_id, after_stop=after_stop, reason=TASK_ENDED)


# What happens to a deployment or an upgrade when Airflow ends the task that waits for it.

OnKill = Literal["leave", "stop", "drain", "kill"]
ON_KILL_ACTIONS: tuple[OnKill, ...] = ("leave", "stop", "drain", "kill")
_REASON = "the Airflow task that waited for it was ended"


def end_as_asked(controller: Controller, action: str, stream_id: str, deployment_id: str) -> None:
    """Record the leaving, stop, drain or kill of the deployment, if it is still current; does not wait for it."""
    if action in ("stop", "drain"):
        controller.order(
            "stop" if action == "stop" else "drain", stream_id, deployment_id=deployment_id, reason=_REASON
        )
    elif action == "kill" and controller.status(stream_id).deployment_id == deployment_id:
        controller.kill(stream_id)


def end_watched(controller: Controller, action: str, watch: WaitCondition) -> str:
    """What the trigger does when a user ends its deferred task; returns a line for the log.

    For an upgrade, ``action`` is ``finish`` or ``rollback``. It is only recorded: a trigger starts no driver.
    """

    if watch.wanted == "upgrade":
        after_stop: AfterStop = "finish" if action == "finish" else "rollback"
        view = give_up_from_afar(controller, watch.stream_id, watch.deployment_id, after_stop)
        return what_remains(view, after_stop)
    end_as_asked(controller, action, watch.stream_id, watch.deployment_id)
    return f"{action} of {watch.deployment_id} of {watch.stream_id}: recorded"
