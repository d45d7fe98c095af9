"""The way back to the old version, in the first way that is exact; where none is, it is said, and nothing is touched.

``resume``: nothing of the new version ever ran. ``handover``: it neither committed nor planned a batch, so the old one
begins where it had ended. ``forward``: the old code goes on from the new one's last commit, rehearsed before; what the
new one wrote stays, and its batches are named. ``undo``: back to the handover, with the sinks undone (Law 14); where a
drain left state that nothing can be seeded over, back to before the drain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from airflow_streamstate.control.upgrades import UpgradeState
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    DeploymentFailedError,
    IncompatibleUpgradeError,
    StreamStateError,
)
from airflow_streamstate.lifecycle.decide import Refused, decide_start
from airflow_streamstate.lifecycle.going_back import UsedError, used_queries
from airflow_streamstate.lifecycle.observation import Observation, pending_drain
from airflow_streamstate.lifecycle.orders import KIND_OF
from airflow_streamstate.lifecycle.outcomes import decide_command_outcome
from airflow_streamstate.lifecycle.state import ALIVE, decide_state
from airflow_streamstate.lifecycle.takeover import built_checkpoints
from airflow_streamstate.lifecycle.upgrading.deciding import decide_return
from airflow_streamstate.lifecycle.upgrading.ends import finish
from airflow_streamstate.lifecycle.upgrading.forward import cancelled_before
from airflow_streamstate.lifecycle.upgrading.tools import Act, Next, Tools, Wait, in_words, is_passing
from airflow_streamstate.lifecycle.upgrading.undoing import beginning_id, why_not_undone
from airflow_streamstate.lifecycle.waiting import describe
from airflow_streamstate.lifecycle.watching import redacted
from airflow_streamstate.lifecycle.wish import Return
from airflow_streamstate.protocol.events import Undone
from airflow_streamstate.protocol.ids import attempt_of, snapshot_id_for
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.records import DeploymentSpec
from airflow_streamstate.protocol.upgrades import ReturnWay

PATIENCE_SECONDS = 60.0
"""So long a version that is given up may take to end its batch; then it is killed, and the batch is run again over the
same bounds, or undone."""
KILL_GRACE_SECONDS = 10.0
MAX_REHEARSALS = 3
"""So often the old code is rehearsed on what the new one left, where its driver gives no verdict."""


def next_backward(tools: Tools, state: UpgradeState) -> Next:
    """What comes next, of an upgrade that is in one of the phases of this way."""
    phases: dict[str, Callable[[Tools, UpgradeState], Next]] = {
        "unhealthy": _unhealthy,
        "trying": _trying,
        "returning": _returning,
        "returned": _returned,
    }
    is_wish = tools.upgrade.asked == "rollback" and state.phase in ("unhealthy", "trying")
    if is_wish and "returning" not in state.since:
        cancelled = cancelled_before(tools, state)
        if cancelled is not None:
            return cancelled
    return phases[state.phase](tools, state)


def _old_spec(tools: Tools) -> DeploymentSpec:
    return tools.control.spec(tools.upgrade.old_deployment_id)


# which way


def _unhealthy(tools: Tools, state: UpgradeState) -> Next:
    new_id = state.last.new_deployment_id
    if new_id is None:
        return Act(lambda: tools.take(state, "returning", way="resume"))
    seen = tools.means.observer.observe(tools.stream_id, new_id)
    wanted = tools.upgrade.way
    if wanted == "undo":
        return Act(partial(_undo, tools, state, "", wanted))
    if new_id == tools.upgrade.old_deployment_id:  # nothing else ever ran: what is undone is its own drain
        return Act(partial(_undo, tools, state, state.last.text, wanted))
    beginning = _beginning(tools, seen)
    has_run = _has_run(tools, seen, beginning)
    was_refused = state.last.way == "handover"  # it was found to have run a batch after all: that is not asked again
    if wanted is None and beginning is not None and not has_run and not was_refused:
        problem = _why_not_begun(tools, beginning)
        if problem:  # and from its end no better: it is the same
            return Act(partial(_cannot, tools, state, problem))
        return Act(lambda: tools.take(state, "returning", way="handover"))
    if seen.spec.start.snapshot_id is None and not has_run and built_checkpoints(tools.means.home, _old(tools)):
        # Forward from nothing would be with nothing (Law 5).
        kept = ", and where the old version had ended was not kept" if beginning is None else ""
        reason = f"it began with nothing and ran nothing, so the old code would begin with nothing{kept}"
        return Act(partial(_cannot, tools, state, reason))
    return Act(partial(_try, tools, state))


def _old(tools: Tools) -> Observation:
    return tools.means.observer.observe(tools.stream_id, tools.upgrade.old_deployment_id)


def _beginning(tools: Tools, seen: Observation) -> SnapshotManifest | None:
    """Where the old version would go on if the new one had never been; None where nothing is kept of that."""
    snapshot_id = beginning_id(tools.upgrade, seen)
    if snapshot_id is None:  # it began with nothing: the end of the old one stays behind
        old = _old(tools)
        snapshot_id = getattr(old.drained or old.terminal, "snapshot_id", None)
    return None if snapshot_id is None else tools.control.readable_manifest(snapshot_id)


def _why_not_begun(tools: Tools, beginning: SnapshotManifest) -> str:
    """Why the old code would be refused there; "" where it would not. Asked before anything is ended."""
    request = tools.version(_old_spec(tools)).as_deploy_request()
    decision = decide_start(request, tools.upgrade.old_deployment_id, beginning)
    return in_words(decision.error) if isinstance(decision, Refused) else ""


def _has_run(tools: Tools, seen: Observation, beginning: SnapshotManifest | None) -> bool:
    """Whether a deployment has committed or planned a batch of its own; after its end it is looked at once more."""
    is_fresh = beginning is None or seen.spec.start.mode == "fresh"
    for name, checkpoint in built_checkpoints(tools.means.home, seen).items():
        try:
            position = checkpoint.position()
        except DataError:  # nobody can say what it ran, so it is taken for something
            return True
        before = None if is_fresh or beginning is None else beginning.queries.get(name)
        began = (None, None) if before is None else (before.position.batch_id, before.position.planned_batch_id)
        if (position.batch_id, position.planned_id) != began:
            return True
    return False


def _try(tools: Tools, state: UpgradeState) -> None:
    """Rehearse the old code on what the new one has left by now."""
    try:
        view = tools.planning.begin(
            tools.version(_old_spec(tools)),
            request_id=tools.request_id("back-plan"),
            deadline_seconds=tools.upgrade.rehearsal_within_seconds,
        )
    except StreamStateError as error:
        if is_passing(error):
            raise
        _undo(tools, state, f"the old code cannot go on from the new one's last commit: {in_words(error)}", None)
        return
    tools.take(state, "trying", rehearsal_id=view.rehearsal_id)


def _trying(tools: Tools, state: UpgradeState) -> Next:
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
        tools.take(state, "returning", decision.reason, way=decision.way)


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
        tools.take(state, "returning", before if wanted is None else "", way="undo")


def _why_not_gone_back(tools: Tools, state: UpgradeState) -> str:
    """Why the old code cannot begin again where the new one had begun; "" where it can."""
    beginning = _beginning(tools, tools.means.observer.observe(tools.stream_id, state.last.new_deployment_id))
    if beginning is None:
        return "the snapshot to go back to is gone, or cannot be read"
    return _why_not_begun(tools, beginning)


def _cannot(tools: Tools, state: UpgradeState, reason: str) -> None:
    """No way is exact: the stream stays as it is, with all its data, and a person has to choose."""
    finish(tools, state, "failed", f"no way back is exact, so nothing was touched: {reason}")


# the act


def _returning(tools: Tools, state: UpgradeState) -> Next:
    if state.last.way == "resume":
        return Act(partial(_resume, tools, state))
    seen = tools.means.observer.observe(tools.stream_id, state.last.new_deployment_id)
    if not seen.is_current or decide_state(seen, seen.observed_at) not in ALIVE:
        return Act(partial(_come_back, tools, state, seen))
    if state.last.bad_command_id is None:
        return Act(partial(_order_end, tools, state, seen))
    end = decide_command_outcome(seen, state.last.bad_command_id, KIND_OF["stop"])
    if (
        seen.is_unlaunched
        or (end is not None and end.outcome != "lost")
        or tools.waited_seconds(state) >= PATIENCE_SECONDS
    ):
        return Act(partial(_kill, tools, state, seen))
    return Wait(redacted(seen, describe(seen)), tools.pause_seconds(seen.spec))


def _order_end(tools: Tools, state: UpgradeState, seen: Observation) -> None:
    try:
        order = tools.orders.order(
            tools.stream_id,
            "stop",
            deployment_id=seen.deployment_id,
            request_id=tools.request_id("bad-end"),
            reason=f"upgrade {tools.upgrade.upgrade_id} gives it up",
            deadline_seconds=None,
        )
    except StreamStateError as error:
        if not isinstance(error, ConflictError):  # it has just ended, or somebody else has: the next look finds that
            _not_back(tools, state, error)
        raise
    tools.take(state, "returning", state.last.text, bad_command_id=order.command_id)


def _kill(tools: Tools, state: UpgradeState, seen: Observation) -> None:
    """The driver of the version that is given up, and of no other: the stream may have moved on by now."""
    try:
        tools.attempts.end_driver(seen, KILL_GRACE_SECONDS)
    except StreamStateError as error:
        _not_back(tools, state, error)


def _resume(tools: Tools, state: UpgradeState) -> None:
    """The old version is still the current one: it goes on from its own checkpoints.

    A drained one never does (Law 11), and one that a drain still waits for would only end again: there its code is
    deployed anew, over what it has left.
    """
    seen = _old(tools)
    now = decide_state(seen, seen.observed_at)
    new_id = None if seen.is_current else tools.deployed_id()
    if new_id is not None:  # by somebody who slept in his deploy while another gave it up
        tools.take(state, "unhealthy", state.last.text, new_deployment_id=new_id)
        return
    try:
        commands = tools.control.journal(seen.deployment_id).commands()
        if not seen.is_current or now == "drained" or (now not in ALIVE and pending_drain(seen, commands) is not None):
            version = tools.version(seen.spec)
            wish = (version if now == "drained" else replace(version, start="restore")).wish()
            view = tools.patiently(
                state,
                2 * PATIENCE_SECONDS,
                lambda: tools.deployer.deploy(wish, tools.request_id("back-anew"), lambda _: None),
            )
            tools.take(state, "returned", state.last.text, returned_deployment_id=view.deployment_id)
            return
        if now not in ALIVE:
            tools.patiently(
                state,
                2 * PATIENCE_SECONDS,
                lambda: tools.attempts.resume(tools.stream_id, tools.request_id("back"), assume_dead=False),
            )
    except StreamStateError as error:
        if isinstance(error, IncompatibleUpgradeError) and now == "drained" and seen.is_current:
            # Its drain left state, which a seed would drop (Law 16); the snapshot from before the drain has it.
            tools.take(state, "unhealthy", in_words(error), new_deployment_id=seen.deployment_id)
            return
        _not_back(tools, state, error)
        return
    tools.take(state, "returned", state.last.text, returned_deployment_id=seen.deployment_id)


def _come_back(tools: Tools, state: UpgradeState, seen: Observation) -> None:
    """Deploy the old code in the place of what is given up."""
    way, beginning = state.last.way, _beginning(tools, seen)
    returns = None
    if way in ("handover", "undo"):
        if beginning is None:  # never from anywhere else instead (Law 5)
            reason = "the snapshot to go back to is gone, or cannot be read"
            finish(tools, state, "failed", f"the old version could not be started again: {reason}")
            return
        upgrade = tools.upgrade
        returns = Return(beginning.snapshot_id, way == "undo", upgrade.undo_command, upgrade.accepts_duplicates)
    try:
        wish = tools.version(_old_spec(tools)).wish(returns)
        view = tools.patiently(
            state,
            2 * PATIENCE_SECONDS,
            lambda: tools.deployer.deploy(wish, tools.request_id(f"back-{way}"), lambda _: None),
        )
    except StreamStateError as error:
        if way == "handover" and isinstance(error, UsedError):
            # It ran a batch while it was being ended: it has to be gone on from that, or that undone.
            tools.take(state, "unhealthy", in_words(error))
            return
        _not_back(tools, state, error)
        return
    tools.take(
        state,
        "returned",
        state.last.text,
        returned_deployment_id=view.deployment_id,
        bad_batches=_bad_batches(tools, seen),
    )


def _not_back(tools: Tools, state: UpgradeState, error: StreamStateError) -> None:
    if is_passing(error) or (isinstance(error, ConflictError) and tools.waited_seconds(state) < 2 * PATIENCE_SECONDS):
        raise error
    finish(tools, state, "failed", f"the old version could not be started again: {in_words(error)}")


def _bad_batches(tools: Tools, seen: Observation) -> dict[str, tuple[int, int]]:
    """The batches of a deployment whose output is its own, by query."""
    began_id = beginning_id(tools.upgrade, seen)
    taken_id = snapshot_id_for(seen.deployment_id, "stopped", seen.attempt)
    beginning = None if began_id is None else tools.control.readable_manifest(began_id)
    end = tools.control.readable_manifest(getattr(seen.terminal, "snapshot_id", None) or taken_id)
    return {} if beginning is None or end is None else used_queries(beginning, end)


def _undone_batches(seen: Observation) -> dict[str, tuple[int, int]]:
    """What was found in the sinks and undone, by query: all that tells, where the checkpoints that ran it are gone."""
    return {
        event.query_name: (event.first_batch_id, event.last_batch_id)
        for event in seen.of_kind(Undone, any_attempt=True)
        if event.first_batch_id is not None and event.last_batch_id is not None
    }


def _why_back(tools: Tools, state: UpgradeState) -> str:
    """Why it was given up, and what is to be said of the way."""
    steps = tools.journal.steps(tools.upgrade.upgrade_id)
    why = next((step.text for step in reversed(steps) if step.phase == "unhealthy"), "")
    return "; ".join(dict.fromkeys(text for text in (why, state.last.text) if text))


def _returned(tools: Tools, state: UpgradeState) -> Next:
    seen = tools.means.observer.observe(tools.stream_id, state.last.returned_deployment_id)
    try:
        if tools.waits.status_if_healthy(seen) is not None:
            facts = {"bad_batches": {**_undone_batches(seen), **(state.last.bad_batches or {})}}
            return Act(lambda: finish(tools, state, "rolled_back", _why_back(tools, state), **facts))
    except (ConflictError, DeploymentFailedError) as error:
        now = decide_state(seen, seen.observed_at)
        if now == "drained" and seen.deployment_id == tools.upgrade.old_deployment_id:
            # A query of it was flushed already when its drain failed: the rest was drained, too.
            return Act(partial(_resume, tools, state))
        if now == "failed" and seen.is_current and not _was_resumed(tools, seen):
            return Act(partial(_resume_again, tools, state, seen))
        reason = f"the old version is back, and is not well: {in_words(error)}"
        return Act(lambda: finish(tools, state, "failed", reason))
    if tools.waited_seconds(state) >= tools.upgrade.healthy_when.within_seconds:
        text = f"the old version was started again, and has not proven itself: {redacted(seen, describe(seen))}"
        return Act(lambda: finish(tools, state, "failed", text))
    return Wait(redacted(seen, describe(seen)), tools.pause_seconds(seen.spec))


def _was_resumed(tools: Tools, seen: Observation) -> bool:
    """Whether its driver was started again once, and that one is dead, too."""
    record = tools.control.request(tools.request_id("again"))
    return record is not None and record.command_id is not None and seen.attempt >= attempt_of(record.command_id)


def _resume_again(tools: Tools, state: UpgradeState, seen: Observation) -> None:
    """A driver may die of anything, and the stream is not left without one for that; of two deaths it is told."""
    try:
        tools.attempts.resume(tools.stream_id, tools.request_id("again"), assume_dead=False)
    except StreamStateError as error:
        if is_passing(error) or isinstance(error, ConflictError):
            raise
        finish(tools, state, "failed", f"the old version is back, and could not be resumed: {in_words(error)}")
        return
    tools.take(state, "returned", f"its driver had died: attempt {seen.attempt} was followed by another")
