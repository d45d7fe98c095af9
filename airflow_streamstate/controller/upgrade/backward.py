"""The way back to the old version, in the first way that is exact; where none is, it is said, and nothing is touched.

``resume``: nothing of the new version ever ran. ``handover``: it neither committed nor planned a batch, so the old one
begins where it had ended. ``forward``: the old code goes on from the new one's last commit, rehearsed before; what the
new one wrote stays, and its batches are named. ``undo``: back to the handover, with the sinks undone (Law 14); where a
drain left state that nothing can be seeded over, back to before the drain.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from airflow_streamstate.control.upgrades import UpgradeState
from airflow_streamstate.controller.decide import Refused, decide_start
from airflow_streamstate.controller.deploy.sent_once import refuse_sent_once
from airflow_streamstate.controller.deploy.takeover import built_checkpoints
from airflow_streamstate.controller.upgrade.deciding import decide_return
from airflow_streamstate.controller.upgrade.ends import finish
from airflow_streamstate.controller.upgrade.forward import cancelled_before
from airflow_streamstate.controller.upgrade.returning import PATIENCE_SECONDS, returned, returning
from airflow_streamstate.controller.upgrade.tools import Act, Next, Tools, Wait, in_words, is_passing
from airflow_streamstate.controller.upgrade.undoing import beginning_of, has_run_batches, why_not_undone
from airflow_streamstate.controller.upgrade.warming import give_up_waiting, stay_seconds, take_way, warming
from airflow_streamstate.errors import InputLostError, StreamStateError
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.upgrades import ReturnWay
from airflow_streamstate.snapshot.data import check_complete

MAX_REHEARSALS = 3
"""So often the old code is rehearsed on what the new one left, where its driver gives no verdict."""


def next_backward(tools: Tools, state: UpgradeState) -> Next:
    """What comes next, of an upgrade that is in one of the phases of this way."""
    phases: dict[str, Callable[[Tools, UpgradeState], Next]] = {
        "unhealthy": _unhealthy,
        "trying": _trying,
        "returning": returning,
        "returned": returned,
    }
    is_wish = tools.upgrade.asked == "rollback" and state.phase in ("unhealthy", "trying")
    if is_wish and "returning" not in state.since:
        cancelled = cancelled_before(tools, state)
        if cancelled is not None:
            return cancelled
    return phases[state.phase](tools, state)


def _unhealthy(tools: Tools, state: UpgradeState) -> Next:
    new_id = state.last.new_deployment_id
    if new_id is None:
        return Act(lambda: tools.take(state, "returning", way="resume", driver=""))
    seen = tools.means.observer.observe(tools.stream_id, new_id)
    wanted = tools.upgrade.way
    if wanted == "undo":
        return Act(partial(_undo, tools, state, "", wanted))
    if new_id == tools.upgrade.old_deployment_id:  # nothing else ever ran: what is undone is its own drain
        return Act(partial(_undo, tools, state, state.last.text, wanted))
    beginning = beginning_of(tools, seen)
    has_run = has_run_batches(tools, seen, beginning)
    was_refused = state.last.way == "handover"  # it was found to have run a batch after all: that is not asked again
    if wanted is None and beginning is not None and not has_run and not was_refused:
        problem = _why_not_begun(tools, beginning)
        if problem:  # and from its end no better: it is the same
            return Act(partial(_cannot, tools, state, problem))
        if not _why_not_whole(tools, state, beginning):
            return Act(partial(take_way, tools, state, "handover"))
    if seen.spec.start.snapshot_id is None and not has_run and built_checkpoints(tools.means.home, tools.old()):
        # Forward from nothing would be with nothing (Law 5).
        kept = ", and where the old version had ended was not kept" if beginning is None else ""
        reason = f"it began with nothing and ran nothing, so the old code would begin with nothing{kept}"
        return Act(partial(_cannot, tools, state, reason))
    return Act(partial(_try, tools, state))


def _why_not_begun(tools: Tools, beginning: SnapshotManifest) -> str:
    """Why the old code would be refused there; "" where it would not. Asked before anything is ended."""
    request = tools.version(tools.old_spec()).as_deploy_request()
    decision = decide_start(request, tools.upgrade.old_deployment_id, beginning)
    if isinstance(decision, Refused):
        return in_words(decision.error)
    try:
        refuse_sent_once(request, beginning)
    except InputLostError as error:
        return in_words(error)
    return ""


def _why_not_whole(tools: Tools, state: UpgradeState, beginning: SnapshotManifest) -> str:
    """Why nothing can be built of a snapshot: a file of it is missing, or its place does not answer; "" where it can.

    Raises:
        UnavailableError: it does not answer, and may in a moment.
    """
    home = tools.means.home
    try:
        tools.patiently(state, PATIENCE_SECONDS, lambda: check_complete(home.places.of(beginning), beginning))
    except StreamStateError as error:
        if is_passing(error) and tools.waited_seconds(state) < PATIENCE_SECONDS:
            raise
        return in_words(error)
    return ""


def _try(tools: Tools, state: UpgradeState) -> None:
    """Rehearse the old code on what the new one has left by now; its driver then waits."""
    give_up_waiting(tools, state)
    try:
        view = tools.patiently(
            state,
            PATIENCE_SECONDS,
            lambda: tools.planning.begin(
                tools.version(tools.old_spec()),
                request_id=tools.request_id("back-plan"),
                deadline_seconds=tools.upgrade.rehearsal_within_seconds,
                waits_seconds=stay_seconds(tools),
            ),
        )
    except StreamStateError as error:
        if is_passing(error) and tools.waited_seconds(state) < PATIENCE_SECONDS:
            raise
        _undo(tools, state, f"the old code cannot go on from the new one's last commit: {in_words(error)}", None)
        return
    tools.take(state, "trying", rehearsal_id=view.rehearsal_id, is_decided=False)


def _trying(tools: Tools, state: UpgradeState) -> Next:
    if state.last.is_decided:
        return warming(tools, state)
    rehearsal_id = str(state.last.rehearsal_id)
    try:
        if not tools.planning.is_over(tools.stream_id, rehearsal_id):
            return Wait(tools.planning.describe(tools.stream_id, rehearsal_id))
    except StreamStateError as error:
        if is_passing(error):
            raise
        return Act(partial(_try, tools, state))  # its report is gone
    return Act(partial(_decide, tools, state, rehearsal_id))


def _decide(tools: Tools, state: UpgradeState, rehearsal_id: str) -> None:
    report = tools.planning.report(tools.stream_id, rehearsal_id)
    if report.outcome in ("failed", "deadline") and _rehearsals(tools) < MAX_REHEARSALS:
        _try(tools, state)  # its driver may have died of anything, and the way back hangs on it
        return
    undo_problem = why_not_undone(tools, state) or _why_not_gone_back(tools, state)
    decision = decide_return(report, tools.upgrade.way, undo_problem)
    if decision.way is None:
        _cannot(tools, state, decision.reason)
    else:
        take_way(tools, state, decision.way, decision.reason, rehearsal_id=rehearsal_id)


def _rehearsals(tools: Tools) -> int:
    return sum(step.phase == "trying" for step in tools.journal.steps(tools.upgrade.upgrade_id))


def _undo(tools: Tools, state: UpgradeState, before: str, wanted: ReturnWay | None) -> None:
    if tools.upgrade.way == "forward":
        _cannot(tools, state, before)
        return
    problem = why_not_undone(tools, state) or _why_not_gone_back(tools, state)
    if problem:
        also = f"{before}; " if before else ""
        _cannot(tools, state, f"{also}what it wrote cannot be undone: {problem}")
    else:
        take_way(tools, state, "undo", before if wanted is None else "")


def _why_not_gone_back(tools: Tools, state: UpgradeState) -> str:
    """Why the old code cannot begin again where the new one had begun; "" where it can."""
    beginning = beginning_of(tools, tools.means.observer.observe(tools.stream_id, state.last.new_deployment_id))
    if beginning is None:
        return "the snapshot to go back to is gone, or cannot be read"
    return _why_not_begun(tools, beginning) or _why_not_whole(tools, state, beginning)


def _cannot(tools: Tools, state: UpgradeState, reason: str) -> None:
    """No way is exact: the stream stays as it is, with all its data, and a person has to choose."""
    finish(tools, state, "failed", f"no way back is exact, so nothing was touched: {reason}")
