"""The way to the new version: rehearse, wait for a person and for the new driver, stop or drain, deploy, prove.

Until ``stopping`` is recorded nothing has happened to the stream. Each step is recorded before the act that it is
about, and each act has a request id of its own, so that whoever comes after a crash does the same again (Laws 1 and 2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from airflow_streamstate.control.upgrades import UpgradeState
from airflow_streamstate.controller.commands.orders import KIND_OF, EndingVerb
from airflow_streamstate.controller.observe.health import Healthy, NotYet, beats_of, decide_health, has_begun
from airflow_streamstate.controller.observe.observation import ALIVE, Observation
from airflow_streamstate.controller.observe.outcomes import End, decide_command_outcome
from airflow_streamstate.controller.upgrade.claiming import claim
from airflow_streamstate.controller.upgrade.deciding import NoGo, decide_mode, decide_trials, never_flushed
from airflow_streamstate.controller.upgrade.downtime import cost_until_now
from airflow_streamstate.controller.upgrade.ends import finish
from airflow_streamstate.controller.upgrade.tools import (
    SILENCE_SECONDS,
    Act,
    Next,
    Tools,
    Wait,
    describe_error,
    is_passing,
)
from airflow_streamstate.controller.upgrade.views import WAITS_FOR_A_PERSON
from airflow_streamstate.controller.wait.waiting import describe
from airflow_streamstate.controller.wait.watching import redacted
from airflow_streamstate.errors import ConflictError, StreamStateError
from airflow_streamstate.plan.model import QueryPlan
from airflow_streamstate.plan.recorded import recorded_plans
from airflow_streamstate.protocol.commands import DrainTerms
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.upgrades import WAITS

CONFLICT_SECONDS = 60.0
"""A conflict that lasts for so long is an answer."""
STAY_SECONDS = 3_600.0
"""So long after its rehearsal the new driver waits for the old one to end; then another one is launched."""
MAX_DRAIN_TRIES = 3
"""So often a drain is begun whose driver dies in it."""
WARM_SECONDS = 120.0
"""So long the new driver may take to come to its first start, after its rehearsal."""


def next_forward(tools: Tools, state: UpgradeState) -> Next:
    """What comes next, of an upgrade that is in one of the phases of this way."""
    phases: dict[str, Callable[[Tools, UpgradeState], Next]] = {
        "begun": _begun,
        "rehearsing": _rehearsing,
        "planned": _planned,
        "waiting": _waiting,
        "ready": _ready,
        "stopping": _stopping,
        "ended": _ended,
        "started": _started,
    }
    return phases[state.phase](tools, state)


# before the stop: nothing has happened


def _begun(tools: Tools, state: UpgradeState) -> Next:
    cancelled = cancelled_before(tools, state)
    if cancelled is not None:
        return cancelled
    register = tools.control.need_register().value
    if register.upgrade_id != tools.upgrade.upgrade_id:
        return Act(partial(claim, tools, state))  # whoever began it died before
    if tools.upgrade.asked == "rollback":
        reason = tools.upgrade.reason or f"{tools.upgrade.requested_by} asked for it"
        return Act(lambda: tools.take(state, "unhealthy", reason, new_deployment_id=register.deployment_id))
    return Act(partial(_rehearse, tools, state))


def cancelled_before(tools: Tools, state: UpgradeState) -> Act | None:
    """The end of an upgrade that is cancelled before anything has happened; None where it is not."""
    cancellation = tools.cancellation()
    if cancellation is None:
        return None
    reason = f": {cancellation.reason}" if cancellation.reason else ""
    text = f"cancelled by {cancellation.cancelled_by}{reason}; nothing has happened to the stream"
    return Act(lambda: finish(tools, state, "refused", text, cancelled_by=cancellation.cancelled_by))


def _rehearse(tools: Tools, state: UpgradeState) -> None:
    upgrade = tools.upgrade
    refuses, seeds = decide_trials(upgrade)
    try:
        view = tools.planning.begin(
            tools.target(upgrade.mode),
            request_id=tools.request_id("plan"),
            runs_batches=upgrade.runs_batches,
            deadline_seconds=upgrade.rehearsal_within_seconds,
            waits_seconds=upgrade.rehearsal_within_seconds + STAY_SECONDS if upgrade.warm else None,
            refuses=refuses,
            seeds=seeds,
        )
    except StreamStateError as error:
        if is_passing(error):
            raise
        finish(tools, state, "refused", describe_error(error))
        return
    tools.take(state, "rehearsing", rehearsal_id=view.rehearsal_id)


def _rehearsing(tools: Tools, state: UpgradeState) -> Next:
    cancelled = cancelled_before(tools, state)
    if cancelled is not None:
        return cancelled
    rehearsal_id = str(state.last.rehearsal_id)
    try:
        if not tools.planning.is_over(tools.stream_id, rehearsal_id):
            return Wait(tools.planning.describe(tools.stream_id, rehearsal_id))
    except StreamStateError as error:
        if is_passing(error):
            raise
        return Act(partial(finish, tools, state, "refused", describe_error(error)))
    return Act(partial(_decide, tools, state))


def _decide(tools: Tools, state: UpgradeState) -> None:
    report = tools.planning.report(tools.stream_id, str(state.last.rehearsal_id))
    kept = [] if tools.upgrade.discard_state else never_flushed(_old_plans(tools))
    decision = decide_mode(tools.upgrade, report, kept)
    facts: dict[str, Any] = {"verdict": report.verdict, "report": report.to_json()}
    if isinstance(decision, NoGo):
        finish(tools, state, "refused", decision.reason, **facts)
    else:
        tools.take(state, "planned", mode=decision.mode, **facts)


def _planned(tools: Tools, state: UpgradeState) -> Next:
    cancelled = cancelled_before(tools, state)
    if cancelled is not None:
        return cancelled
    if tools.upgrade.needs_approval:
        approval = tools.journal.approval(tools.upgrade.upgrade_id)
        if approval is None:
            return Wait(WAITS_FOR_A_PERSON, pause_seconds=2.0)
        if not approval.is_approved:
            text = f"{approval.given_by} did not approve of the plan{f': {approval.reason}' if approval.reason else ''}"
            return Act(lambda: finish(tools, state, "refused", text))
    seen = tools.old()
    is_alive = seen.state in ALIVE
    is_warm = tools.upgrade.warm and is_alive and state.last.mode != "fresh"
    return Act(lambda: tools.take(state, "waiting" if is_warm else "ready"))


def _old_plans(tools: Tools) -> Mapping[str, QueryPlan]:
    return recorded_plans(tools.control, tools.upgrade.old_deployment_id)


def _waiting(tools: Tools, state: UpgradeState) -> Next:
    cancelled = cancelled_before(tools, state)
    if cancelled is not None:
        return cancelled
    rehearsal_id = str(state.last.rehearsal_id)
    if tools.planning.is_waiting(tools.stream_id, rehearsal_id):
        return Act(lambda: tools.take(state, "ready", "the new driver waits", driver=WAITS))
    end = tools.planning.waiting_end(tools.stream_id, rehearsal_id)
    if not end and tools.waited_seconds(state) < WARM_SECONDS:
        return Wait("the new driver comes to its first start")
    why = end or f"it has not come to its first start in {WARM_SECONDS:g} s"
    text = f"no driver waits, so one is launched after the stop: {why}"
    return Act(lambda: tools.take(state, "ready", text, driver=why))


def _ready(tools: Tools, state: UpgradeState) -> Next:
    cancelled = cancelled_before(tools, state)
    if cancelled is not None:
        return cancelled
    seen = tools.old()
    if not seen.is_current:
        text = f"{seen.register.updated_by} moved the stream to {seen.register.deployment_id} meanwhile"
        return Act(lambda: finish(tools, state, "refused", text))
    if seen.state == "lost":
        return Wait("nobody can say whether the old driver lives")
    return Act(lambda: tools.take(state, "stopping", old_beats=beats_of(seen)))


# the handover


def _verb(state: UpgradeState) -> EndingVerb:
    return "drain" if state.last.mode == "drain" else "stop"


def _stopping(tools: Tools, state: UpgradeState) -> Next:
    seen, verb = tools.old(), _verb(state)
    if state.last.command_id is None:
        now = seen.state
        if now == "lost":
            return _lost(tools, state, "nobody can say whether the old driver lives")
        is_there = seen.drained is not None if verb == "drain" else now not in ALIVE
        if is_there or not seen.is_current:
            return Act(lambda: tools.take(state, "ended"))
        unwanted = _wants_return(tools)
        if unwanted and now not in ALIVE:  # dead, and to be drained: nothing has been ordered of it
            return Act(partial(_go_back, tools, state, unwanted))
        return Act(partial(_order_end, tools, state, verb))
    end = decide_command_outcome(seen, state.last.command_id, KIND_OF[verb])
    if end is not None and end.outcome == "lost":
        return _lost(tools, state, redacted(seen, describe(seen)))
    if end is None:
        return Wait(redacted(seen, describe(seen)), tools.handover_pause_seconds(state, seen.spec))
    if verb == "drain" and end.outcome == "failed" and _tries(tools, state) < MAX_DRAIN_TRIES:
        return Act(partial(_order_end, tools, state, verb))  # its driver died: the next attempt flushes, and ends
    return Act(partial(_old_has_ended, tools, state, seen, end))


def _lost(tools: Tools, state: UpgradeState, text: str) -> Next:
    """It is waited for; but nobody waits for ever who wants the old version back: that is a person's word by then, and
    while an upgrade is under way nobody could give it."""
    unwanted, cancellation = _wants_return(tools), tools.cancellation()
    if cancellation is None or not unwanted:
        return Wait(text)
    words = (
        f"{unwanted}; nobody can say whether the old driver lives, so it was not started again: once it is surely dead,"
        f" `streamstate resume {tools.stream_id} --assume-dead` does that"
    )
    return Act(lambda: finish(tools, state, "failed", words, cancelled_by=cancellation.cancelled_by))


def _tries(tools: Tools, state: UpgradeState) -> int:
    """How often the end of the old version was ordered; each order is a step of its phase, after the first."""
    return sum(step.phase == state.phase for step in tools.journal.steps(tools.upgrade.upgrade_id)) - 1


def _order_end(tools: Tools, state: UpgradeState, verb: EndingVerb) -> None:
    try:
        terms = DrainTerms(rehearse=tools.upgrade.runs_batches, discard_state=tools.upgrade.discard_state)
        reason = f"upgrade {tools.upgrade.upgrade_id}"
        order = tools.order(verb, tools.upgrade.old_deployment_id, "end", reason, terms)
    except StreamStateError as error:
        is_dead = tools.old().state not in ALIVE
        if is_passing(error) or (is_dead and tools.waited_seconds(state) < CONFLICT_SECONDS):
            raise  # it has just ended: the next look finds that, unless it is to be drained, and cannot be
        tools.take(state, "unhealthy", describe_error(error))
        return
    tools.take(state, "stopping", command_id=order.command_id)


def _old_has_ended(tools: Tools, state: UpgradeState, seen: Observation, end: End) -> None:
    reason = redacted(seen, end.reason)
    if state.last.mode == "drain" and end.outcome not in ("drained", "rejected"):
        tools.take(state, "unhealthy", f"the drain of the old version came to nothing: it is {end.outcome}: {reason}")
    elif end.outcome == "rejected" and seen.is_current and seen.state in ALIVE:
        finish(tools, state, "refused", f"the old version cannot do it, and runs on: {reason}")
    elif end.outcome in ("rejected", "ignored", "expired"):
        tools.take(state, "unhealthy", f"the old version did not obey: {reason}")
    else:  # where it failed, the deployment takes over from its last commit
        tools.take(state, "ended", reason if end.outcome == "failed" else "", snapshot_id=end.snapshot_id)


def _wants_return(tools: Tools) -> str:
    """Why the old version is wanted back; "" where it is not."""
    cancellation = tools.cancellation()
    if cancellation is None or cancellation.after_stop != "rollback":
        return ""
    return f"cancelled by {cancellation.cancelled_by}{f': {cancellation.reason}' if cancellation.reason else ''}"


def _go_back(tools: Tools, state: UpgradeState, unwanted: str, **facts: Any) -> None:
    cancellation = tools.cancellation()
    who = None if cancellation is None else cancellation.cancelled_by
    tools.take(state, "unhealthy", unwanted, cancelled_by=who, **facts)


def _ended(tools: Tools, state: UpgradeState) -> Next:
    unwanted = _wants_return(tools)
    if unwanted:  # by now somebody may have deployed, and died before saying so
        return Act(lambda: _go_back(tools, state, unwanted, new_deployment_id=tools.deployed_id()))
    return Act(partial(_deploy, tools, state))


def _deploy(tools: Tools, state: UpgradeState) -> None:
    is_warm = tools.upgrade.warm and state.last.mode != "fresh"
    target = tools.target(state.last.mode, state.last.rehearsal_id if is_warm else None)
    try:
        view = tools.patiently(state, CONFLICT_SECONDS, lambda: tools.deploy(target, tools.request_id("new")))
    except StreamStateError as error:
        waited_seconds = tools.waited_seconds(state)
        if is_passing(error) and waited_seconds < SILENCE_SECONDS:
            raise
        if isinstance(error, ConflictError) and waited_seconds < CONFLICT_SECONDS:
            raise
        tools.take(state, "unhealthy", describe_error(error), new_deployment_id=tools.deployed_id())
        return
    tools.take(state, "started", new_deployment_id=view.deployment_id, snapshot_id=view.start.snapshot_id)


def _started(tools: Tools, state: UpgradeState) -> Next:
    unwanted = _wants_return(tools)
    if unwanted:
        return Act(partial(_go_back, tools, state, unwanted))
    seen = tools.context.observer.observe(tools.stream_id, state.last.new_deployment_id)
    handover = _manifest(tools, seen.spec.start.snapshot_id)
    upgrade = tools.upgrade
    if state.last.first_beats is None and has_begun(seen, handover):
        seconds, downtimes = cost_until_now(
            tools.context.home, tools.stream_id, upgrade.old_deployment_id, upgrade.created_at
        )
        facts: dict[str, Any] = {
            "first_beats": beats_of(seen),
            "not_running_seconds": seconds,
            "downtimes": downtimes,
        }
        return Act(lambda: tools.take(state, "started", **facts))
    waited_seconds = tools.waited_seconds(state)
    health = decide_health(seen, handover, tools.upgrade.healthy_when, state.last.old_beats, waited_seconds)
    if isinstance(health, Healthy):
        warnings = tuple(redacted(seen, text) for text in health.warnings)
        return Act(lambda: finish(tools, state, "upgraded", warnings=warnings or None))
    if isinstance(health, NotYet):
        return Wait(redacted(seen, f"{health.text}; {describe(seen)}"), tools.pause_seconds(seen.spec))
    reason = redacted(seen, health.reason)
    return Act(lambda: tools.take(state, "unhealthy", reason))


def _manifest(tools: Tools, snapshot_id: str | None) -> SnapshotManifest | None:
    return None if snapshot_id is None else tools.control.readable_manifest(snapshot_id)
