"""The rollback to the old version: the first exact way of these, or a failure that leaves the stream as it is.

``resume``: the new version never ran. ``handover``: the new version neither committed nor planned a batch, so the old
one starts where it ended. ``forward``: the old code, rehearsed before, continues from the new version's last commit;
the new version's output stays, and its batches are named. ``undo``: back to the handover, with the sinks undone
(Law 14); or to before the drain, if that left state that a seed would drop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from airflow_streamstate.control.journal import CommandSlot
from airflow_streamstate.control.upgrade_journal import UpgradeState
from airflow_streamstate.controller.decide import Refused, decide_start
from airflow_streamstate.controller.deploy.deployment import refuse_sent_once
from airflow_streamstate.controller.deploy.start_plan import UsedError, begun_batches, committed_batches
from airflow_streamstate.controller.deploy.takeover import built_checkpoints
from airflow_streamstate.controller.observe.observation import (
    ENDED,
    NOT_ENDED,
    Observation,
    one_time_sources,
    pending_drain,
)
from airflow_streamstate.controller.observe.outcomes import decide_command_outcome
from airflow_streamstate.controller.observe.pending_orders import ORDERS
from airflow_streamstate.controller.request.requests import Return
from airflow_streamstate.controller.upgrade.decisions import decide_return
from airflow_streamstate.controller.upgrade.forward import STAY_SECONDS, WARM_SECONDS, cancelled_before, finish
from airflow_streamstate.controller.upgrade.steps import (
    SILENCE_SECONDS,
    Act,
    Next,
    Tools,
    Wait,
    beginning_id,
    beginning_of,
    describe_error,
    has_only_planned,
    has_run_batches,
    is_passing,
    why_not_undone,
)
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
from airflow_streamstate.protocol.events import Undone
from airflow_streamstate.protocol.ids import attempt_of, return_request_id_for, snapshot_id_for
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.upgrades import (
    DriverLaunchedLater,
    DriverWaits,
    NewGivenUp,
    NewOrdered,
    NoStandby,
    OldRehearsed,
    OldReturned,
    Returning,
    ReturnWay,
    WayDecided,
)
from airflow_streamstate.snapshot.data import check_complete

# The driver of the old version comes up, rehearsed and waiting, before the given-up one is stopped. It only saves
# time: where it fails or is late, a driver is launched after the stop, and the step records why.

NOTHING_RUNS = "the abandoned version does not run, so there is no time to save"


def _stay_seconds(tools: Tools) -> float | None:
    """How long a rehearsed driver is to wait; None: it is not to wait."""
    upgrade = tools.upgrade
    return upgrade.terms.rehearsal_deadline_seconds + STAY_SECONDS if upgrade.terms.warm else None


def _take_way(
    tools: Tools, state: UpgradeState, way: ReturnWay, reason: str = "", *, rehearsal_id: str | None = None
) -> None:
    """Record the decided rollback, and first start a driver for it if that saves time.

    Args:
        reason: why a better way was not taken.
        rehearsal_id: a rehearsal of the old code on the state that the new version left; its driver may wait by now.

    Raises:
        UnavailableError, OutcomeUnknownError: a rehearsal could not start; retry.
    """
    if not tools.upgrade.terms.warm:
        _return(tools, state, way, reason, "as requested")
        return
    standby_id = _standby_id(tools, state)
    if way != "forward" and standby_id is not None:
        tools.take(state, "returning", reason, Returning(way, DriverWaits(standby_id)))
        return
    end = "" if rehearsal_id is None else tools.rehearsals.waiting_end(tools.stream_id, rehearsal_id)
    if rehearsal_id is not None and not end:
        tools.take(state, "trying", reason, WayDecided(way, rehearsal_id))
        return
    if way == "forward":
        _return(tools, state, way, reason, end)
        return
    seen = _new(tools, state)
    beginning = beginning_of(tools, seen)
    if not _is_alive(seen) or beginning is None:
        _return(tools, state, way, reason, NOTHING_RUNS)
        return
    try:
        view = tools.rehearsals.begin(
            tools.request_for(tools.old_version()),
            request_id=tools.request_id(f"back-{way}"),
            deadline_seconds=tools.upgrade.terms.rehearsal_deadline_seconds,
            waits_seconds=_stay_seconds(tools),
            snapshot_id=beginning.snapshot_id,
        )
    except StreamStateError as error:
        if is_passing(error) and tools.waited_seconds(state) < PATIENCE_SECONDS:
            raise
        _return(tools, state, way, reason, describe_error(error))
        return
    tools.take(state, "trying", reason, WayDecided(way, view.rehearsal_id))


def _standby_id(tools: Tools, state: UpgradeState) -> str | None:
    """The rehearsal of the driver that was kept ready for the rollback, and waits, or None."""
    standby_id = state.standby_id
    with suppress(InvalidRequestError):  # it was removed
        if standby_id is not None and tools.rehearsals.is_waiting(tools.stream_id, standby_id):
            return standby_id
    return None


def _return(tools: Tools, state: UpgradeState, way: ReturnWay, reason: str, why_cold: str) -> None:
    """Record that the given-up version is to end now, and that a driver for the old one is launched then."""
    tools.take(state, "returning", reason, Returning(way, DriverLaunchedLater(why_cold)))


def _warming(tools: Tools, state: UpgradeState) -> Next:
    """The way is decided; its driver starts up alongside the abandoned version, which runs on."""
    way: ReturnWay = state.way or "forward"
    go_cold = partial(_return, tools, state, way, state.text)
    rehearsal_id = str(state.rehearsal_id)
    if way == "handover" and _has_run(tools, state):
        words = "it has run a batch while the old driver started, so its start is not its end"
        return Act(partial(tools.take, state, "unhealthy", "; ".join(filter(None, (tools.why_given_up(), words)))))
    try:
        if tools.rehearsals.is_waiting(tools.stream_id, rehearsal_id):
            warm = Returning(way, DriverWaits(rehearsal_id))
            return Act(lambda: tools.take(state, "returning", state.text, warm))
        end = tools.rehearsals.waiting_end(tools.stream_id, rehearsal_id)
        is_over = tools.rehearsals.is_over(tools.stream_id, rehearsal_id)
    except InvalidRequestError as error:
        return Act(partial(go_cold, describe_error(error)))
    if not end and not is_over and not _is_alive(_new(tools, state)):
        end = NOTHING_RUNS
    within_seconds = WARM_SECONDS + (0.0 if way == "forward" else tools.upgrade.terms.rehearsal_deadline_seconds)
    waited_seconds = (tools.context.clock.now() - state.last.taken_at).total_seconds()
    if not end and waited_seconds >= within_seconds:
        end = f"it has not reached its first start in {within_seconds:g} s"
    if end:
        return Act(partial(go_cold, end))
    return Wait("the old version's driver starts next to the abandoned version")


def _has_run(tools: Tools, state: UpgradeState) -> bool:
    """Whether the abandoned version has run a batch in the meantime. False if the store of its log does not answer: the
    poll at its end finds the batch."""
    with suppress(UnavailableError):
        seen = _new(tools, state)
        return has_run_batches(tools, seen, beginning_of(tools, seen))
    return False


def _new(tools: Tools, state: UpgradeState) -> Observation:
    """The given-up version as it is now."""
    return tools.context.observer.observe(tools.stream_id, state.new_deployment_id)


def _is_alive(seen: Observation) -> bool:
    return seen.is_current and seen.state in NOT_ENDED


# The given-up version ends, and the old one is deployed or resumed.

PATIENCE_SECONDS = 60.0
"""How long the given-up version may take to end its batch; then its driver is killed, and the batch runs again over the
same bounds, or is undone."""
KILL_GRACE_SECONDS = 10.0


def _returning(tools: Tools, state: UpgradeState) -> Next:
    if state.way == "resume":
        return Act(partial(_resume, tools, state))
    seen = _new(tools, state)
    if not _is_alive(seen):
        return Act(partial(_come_back, tools, state, seen))
    if seen.state == "silent":  # it would not obey
        return Act(partial(_kill, tools, state, seen))
    if state.bad_command_id is None:
        return Act(partial(_order_end, tools, state, seen))
    end = decide_command_outcome(seen, state.bad_command_id, ORDERS["stop"].kind)
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
        if not isinstance(error, ConflictError):  # a conflict: it has just ended, which the next poll finds
            _not_back(tools, state, error)
        raise
    tools.take(state, "returning", state.text, NewOrdered(order.command_id))


def _kill(tools: Tools, state: UpgradeState, seen: Observation) -> None:
    """Kill the driver of the observed deployment and no other: the stream may have moved on by now."""
    try:
        tools.attempts.end_driver(seen, KILL_GRACE_SECONDS)
    except StreamStateError as error:
        _not_back(tools, state, error)


def _resume(tools: Tools, state: UpgradeState) -> None:
    """Resume the old version, which is still current, on its own checkpoints.

    Its code is deployed again instead where it is drained (Law 11), where a drain of it is pending, or where a source
    sends each row only once.
    """
    seen = tools.old()
    now = seen.state
    new_id = None if seen.is_current else tools.deployed_id()
    if new_id is not None:  # a slow worker finished its deploy while another gave the new version up
        tools.take(state, "unhealthy", state.text, NewGivenUp(new_id))
        return
    try:
        commands = tools.control.journal(seen.deployment_id).commands()
        is_over = now == "drained" or (now not in NOT_ENDED and _cannot_resume(tools, seen, commands))
        if not seen.is_current or is_over:
            request_id = return_request_id_for(tools.upgrade.upgrade_id, "anew")
            old = tools.request_for(
                tools.control.with_found_modules(seen.spec).version, None if now == "drained" else "restore"
            )
            view = tools.patiently(state, 2 * PATIENCE_SECONDS, lambda: tools.deploy(old, request_id))
            tools.take(state, "returned", state.text, OldReturned(view.deployment_id, {}, {}))
            return
        if now not in NOT_ENDED:
            if state.standby_id is not None:
                with suppress(StreamStateError):  # a resume launches a driver, and this one takes room
                    tools.rehearsals.give_up(tools.stream_id, state.standby_id)
            tools.patiently(state, 2 * PATIENCE_SECONDS, lambda: tools.resume("back"))
    except StreamStateError as error:
        if isinstance(error, IncompatibleUpgradeError) and now == "drained" and seen.is_current:
            # Its drain left state that a seed would drop (Law 16); the snapshot from before the drain has it.
            tools.take(state, "unhealthy", describe_error(error), NewGivenUp(seen.deployment_id))
            return
        _not_back(tools, state, error)
        return
    tools.take(state, "returned", state.text, OldReturned(seen.deployment_id, {}, {}))


def _cannot_resume(tools: Tools, seen: Observation, commands: list[CommandSlot]) -> bool:
    """Whether a resume would be refused, or would only flush."""
    return pending_drain(seen, commands) is not None or bool(one_time_sources(tools.context.home, seen))


def _come_back(tools: Tools, state: UpgradeState, seen: Observation) -> None:
    """Deploy the old code in the place of the given-up version."""
    way, beginning = state.way, beginning_of(tools, seen)
    returns, request_id = None, return_request_id_for(tools.upgrade.upgrade_id, str(way))
    if way in ("handover", "undo"):
        if beginning is None:  # no other start mode instead (Law 5)
            finish(tools, state, "failed", f"the old version could not be started again: {NO_BEGINNING}")
            return
        upgrade = tools.upgrade
        terms = upgrade.terms_of_return
        returns = Return(beginning.snapshot_id, way == "undo", terms.undo_command, terms.accept_duplicates)
    try:
        # Snapshots go where the last deployment has them: the old place may be lost by now.
        version = replace(tools.old_version(), snapshots=seen.spec.version.snapshots)
        rehearsal_id = state.driver.rehearsal_id if isinstance(state.driver, DriverWaits) else None
        rewrite = tools.rewrite_back(seen) if returns is None else None
        # Forward is a way where its rehearsal has shown at most hazards: ``decide_return`` has accepted them.
        old = tools.request_for(
            version, returns=returns, rehearsal_id=rehearsal_id, rewrite=rewrite, accept_hazards=way == "forward"
        )
        view = tools.patiently(state, 2 * PATIENCE_SECONDS, lambda: tools.deploy(old, request_id))
    except StreamStateError as error:
        if way == "handover" and isinstance(error, UsedError):
            # It ran a batch while it was ending: continue from that batch, or undo it.
            tools.take(state, "unhealthy", describe_error(error))
            return
        by_standby = way == "forward" and rehearsal_id is not None and rehearsal_id == state.standby_id
        if by_standby and not is_passing(error) and not isinstance(error, ConflictError):
            # Its rehearsal was not on what the new version has left: with one that is, there may be another way.
            why = describe_error(error)
            text = f"{tools.why_given_up()}; not by the driver that was kept ready: {why}"
            tools.take(state, "unhealthy", text, NoStandby(why))
            return
        _not_back(tools, state, error)
        return
    bad, begun = _batches_of(tools, seen)
    tools.take(state, "returned", state.text, OldReturned(view.deployment_id, bad, begun))


def _not_back(tools: Tools, state: UpgradeState, error: StreamStateError) -> None:
    waited_seconds = tools.waited_seconds(state)
    if is_passing(error) and waited_seconds < SILENCE_SECONDS:
        raise error
    if isinstance(error, ConflictError) and waited_seconds < 2 * PATIENCE_SECONDS:
        raise error
    finish(tools, state, "failed", f"the old version could not be started again: {describe_error(error)}")


def _batches_of(tools: Tools, seen: Observation) -> tuple[Mapping[str, tuple[int, ...]], Mapping[str, int]]:
    """By query, the batches that a deployment committed, and the one that it only started."""
    began_id = beginning_id(tools, seen)
    taken_id = snapshot_id_for(seen.deployment_id, "stopped", seen.attempt)
    beginning = None if began_id is None else tools.control.readable_manifest(began_id)
    end = tools.control.readable_manifest(getattr(seen.terminal, "snapshot_id", None) or taken_id)
    if beginning is None or end is None:
        return {}, {}
    return committed_batches(beginning, end), begun_batches(beginning, end)


def _bad_batches(state: UpgradeState, seen: Observation) -> dict[str, tuple[int, ...]]:
    """The recorded batches of the given-up version, and those that were undone in the sinks: where its checkpoints are
    gone, only the latter are known."""
    undone = {
        event.query_name: (event.first_batch_id, event.last_batch_id)
        for event in seen.of_kind(Undone, any_attempt=True)
        if event.first_batch_id is not None
        and event.last_batch_id is not None
        and event.query_name not in state.begun_batches
    }
    return {**undone, **state.bad_batches}


def _why_back(tools: Tools, state: UpgradeState) -> str:
    """Why the new version was abandoned, and notes on the rollback."""
    seen = tools.context.observer.observe(tools.stream_id, state.returned_deployment_id)
    again = [
        f"query {event.query_name}: at most {event.rows_again:,} rows of input are written a second time"
        for event in seen.of_kind(Undone, any_attempt=True)
        if event.rows_again is not None
    ]
    return "; ".join(dict.fromkeys(filter(None, (tools.why_given_up(), state.text, *again))))


def _returned(tools: Tools, state: UpgradeState) -> Next:
    """The old version was started again: it becomes healthy, or the upgrade fails."""
    seen = tools.context.observer.observe(tools.stream_id, state.returned_deployment_id)
    try:
        if tools.waits.status_if_healthy(seen) is not None:
            result = replace(state.result_so_far, bad_batches=_bad_batches(state, seen))
            return Act(lambda: finish(tools, state, "rolled_back", _why_back(tools, state), result))
    except (ConflictError, DeploymentFailedError) as error:
        now = seen.state
        if now == "drained" and seen.deployment_id == tools.upgrade.old_deployment_id:
            # One query was already flushed when the drain failed; the resumed attempt drained the others.
            return Act(partial(_resume, tools, state))
        if now == "failed" and seen.is_current and not _was_resumed(tools, seen):
            return Act(partial(_resume_again, tools, state, seen))
        is_late = tools.waited_seconds(state) >= tools.upgrade.terms.healthy_deadline_seconds
        if now == "degraded" and not is_late and _may_still_change(seen):
            return Wait(redacted(seen, describe(seen)), tools.pause_seconds(seen.spec))
        reason = f"the old version is back, and is not healthy: {describe_error(error)}"
        return Act(lambda: finish(tools, state, "failed", reason))
    if tools.waited_seconds(state) >= tools.upgrade.terms.healthy_deadline_seconds:
        text = f"the old version was started again, and is not healthy yet: {redacted(seen, describe(seen))}"
        return Act(lambda: finish(tools, state, "failed", text))
    return Wait(redacted(seen, describe(seen)), tools.pause_seconds(seen.spec))


def _may_still_change(seen: Observation) -> bool:
    """Whether a driver with a failed query may still end, or its script start the query again.

    The script has ``exit_grace_seconds`` for that, by the driver's clock; a driver that ends the other queries itself
    (``on_query_failure`` ``fail``) takes as long as their batches take.
    """
    if seen.spec.version.on_query_failure != "script":
        return seen.spec.version.on_query_failure == "fail"
    newest_at = max(event.at for event in seen.failed_queries.values())
    beat = seen.heartbeat
    return beat is None or (beat.at - newest_at).total_seconds() < seen.spec.version.settings.exit_grace_seconds


def _was_resumed(tools: Tools, seen: Observation) -> bool:
    """Whether the driver was already resumed once, and that attempt has ended as well."""
    record = tools.control.request(tools.request_id("again"))
    return record is not None and record.command_id is not None and seen.attempt >= attempt_of(record.command_id)


def _resume_again(tools: Tools, state: UpgradeState, seen: Observation) -> None:
    """Resume a driver that died once; a second death fails the upgrade."""
    try:
        tools.resume("again")
    except StreamStateError as error:
        if is_passing(error) or isinstance(error, ConflictError):
            raise
        finish(tools, state, "failed", f"the old version is back, and could not be resumed: {describe_error(error)}")
        return
    tools.take(state, "returned", f"its driver had died: attempt {seen.attempt} was followed by another")


MAX_REHEARSALS = 3
"""How often the old code is rehearsed on the new version's state while its driver gives no verdict."""
NO_BEGINNING = "the snapshot to go back to is gone, or cannot be read"


def next_backward(tools: Tools, state: UpgradeState) -> Next:
    """The next act or wait of an upgrade in a backward phase."""
    phases: dict[str, Callable[[Tools, UpgradeState], Next]] = {
        "unhealthy": _unhealthy,
        "trying": _trying,
        "returning": _returning,
        "returned": _returned,
    }
    is_untouched = tools.upgrade.asked == "rollback" and state.phase in ("unhealthy", "trying")
    if is_untouched and "returning" not in state.since:
        cancelled = cancelled_before(tools, state)
        if cancelled is not None:
            return cancelled
    return phases[state.phase](tools, state)


def _unhealthy(tools: Tools, state: UpgradeState) -> Next:
    new_id = state.new_deployment_id
    if new_id is None:
        return Act(partial(_return, tools, state, "resume", "", ""))
    seen = tools.context.observer.observe(tools.stream_id, new_id)
    wanted = tools.upgrade.terms_of_return.strategy
    if wanted == "undo":
        return Act(partial(_undo, tools, state, "", wanted))
    if new_id == tools.upgrade.old_deployment_id:  # no other version ran: its own drain is undone
        return Act(partial(_undo, tools, state, state.text, wanted))
    beginning = beginning_of(tools, seen)
    has_run = has_run_batches(tools, seen, beginning)
    was_refused = state.way == "handover"  # it had run a batch after all
    if wanted is None and beginning is not None and not has_run and not was_refused:
        problem = _why_not_begun(tools, beginning)
        if problem:  # a start from its end, which is the same position, would be refused as well
            return Act(partial(_cannot, tools, state, problem))
        if not _why_not_whole(tools, state, beginning):
            return Act(partial(_take_way, tools, state, "handover"))
    if seen.spec.start.snapshot_id is None and not has_run and built_checkpoints(tools.context.home, tools.old()):
        # Going forward from here would be a fresh start (Law 5).
        kept = ", and the end of the old version was not kept" if beginning is None else ""
        reason = f"it started with empty state and ran no batch, so the old code would start with empty state{kept}"
        return Act(partial(_cannot, tools, state, reason))
    if beginning is not None and state.mode == "restore" and seen.state in ENDED:
        standby_id = _standby_id(tools, state)
        if standby_id and has_only_planned(tools, seen, beginning) and tools.rewrite_back(seen) is None:
            # The old code was rehearsed on this very state, its own, before the stop.
            warm = Returning("forward", DriverWaits(standby_id))
            return Act(lambda: tools.take(state, "returning", decision=warm))
    return Act(partial(_try, tools, state))


def _why_not_begun(tools: Tools, beginning: SnapshotManifest) -> str:
    """Why the old code could not start from this snapshot; "" where it could."""
    request = tools.request_for(tools.old_version())
    decision = decide_start(request, tools.upgrade.old_deployment_id, beginning)
    if isinstance(decision, Refused):
        return describe_error(decision.error)
    try:
        refuse_sent_once(request, beginning)
    except InputLostError as error:
        return describe_error(error)
    return ""


def _why_not_whole(tools: Tools, state: UpgradeState, beginning: SnapshotManifest) -> str:
    """Why a snapshot cannot be restored: a file is missing, or its store does not answer; "" where it can.

    Raises:
        UnavailableError: the store may answer in a moment.
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
    """Rehearse the old code on the state that the new version has left by now; its driver then waits."""
    if state.is_way_decided and state.rehearsal_id is not None:
        with suppress(StreamStateError):  # a driver that waits for another way takes room
            tools.rehearsals.give_up(tools.stream_id, state.rehearsal_id)
    try:
        view = tools.patiently(
            state,
            PATIENCE_SECONDS,
            lambda: tools.rehearsals.begin(
                tools.request_for(tools.old_version(), rewrite=tools.rewrite_back(_new(tools, state))),
                request_id=tools.request_id("back-plan"),
                deadline_seconds=tools.upgrade.terms.rehearsal_deadline_seconds,
                waits_seconds=_stay_seconds(tools),
            ),
        )
    except StreamStateError as error:
        if is_passing(error) and tools.waited_seconds(state) < PATIENCE_SECONDS:
            raise
        _undo(
            tools, state, f"the old code cannot continue from the new one's last commit: {describe_error(error)}", None
        )
        return
    tools.take(state, "trying", decision=OldRehearsed(view.rehearsal_id))


def _trying(tools: Tools, state: UpgradeState) -> Next:
    if state.is_way_decided:
        return _warming(tools, state)
    rehearsal_id = str(state.rehearsal_id)
    try:
        if not tools.rehearsals.is_over(tools.stream_id, rehearsal_id):
            return Wait(tools.rehearsals.describe(tools.stream_id, rehearsal_id))
    except StreamStateError as error:
        if is_passing(error):
            raise
        return Act(partial(_try, tools, state))  # its report is gone
    return Act(partial(_decide, tools, state, rehearsal_id))


def _decide(tools: Tools, state: UpgradeState, rehearsal_id: str) -> None:
    report = tools.rehearsals.report(tools.stream_id, rehearsal_id)
    if report.outcome in ("failed", "deadline"):
        rehearsals = sum(step.phase == "trying" for step in tools.journal.steps(tools.upgrade.upgrade_id))
        if rehearsals < MAX_REHEARSALS:
            _try(tools, state)  # the driver may have died for a passing reason
            return
    undo_problem = why_not_undone(tools, state) or _why_not_gone_back(tools, state)
    decision = decide_return(report, tools.upgrade.terms_of_return.strategy, undo_problem)
    if decision.way is None:
        _cannot(tools, state, decision.reason)
    else:
        _take_way(tools, state, decision.way, decision.reason, rehearsal_id=rehearsal_id)


def _undo(tools: Tools, state: UpgradeState, before: str, wanted: ReturnWay | None) -> None:
    if tools.upgrade.terms_of_return.strategy == "forward":
        _cannot(tools, state, before)
        return
    problem = why_not_undone(tools, state) or _why_not_gone_back(tools, state)
    if problem:
        also = f"{before}; " if before else ""
        _cannot(tools, state, f"{also}the new version's output cannot be undone: {problem}")
    else:
        _take_way(tools, state, "undo", before if wanted is None else "")


def _why_not_gone_back(tools: Tools, state: UpgradeState) -> str:
    """Why the old code cannot start again where the new one started; "" where it can."""
    beginning = beginning_of(tools, _new(tools, state))
    if beginning is None:
        return NO_BEGINNING
    return _why_not_begun(tools, beginning) or _why_not_whole(tools, state, beginning)


def _cannot(tools: Tools, state: UpgradeState, reason: str) -> None:
    finish(tools, state, "failed", f"no rollback is exact, so the stream was not changed: {reason}")
