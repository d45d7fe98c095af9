"""From the old version to the new one, step by step, and the end of an upgrade."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial

from airflow_streamstate.control.upgrade_journal import LOST_CLAIM, UpgradeState
from airflow_streamstate.controller.commands.recorded_orders import EndingVerb
from airflow_streamstate.controller.decide import refuse_other_intent
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.downtimes import downtimes
from airflow_streamstate.controller.observe.handovers import NotRunning, not_running
from airflow_streamstate.controller.observe.health import Healthy, NotYet, beats_of, decide_health, has_begun
from airflow_streamstate.controller.observe.lineage import Lineage, lineage_of
from airflow_streamstate.controller.observe.observation import ALIVE, Observation, describe_silence
from airflow_streamstate.controller.observe.outcomes import decide_command_outcome
from airflow_streamstate.controller.observe.pending_orders import ORDERS
from airflow_streamstate.controller.observe.views import Outcome
from airflow_streamstate.controller.stream_guards import BusyError, refuse_another_upgrade, refuse_retired
from airflow_streamstate.controller.upgrade.decisions import (
    NoGo,
    decide_mode,
    decide_trials,
    never_flushed,
    problem_of_approver,
)
from airflow_streamstate.controller.upgrade.steps import (
    SILENCE_SECONDS,
    Act,
    Next,
    Tools,
    Wait,
    describe_error,
    is_passing,
)
from airflow_streamstate.controller.upgrade.upgrade_views import WAITS_FOR_A_PERSON
from airflow_streamstate.controller.wait.condition import mark_known_good
from airflow_streamstate.controller.wait.waiting import describe
from airflow_streamstate.controller.wait.watching import redacted
from airflow_streamstate.errors import ConflictError, StreamStateError
from airflow_streamstate.plan.record import recorded_plans
from airflow_streamstate.protocol.events import QueryStarted
from airflow_streamstate.protocol.ids import order_of
from airflow_streamstate.protocol.positions import Downtime
from airflow_streamstate.protocol.records import StreamRegister
from airflow_streamstate.protocol.terms.order import DrainTerms
from airflow_streamstate.protocol.upgrades import (
    BEFORE_THE_STOP,
    Cancellation,
    CancelledByUser,
    DriverLaunchedLater,
    DriverWaits,
    NewDeployed,
    NewGivenUp,
    NewRehearsed,
    NoStandby,
    OldEnded,
    OldOrdered,
    Phase,
    Planned,
    QueriesStarted,
    Ready,
    Standby,
    Stopping,
    UpgradePlan,
    UpgradeResult,
)

# The end of an upgrade: its last step with what it cost, and the removal of what it left behind.

log = logging.getLogger(__name__)
AUDIT_TRIES = 3


def finish(
    tools: Tools, state: UpgradeState, phase: Phase, text: str = "", result: UpgradeResult | None = None
) -> None:
    """Record the last step, with the lineage and the downtime where the stream was moved, and clear up.

    Args:
        result: ``state.result_so_far`` and what is known more; None for nothing more.
    """
    result = result or state.result_so_far
    if state.phase not in BEFORE_THE_STOP:
        lineage = _audited(tools)
        if lineage is not None:
            asked_at = tools.upgrade.created_at
            seconds = not_running_seconds(lineage.not_running, asked_at)
            result = replace(
                result,
                audit_ok=lineage.is_whole,
                not_running_seconds=result.not_running_seconds if seconds is None else seconds,
                downtimes=downtimes_since(lineage.downtimes, asked_at),
            )
    if phase == "refused":
        result = replace(result, stream_state=_state_of_stream(tools))
    if phase == "failed" and tools.upgrade.asked == "upgrade":
        why = tools.why_given_up()
        text = f"{text}; the new version was abandoned: {why}" if why and why not in text else text
    tools.take(state, phase, text, result)
    now = tools.journal.need_state(tools.upgrade.upgrade_id)
    if not now.is_over:
        return  # another worker recorded another step, and continues
    good_id = {"upgraded": now.new_deployment_id, "rolled_back": now.returned_deployment_id}.get(now.phase)
    if good_id is not None:
        mark_known_good(tools.context, tools.stream_id, good_id)
    clear_up(tools)


def _state_of_stream(tools: Tools) -> str | None:
    """The state in which a refusal leaves the stream; None where it cannot be read."""
    with suppress(StreamStateError):
        register = tools.control.need_register().value
        if register.deployment_id is not None:
            return tools.context.observer.observe(tools.stream_id, register.deployment_id).state
    return None


def clear_up(tools: Tools) -> None:
    """Remove the upgrade's rehearsals, and let go of the stream. The next command does what fails now."""

    def let_go(register: StreamRegister) -> StreamRegister:
        return replace(register, upgrade_id=None) if register.upgrade_id == tools.upgrade.upgrade_id else register

    with suppress(StreamStateError):
        for rehearsal_id in tools.rehearsal_ids():
            with suppress(StreamStateError):
                tools.rehearsals.give_up(tools.stream_id, rehearsal_id)
    try:
        tools.context.update_register(tools.control, let_go)
    except StreamStateError as error:
        log.info("upgrade %s has ended, but the register still names it: %s", tools.upgrade.upgrade_id, error)


def _audited(tools: Tools) -> Lineage | None:
    """The lineage, retried while a part of it is unread; None where it could not be read."""
    found: Lineage | None = None
    for _ in range(AUDIT_TRIES):
        with suppress(StreamStateError):
            found = lineage_of(tools.context.home, tools.stream_id, every_entry=False)
            if not found.unread:
                break
    return found


def not_running_seconds(found: Sequence[NotRunning], asked_at: datetime) -> float | None:
    """The seconds without a query in all periods that ended after an upgrade was requested; None for no period.

    Includes the rollback from a version that failed, and the time before the request of a stream that did not run; but
    not of one that was between two runs, in which nothing was due to run.
    """
    moved = [
        (one.until_at - (max(one.from_at, asked_at) if one.between_runs else one.from_at)).total_seconds()
        for one in found
        if one.until_at and one.until_at > asked_at
    ]
    return round(sum(moved), 3) if moved else None


def downtimes_since(found: Sequence[Downtime], asked_at: datetime) -> tuple[Downtime, ...]:
    """The downtimes that ended after an upgrade was requested, or have not ended.

    One whose end is not recorded counts by its last known moment.
    """
    return tuple(one for one in found if _last_known_at(one, asked_at) >= asked_at)


def _last_known_at(one: Downtime, now: datetime) -> datetime:
    if one.until_at is not None or not one.has_ended:
        return one.until_at or now
    return max((mark.at for mark in one.marks), default=one.from_at)


def cost_until_now(
    home: Home, stream_id: str, old_deployment_id: str, asked_at: datetime
) -> tuple[float | None, tuple[Downtime, ...]]:
    """``not_running_seconds`` and ``downtimes_since`` of an upgrade that is under way.

    Args:
        old_deployment_id: the current deployment at the time of the request.
        asked_at: the time of the request.
    """
    control = home.control(stream_id)
    ids = [one for one in control.deployment_ids() if order_of(one) >= order_of(old_deployment_id)]
    said = [entry.event for one in ids for entry in control.journal(one).events() if entry.event is not None]
    beats = {one: beat for one in ids if (beat := control.heartbeat(one)) is not None}
    seconds = not_running_seconds(not_running(said, beats), asked_at)
    return seconds, downtimes_since(downtimes(home, control, ids, said, beats), asked_at)


CONFLICT_SECONDS = 60.0
"""A conflict that lasts this long is final."""
STAY_SECONDS = 3_600.0
"""How long after its rehearsal the new driver waits for the old one to end; then another driver is launched."""
MAX_DRAIN_TRIES = 3
"""How often a drain is ordered whose driver dies in it."""
WARM_SECONDS = 120.0
"""How long the new driver may take from its rehearsal to its first start."""
NO_STANDBY = "no driver is kept ready for the rollback"
CAME_TO_ITS_END = "the stream ended"
LOST = "it is unknown whether the old driver lives"
UNKNOWN = frozenset({"lost", "silent"})
"""States of the old driver in which it obeys no order, and has not ended, as far as is known."""


def next_forward(tools: Tools, state: UpgradeState) -> Next:
    """The next act or wait of an upgrade in a forward phase."""
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
    cancelled = cancelled_before(tools, state) if state.phase in BEFORE_THE_STOP else None
    return cancelled or phases[state.phase](tools, state)


# claim: of two upgrades at once one gets the stream, and the other learns which one has it


def claim(tools: Tools, state: UpgradeState) -> None:
    """Name the upgrade in the register, before any other step of it.

    Raises:
        BusyError: another upgrade is under way, or the stream was moved since this one was requested; this one is
            then refused.
        ConflictError: the stream is retired, or is being deployed.
    """
    upgrade_id = tools.upgrade.upgrade_id

    def take(register: StreamRegister) -> StreamRegister:
        if register.upgrade_id != upgrade_id:
            _refuse_moved(tools, register)
        return replace(register, upgrade_id=upgrade_id)

    try:
        tools.context.update_register(tools.control, take)
    except ConflictError as error:
        if isinstance(error, BusyError):
            # Lets ``Upgrades.begin_when_free`` start the same request again, under another request id.
            clock, by = tools.context.clock, tools.context.requested_by
            lost = Cancellation(tools.stream_id, upgrade_id, "finish", by, clock.now(), clock.new_uuid(), LOST_CLAIM)
            tools.journal.cancel(lost)
        finish(tools, state, "refused", str(error))
        raise


def _refuse_moved(tools: Tools, register: StreamRegister) -> None:
    upgrade = tools.upgrade
    refuse_retired(register)
    refuse_another_upgrade(tools.control, register, upgrade.upgrade_id)
    refused = refuse_other_intent(register, upgrade.request_id, tools.context.clock.now())
    if refused is not None:
        raise refused.error
    if upgrade.terms_of_return.snapshot_id is not None:
        return  # an older snapshot, whatever is current
    before = register.deployment_id
    if upgrade.asked == "rollback":
        before = tools.control.spec(str(before)).start.predecessor_id
    if before != upgrade.old_deployment_id:
        raise BusyError(
            "another controller moved this stream since the upgrade was requested",
            stream_id=tools.stream_id,
            upgrade_id=upgrade.upgrade_id,
            deployment_id=register.deployment_id,
            moved_by=register.updated_by,
            next_step="Check whether the upgrade is still wanted, and request it again.",
        )


# before the stop


def _begun(tools: Tools, state: UpgradeState) -> Next:
    register = tools.control.need_register().value
    if register.upgrade_id != tools.upgrade.upgrade_id:
        return Act(partial(claim, tools, state))  # the controller that started it died before its claim
    if tools.upgrade.asked == "rollback":
        reason = tools.upgrade.reason or f"{tools.upgrade.requested_by} asked for it"
        return Act(lambda: tools.take(state, "unhealthy", reason, _given_up(register.deployment_id)))
    return Act(partial(_rehearse, tools, state))


def cancelled_before(tools: Tools, state: UpgradeState) -> Act | None:
    """The end of an upgrade that is cancelled before it has touched the stream; None where it is not cancelled."""
    cancellation = tools.cancellation()
    if cancellation is None:
        return None
    text = f"{_words_of(cancellation)}; the stream was not touched"
    result = replace(state.result_so_far, cancelled_by=cancellation.cancelled_by)
    return Act(lambda: finish(tools, state, "refused", text, result))


def _words_of(cancellation: Cancellation) -> str:
    return f"cancelled by {cancellation.cancelled_by}{f': {cancellation.reason}' if cancellation.reason else ''}"


def _rehearse(tools: Tools, state: UpgradeState) -> None:
    upgrade = tools.upgrade
    refuses, seeds = decide_trials(upgrade)
    try:
        view = tools.rehearsals.begin(
            tools.target(upgrade.terms.mode),
            request_id=tools.request_id("plan"),
            terms=upgrade.terms,
            deadline_seconds=upgrade.terms.rehearsal_deadline_seconds,
            waits_seconds=upgrade.terms.rehearsal_deadline_seconds + STAY_SECONDS if upgrade.terms.warm else None,
            refuses=refuses,
            seeds=seeds,
        )
    except StreamStateError as error:
        if is_passing(error):
            raise
        finish(tools, state, "refused", describe_error(error))
        return
    tools.take(state, "rehearsing", decision=NewRehearsed(view.rehearsal_id))


def _rehearsing(tools: Tools, state: UpgradeState) -> Next:
    rehearsal_id = str(state.rehearsal_id)
    try:
        if not tools.rehearsals.is_over(tools.stream_id, rehearsal_id):
            return Wait(tools.rehearsals.describe(tools.stream_id, rehearsal_id))
    except StreamStateError as error:
        if is_passing(error):
            raise
        return Act(partial(finish, tools, state, "refused", describe_error(error)))
    return Act(partial(_decide, tools, state))


def _decide(tools: Tools, state: UpgradeState) -> None:
    report = tools.rehearsals.report(tools.stream_id, str(state.rehearsal_id))
    upgrade = tools.upgrade
    old_plans = recorded_plans(tools.control, upgrade.old_deployment_id)
    decision = decide_mode(upgrade, report, [] if upgrade.handover.allow_state_loss else never_flushed(old_plans))
    plan = UpgradePlan(report.verdict, report.to_json())
    if isinstance(decision, NoGo):
        finish(tools, state, "refused", decision.reason, replace(state.result_so_far, refused_plan=plan))
    else:
        tools.take(state, "planned", decision=Planned(plan, decision.mode))


def _planned(tools: Tools, state: UpgradeState) -> Next:
    if tools.upgrade.terms.waits_for_approval:
        approval = tools.journal.approval(tools.upgrade.upgrade_id)
        if approval is None:
            return Wait(WAITS_FOR_A_PERSON, pause_seconds=2.0)
        text = problem_of_approver(tools.upgrade, approval.given_by)
        if not approval.is_approved:
            text = f"{approval.given_by} rejected the plan{f': {approval.reason}' if approval.reason else ''}"
        if text:
            return Act(lambda: finish(tools, state, "refused", text))
    is_fresh, runs = state.mode == "fresh", tools.old().state in ALIVE
    if tools.upgrade.terms.warm and runs and not is_fresh:
        return Act(lambda: tools.take(state, "waiting"))
    if not tools.upgrade.terms.warm_return:
        return Act(lambda: tools.take(state, "ready"))
    why = "the new version starts with nothing" if is_fresh else "the old version does not run"
    return Act(lambda: tools.take(state, "ready", f"{NO_STANDBY}: {why}", NoStandby(why)))


def _waiting(tools: Tools, state: UpgradeState) -> Next:
    rehearsal_id = str(state.rehearsal_id)
    waits = tools.rehearsals.is_waiting(tools.stream_id, rehearsal_id)
    end = "" if waits else tools.rehearsals.waiting_end(tools.stream_id, rehearsal_id)
    if not waits and not end and tools.waited_seconds(state) < WARM_SECONDS:
        return Wait("the new driver has not reached its first start yet")
    if tools.upgrade.terms.warm_return and state.standby is None:
        return Act(partial(_launch_standby, tools, state))
    back = _standby_text(tools, state)
    if back is None:
        return Wait("the driver for the rollback has not reached its first start yet")
    if waits:
        text = "; ".join(filter(None, ("the new driver waits", back)))
        return Act(lambda: tools.take(state, "ready", text, Ready(DriverWaits(rehearsal_id))))
    why = end or f"it has not reached its first start in {WARM_SECONDS:g} s"
    text = "; ".join(filter(None, (f"no driver waits, so one is launched after the stop: {why}", back)))
    return Act(lambda: tools.take(state, "ready", text, Ready(DriverLaunchedLater(why))))


# The driver for the rollback only saves time: where none comes up, the upgrade continues without it.


def _launch_standby(tools: Tools, state: UpgradeState) -> None:
    upgrade = tools.upgrade
    try:
        view = tools.rehearsals.begin(
            tools.request_for(tools.old_version()),
            request_id=tools.request_id("back-standby"),
            terms=upgrade.terms,
            deadline_seconds=upgrade.terms.rehearsal_deadline_seconds,
            waits_seconds=upgrade.terms.rehearsal_deadline_seconds + STAY_SECONDS,
        )
    except StreamStateError as error:
        if is_passing(error) and tools.waited_seconds(state) < WARM_SECONDS + CONFLICT_SECONDS:
            raise
        why = describe_error(error)
        tools.take(state, "waiting", f"{NO_STANDBY}: {why}", NoStandby(why))
        return
    tools.take(state, "waiting", decision=Standby(view.rehearsal_id))


def _standby_text(tools: Tools, state: UpgradeState) -> str | None:
    """What became of the driver for the rollback; "" where none was asked for, None while it comes up."""
    if state.standby is None:
        return ""
    if isinstance(state.standby, NoStandby):
        return f"{NO_STANDBY}: {state.standby.why}"
    rehearsal_id = state.standby.rehearsal_id
    if tools.rehearsals.is_waiting(tools.stream_id, rehearsal_id):
        return "a driver of the old version waits for the rollback"
    end = tools.rehearsals.waiting_end(tools.stream_id, rehearsal_id)
    within_seconds = WARM_SECONDS + tools.upgrade.terms.rehearsal_deadline_seconds
    if not end and (tools.context.clock.now() - state.last.taken_at).total_seconds() < within_seconds:
        return None
    return f"{NO_STANDBY}: {end or f'it has not reached its first start in {within_seconds:g} s'}"


def _ready(tools: Tools, state: UpgradeState) -> Next:
    seen = tools.old()
    if not seen.is_current:
        text = f"{seen.register.updated_by} moved the stream to {seen.register.deployment_id} in the meantime"
        return Act(lambda: finish(tools, state, "refused", text))
    if seen.state in UNKNOWN:
        return Wait(_unknown(seen))
    return Act(lambda: tools.take(state, "stopping", decision=Stopping(beats_of(seen))))


# the handover


def _stopping(tools: Tools, state: UpgradeState) -> Next:
    seen = tools.old()
    verb: EndingVerb = "drain" if state.mode == "drain" else "stop"
    if state.command_id is None:
        now = seen.state
        if now in UNKNOWN:
            return _lost(tools, state, _unknown(seen))
        is_there = seen.drained is not None if verb == "drain" else now not in ALIVE
        if is_there or not seen.is_current:
            return Act(lambda: tools.take(state, "ended"))
        unwanted = _return_wanted(tools)
        if unwanted is not None and now not in ALIVE:  # dead, and not yet ordered to drain
            return Act(partial(_go_back, tools, state, unwanted, None))
        return Act(partial(_order_end, tools, state, verb))
    end = decide_command_outcome(seen, state.command_id, ORDERS[verb].kind)
    if end is not None and end.outcome == "lost":
        return _lost(tools, state, redacted(seen, describe(seen)))
    if end is None:
        return Wait(redacted(seen, describe(seen)), tools.handover_pause_seconds(state, seen.spec), seen.handle)
    if verb == "drain" and end.outcome == "failed":
        # Each order is a step of this phase, after the first step.
        tries = sum(step.phase == state.phase for step in tools.journal.steps(tools.upgrade.upgrade_id)) - 1
        if tries < MAX_DRAIN_TRIES:
            return Act(partial(_order_end, tools, state, verb))  # the driver died: the next attempt flushes, and ends
    return Act(partial(_old_has_ended, tools, state, seen, end))


def _unknown(seen: Observation) -> str:
    if seen.state == "lost":
        return LOST
    return f"{describe_silence(seen)}; `streamstate kill {seen.stream_id}` ends it, and the upgrade takes over"


def _lost(tools: Tools, state: UpgradeState, text: str) -> Next:
    """Driver state unknown: wait, or fail if the upgrade was cancelled with rollback, since only a person can confirm
    that the driver is dead, and no one can resume a stream while an upgrade holds it."""
    unwanted = _return_wanted(tools)
    if unwanted is None:
        return Wait(text)
    if tools.old().state == "silent":
        words = f"{_words_of(unwanted)}; the old version was not stopped, and its driver is silent"
    else:
        words = (
            f"{_words_of(unwanted)}; {LOST}, so it was not started again: once it is surely dead,"
            f" `streamstate resume {tools.stream_id} --assume-dead` does that"
        )
    result = replace(state.result_so_far, cancelled_by=unwanted.cancelled_by)
    return Act(lambda: finish(tools, state, "failed", words, result))


def _order_end(tools: Tools, state: UpgradeState, verb: EndingVerb) -> None:
    try:
        terms = DrainTerms(
            rehearse=tools.upgrade.terms.rehearse,
            allow_state_loss=tools.upgrade.handover.allow_state_loss,
            leave_queries=_left_out(tools) if verb == "drain" else (),
        )
        reason = f"upgrade {tools.upgrade.upgrade_id}"
        order = tools.order(verb, tools.upgrade.old_deployment_id, "end", reason, terms)
    except StreamStateError as error:
        is_dead = tools.old().state not in ALIVE
        if is_passing(error) or (is_dead and tools.waited_seconds(state) < CONFLICT_SECONDS):
            raise  # it has just ended, which the next poll finds; a drain may then be impossible
        tools.take(state, "unhealthy", describe_error(error))
        return
    tools.take(state, "stopping", decision=OldOrdered(order.command_id))


def _left_out(tools: Tools) -> tuple[str, ...]:
    """The queries of the old version's snapshot that it runs without: a drain of it leaves their state."""
    seen = tools.old()
    newest = next(seen.of_kind(QueryStarted), None)
    snapshot_id, beat = seen.spec.start.snapshot_id, seen.heartbeat
    if newest is None or beat is None or snapshot_id is None or seen.state not in ALIVE:
        return ()
    if (beat.at - newest.at).total_seconds() <= seen.spec.version.settings.exit_grace_seconds:
        return ()  # its script may start it yet
    manifest = tools.control.readable_manifest(snapshot_id)
    started = {event.query_name for event in seen.of_kind(QueryStarted, any_attempt=True)}
    return () if manifest is None else tuple(sorted(set(manifest.queries) - started))


def _old_has_ended(tools: Tools, state: UpgradeState, seen: Observation, end: Outcome) -> None:
    reason = redacted(seen, end.reason)
    if state.mode == "drain" and end.outcome not in ("drained", "rejected"):
        tools.take(state, "unhealthy", f"the drain of the old version failed: it is {end.outcome}: {reason}")
    elif end.outcome == "rejected" and seen.is_current and seen.state in ALIVE:
        finish(tools, state, "refused", f"the old version rejected the command, and runs on: {reason}")
    elif end.outcome in ("rejected", "ignored", "expired"):
        tools.take(state, "unhealthy", f"the old version did not take the command: {reason}")
    else:  # after a failure the new deployment takes over from the last commit
        handover = None if end.snapshot_id is None else OldEnded(end.snapshot_id)
        tools.take(state, "ended", reason if end.outcome == "failed" else "", handover)


def _return_wanted(tools: Tools) -> Cancellation | None:
    """The cancellation that wants the old version back, or None."""
    cancellation = tools.cancellation()
    return cancellation if cancellation is not None and cancellation.after_stop == "rollback" else None


def _go_back(tools: Tools, state: UpgradeState, unwanted: Cancellation, new_id: str | None) -> None:
    tools.take(state, "unhealthy", _words_of(unwanted), CancelledByUser(unwanted.cancelled_by, new_id))


def _given_up(deployment_id: str | None) -> NewGivenUp | None:
    return None if deployment_id is None else NewGivenUp(deployment_id)


def _ended(tools: Tools, state: UpgradeState) -> Next:
    unwanted = _return_wanted(tools)
    if unwanted is not None:  # a worker may have deployed, and died before it recorded the step
        return Act(lambda: _go_back(tools, state, unwanted, tools.deployed_id()))
    return Act(partial(_deploy, tools, state))


def _deploy(tools: Tools, state: UpgradeState) -> None:
    is_warm = tools.upgrade.terms.warm and state.mode != "fresh"
    target = tools.target(state.mode, state.rehearsal_id if is_warm else None)
    try:
        view = tools.patiently(state, CONFLICT_SECONDS, lambda: tools.deploy(target, tools.request_id("new")))
    except StreamStateError as error:
        waited_seconds = tools.waited_seconds(state)
        if is_passing(error) and waited_seconds < SILENCE_SECONDS:
            raise
        if isinstance(error, ConflictError) and waited_seconds < CONFLICT_SECONDS:
            raise
        tools.take(state, "unhealthy", describe_error(error), _given_up(tools.deployed_id()))
        return
    tools.take(state, "started", decision=NewDeployed(view.deployment_id, view.start.snapshot_id))


def _started(tools: Tools, state: UpgradeState) -> Next:
    unwanted = _return_wanted(tools)
    if unwanted is not None:
        return Act(partial(_go_back, tools, state, unwanted, state.new_deployment_id))
    seen = tools.context.observer.observe(tools.stream_id, state.new_deployment_id)
    snapshot_id = seen.spec.start.snapshot_id
    handover = None if snapshot_id is None else tools.control.readable_manifest(snapshot_id)
    upgrade = tools.upgrade
    if not state.has_begun and has_begun(seen, handover):
        seconds, downtimes = cost_until_now(
            tools.context.home, tools.stream_id, upgrade.old_deployment_id, upgrade.created_at
        )
        begun = QueriesStarted(beats_of(seen), seconds, downtimes)
        return Act(lambda: tools.take(state, "started", decision=begun))
    waited_seconds = tools.waited_seconds(state)
    health = decide_health(seen, handover, tools.upgrade.terms, state.old_beats, waited_seconds)
    if isinstance(health, Healthy):
        warnings = tuple(redacted(seen, text) for text in health.warnings)
        text = CAME_TO_ITS_END if seen.has_come_to_its_end else ""
        result = replace(state.result_so_far, warnings=warnings)
        return Act(lambda: finish(tools, state, "upgraded", text, result))
    if isinstance(health, NotYet):
        text = redacted(seen, f"{health.text}; {describe(seen)}")
        return Wait(text, tools.pause_seconds(seen.spec), seen.handle)
    reason = redacted(seen, health.reason)
    return Act(lambda: tools.take(state, "unhealthy", reason))
