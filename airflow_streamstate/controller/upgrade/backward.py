"""The way back to the old version, in the first way that is exact; where none is, it is said, and nothing is touched.

``resume``: nothing of the new version ever ran. ``handover``: it neither committed nor planned a batch, so the old one
begins where it had ended. ``forward``: the old code goes on from the new one's last commit, rehearsed before; what the
new one wrote stays, and its batches are named. ``undo``: back to the handover, with the sinks undone (Law 14); where a
drain left state that nothing can be seeded over, back to before the drain.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from airflow_streamstate.control.journal import CommandSlot
from airflow_streamstate.control.upgrades import UpgradeState
from airflow_streamstate.controller.commands.orders import KIND_OF
from airflow_streamstate.controller.decide import Refused, decide_start
from airflow_streamstate.controller.deploy.deploying import refuse_sent_once
from airflow_streamstate.controller.deploy.going_back import UsedError, begun_batches, committed_batches
from airflow_streamstate.controller.deploy.takeover import built_checkpoints
from airflow_streamstate.controller.observe.observation import ALIVE, Observation, pending_drain
from airflow_streamstate.controller.observe.one_time_sources import one_time_sources
from airflow_streamstate.controller.observe.outcomes import decide_command_outcome
from airflow_streamstate.controller.request.resolved_request import Return
from airflow_streamstate.controller.request.version import Version
from airflow_streamstate.controller.upgrade.deciding import decide_return
from airflow_streamstate.controller.upgrade.ends import finish
from airflow_streamstate.controller.upgrade.forward import STAY_SECONDS, WARM_SECONDS, cancelled_before
from airflow_streamstate.controller.upgrade.tools import (
    SILENCE_SECONDS,
    Act,
    Next,
    Tools,
    Wait,
    describe_error,
    is_passing,
)
from airflow_streamstate.controller.upgrade.undoing import beginning_id, beginning_of, has_run_batches, why_not_undone
from airflow_streamstate.controller.wait.waiting import describe
from airflow_streamstate.controller.wait.watching import redacted
from airflow_streamstate.errors import (
    ConflictError,
    DeploymentFailedError,
    IncompatibleUpgradeError,
    InputLostError,
    InvalidRequestError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.protocol.data_events import Undone
from airflow_streamstate.protocol.ids import attempt_of, return_request_id_for, snapshot_id_for
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.upgrades import WAITS, ReturnWay
from airflow_streamstate.snapshot.data import check_complete

# The driver of the version that comes back, before the one that is given up is stopped: rehearsed, and waiting.
#
# Nothing depends on it: where there is no room for two, where its rehearsal fails, or where it is late, the way back
# is taken without it, and a driver is launched after the stop. Why is recorded with the step.

NOTHING_RUNS = "what is given up does not run, so that no time is to be lost"


def stay_seconds(tools: Tools) -> float | None:
    """For how long a driver that is rehearsed is to wait; None where none is wanted."""
    upgrade = tools.upgrade
    return upgrade.rehearsal_within_seconds + STAY_SECONDS if upgrade.warm else None


def take_way(
    tools: Tools, state: UpgradeState, way: ReturnWay, reason: str = "", *, rehearsal_id: str | None = None
) -> None:
    """Record the way back that was decided on; before it is gone, a driver for it comes up, where that can be.

    Args:
        tools, state: of the upgrade.
        way: ``handover``, ``forward`` or ``undo``.
        reason: why not in an earlier way; "" for nothing to say.
        rehearsal_id: of the old code on what the new version left, where its driver may wait by now.

    Raises:
        UnavailableError, OutcomeUnknownError: a rehearsal could not be begun, and may be in a moment.
    """
    if not tools.upgrade.warm:
        go_back(tools, state, way, reason, "as was asked for")
        return
    end = "" if rehearsal_id is None else tools.planning.waiting_end(tools.stream_id, rehearsal_id)
    if rehearsal_id is not None and not end:
        tools.take(state, "trying", reason, way=way, rehearsal_id=rehearsal_id, is_decided=True)
        return
    if way == "forward":
        go_back(tools, state, way, reason, end)
        return
    seen = tools.context.observer.observe(tools.stream_id, state.last.new_deployment_id)
    beginning = beginning_of(tools, seen)
    if not _is_alive(seen) or beginning is None:
        go_back(tools, state, way, reason, NOTHING_RUNS)
        return
    try:
        view = tools.planning.begin(
            tools.pinned(tools.old_version()),
            request_id=tools.request_id(f"back-{way}"),
            deadline_seconds=tools.upgrade.rehearsal_within_seconds,
            waits_seconds=stay_seconds(tools),
            snapshot_id=beginning.snapshot_id,
        )
    except StreamStateError as error:
        if is_passing(error) and tools.waited_seconds(state) < PATIENCE_SECONDS:
            raise
        go_back(tools, state, way, reason, describe_error(error))
        return
    tools.take(state, "trying", reason, way=way, rehearsal_id=view.rehearsal_id, is_decided=True)


def go_back(tools: Tools, state: UpgradeState, way: ReturnWay, reason: str, driver: str) -> None:
    """Record that the version that is given up is ended now; ``driver``: as in ``UpgradeStep``."""
    tools.take(state, "returning", reason, way=way, driver=driver)


def warming(tools: Tools, state: UpgradeState) -> Next:
    """The way is decided on, and the driver for it comes up beside the version that is given up."""
    way: ReturnWay = state.last.way or "forward"
    go = partial(go_back, tools, state, way, state.last.text)
    rehearsal_id = str(state.last.rehearsal_id)
    if way == "handover" and _has_run(tools, state):
        words = "it has run a batch while the old driver came up, so its beginning is not its end"
        return Act(partial(tools.take, state, "unhealthy", "; ".join(filter(None, (tools.why_given_up(), words)))))
    try:
        if tools.planning.is_waiting(tools.stream_id, rehearsal_id):
            return Act(partial(go, WAITS))
        end = tools.planning.waiting_end(tools.stream_id, rehearsal_id)
        is_over = tools.planning.is_over(tools.stream_id, rehearsal_id)
    except InvalidRequestError as error:
        return Act(partial(go, describe_error(error)))
    if (
        not end
        and not is_over
        and not _is_alive(tools.context.observer.observe(tools.stream_id, state.last.new_deployment_id))
    ):
        end = NOTHING_RUNS
    within_seconds = WARM_SECONDS + (0.0 if way == "forward" else tools.upgrade.rehearsal_within_seconds)
    waited_seconds = (tools.context.clock.now() - state.last.taken_at).total_seconds()
    if not end and waited_seconds >= within_seconds:
        end = f"it has not come to its first start in {within_seconds:g} s"
    if end:
        return Act(partial(go, end))
    return Wait("the driver of the version before comes up beside the one that is given up")


def _has_run(tools: Tools, state: UpgradeState) -> bool:
    """Whether the version that is given up is past its beginning by now: it runs on while the driver comes up. Where
    the store of its log does not answer, its end will tell."""
    with suppress(UnavailableError):
        seen = tools.context.observer.observe(tools.stream_id, state.last.new_deployment_id)
        return has_run_batches(tools, seen, beginning_of(tools, seen))
    return False


def give_up_waiting(tools: Tools, state: UpgradeState) -> None:
    """End a driver that waits for a way that is not taken: there may not be room for one more."""
    if state.last.is_decided and state.last.rehearsal_id is not None:
        with suppress(StreamStateError):
            tools.planning.give_up(tools.stream_id, state.last.rehearsal_id)


def _is_alive(seen: Observation) -> bool:
    return seen.is_current and seen.state in ALIVE


# The act of coming back: what is given up is ended, and the old version runs again.

PATIENCE_SECONDS = 60.0
"""So long a version that is given up may take to end its batch; then it is killed, and the batch is run again over the
same bounds, or undone."""
KILL_GRACE_SECONDS = 10.0


def returning(tools: Tools, state: UpgradeState) -> Next:
    """The way is decided: what is given up is ended, and the old code deployed in its place."""
    if state.last.way == "resume":
        return Act(partial(_resume, tools, state))
    seen = tools.context.observer.observe(tools.stream_id, state.last.new_deployment_id)
    if not seen.is_current or seen.state not in ALIVE:
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
        reason = f"upgrade {tools.upgrade.upgrade_id} gives it up"
        order = tools.order("stop", seen.deployment_id, "bad-end", reason)
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

    A drained one never does (Law 11), one that a drain still waits for would only end again, and one whose source sends
    each row once is refused: there its code is deployed anew, over what it has left.
    """
    seen = tools.old()
    now = seen.state
    new_id = None if seen.is_current else tools.deployed_id()
    if new_id is not None:  # by somebody who slept in his deploy while another gave it up
        tools.take(state, "unhealthy", state.last.text, new_deployment_id=new_id)
        return
    try:
        commands = tools.control.journal(seen.deployment_id).commands()
        is_over = now == "drained" or (now not in ALIVE and _cannot_resume(tools, seen, commands))
        if not seen.is_current or is_over:
            request_id = return_request_id_for(tools.upgrade.upgrade_id, "anew")
            old = tools.pinned(Version.of(seen.spec), None if now == "drained" else "restore")
            view = tools.patiently(state, 2 * PATIENCE_SECONDS, lambda: tools.deploy(old, request_id))
            tools.take(state, "returned", state.last.text, returned_deployment_id=view.deployment_id)
            return
        if now not in ALIVE:
            tools.patiently(state, 2 * PATIENCE_SECONDS, lambda: tools.resume("back"))
    except StreamStateError as error:
        if isinstance(error, IncompatibleUpgradeError) and now == "drained" and seen.is_current:
            # Its drain left state, which a seed would drop (Law 16); the snapshot from before the drain has it.
            tools.take(state, "unhealthy", describe_error(error), new_deployment_id=seen.deployment_id)
            return
        _not_back(tools, state, error)
        return
    tools.take(state, "returned", state.last.text, returned_deployment_id=seen.deployment_id)


def _cannot_resume(tools: Tools, seen: Observation, commands: list[CommandSlot]) -> bool:
    """Whether a resume of what has ended would be refused, or would run nothing."""
    return pending_drain(seen, commands) is not None or bool(one_time_sources(tools.context.home, seen))


def _come_back(tools: Tools, state: UpgradeState, seen: Observation) -> None:
    """Deploy the old code in the place of what is given up."""
    way, beginning = state.last.way, beginning_of(tools, seen)
    returns, request_id = None, return_request_id_for(tools.upgrade.upgrade_id, str(way))
    if way in ("handover", "undo"):
        if beginning is None:  # never from anywhere else instead (Law 5)
            reason = "the snapshot to go back to is gone, or cannot be read"
            finish(tools, state, "failed", f"the old version could not be started again: {reason}")
            return
        upgrade = tools.upgrade
        returns = Return(beginning.snapshot_id, way == "undo", upgrade.undo_command, upgrade.accepts_duplicates)
    try:
        # The last deployment says where snapshots are kept: the old place may be lost by now.
        version = replace(tools.old_version(), snapshots=seen.spec.snapshots)
        rehearsal_id = state.last.rehearsal_id if state.last.driver == WAITS else None
        old = tools.pinned(version, returns=returns, rehearsal_id=rehearsal_id)
        view = tools.patiently(state, 2 * PATIENCE_SECONDS, lambda: tools.deploy(old, request_id))
    except StreamStateError as error:
        if way == "handover" and isinstance(error, UsedError):
            # It ran a batch while it was being ended: it has to be gone on from that, or that undone.
            tools.take(state, "unhealthy", describe_error(error))
            return
        _not_back(tools, state, error)
        return
    tools.take(
        state,
        "returned",
        state.last.text,
        returned_deployment_id=view.deployment_id,
        **_batches_of(tools, seen),
    )


def _not_back(tools: Tools, state: UpgradeState, error: StreamStateError) -> None:
    waited_seconds = tools.waited_seconds(state)
    if is_passing(error) and waited_seconds < SILENCE_SECONDS:
        raise error
    if isinstance(error, ConflictError) and waited_seconds < 2 * PATIENCE_SECONDS:
        raise error
    finish(tools, state, "failed", f"the old version could not be started again: {describe_error(error)}")


def _batches_of(tools: Tools, seen: Observation) -> dict[str, Any]:
    """The batches of a deployment, by query: those whose output is its own, and the one that it only began."""
    began_id = beginning_id(tools, seen)
    taken_id = snapshot_id_for(seen.deployment_id, "stopped", seen.attempt)
    beginning = None if began_id is None else tools.control.readable_manifest(began_id)
    end = tools.control.readable_manifest(getattr(seen.terminal, "snapshot_id", None) or taken_id)
    if beginning is None or end is None:
        return {"bad_batches": {}, "begun_batches": {}}
    return {"bad_batches": committed_batches(beginning, end), "begun_batches": begun_batches(beginning, end)}


def _bad_batches(state: UpgradeState, seen: Observation) -> dict[str, tuple[int, ...]]:
    """What is known of it by its end; else what was found in the sinks and undone: all that tells, where the
    checkpoints that ran it are gone."""
    bad, begun = dict(state.last.bad_batches or {}), state.last.begun_batches or {}
    undone = {
        event.query_name: (event.first_batch_id, event.last_batch_id)
        for event in seen.of_kind(Undone, any_attempt=True)
        if event.first_batch_id is not None and event.last_batch_id is not None and event.query_name not in begun
    }
    return {**undone, **bad}


def _why_back(tools: Tools, state: UpgradeState) -> str:
    """Why it was given up, and what is to be said of the way."""
    why = tools.why_given_up()
    seen = tools.context.observer.observe(tools.stream_id, state.last.returned_deployment_id)
    again = [
        f"query {event.query_name}: at the most {event.rows_again:,} rows of input come a second time"
        for event in seen.of_kind(Undone, any_attempt=True)
        if event.rows_again is not None
    ]
    return "; ".join(dict.fromkeys(text for text in (why, state.last.text, *again) if text))


def returned(tools: Tools, state: UpgradeState) -> Next:
    """The old version was started: it proves itself, or it is told that it does not."""
    seen = tools.context.observer.observe(tools.stream_id, state.last.returned_deployment_id)
    try:
        if tools.waits.status_if_healthy(seen) is not None:
            facts = {"bad_batches": _bad_batches(state, seen)}
            return Act(lambda: finish(tools, state, "rolled_back", _why_back(tools, state), **facts))
    except (ConflictError, DeploymentFailedError) as error:
        now = seen.state
        if now == "drained" and seen.deployment_id == tools.upgrade.old_deployment_id:
            # A query of it was flushed already when its drain failed: the rest was drained, too.
            return Act(partial(_resume, tools, state))
        if now == "failed" and seen.is_current and not _was_resumed(tools, seen):
            return Act(partial(_resume_again, tools, state, seen))
        is_late = tools.waited_seconds(state) >= tools.upgrade.healthy_when.within_seconds
        if now == "degraded" and not is_late and _may_end_of_it(seen):
            return Wait(redacted(seen, describe(seen)), tools.pause_seconds(seen.spec))
        reason = f"the old version is back, and is not well: {describe_error(error)}"
        return Act(lambda: finish(tools, state, "failed", reason))
    if tools.waited_seconds(state) >= tools.upgrade.healthy_when.within_seconds:
        text = f"the old version was started again, and has not proven itself: {redacted(seen, describe(seen))}"
        return Act(lambda: finish(tools, state, "failed", text))
    return Wait(redacted(seen, describe(seen)), tools.pause_seconds(seen.spec))


def _may_end_of_it(seen: Observation) -> bool:
    """Whether a driver with a failed query may still end of that, or its script start the query again.

    The script has ``exit_grace_seconds`` for it, by the driver's clock; a driver that ends the others itself
    (``on_query_failure`` ``fail``) takes as long as their batches take.
    """
    if seen.spec.on_query_failure != "script":
        return seen.spec.on_query_failure == "fail"
    newest_at = max(event.at for event in seen.failed_queries.values())
    beat = seen.heartbeat
    return beat is None or (beat.at - newest_at).total_seconds() < seen.spec.settings.exit_grace_seconds


def _was_resumed(tools: Tools, seen: Observation) -> bool:
    """Whether its driver was started again once, and that one is dead, too."""
    record = tools.control.request(tools.request_id("again"))
    return record is not None and record.command_id is not None and seen.attempt >= attempt_of(record.command_id)


def _resume_again(tools: Tools, state: UpgradeState, seen: Observation) -> None:
    """A driver may die of anything, and the stream is not left without one for that; of two deaths it is told."""
    try:
        tools.resume("again")
    except StreamStateError as error:
        if is_passing(error) or isinstance(error, ConflictError):
            raise
        finish(tools, state, "failed", f"the old version is back, and could not be resumed: {describe_error(error)}")
        return
    tools.take(state, "returned", f"its driver had died: attempt {seen.attempt} was followed by another")


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
    seen = tools.context.observer.observe(tools.stream_id, new_id)
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
    if seen.spec.start.snapshot_id is None and not has_run and built_checkpoints(tools.context.home, tools.old()):
        # Forward from nothing would be with nothing (Law 5).
        kept = ", and where the old version had ended was not kept" if beginning is None else ""
        reason = f"it began with nothing and ran nothing, so the old code would begin with nothing{kept}"
        return Act(partial(_cannot, tools, state, reason))
    return Act(partial(_try, tools, state))


def _why_not_begun(tools: Tools, beginning: SnapshotManifest) -> str:
    """Why the old code would be refused there; "" where it would not. Asked before anything is ended."""
    request = tools.pinned(tools.old_version()).request
    decision = decide_start(request, tools.upgrade.old_deployment_id, beginning)
    if isinstance(decision, Refused):
        return describe_error(decision.error)
    try:
        refuse_sent_once(request, beginning)
    except InputLostError as error:
        return describe_error(error)
    return ""


def _why_not_whole(tools: Tools, state: UpgradeState, beginning: SnapshotManifest) -> str:
    """Why nothing can be built of a snapshot: a file of it is missing, or its place does not answer; "" where it can.

    Raises:
        UnavailableError: it does not answer, and may in a moment.
    """
    home = tools.context.home
    try:
        tools.patiently(state, PATIENCE_SECONDS, lambda: check_complete(home.places.of(beginning), beginning))
    except StreamStateError as error:
        if is_passing(error) and tools.waited_seconds(state) < PATIENCE_SECONDS:
            raise
        return describe_error(error)
    return ""


def _try(tools: Tools, state: UpgradeState) -> None:
    """Rehearse the old code on what the new one has left by now; its driver then waits."""
    give_up_waiting(tools, state)
    try:
        view = tools.patiently(
            state,
            PATIENCE_SECONDS,
            lambda: tools.planning.begin(
                tools.pinned(tools.old_version()),
                request_id=tools.request_id("back-plan"),
                deadline_seconds=tools.upgrade.rehearsal_within_seconds,
                waits_seconds=stay_seconds(tools),
            ),
        )
    except StreamStateError as error:
        if is_passing(error) and tools.waited_seconds(state) < PATIENCE_SECONDS:
            raise
        _undo(tools, state, f"the old code cannot go on from the new one's last commit: {describe_error(error)}", None)
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
    beginning = beginning_of(tools, tools.context.observer.observe(tools.stream_id, state.last.new_deployment_id))
    if beginning is None:
        return "the snapshot to go back to is gone, or cannot be read"
    return _why_not_begun(tools, beginning) or _why_not_whole(tools, state, beginning)


def _cannot(tools: Tools, state: UpgradeState, reason: str) -> None:
    """No way is exact: the stream stays as it is, with all its data, and a person has to choose."""
    finish(tools, state, "failed", f"no way back is exact, so nothing was touched: {reason}")
