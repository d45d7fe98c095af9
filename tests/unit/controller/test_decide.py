"""The decisions alone: pure, and the same for the same observation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_streamstate.controller.decide import (
    INTENT_SECONDS,
    UNCOUNTED,
    Became,
    Begin,
    LaunchSame,
    NextAttempt,
    Refused,
    Start,
    TakeOver,
    UseSnapshot,
    decide_expected_snapshot,
    decide_predecessor,
    decide_request,
    decide_resume,
    decide_start,
)
from airflow_streamstate.controller.request.requests import DeployRequest
from airflow_streamstate.errors import (
    IncompatibleUpgradeError,
    InputLostError,
    InvalidRequestError,
    StreamStateError,
)
from airflow_streamstate.protocol.commands import DrainNotification
from airflow_streamstate.protocol.events import Drained, Finished
from airflow_streamstate.protocol.ids import SnapshotKind, deployment_id_for
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest
from airflow_streamstate.protocol.positions import QueryPosition, StateLeft
from airflow_streamstate.protocol.records import Intent, RequestRecord, StartPlan, StateRewrite, StreamRegister
from airflow_streamstate.protocol.terms.version import Artifact, StartTerms, Version
from support.examples import example
from support.fake_clock import START_AT
from support.sim_stage import STREAM, Stage


def register(token: int, intent: Intent | None = None) -> StreamRegister:
    """The register of a stream whose current deployment has this token."""
    current = deployment_id_for(token) if token else None
    return StreamRegister("orders", token, current, 1 if token else 0, "run", intent, "w", START_AT, "tests")


def record(token: int) -> RequestRecord:
    """A request that was to become the deployment of this token."""
    return RequestRecord("r-1", "orders", "deploy", "0" * 64, deployment_id_for(token), "w", START_AT)


def manifest(kind: SnapshotKind = "stopped", **queries: QuerySnapshot) -> SnapshotManifest:
    """A snapshot of these queries."""
    return SnapshotManifest(
        f"d-0001-{kind}-000001", kind, "orders", "d-0001", 1, 1, START_AT, "agent", queries, "w", ""
    )


def query(batch_id: int | None, *, drained: bool = False, **position: object) -> QuerySnapshot:
    """A query at this batch."""
    return QuerySnapshot("id", QueryPosition(batch_id, **position), (), drained=drained)  # type: ignore[arg-type]


def left_by(operator: str, rows: int) -> StateLeft:
    """The given number of rows that an operator could not flush."""
    return StateLeft(operator, 0, rows, "no watermark closes it")


def request(**changes: object) -> DeployRequest:
    """A request."""
    version = Version(Artifact("job.py", "cd" * 32))
    return DeployRequest("orders", version, StartTerms(**changes))  # type: ignore[arg-type]


def test_a_new_request_is_the_next_deployment() -> None:
    """Fencing tokens grow by every deployment. (Law 4)"""
    assert decide_request(None, None, "r-1", START_AT) == Begin("d-0001", 1, is_new=True)
    assert decide_request(None, register(4), "r-1", START_AT) == Begin("d-0005", 5, is_new=True)


@given(token=st.integers(1, 50), recorded=st.integers(1, 50))
def test_a_recorded_request_is_never_another_deployment(token: int, recorded: int) -> None:
    """A recorded request continues as what it was recorded to be, has become it, or is refused. (Law 2)"""
    decision = decide_request(record(recorded), register(token), "r-1", START_AT)
    if recorded == token:
        assert decision == Became(deployment_id_for(recorded))
    elif recorded > token:
        assert decision == Begin(deployment_id_for(recorded), recorded, is_new=False)
    else:
        assert isinstance(decision, Refused)
        assert decision.error.context["current_deployment_id"] == deployment_id_for(token)


@given(age_seconds=st.floats(0, 3 * INTENT_SECONDS))
def test_an_intent_is_respected_while_it_is_young(age_seconds: float) -> None:
    """A young intent of another request refuses; an old one is passed over, and its deployment id left alone. (1a.8)"""
    intent = Intent("r-other", "d-0005", START_AT, "ada")
    decision = decide_request(None, register(4, intent), "r-1", START_AT + timedelta(seconds=age_seconds))
    if age_seconds < INTENT_SECONDS:
        assert isinstance(decision, Refused)
    else:
        assert decision == Begin("d-0006", 6, is_new=True)
    own = decide_request(record(5), register(4, Intent("r-1", "d-0005", START_AT, "me")), "r-1", START_AT)
    assert own == Begin("d-0005", 5, is_new=False)


@pytest.mark.parametrize(
    ("kind", "queries", "mode"),
    [
        ("stopped", {"a": query(3)}, "restore"),
        ("drained", {"a": query(3, drained=True, state_rows_left=0)}, "seed"),
        ("drained", {"a": query(3, drained=True, state_rows_left=0), "b": query(5)}, "seed"),
        ("stopped", {"a": query(3, drained=True, state_rows_left=0), "b": query(5)}, "restore"),
        ("stopped", {"a": query(3, drained=True, state_rows_left=0), "b": query(None)}, "seed"),
        ("stopped", {"a": query(None, planned_batch_id=0)}, "restore"),
        ("stopped", {}, "fresh"),
    ],
)
def test_what_the_snapshot_is_decides_the_start(kind: SnapshotKind, queries: dict, mode: str) -> None:
    """With state: restore. Drained: seed. No query ever: where the options specify. (1a.9)"""
    decision = decide_start(request(), "d-0001", manifest(kind, **queries))
    assert isinstance(decision, Start)
    assert decision.plan.mode == mode
    assert decision.plan.snapshot_id == (None if mode == "fresh" else f"d-0001-{kind}-000001")


@given(
    start=st.sampled_from([None, "restore", "seed", "fresh"]),
    kind=st.sampled_from(["stopped", "drained"]),
    discard=st.booleans(),
    rows=st.sampled_from([None, 0, 7]),
)
def test_nothing_starts_empty_or_loses_state_unless_it_was_named(
    start: str | None, kind: SnapshotKind, discard: bool, rows: int | None
) -> None:
    """Fresh only by name; a mode that contradicts the snapshot, or state that would be dropped, is refused.
    (Laws 5, 11 and 16)"""
    drained = kind == "drained"
    found = decide_start(
        request(start=start, allow_state_loss=discard),
        "d-0001",
        manifest(kind, a=query(3, drained=drained, state_rows_left=rows)),
    )
    if start == "fresh":
        assert isinstance(found, Start)
        assert found.plan.mode == "fresh"
        return
    contradicts = start is not None and start != ("seed" if drained else "restore")
    drops = drained and rows != 0 and not discard
    if contradicts or drops:
        assert isinstance(found, Refused)
        assert isinstance(found.error, IncompatibleUpgradeError)
    else:
        assert isinstance(found, Start)
        assert found.plan.mode == ("seed" if drained else "restore")


def test_no_state_is_rewritten_where_a_drain_left_none() -> None:
    """A seed starts in the new form; a rewrite of nothing would be silently left out. (Law 5)"""
    asked = replace(request(), rewrite=StateRewrite(partitions=4))
    kept = decide_start(asked, "d-0001", manifest(a=query(3)))
    assert isinstance(kept, Start)
    assert kept.plan.rewrite == asked.rewrite
    error = refused(decide_start(asked, "d-0001", manifest("drained", a=query(3, drained=True, state_rows_left=0))))
    assert error.context == {"snapshot_id": "d-0001-drained-000001"}


@pytest.mark.parametrize("start", ["seed", "restore"])
def test_what_is_asked_for_by_name_needs_a_position(start: str) -> None:
    """After a deployment that never started a query there is no position, and no other start mode is taken. (Law 5)"""
    decision = decide_start(request(start=start), "d-0001", manifest())
    assert isinstance(decision, Refused)
    assert isinstance(decision.error, InvalidRequestError)
    assert decision.error.context == {"deployment_id": "d-0001", "start": start}


def test_a_decision_leaves_no_trace(stage: Stage) -> None:
    """Deciding twice on one observation gives the same, and writes nothing. (Law 1)"""
    stage.deploy()
    stage.stopped()
    seen = stage.seen()
    before = {info.key: info.size_bytes for info in stage.store.list_objects("")}
    assert decide_predecessor(seen, request(), None) == decide_predecessor(seen, request(), None)
    assert decide_resume(seen, "r", assume_dead=False, has_drain=False) == decide_resume(
        seen, "r", assume_dead=False, has_drain=False
    )
    assert {info.key: info.size_bytes for info in stage.store.list_objects("")} == before


def test_state_that_nobody_counted_is_not_taken_for_none() -> None:
    """A drained query whose state was not counted refuses the seed, unless it is dropped by name. (Law 16)"""
    kept = manifest("stopped", a=query(3, drained=True), b=query(5))
    found = decide_start(request(), "d-0001", kept)
    assert isinstance(found, Refused)
    assert isinstance(found.error, IncompatibleUpgradeError)
    assert "not counted" in str(found.error)
    assert isinstance(decide_start(request(allow_state_loss=True), "d-0001", kept), Start)


OTHERS = Intent("r-other", "d-0006", START_AT, "ada")


@pytest.mark.parametrize(
    ("recorded", "intent", "age_seconds", "begun"),
    [
        (6, OTHERS, INTENT_SECONDS - 1, None),
        (6, OTHERS, INTENT_SECONDS, Begin("d-0006", 6, is_new=False)),
        (7, OTHERS, INTENT_SECONDS, Begin("d-0007", 7, is_new=False)),
        (None, OTHERS, INTENT_SECONDS, Begin("d-0007", 7, is_new=True)),
        (None, replace(OTHERS, deployment_id="d-0003"), INTENT_SECONDS, Begin("d-0005", 5, is_new=True)),
        (None, replace(OTHERS, request_id="r-1"), 0.0, Begin("d-0005", 5, is_new=True)),
    ],
)
def test_no_request_takes_the_number_of_another(
    recorded: int | None, intent: Intent, age_seconds: float, begun: Begin | None
) -> None:
    """Not of one that is under way, and not of one that was abandoned. (Laws 2 and 4)"""
    found = decide_request(
        None if recorded is None else record(recorded),
        register(4, intent),
        "r-1",
        START_AT + timedelta(seconds=age_seconds),
    )
    assert found == begun or (begun is None and isinstance(found, Refused))


def refused(decision: object) -> StreamStateError:
    """Why it must not be done."""
    assert isinstance(decision, Refused)
    return decision.error


def test_a_refused_request_is_told_by_what_it_is_barred() -> None:
    """The deployment that came first, and the one under way."""
    assert refused(decide_request(record(3), register(4), "r-1", START_AT)).context == {
        "deployment_id": "d-0003",
        "current_deployment_id": "d-0004",
        "moved_by": "tests",
    }
    late = START_AT + timedelta(seconds=7.26)
    assert refused(decide_request(None, register(4, OTHERS), "r-1", late)).context == {
        "deployment_id": "d-0006",
        "requested_by": "ada",
        "begun_seconds_ago": 7.3,
    }


# the deployment before


def recorded(stage: Stage) -> None:
    stage.deploy()
    stage.end(state="pending")


def running(stage: Stage) -> None:
    stage.deploy()
    stage.come_to_life(queries=("counts",))


def degraded(stage: Stage) -> None:
    running(stage)
    stage.query_failed()


def stopping(stage: Stage) -> None:
    running(stage)
    stage.controller.order("stop", STREAM)
    (slot,) = stage.control.journal("d-0001").commands()
    assert slot.command is not None
    stage.accept(slot.command)


def draining(stage: Stage) -> None:
    running(stage)
    stage.controller.order("drain", STREAM)
    stage.accept(stage.drain_of())


def lost(stage: Stage) -> None:
    running(stage)
    stage.end(state="unknown")
    stage.clock.advance(3_600)


def died(stage: Stage) -> None:
    running(stage)
    stage.end(state="gone")


def died_again(stage: Stage) -> None:
    died(stage)
    stage.controller.resume(STREAM)
    stage.end(attempt=2, state="gone")


def stopped(stage: Stage) -> None:
    stage.deploy()
    stage.stopped()


def finished(stage: Stage) -> None:
    running(stage)
    stage.say(Finished, snapshot_id="s-end", queries={})


def finished_without_a_snapshot(stage: Stage) -> None:
    running(stage)
    stage.say(Finished, snapshot_id=None, queries={})


def drained(stage: Stage) -> None:
    running(stage)
    stage.say(Drained, command_id="c", command_number=1, snapshot_id="s-drained", queries={})


Life = Callable[[Stage], None]
AT_END = "d-0001-stopped-000001"


@pytest.mark.parametrize(
    ("life", "asked", "decision"),
    [
        (stopped, {}, UseSnapshot(AT_END)),
        (finished, {}, UseSnapshot("s-end")),
        (finished_without_a_snapshot, {}, TakeOver(AT_END)),
        (died, {}, TakeOver(AT_END)),
        (died_again, {}, TakeOver("d-0001-stopped-000002")),
        (lost, {"assume_dead": True}, TakeOver(AT_END)),
        (drained, {}, UseSnapshot("s-drained", is_drained=True)),
        (drained, {"assume_dead": True, "start": "restore"}, UseSnapshot("s-drained", is_drained=True)),
    ],
)
def test_a_new_deployment_goes_on_from_the_end_of_the_one_before(
    stage: Stage, life: Life, asked: dict[str, Any], decision: UseSnapshot | TakeOver
) -> None:
    """The snapshot that it left; where it left none, one that is taken of its last attempt now. (Law 14; 1a.8, 1a.9)"""
    life(stage)
    assert decide_predecessor(stage.seen(), request(**asked), None) == decision


@pytest.mark.parametrize(
    ("life", "state", "says"),
    [
        (
            recorded,
            "launching",
            "launching: `streamstate resume orders` starts it, `streamstate kill orders` gives it up",
        ),
        (Stage.deploy, "launching", "launching: stop, drain or upgrade it first"),
        (running, "running", "running: stop, drain or upgrade it first"),
        (degraded, "degraded", "degraded: stop, drain or upgrade it first"),
        (stopping, "stopping", "running: stop, drain or upgrade it first"),
        (draining, "draining", "running: stop, drain or upgrade it first"),
    ],
)
def test_nothing_is_deployed_over_what_lives(stage: Stage, life: Life, state: str, says: str) -> None:
    """Whatever was asked for; the refusal reports what can be done about it. (Law 4)"""
    life(stage)
    for asked in ({}, {"assume_dead": True}, {"start": "fresh"}):
        error = refused(decide_predecessor(stage.seen(), request(**asked), None))
        assert error.message == f"the stream is {says}"
        facts = {"stream_id": "orders", "deployment_id": "d-0001", "state": state, "deployed_by": "tests"}
        assert error.context == facts


def test_nothing_takes_over_from_a_driver_of_unknown_state(stage: Stage) -> None:
    """It may be alive: since when it is silent, and why it cannot be asked, is reported; by a resume, too. (1a.8)"""
    lost(stage)
    seen = stage.seen()
    facts = {
        "stream_id": "orders",
        "deployment_id": "d-0001",
        "attempt": 1,
        "silent_since_at": seen.silent_since_at,
        "reason": "it is unknown",
    }
    unasked = replace(seen, launch_status=None, handle=None)
    assert refused(decide_predecessor(seen, request(), None)).context == facts
    assert refused(decide_predecessor(unasked, request(), None)).context == {**facts, "reason": ""}
    assert refused(decide_resume(seen, "r", assume_dead=False, has_drain=False)).context == facts


@pytest.mark.parametrize("assume_dead", [False, True])
def test_nothing_takes_over_from_a_driver_that_is_silent(stage: Stage, assume_dead: bool) -> None:
    """Its launcher reports that it lives, so no word of a person makes it dead; a resume starts no other. (Law 4)"""
    running(stage)
    stage.beat()
    stage.clock.advance(3_600)
    seen = stage.seen()
    assert seen.state == "silent"
    for asked in (None, "restore", "fresh"):
        error = refused(decide_predecessor(seen, request(start=asked, assume_dead=assume_dead), None))
        assert "it would obey nobody" in error.message
        assert "ends its driver; then deploy again" in error.next_step
    error = refused(decide_resume(seen, "r", assume_dead=assume_dead, has_drain=False))
    assert "ends its driver; then `streamstate resume orders`" in error.next_step


def test_an_unfinished_drain_is_finished_first(stage: Stage) -> None:
    """Or passed over by name; one that was answered is in no way. (Law 16)"""
    drain = example(DrainNotification)
    assert isinstance(drain, DrainNotification)
    died(stage)
    seen = stage.seen()
    for start in (None, "seed"):
        error = refused(decide_predecessor(seen, request(start=start), drain))
        assert error.context == {
            "stream_id": "orders",
            "deployment_id": "d-0001",
            "state": "failed",
            "command_id": drain.command_id,
            "requested_by": drain.requested_by,
        }
    for start in ("restore", "fresh"):
        assert decide_predecessor(seen, request(start=start), drain) == TakeOver(AT_END)


# how it starts


def test_each_option_of_a_request_is_in_the_plan_of_its_start() -> None:
    """Also of a first start, and of one that has nothing to continue from."""
    asked = request(allow_state_loss=True, allow_new_queries=("new",), accept_lost_input=("lost",))
    plan = StartPlan("restore", AT_END, "d-0001", True, ("new",), ("lost",))
    assert decide_start(asked, "d-0001", manifest(a=query(3))) == Start(plan)
    assert decide_start(asked, None, None) == Start(StartPlan("fresh", allow_new_queries=("new",)))
    fresh = StartPlan("fresh", predecessor_id="d-0001", allow_new_queries=("new",))
    note = "d-0001 never started a query: there is no position, and each query starts where its options say"
    assert decide_start(asked, "d-0001", manifest()) == Start(fresh, (note,))
    anew = "it starts with empty state, as requested: batch ids start again at 0"
    for found in (manifest(a=query(3)), manifest(), None):
        begun = Start(replace(fresh, begins_anew=True), (anew,))
        assert decide_start(replace(asked, terms=replace(asked.terms, start="fresh")), "d-0001", found) == begun
    assert decide_start(asked, "d-0001", None) == Start(fresh, (anew,))


@pytest.mark.parametrize("asked", [{"start": "restore"}, {"start": "seed"}, {"snapshot_id": "s-1"}])
def test_a_first_deployment_has_nothing_to_start_from(asked: dict[str, Any]) -> None:
    """What names something is refused: the name of the stream may be wrong. (Law 5)"""
    error = refused(decide_start(request(**asked), None, None))
    assert isinstance(error, InvalidRequestError)
    assert error.context == {"stream_id": "orders", "start": None, "snapshot_id": None, **asked}


@pytest.mark.parametrize(
    ("position", "left"),
    [
        ({"state_rows_left": 0}, None),
        ({"state_rows_left": 1}, 1),
        ({"state_rows_left": 7}, 7),
        ({}, UNCOUNTED),
        ({"state_rows_left": 0, "state_left": (left_by("join", 2), left_by("count", 0))}, {"join": 2}),
        ({"state_rows_left": 3, "state_left": (left_by("join", 1), left_by("count", 2))}, {"join": 1, "count": 2}),
        ({"state_rows_left": 3, "state_left": (left_by("count", 0),)}, 3),
    ],
)
def test_state_that_a_drain_left_is_told_by_query(position: dict[str, Any], left: object) -> None:
    """A seed would drop it: refused; or dropped by name, and reported. (Law 16)"""
    kept = manifest("drained", b=query(None, drained=True), c=query(3), a=query(3, drained=True, **position))
    found = decide_start(request(), "d-0001", kept)
    if left is None:
        assert isinstance(found, Start)
        return
    error = refused(found)
    assert error.context == {"snapshot_id": kept.snapshot_id, "state_left": {"a": left}}
    assert ("was not counted" in error.message) is (left == UNCOUNTED)
    dropped = decide_start(request(allow_state_loss=True), "d-0001", kept)
    assert isinstance(dropped, Start)
    said = f"state that the drain could not flush is dropped, as requested: { ({'a': left}) }"
    assert [note for note in dropped.notes if "dropped" in note] == [said]


@pytest.mark.parametrize(
    ("kind", "of_query", "carried", "note"),
    [
        ("stopped", query(3), (), None),
        ("stopped", query(None), (), "query a never committed a batch: it starts where its options say"),
        (
            "stopped",
            query(None, planned_batch_id=0),
            (),
            "query a first runs batch 0, which was planned and not committed",
        ),
        (
            "stopped",
            query(3, planned_batch_id=4),
            (),
            "query a first runs batch 4, which was planned and not committed",
        ),
        ("drained", query(3), (), "query a was not flushed by the drain: it is restored with its state"),
        ("drained", query(3), ("a",), "query a was not flushed by the drain: it is restored with its state"),
        ("drained", query(3, drained=True, state_rows_left=0), (), None),
        ("stopped", query(3), ("a",), "query a was never started by d-0001: it continues as it was before"),
        ("stopped", query(3), ("b",), None),
    ],
)
def test_what_a_person_should_know_of_a_start_is_noted(
    kind: SnapshotKind, of_query: QuerySnapshot, carried: tuple[str, ...], note: str | None
) -> None:
    """Of each query, where it continues otherwise than behind its last commit with its state. (1a.6, 1a.12)"""
    found = decide_start(request(), "d-0001", manifest(kind, a=of_query), carried)
    assert isinstance(found, Start)
    assert found.notes == (() if note is None else (note,))


@pytest.mark.parametrize(("kind", "start"), [("stopped", "seed"), ("drained", "restore")])
def test_a_start_that_the_snapshot_cannot_give_is_refused_with_the_reason(kind: SnapshotKind, start: str) -> None:
    """State cannot be left out by a word, nor made up. (Laws 5 and 11)"""
    found = decide_start(request(start=start), "d-0001", manifest(kind, a=query(3)))
    error = refused(found)
    assert error.context == {"start": start, "snapshot_id": f"d-0001-{kind}-000001", "snapshot_kind": kind}
    assert ("so it can only be seeded" in error.message) is (kind == "drained")
    assert error.next_step == f"Leave out --start, or use --start {'seed' if kind == 'drained' else 'restore'}."


def test_a_snapshot_that_is_named_is_a_check() -> None:
    """It must be the one at the end of the predecessor, never a choice; a first deployment has none. (Law 14; 1a.9)"""
    named = request(snapshot_id="s-0")
    for asked, predecessor_id, at_end in ((request(), "d-0001", "s-1"), (named, "d-0001", "s-0"), (named, None, "s-1")):
        assert decide_expected_snapshot(asked, predecessor_id, at_end) is None
    for at_end in ("s-1", None):
        decision = decide_expected_snapshot(named, "d-0001", at_end)
        facts = {"snapshot_id": "s-0", "current_deployment_id": "d-0001", "snapshot_at_its_end": at_end}
        assert refused(decision).context == facts


# how it continues


@pytest.mark.parametrize(
    ("life", "asked", "decision"),
    [
        (recorded, {}, LaunchSame()),
        (recorded, {"has_drain": True}, LaunchSame()),
        (stopped, {}, NextAttempt()),
        (finished, {}, NextAttempt()),
        (died, {}, NextAttempt()),
        (lost, {"assume_dead": True}, NextAttempt()),
        (lost, {}, None),
        (Stage.deploy, {}, "the stream is launching already"),
        (running, {"assume_dead": True}, "the stream is running already"),
        (stopping, {}, "the stream is stopping already"),
        (draining, {}, "the stream is draining already"),
        (degraded, {}, "the stream is degraded: its other queries run"),
        (drained, {"assume_dead": True}, "a drained deployment is never resumed"),
    ],
)
def test_what_has_ended_is_resumed_and_nothing_else(
    stage: Stage, life: Life, asked: dict[str, bool], decision: object
) -> None:
    """An attempt that never got a driver gets one; what lives, or was drained, stays as it is. (Laws 4 and 11)"""
    life(stage)
    found = decide_resume(stage.seen(), "r", **{"assume_dead": False, "has_drain": False, **asked})
    if isinstance(decision, str):
        error = refused(found)
        assert decision in error.message
        assert (error.context["stream_id"], error.context["deployment_id"]) == ("orders", "d-0001")
    else:
        assert isinstance(found, Refused) if decision is None else found == decision


def test_a_resume_that_is_refused_says_what_to_do(stage: Stage) -> None:
    """To look; and of a failed query, to stop the others."""
    running(stage)
    error = refused(decide_resume(stage.seen(), "r", assume_dead=False, has_drain=False))
    assert error.next_step == "`streamstate status orders` shows it."
    assert error.context == {"stream_id": "orders", "deployment_id": "d-0001", "attempt": 1, "state": "running"}
    stage.query_failed()
    error = refused(decide_resume(stage.seen(), "r", assume_dead=False, has_drain=False))
    assert error.next_step.startswith("`streamstate stop orders`, then resume")


def test_a_source_that_sends_once_lets_no_resume_go_on(stage: Stage) -> None:
    """Its offset means nothing to the next connection; a drain starts none of its queries. (Law 5)"""
    died(stage)
    seen, one_time = stage.seen(), {"counts": {"socket host:1": "what it sends is sent once"}}
    error = refused(decide_resume(seen, "r", assume_dead=False, has_drain=False, one_time=one_time))
    assert isinstance(error, InputLostError)
    assert error.context == {"stream_id": "orders", "deployment_id": "d-0001", "sources": one_time}
    assert "--accept-lost-input counts" in error.next_step
    flushed = decide_resume(seen, "r", assume_dead=False, has_drain=True, one_time=one_time)
    assert flushed == NextAttempt()


def test_an_attempt_that_was_to_flush_is_not_started_without_its_drain(stage: Stage) -> None:
    """It would do nothing at all: the next one runs the stream."""
    recorded(stage)
    seen = stage.seen()
    flushing = replace(seen, register=replace(seen.register, attempt_mode="drain"))
    assert decide_resume(flushing, "r", assume_dead=False, has_drain=True) == LaunchSame()
    assert decide_resume(flushing, "r", assume_dead=False, has_drain=False) == NextAttempt()


def test_a_resume_waits_for_a_deploy_that_is_under_way(stage: Stage) -> None:
    """As long as that is young, and another's. (Law 4)"""
    died(stage)
    seen = stage.seen()
    for request_id, age_seconds, waits in (
        ("r-other", INTENT_SECONDS - 1, True),
        ("r-other", INTENT_SECONDS, False),
        ("r", 0.0, False),
    ):
        begun_at = seen.observed_at - timedelta(seconds=age_seconds)
        intent = Intent(request_id, "d-0002", begun_at, "ada")
        moving = replace(seen, register=replace(seen.register, intent=intent))
        found = decide_resume(moving, "r", assume_dead=False, has_drain=False)
        assert isinstance(found, Refused) is waits
