"""The act of coming back: what is given up is ended, and the old version runs again."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from airflow_streamstate.control.journal import CommandSlot
from airflow_streamstate.control.upgrades import UpgradeState
from airflow_streamstate.controller.commands.orders import KIND_OF
from airflow_streamstate.controller.deploy.going_back import UsedError, begun_batches, committed_batches
from airflow_streamstate.controller.observe.observation import Observation, pending_drain
from airflow_streamstate.controller.observe.one_time_sources import one_time_sources
from airflow_streamstate.controller.observe.outcomes import decide_command_outcome
from airflow_streamstate.controller.observe.state import ALIVE, decide_state
from airflow_streamstate.controller.request.resolved_request import Return
from airflow_streamstate.controller.upgrade.ends import finish
from airflow_streamstate.controller.upgrade.tools import SILENCE_SECONDS, Act, Next, Tools, Wait, in_words, is_passing
from airflow_streamstate.controller.upgrade.undoing import beginning_id, beginning_of
from airflow_streamstate.controller.wait.waiting import describe
from airflow_streamstate.controller.wait.watching import redacted
from airflow_streamstate.errors import (
    ConflictError,
    DeploymentFailedError,
    IncompatibleUpgradeError,
    StreamStateError,
)
from airflow_streamstate.protocol.data_events import Undone
from airflow_streamstate.protocol.ids import attempt_of, return_request_id_for, snapshot_id_for
from airflow_streamstate.protocol.upgrades import WAITS

PATIENCE_SECONDS = 60.0
"""So long a version that is given up may take to end its batch; then it is killed, and the batch is run again over the
same bounds, or undone."""
KILL_GRACE_SECONDS = 10.0


def returning(tools: Tools, state: UpgradeState) -> Next:
    """The way is decided: what is given up is ended, and the old code deployed in its place."""
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
            expires_in_seconds=None,
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

    A drained one never does (Law 11), one that a drain still waits for would only end again, and one whose source sends
    each row once is refused: there its code is deployed anew, over what it has left.
    """
    seen = tools.old()
    now = decide_state(seen, seen.observed_at)
    new_id = None if seen.is_current else tools.deployed_id()
    if new_id is not None:  # by somebody who slept in his deploy while another gave it up
        tools.take(state, "unhealthy", state.last.text, new_deployment_id=new_id)
        return
    try:
        commands = tools.control.journal(seen.deployment_id).commands()
        is_over = now == "drained" or (now not in ALIVE and _cannot_resume(tools, seen, commands))
        if not seen.is_current or is_over:
            version, request_id = tools.version(seen.spec), return_request_id_for(tools.upgrade.upgrade_id, "anew")
            wish = (version if now == "drained" else replace(version, start="restore")).wish()
            view = tools.patiently(
                state,
                2 * PATIENCE_SECONDS,
                lambda: tools.deployer.deploy(wish, request_id, lambda _: None),
            )
            tools.take(state, "returned", state.last.text, returned_deployment_id=view.deployment_id)
            return
        if now not in ALIVE:
            tools.patiently(
                state,
                2 * PATIENCE_SECONDS,
                lambda: tools.attempts.resume(
                    tools.stream_id, tools.request_id("back"), assume_dead=False, reason=tools.reason_of_attempt
                ),
            )
    except StreamStateError as error:
        if isinstance(error, IncompatibleUpgradeError) and now == "drained" and seen.is_current:
            # Its drain left state, which a seed would drop (Law 16); the snapshot from before the drain has it.
            tools.take(state, "unhealthy", in_words(error), new_deployment_id=seen.deployment_id)
            return
        _not_back(tools, state, error)
        return
    tools.take(state, "returned", state.last.text, returned_deployment_id=seen.deployment_id)


def _cannot_resume(tools: Tools, seen: Observation, commands: list[CommandSlot]) -> bool:
    """Whether a resume of what has ended would be refused, or would run nothing."""
    return pending_drain(seen, commands) is not None or bool(one_time_sources(tools.means.home, seen))


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
        # Where snapshots are kept is said of the stream by whoever deployed it last: the old place may be lost by now.
        wish = tools.version(replace(tools.old_spec(), snapshots=seen.spec.snapshots)).wish(
            returns, state.last.rehearsal_id if state.last.driver == WAITS else None
        )
        view = tools.patiently(
            state,
            2 * PATIENCE_SECONDS,
            lambda: tools.deployer.deploy(wish, request_id, lambda _: None),
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
        **_batches_of(tools, seen),
    )


def _not_back(tools: Tools, state: UpgradeState, error: StreamStateError) -> None:
    waited_seconds = tools.waited_seconds(state)
    if is_passing(error) and waited_seconds < SILENCE_SECONDS:
        raise error
    if isinstance(error, ConflictError) and waited_seconds < 2 * PATIENCE_SECONDS:
        raise error
    finish(tools, state, "failed", f"the old version could not be started again: {in_words(error)}")


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
    seen = tools.means.observer.observe(tools.stream_id, state.last.returned_deployment_id)
    again = [
        f"query {event.query_name}: at the most {event.rows_again:,} rows of input come a second time"
        for event in seen.of_kind(Undone, any_attempt=True)
        if event.rows_again is not None
    ]
    return "; ".join(dict.fromkeys(text for text in (why, state.last.text, *again) if text))


def returned(tools: Tools, state: UpgradeState) -> Next:
    """The old version was started: it proves itself, or it is told that it does not."""
    seen = tools.means.observer.observe(tools.stream_id, state.last.returned_deployment_id)
    try:
        if tools.waits.status_if_healthy(seen) is not None:
            facts = {"bad_batches": _bad_batches(state, seen)}
            return Act(lambda: finish(tools, state, "rolled_back", _why_back(tools, state), **facts))
    except (ConflictError, DeploymentFailedError) as error:
        now = decide_state(seen, seen.observed_at)
        if now == "drained" and seen.deployment_id == tools.upgrade.old_deployment_id:
            # A query of it was flushed already when its drain failed: the rest was drained, too.
            return Act(partial(_resume, tools, state))
        if now == "failed" and seen.is_current and not _was_resumed(tools, seen):
            return Act(partial(_resume_again, tools, state, seen))
        is_late = tools.waited_seconds(state) >= tools.upgrade.healthy_when.within_seconds
        if now == "degraded" and not is_late and _may_end_of_it(seen):
            return Wait(redacted(seen, describe(seen)), tools.pause_seconds(seen.spec))
        reason = f"the old version is back, and is not well: {in_words(error)}"
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
        tools.attempts.resume(
            tools.stream_id, tools.request_id("again"), assume_dead=False, reason=tools.reason_of_attempt
        )
    except StreamStateError as error:
        if is_passing(error) or isinstance(error, ConflictError):
            raise
        finish(tools, state, "failed", f"the old version is back, and could not be resumed: {in_words(error)}")
        return
    tools.take(state, "returned", f"its driver had died: attempt {seen.attempt} was followed by another")
