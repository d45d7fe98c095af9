"""The way to the new version: claim the stream, rehearse, wait for approval and for the new driver, stop or drain,
deploy, watch its health.

No step before ``stopping`` changes the stream. Each step is recorded before its act, and each act has a request id of
its own, so that another worker repeats the same act after a crash (Laws 1 and 2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from airflow_streamstate.control.upgrades import LOST_CLAIM, UpgradeState
from airflow_streamstate.controller.commands.orders import EndingVerb
from airflow_streamstate.controller.decide import refuse_other_intent
from airflow_streamstate.controller.observe.health import Healthy, NotYet, beats_of, decide_health, has_begun
from airflow_streamstate.controller.observe.observation import ALIVE, Observation, describe_silence
from airflow_streamstate.controller.observe.orders import ORDERS
from airflow_streamstate.controller.observe.outcomes import decide_command_outcome
from airflow_streamstate.controller.observe.views import Outcome
from airflow_streamstate.controller.retired import refuse_retired
from airflow_streamstate.controller.under_upgrade import BusyError, refuse_another_upgrade
from airflow_streamstate.controller.upgrade.deciding import (
    NoGo,
    decide_mode,
    decide_trials,
    never_flushed,
    problem_of_approver,
)
from airflow_streamstate.controller.upgrade.ends import cost_until_now, finish
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
from airflow_streamstate.plan.recorded import recorded_plans
from airflow_streamstate.protocol.events import QueryStarted
from airflow_streamstate.protocol.register import StreamRegister
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
    Planned,
    QueriesStarted,
    Ready,
    Standby,
    Stopping,
    UpgradePlan,
)

CONFLICT_SECONDS = 60.0
"""A conflict that lasts this long is final."""
STAY_SECONDS = 3_600.0
"""How long after its rehearsal the new driver waits for the old one to end; then another driver is launched."""
MAX_DRAIN_TRIES = 3
"""How often a drain is ordered whose driver dies in it."""
WARM_SECONDS = 120.0
"""How long the new driver may take from its rehearsal to its first start."""
NO_STANDBY = "no driver is kept ready for the way back"
CAME_TO_ITS_END = "the stream came to its end"
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


# claim: of two upgrades at once one gets the stream, and the other is told which one has it


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
            # Lets ``Upgrades.begin_when_free`` begin the same request again, under another request id.
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
        return Act(partial(claim, tools, state))  # the controller that began it died before its claim
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
    why = "the new version begins with nothing" if is_fresh else "the old version does not run"
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
        return Wait("the driver for the way back has not reached its first start yet")
    if waits:
        text = "; ".join(filter(None, ("the new driver waits", back)))
        return Act(lambda: tools.take(state, "ready", text, Ready(DriverWaits(rehearsal_id))))
    why = end or f"it has not reached its first start in {WARM_SECONDS:g} s"
    text = "; ".join(filter(None, (f"no driver waits, so one is launched after the stop: {why}", back)))
    return Act(lambda: tools.take(state, "ready", text, Ready(DriverLaunchedLater(why))))


# The driver for the way back only saves time: where none comes up, the upgrade goes on without it.


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
    """What became of the driver for the way back; "" where none was asked for, None while it comes up."""
    if state.standby is None:
        return ""
    if isinstance(state.standby, NoStandby):
        return f"{NO_STANDBY}: {state.standby.why}"
    rehearsal_id = state.standby.rehearsal_id
    if tools.rehearsals.is_waiting(tools.stream_id, rehearsal_id):
        return "a driver of the old version waits for the way back"
    end = tools.rehearsals.waiting_end(tools.stream_id, rehearsal_id)
    within_seconds = WARM_SECONDS + tools.upgrade.terms.rehearsal_deadline_seconds
    if not end and (tools.context.clock.now() - state.last.taken_at).total_seconds() < within_seconds:
        return None
    return f"{NO_STANDBY}: {end or f'it has not reached its first start in {within_seconds:g} s'}"


def _ready(tools: Tools, state: UpgradeState) -> Next:
    seen = tools.old()
    if not seen.is_current:
        text = f"{seen.register.updated_by} moved the stream to {seen.register.deployment_id} meanwhile"
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
        if unwanted is not None and now not in ALIVE:  # dead, and not yet told to drain
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
    """Driver state unknown: wait, or fail if the upgrade was cancelled with rollback, since only a person can say that
    the driver is dead, and no one can resume a stream while an upgrade holds it."""
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
            raise  # it has just ended, which the next look finds; a drain may then be impossible
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
