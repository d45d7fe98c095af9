"""Every end of an order and of a deployment has an outcome."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_streamstate.controller.observe.outcomes import (
    decide_command_outcome,
    decide_drain_outcome,
    decide_end,
)
from airflow_streamstate.controller.observe.pending_orders import ORDER_OF, OutcomeKind
from airflow_streamstate.controller.observe.views import CommandView, Outcome
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.errors import ConflictError, DeadlineExceededError, StreamStateError
from airflow_streamstate.protocol.commands import (
    ALL_COMMANDS,
    CancelRequest,
    DrainNotification,
    SkipRequest,
    SnapshotRequest,
    StopRequest,
)
from airflow_streamstate.protocol.events import (
    Accepted,
    Drained,
    DrainFailed,
    Event,
    Expired,
    Failed,
    Fenced,
    Finished,
    Ignored,
    Rejected,
    Skipped,
    SnapshotReady,
    Stopped,
)
from airflow_streamstate.protocol.positions import QueryPosition
from support.sim_stage import STREAM, Stage


def ended(outcome: OutcomeKind, *facts: Any, **more: Any) -> Outcome:
    """The end of the stage's first deployment."""
    return Outcome(STREAM, "d-0001", outcome, *facts, **more)


@pytest.fixture
def drain(stage: Stage) -> CommandView:
    """A running deployment that is ordered to drain."""
    stage.deploy()
    stage.come_to_life()
    return stage.controller.order("drain", STREAM)


def outcome_of(stage: Stage, order: CommandView) -> Outcome | None:
    """One look."""
    return outcome_in(stage, WaitCondition.of(order))


def drain_outcome(stage: Stage) -> Outcome | None:
    """One look at the drain by any client."""
    return outcome_in(stage, WaitCondition("drained", STREAM, "d-0001"))


def outcome_in(stage: Stage, condition: WaitCondition) -> Outcome | None:
    """What a poll finds; None while it is under way."""
    look = stage.controller.look(condition)
    return None if look.outcome == "pending" else look.end


def answer(stage: Stage, order: CommandView, kind: type, **fields: object) -> None:
    """The agent answers."""
    stage.say(kind, command_id=order.command_id, command_number=order.number or 0, **fields)


def test_a_drain_is_drained_by_the_event_that_answers_it(stage: Stage, drain: CommandView) -> None:
    """Until then there is no outcome; the event also answers the drains in ``also_answers``. (Law 6; 1a.13)"""
    second = stage.controller.order("drain", STREAM)
    assert outcome_of(stage, drain) is None
    assert drain_outcome(stage) is None
    answer(stage, drain, Drained, snapshot_id="s-1", queries={}, also_answers=(second.command_id,))
    for found in (
        *(outcome_of(stage, one) for one in (drain, second)),
        drain_outcome(stage),
    ):
        assert (found.outcome, found.state, found.snapshot_id) == ("drained", "drained", "s-1")


def test_a_later_deployment_does_not_hide_a_drain(stage: Stage, drain: CommandView) -> None:
    """The drain of a deployment stays its outcome, whatever came after. (1a.13)"""
    stage.run_batches(2)
    stage.flush()
    manifest = stage.keep("drained", drained=True, state_rows_left=0)
    answer(stage, drain, Drained, snapshot_id=manifest.snapshot_id, queries={})
    stage.end()
    stage.deploy("print('v2')\n")
    found = drain_outcome(stage)
    assert found.to_json()["kind"] == "drained"


def test_a_drain_that_the_next_attempt_finishes_is_drained_after_all(stage: Stage, drain: CommandView) -> None:
    """A drain holds for the deployment: what failed in one attempt is done by the next. (1a.7)"""
    stage.end(state="gone")
    stage.controller.resume(STREAM)
    assert outcome_of(stage, drain) is None
    stage.come_to_life(attempt=2)
    stage.say(Drained, attempt=2, command_id=drain.command_id, command_number=1, snapshot_id="s-1", queries={})
    found = outcome_of(stage, drain)
    assert found.outcome == "drained"


def test_each_kind_of_order_knows_what_fulfils_it() -> None:
    """No order is without an outcome that fulfils it. (Law 6)"""
    assert {kind.kind for kind in ALL_COMMANDS} == set(ORDER_OF)


@pytest.mark.parametrize(
    ("cause", "outcome", "error"),
    [
        ("deadline", "drain_failed", DeadlineExceededError),
        ("flush_deadline", "drain_failed", DeadlineExceededError),
        ("cancelled", "cancelled", ConflictError),
    ],
)
def test_a_drain_that_is_called_off_is_over_while_the_stream_runs_on(
    stage: Stage, drain: CommandView, cause: str, outcome: str, error: type[StreamStateError]
) -> None:
    """It has ended for every client, until another drain is ordered. (Law 6)"""
    stage.accept(stage.drain_of())
    assert stage.controller.status(STREAM).state == "draining"
    answer(stage, drain, DrainFailed, query_name="", error="late", withdrawn=True, cause=cause, then="runs_on")
    stage.controller.notifications.clean_up(STREAM)
    for found in (outcome_of(stage, drain), drain_outcome(stage)):
        assert (found.outcome, found.state, found.snapshot_id) == (outcome, "running", None)
        assert found.reason == "it was called off: late; the stream runs on"
    with pytest.raises(error):
        stage.controller.wait(WaitCondition.of(drain), 5)
    stage.controller.order("drain", STREAM)
    assert drain_outcome(stage) is None


def test_a_stop_after_a_drain_that_was_called_off_is_a_stop(stage: Stage, drain: CommandView) -> None:
    """The failed drain is not reported for a later end."""
    answer(stage, drain, DrainFailed, query_name="", error="late", withdrawn=True, cause="deadline", then="runs_on")
    stage.say(Stopped, snapshot_id="s-1", queries={})
    stage.end()
    found = drain_outcome(stage)
    assert found.outcome == "stopped"


def test_a_request_to_take_back_is_answered_by_the_event_that_ends_the_drain(stage: Stage, drain: CommandView) -> None:
    """``also_answers`` names it; the request is fulfilled."""
    request = stage.controller.order("cancel", STREAM, request_id="r-9")
    fields = {"query_name": "", "error": "tests has taken it back", "withdrawn": True}
    answer(stage, drain, DrainFailed, **fields, cause="cancelled", then="runs_on", also_answers=(request.command_id,))
    stage.controller.notifications.clean_up(STREAM)
    found = stage.controller.wait(WaitCondition.of(request), 5).end
    assert (found.outcome, found.state) == ("cancelled", "running")
    again = stage.controller.order("cancel", STREAM, request_id="r-9")
    assert again.outcome.outcome == "cancelled"


AT_7 = {"counts": QueryPosition(7)}
AT_END = {"snapshot_id": "s", "queries": AT_7}
OF_C = {"command_id": "c", "command_number": 1}
DRAIN, STOP, SNAPSHOT = DrainNotification.kind, StopRequest.kind, SnapshotRequest.kind
RAN = "query counts ran when the script ended"
UNFINISHED = {"counts": "ran when the script ended"}
LAST = 3
"""The number of the first event behind those of a start."""


def running(stage: Stage) -> None:
    stage.deploy()
    stage.come_to_life()


@pytest.mark.parametrize(
    ("kind", "fields", "outcome", "end"),
    [
        (Stopped, AT_END, "stopped", AT_END),
        (Finished, {"snapshot_id": None, "queries": AT_7}, "finished", {"queries": AT_7}),
        (Drained, {**OF_C, **AT_END}, "drained", AT_END),
        (Failed, {"error": "no", "traceback": "at 1"}, "failed", {"reason": "no", "traceback": "at 1"}),
        (
            Fenced,
            {"current_deployment_id": "d-0002", "current_attempt": 1},
            "fenced",
            {"reason": "replaced by d-0002 attempt 1"},
        ),
        (
            Fenced,
            {"current_deployment_id": "", "current_attempt": 0},
            "fenced",
            {"reason": "replaced by no deployment attempt 0"},
        ),
    ],
)
def test_an_end_of_a_deployment_is_told_whole(
    stage: Stage, kind: type[Event], fields: dict[str, Any], outcome: Any, end: dict[str, Any]
) -> None:
    """With its event, the number of that, and the kind of the order that a wait is for. (1a.13)"""
    running(stage)
    assert decide_end(stage.seen()) is None
    event = stage.say(kind, **fields)
    for command_kind in (STOP, ""):
        found = ended(outcome, outcome, event, LAST, command_kind=command_kind, **end)
        assert decide_end(stage.seen(), command_kind) == found
        if kind is not Stopped and kind is not Drained:
            assert decide_command_outcome(stage.seen(), "c", command_kind) == found
    assert decide_drain_outcome(stage.seen(), is_pending=True) == decide_end(stage.seen(), DRAIN)


@pytest.mark.parametrize(("state", "outcome"), [("gone", "failed"), ("unknown", "lost")])
def test_an_end_that_no_event_says_is_told_by_the_state(stage: Stage, state: str, outcome: str) -> None:
    """A driver that vanished or cannot be asked: there is neither a snapshot nor a number. (Law 6)"""
    running(stage)
    stage.end(state=state)
    stage.clock.advance(120)
    seen = stage.seen()
    found = ended(outcome, outcome, reason=seen.why, command_kind=SNAPSHOT)
    assert decide_end(seen, SNAPSHOT) == found
    assert f"it is {state}" in found.reason


def test_of_two_drains_the_first_is_the_end(stage: Stage) -> None:
    """Whatever a later attempt wrote; the number is that of the first event."""
    running(stage)
    first = stage.say(Drained, **OF_C, snapshot_id="s-1", queries={})
    stage.say(Drained, attempt=2, **OF_C, snapshot_id="s-2", queries={})
    found = decide_end(stage.seen())
    assert (found.event, found.number, found.snapshot_id) == (first, LAST, "s-1")


@pytest.mark.parametrize(
    ("kind", "fields", "outcome", "end"),
    [
        (SnapshotReady, {"snapshot_kind": "live", **AT_END}, "snapshot_ready", AT_END),
        (
            Skipped,
            {"query_name": "counts", "batch_id": 7, "moves": (), "reason": "no parser reads it"},
            "skipped",
            {"reason": "no parser reads it", "command_kind": SkipRequest.kind},
        ),
        (Expired, {"command": {}}, "expired", {"reason": "it had expired when it was read"}),
        (Rejected, {"key": "k", "reason": "no such kind"}, "rejected", {"reason": "no such kind"}),
        (Ignored, {"command": {}, "reason": "for another"}, "ignored", {"reason": "for another"}),
    ],
)
def test_an_answer_of_a_driver_that_runs_on_is_told_whole(
    stage: Stage, kind: type[Event], fields: dict[str, Any], outcome: Any, end: dict[str, Any]
) -> None:
    """The last answer to a command counts: the next attempt may do what an earlier one ignored. (1a.13)"""
    running(stage)
    stage.say(Ignored, **OF_C, command={}, reason="for another attempt")
    event = stage.say(kind, **OF_C, **fields)
    found = ended(outcome, "running", event, LAST + 1, **{"command_kind": STOP, **end})
    assert decide_command_outcome(stage.seen(), "c", STOP) == found
    assert decide_command_outcome(stage.seen(), "another", STOP) is None
    assert decide_command_outcome(stage.seen(), "", STOP) is None


@pytest.mark.parametrize(
    ("kind", "fields", "command_kind"),
    [
        (Accepted, {"command": {"kind": STOP}}, STOP),
        (Ignored, {"command": {"kind": SNAPSHOT}, "reason": "late"}, SNAPSHOT),
        (Expired, {"command": {"kind": DRAIN}}, DRAIN),
        (Accepted, {"command": {}}, ""),
        (Rejected, {"key": "k", "reason": "no such kind"}, ""),
    ],
)
def test_the_kind_of_a_command_is_told_by_its_event(
    stage: Stage, kind: type[Event], fields: dict[str, Any], command_kind: str
) -> None:
    """Where its caller does not know it; other commands stay without a kind."""
    running(stage)
    stage.say(kind, **OF_C, **fields)
    stage.say(Failed, error="no")
    for command_id, expected in (("c", command_kind), ("another", "")):
        found = decide_command_outcome(stage.seen(), command_id)
        assert found.command_kind == expected
    said = decide_command_outcome(stage.seen(), "c", CancelRequest.kind)
    assert said.command_kind == CancelRequest.kind


@pytest.mark.parametrize(
    ("command_kind", "end", "outcome"),
    [
        (STOP, Stopped, "stopped"),
        (STOP, Finished, "finished"),
        (SNAPSHOT, Stopped, "stopped"),
        (DRAIN, Stopped, "ignored"),
        (DRAIN, Drained, "drained"),
        ("", Stopped, "stopped"),
        (STOP, Failed, "ignored"),
        (STOP, Fenced, "fenced"),
    ],
)
def test_what_came_too_late_is_fulfilled_by_the_end_that_it_asked_for(
    stage: Stage, command_kind: str, end: type[Event], outcome: str
) -> None:
    """Else it was ignored; where the deployment was replaced, its end is fenced. (Laws 2 and 4)"""
    running(stage)
    ignored = stage.say(Ignored, **OF_C, command={"kind": command_kind}, reason="too late")
    ends: dict[type[Event], dict[str, Any]] = {
        Stopped: {"snapshot_id": "s", "queries": {}},
        Finished: {"snapshot_id": "s", "queries": {}},
        Drained: {"command_id": "other", "command_number": 2, "snapshot_id": "s", "queries": {}},
        Failed: {"error": "no"},
        Fenced: {"current_deployment_id": "d-0002", "current_attempt": 1},
    }
    stage.say(end, **ends[end])
    found = decide_command_outcome(stage.seen(), "c")
    assert (found.outcome, found.command_kind) == (outcome, command_kind)
    if outcome in ("ignored", "fenced"):
        assert (found.event, found.number, found.reason) == (ignored, LAST, "too late")
    else:
        assert (found.number, found.snapshot_id) == (LAST + 1, "s")


@pytest.mark.parametrize(
    ("order", "outcome"), [(STOP, "stopped"), (SNAPSHOT, "stopped"), (DRAIN, "failed"), ("", "failed")]
)
def test_an_end_by_the_script_keeps_what_a_stop_asks_for(stage: Stage, order: str, outcome: str) -> None:
    """The stop came too late; its snapshot is there. A drain has flushed nothing."""
    running(stage)
    stage.say(Finished, snapshot_id="s", queries={}, unfinished=UNFINISHED)
    found = decide_command_outcome(stage.seen(), "c", order)
    assert (found.outcome, found.snapshot_id, found.is_what_was_ordered) == (outcome, "s", outcome == "stopped")
    assert found.reason == f"the script ended with status 0, which nobody had asked for: {RAN}"


FLUSH = {"query_name": "counts", "error": "disk", "withdrawn": True}


@pytest.mark.parametrize(
    ("facts", "stops", "reason"),
    [
        ({}, False, None),
        ({}, True, "the flush of query counts failed: disk"),
        ({"choices": ("resume", "deploy")}, True, "the flush of query counts failed: disk"),
        ({"cause": "deadline", "then": "stop"}, False, None),
        ({"cause": "deadline", "then": "stop"}, True, "it was called off: disk"),
        ({"cause": "deadline", "then": "runs_on"}, False, "it was called off: disk; the stream runs on"),
        ({"cause": "cancelled"}, False, "it was called off: disk"),
    ],
)
def test_a_drain_that_failed_is_told_whole(
    stage: Stage, facts: dict[str, Any], stops: bool, reason: str | None
) -> None:
    """Once the state of the deployment is known: with the snapshot of its end, where it does not run on. (1a.5)"""
    running(stage)
    event = stage.say(DrainFailed, **OF_C, **FLUSH, **facts, also_answers=("back",))
    if stops:
        stage.say(Stopped, **AT_END)
    seen, is_cancelled = stage.seen(), facts.get("cause") == "cancelled"
    outcome, end = "cancelled" if is_cancelled else "drain_failed", AT_END if stops else {}
    for command_id, kind in (("c", DRAIN), ("back", CancelRequest.kind)):
        found = ended(outcome, seen.state, event, LAST, reason=reason, command_kind=kind, **end) if reason else None
        assert decide_command_outcome(seen, command_id, DRAIN) == found
    if reason and not is_cancelled:
        assert decide_drain_outcome(seen, is_pending=False) == decide_command_outcome(seen, "c", DRAIN)


def test_a_drain_that_failed_in_a_failing_job_has_its_traceback(stage: Stage) -> None:
    """And no snapshot."""
    running(stage)
    event = stage.say(DrainFailed, **OF_C, **FLUSH)
    stage.say(Failed, error="no", traceback="Traceback …")
    found = decide_command_outcome(stage.seen(), "c")
    reason = "the flush of query counts failed: disk"
    assert found == ended(
        "drain_failed", "failed", event, LAST, reason=reason, traceback="Traceback …", command_kind=DRAIN
    )


EXPIRED = (Expired, {"command": {"kind": DRAIN}})
REJECTED = (Rejected, {"key": "k", "reason": "no"})
CALLED_OFF = (DrainFailed, {**FLUSH, "then": "runs_on"})
ACCEPTED = (Accepted, {"command": {"kind": DRAIN}})


@pytest.mark.parametrize(
    ("events", "is_pending", "outcome"),
    [
        ([], False, None),
        ([ACCEPTED], False, None),
        ([EXPIRED], False, "expired"),
        ([EXPIRED], True, None),
        ([(Expired, {"command": {"kind": STOP}})], False, None),
        ([REJECTED], False, "rejected"),
        ([REJECTED], True, None),
        ([CALLED_OFF], False, "drain_failed"),
        ([CALLED_OFF], True, None),
        ([(DrainFailed, FLUSH)], False, None),
        ([EXPIRED, ACCEPTED], False, None),
        ([EXPIRED, (Accepted, {"command": {"kind": SNAPSHOT}})], False, "expired"),
        ([REJECTED, EXPIRED], False, "expired"),
    ],
)
def test_the_last_event_on_drains_is_the_outcome_for_a_wait_without_an_order(
    stage: Stage, events: tuple[tuple[type[Event], dict[str, Any]], ...], is_pending: bool, outcome: str | None
) -> None:
    """Unless another drain waits to be obeyed, or the last one was taken up. (Law 6)"""
    running(stage)
    said = [stage.say(kind, **OF_C, **fields) for kind, fields in events]
    stage.end(state="unknown")  # with a recent sign of life, it runs
    found = decide_drain_outcome(stage.seen(), is_pending=is_pending)
    if outcome is None:
        assert found is None
        return
    told = found.event
    assert (found.outcome, found.state, found.command_kind) == (outcome, "running", DRAIN)
    assert found.number == LAST + [event.write_id for event in said].index(told.write_id)


def test_a_drain_after_one_that_failed_is_the_end(stage: Stage) -> None:
    """By whichever order: the deployment is drained. (Law 11)"""
    running(stage)
    stage.say(DrainFailed, **OF_C, **FLUSH, then="kill")
    event = stage.say(Drained, command_id="d", command_number=2, snapshot_id="s", queries={})
    found = decide_drain_outcome(stage.seen(), is_pending=False)
    assert (found.outcome, found.event) == ("drained", event)


def test_an_end_behind_a_drain_that_failed_counts(stage: Stage) -> None:
    """Also a lost driver: nothing is known of the flush then."""
    running(stage)
    stage.say(DrainFailed, **OF_C, **FLUSH, then="kill")
    assert decide_drain_outcome(stage.seen(), is_pending=True) is None
    stage.end(state="unknown")
    stage.clock.advance(3_600)
    found = decide_drain_outcome(stage.seen(), is_pending=True)
    assert (found.outcome, found.state, found.number) == ("drain_failed", "lost", LAST)


@pytest.mark.parametrize(
    ("outcome", "command_kind", "is_so"),
    [
        ("drained", DRAIN, True),
        ("stopped", DRAIN, False),
        ("stopped", STOP, True),
        ("snapshot_ready", STOP, False),
        ("snapshot_ready", SNAPSHOT, True),
        ("cancelled", CancelRequest.kind, True),
        ("skipped", "", True),
        ("cancelled", "", False),
        ("drained", "a kind of tomorrow", True),
        ("failed", "a kind of tomorrow", False),
    ],
)
def test_an_order_is_fulfilled_by_the_ends_of_its_kind(outcome: Any, command_kind: str, is_so: bool) -> None:
    """An order of an unknown kind by any good end."""
    assert ended(outcome, "running", command_kind=command_kind).is_what_was_ordered is is_so
