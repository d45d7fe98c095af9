"""Requests for snapshots: asked again until one is ready, and one snapshot however often (Law 2)."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.commands.snapshot_requests import asking_command_id
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.errors import (
    ConflictError,
    DeadlineExceededError,
    DeploymentFailedError,
    InvalidRequestError,
)
from airflow_streamstate.hooks.refusals import is_retryable
from airflow_streamstate.protocol.codec import fields_json, to_json
from airflow_streamstate.protocol.events import Accepted, Failed, Finished, Rejected, SnapshotReady
from airflow_streamstate.protocol.positions import QueryBeat
from airflow_streamstate.protocol.terms.order import SnapshotTerms
from airflow_streamstate.protocol.terms.version import digest_of
from support.asked_stream import LAST_BATCH, REQUEST, AskedStream
from support.faulty_store import Fault, FaultPlan, FaultyStore
from support.sim_stage import STREAM, Stage

TIMEOUT_SECONDS = 15.0
NEVER = 100_000


@pytest.fixture
def asked(tmp_path: Path) -> AskedStream:
    """A stream that runs."""
    return AskedStream(tmp_path)


def test_a_request_becomes_a_snapshot_that_names_its_position(asked: AskedStream) -> None:
    """Per query the batch, and per source the offsets; the request is in command, event and manifest."""
    asked.ask(reason="because")
    (request,) = asked.requests()
    assert (request.request_id, request.ttl_seconds, request.reason) == (REQUEST, 300.0, "because")
    asked.polls()
    (ready,) = asked.events_of(SnapshotReady)
    position = ready.queries["counts"]
    assert (ready.request_id, position.batch_id, len(position.end_offsets)) == (REQUEST, LAST_BATCH, 1)
    outcome = asked.look()
    assert (outcome.outcome, outcome.snapshot_id) == ("snapshot_ready", ready.snapshot_id)
    assert outcome.command_id == ready.command_id == request.command_id


def test_nobody_who_waits_asks_again_before_the_timeout(asked: AskedStream) -> None:
    """The timeout starts again with each retry; a retry replaces the object that no driver has read."""
    asked.ask()
    dates = []
    for seconds in (0, TIMEOUT_SECONDS - 0.001, 0.001, TIMEOUT_SECONDS - 0.001, 0.001):
        asked.stage.clock.advance(seconds)
        assert asked.look() is None
        (request,) = asked.requests()
        dates.append((request.requested_at - asked.requests()[0].requested_at, request.requested_at))
    first = dates[0][1]
    assert [(date - first).total_seconds() for _, date in dates] == [0, 0, 15, 15, 30]
    asked.polls()
    assert len(asked.taken()) == 1


def test_a_look_writes_nothing_and_a_step_of_a_wait_asks_again(asked: AskedStream) -> None:
    """What is due by a poll is done by the step of a wait that polled (Law 1)."""
    asked.ask()
    first = asked.requests()
    asked.stage.clock.advance(TIMEOUT_SECONDS)
    condition = WaitCondition("snapshot", STREAM, "", request_id=REQUEST)
    assert asked.stage.controller.look(condition).outcome == "pending"
    assert asked.requests() == first
    assert asked.stage.controller.advance(condition).outcome == "pending"
    assert [request.requested_at for request in asked.requests()] == [asked.stage.clock.now()]


@pytest.mark.parametrize("then", ["resumes", "is_redeployed"])
def test_a_driver_that_died_behind_its_manifest_has_answered(tmp_path: Path, then: str) -> None:
    """The manifest counts, not the event: no second one is taken, and the waiting ends with the first (Law 3)."""
    calm, asked = AskedStream(tmp_path), AskedStream(tmp_path)
    for one, number in ((calm, NEVER), (asked, None)):
        one.ask()
        one.polls(number or calm.calls_up_to_manifest())
    assert asked.desk is None
    assert asked.events_of(SnapshotReady) == []
    (kept,) = asked.taken()
    assert asked.look().snapshot_id == kept.snapshot_id, "before anything is started again"
    getattr(asked, then)()
    outcome = asked.look()
    assert outcome.queries == {name: query.position for name, query in kept.queries.items()}
    assert outcome.command_id == kept.command_id
    assert (outcome.snapshot_id, outcome.deployment_id, outcome.state) == (kept.snapshot_id, "d-0001", "running")
    view = asked.stage.controller.order("snapshot", STREAM, request_id=REQUEST)
    assert view.outcome.snapshot_id == kept.snapshot_id
    assert (view.request_id, view.command_id) == (REQUEST, kept.command_id)
    asked.polls()
    assert (asked.requests(), asked.taken()) == ([], [kept])


def test_a_request_before_the_first_batch_waits_for_it(tmp_path: Path) -> None:
    """Never an empty manifest, and no refusal: the wait continues until its own deadline."""
    asked = AskedStream(tmp_path, committed=False)
    asked.stage.start_query()
    asked.stage.store.put("orders/deployments/d-0001/checkpoints/counts/metadata", b'{"id":"x"}')
    asked.ask()
    asked.polls()
    assert asked.events_of(Rejected) == []
    asked.stage.beat(counts=QueryBeat(None, None, is_active=True))
    with pytest.raises(DeadlineExceededError, match="nothing is committed yet") as late:
        asked.stage.controller.wait(WaitCondition("snapshot", STREAM, "", request_id=REQUEST), 60)
    assert is_retryable(late.value)
    assert asked.stage.controller.snapshots.all(STREAM) == []
    asked.stage.run_batches(2)
    asked.polls()
    assert len(asked.taken()) == 1


def test_a_deployment_that_failed_has_as_long_to_come_back(asked: AskedStream) -> None:
    """It has the usual time; then the wait ends, since nothing can come (Law 6)."""
    asked.ask()
    asked.stage.say(Failed, error="boom")
    asked.dies()
    asked.stage.clock.advance(TIMEOUT_SECONDS - 0.001)
    assert asked.look() is None
    asked.ask()  # the client may die, too, and come back just now
    asked.stage.clock.advance(0.001)
    with pytest.raises(ConflictError, match="command not sent"):
        asked.ask()
    with pytest.raises(DeploymentFailedError):
        asked.stage.controller.wait(WaitCondition("snapshot", STREAM, "", request_id=REQUEST), 600)
    asked.resumes()
    assert asked.look() is None
    asked.polls()
    assert asked.look() is not None


def test_a_date_of_the_users_stays_and_a_late_request_ends_the_wait(asked: AskedStream) -> None:
    """It is not asked again with another date, and ignored when it is too old."""
    at = asked.stage.clock.now()
    first = asked.stage.controller.order("snapshot", STREAM, request_id=REQUEST, terms=SnapshotTerms(at, 60.0))
    asked.stage.clock.advance(TIMEOUT_SECONDS + 1)
    assert asked.look() is None
    assert [(request.requested_at, request.ttl_seconds) for request in asked.requests()] == [(at, 60.0)]
    asked.stage.clock.advance(60)
    asked.polls()
    with pytest.raises(ConflictError) as ignored:
        asked.stage.controller.wait(WaitCondition("snapshot", STREAM, "", request_id=REQUEST), 600)
    assert "time to live" in str(ignored.value.context["reason"])
    assert asked.taken() == []
    view = asked.stage.controller.order("snapshot", STREAM, request_id=REQUEST, terms=SnapshotTerms(at, 60.0))
    assert (view.outcome.outcome, view.number, view.key) == ("ignored", None, None)
    assert (view.request_id, view.command_id) == (REQUEST, first.command_id)


def test_a_repeated_request_is_told_by_its_command(asked: AskedStream) -> None:
    """By its object if that exists; by the driver's events, once one has started it. (Law 2)"""
    first = asked.stage.controller.order("snapshot", STREAM, request_id=REQUEST)
    (slot,) = asked.stage.control.journal("d-0001").commands()
    assert (first.stream_id, first.deployment_id, first.state) == (STREAM, "d-0001", "running")
    assert (first.verb, first.outcome) == ("snapshot", None)
    assert (first.number, first.key, first.request_id) == (slot.number, slot.key, REQUEST)
    for _ in range(2):
        assert asked.stage.another_controller().order("snapshot", STREAM, request_id=REQUEST) == first
        asked.stage.clock.advance(TIMEOUT_SECONDS)  # then it is dated again in its place
    asked.stage.say(Accepted, command_id=first.command_id, command_number=7, command=to_json(slot.command))
    begun = asked.stage.another_controller().order("snapshot", STREAM, request_id=REQUEST)
    assert begun == replace(first, number=7, key=None)


def test_a_repeated_request_is_told_by_its_snapshot(asked: AskedStream) -> None:
    """Once there is one; no command is written for it. (Law 2)"""
    first = asked.stage.controller.order("snapshot", STREAM, request_id=REQUEST)
    asked.polls()
    (kept,) = asked.taken()
    again = asked.stage.another_controller().order("snapshot", STREAM, request_id=REQUEST)
    assert again == replace(first, number=None, key=None, outcome=again.outcome)
    assert (again.outcome.snapshot_id, again.outcome.command_id) == (kept.snapshot_id, first.command_id)


def test_a_request_after_the_end_is_told_by_the_snapshot_there(stage: Stage) -> None:
    """It is newer than any that could be taken, and no driver is asked."""
    stage.deploy()
    stage.stopped()
    for _ in range(2):
        view = stage.controller.order("snapshot", STREAM, request_id=REQUEST)
        assert (view.outcome.outcome, view.outcome.snapshot_id) == ("stopped", "d-0001-stopped-000001")
        assert (view.state, view.number, view.request_id) == ("stopped", None, REQUEST)
        assert view.command_id == asking_command_id(STREAM, REQUEST, "d-0001", 1)
    assert stage.control.journal("d-0001").commands() == []


def test_an_end_that_was_not_ordered_answers_a_request_too(stage: Stage) -> None:
    """A script that has come to its end by itself: no command caused its last event."""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.run_batches(LAST_BATCH)
    kept = stage.keep("stopped")
    stage.say(Finished, snapshot_id=kept.snapshot_id, queries={})
    outcome = stage.controller.order("snapshot", STREAM, request_id=REQUEST).outcome
    assert (outcome.outcome, outcome.snapshot_id, outcome.command_id) == ("finished", kept.snapshot_id, "")


@pytest.mark.parametrize(
    "terms",
    [
        SnapshotTerms(),
        SnapshotTerms(datetime(2026, 3, 1, tzinfo=timezone.utc)),
        SnapshotTerms(ttl_seconds=0.5),
        SnapshotTerms(consistent=True),
    ],
)
def test_the_digest_of_a_request_is_over_its_terms(asked: AskedStream, terms: SnapshotTerms) -> None:
    """The same id with other terms is another request. (Law 2)"""
    asked.ask(terms=terms)
    plain = {"verb": "snapshot", **fields_json(terms)}
    assert asked.stage.control.request(REQUEST).request_digest == digest_of(plain)
    assert [request.consistent for request in asked.requests()] == [terms.consistent]


def test_a_request_that_a_driver_takes_up_while_it_is_dated_anew_is_one(tmp_path: Path) -> None:
    """The older date was obeyed, and the newer one is not written; one that may have landed is read back. (Law 2)"""

    def waited(name: str, plan: FaultPlan) -> None:
        (tmp_path / name).mkdir()
        asked = streams[name] = AskedStream(tmp_path / name)
        asked.ask()
        asked.stage.clock.advance(TIMEOUT_SECONDS)
        store = FaultyStore(asked.stage.store, plan)
        home = Home.of(store, store, tmp_path / name, asked.stage.clock)
        condition = WaitCondition("snapshot", STREAM, "", request_id=REQUEST)
        Controller(home, asked.stage.launcher, asked.stage.clock, "waits").advance(condition)

    streams: dict[str, AskedStream] = {}
    calm = FaultPlan()
    waited("calm", calm)
    (write,) = calm.writes
    waited("taken", FaultPlan(meanwhile={write.number: lambda: streams["taken"].polls()}))
    assert (len(streams["taken"].taken()), streams["taken"].requests()) == (1, [])
    assert streams["taken"].look().outcome == "snapshot_ready"
    # The store does not report whether it landed, and does not answer.
    silent = dict.fromkeys(range(write.number + 1, write.number + 6), Fault.UNAVAILABLE)
    waited("unclear", FaultPlan({write.number: Fault.REPLY_LOST, **silent}))
    streams["unclear"].polls()
    assert len(streams["unclear"].taken()) == 1


def test_one_id_is_one_request(asked: AskedStream) -> None:
    """Other terms under the same id are refused; so is a poll for an unknown request."""
    asked.ask()
    for terms in (SnapshotTerms(ttl_seconds=5), SnapshotTerms(datetime(2026, 3, 1, tzinfo=timezone.utc))):
        with pytest.raises(ConflictError, match="used for something else"):
            asked.ask(terms=terms)
    with pytest.raises(InvalidRequestError, match="no snapshot was asked for"):
        asked.stage.controller.advance(WaitCondition("snapshot", STREAM, "", request_id="r-2"))


@pytest.mark.parametrize(
    "terms",
    [
        {"requested_at": datetime(2026, 3, 1, tzinfo=timezone.utc).replace(tzinfo=None)},
        {"ttl_seconds": 0},
        {"ttl_seconds": float("nan")},
        {"ttl_seconds": float("inf")},
    ],
)
def test_terms_that_cannot_be_meant_are_refused(terms: dict[str, Any]) -> None:
    """Whoever gives them: they check themselves."""
    with pytest.raises(InvalidRequestError):
        SnapshotTerms(**terms)


def test_the_deadline_is_the_requests_over_all_its_tries(asked: AskedStream) -> None:
    """Not started by then, it is not started at all, by no later attempt either."""
    asked.ask(expires_in_seconds=20)
    deadline_at = asked.stage.clock.now() + timedelta(seconds=20)
    asked.dies()
    asked.resumes()
    asked.look()
    assert [request.deadline_at for request in asked.requests()][-1:] == [deadline_at]
    asked.stage.clock.advance(21)
    asked.polls()
    with pytest.raises(DeadlineExceededError):
        asked.stage.controller.wait(WaitCondition("snapshot", STREAM, "", request_id=REQUEST), 60)
    assert asked.taken() == []


ACTS = st.one_of(
    st.sampled_from(["try_to_ask", "look", "polls", "dies", "resumes", "is_redeployed"]).map(lambda verb: (verb, None)),
    st.tuples(st.just("polls"), st.integers(1, 60)),
    st.tuples(st.just("advance"), st.sampled_from([1, 15, 301])),
)


@pytest.mark.full
@settings(max_examples=150, deadline=None)
@given(acts=st.lists(ACTS, max_size=14))
def test_whoever_asks_dies_and_is_restarted_in_whatever_order_it_is_one_snapshot(
    acts: list[tuple[str, int | None]],
) -> None:
    """Requests, retries, restarts and redeploys in any order, the driver dying at any call: at most one snapshot per
    request id at any time, and just one in the end (Laws 2 and 3)."""
    with tempfile.TemporaryDirectory() as folder:
        asked = AskedStream(Path(folder))
        asked.ask()
        for verb, number in acts:
            if verb == "advance":
                asked.stage.clock.advance(float(number or 0))
            elif verb == "polls":
                asked.polls(number)
            elif verb != "dies" or asked.desk is not None:
                getattr(asked, verb)()
            assert len(asked.taken()) <= 1
        asked.resumes()
        for _ in range(3):
            asked.look()
            asked.polls()
            asked.stage.clock.advance(TIMEOUT_SECONDS)
        outcome = asked.look()
        assert outcome.outcome == "snapshot_ready"
        assert [manifest.snapshot_id for manifest in asked.taken()] == [outcome.snapshot_id]
        begun = [event for one in asked.stage.control.deployment_ids() for event in asked.events_of(SnapshotReady, one)]
        assert len(begun) <= 1
        assert asked.events_of(Accepted, "d-0001") or asked.deployment_id != "d-0001"
