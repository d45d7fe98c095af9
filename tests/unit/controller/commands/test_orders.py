"""Stop, drain, snapshot: which state takes which order, and that asking twice is asking once."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from airflow_streamstate.controller.commands.recorded_orders import command_id_for
from airflow_streamstate.controller.commands.snapshot_requests import asking_command_id
from airflow_streamstate.controller.observe.observation import pending_drain
from airflow_streamstate.errors import (
    ConflictError,
    DeploymentNotFoundError,
    InvalidRequestError,
    StreamNotFoundError,
    UnavailableError,
    UnsupportedVersionError,
)
from airflow_streamstate.protocol.commands import DrainNotification, SnapshotRequest, StopRequest
from airflow_streamstate.protocol.events import Drained, Draining, Event, Failed, Finished, Stopped
from airflow_streamstate.protocol.records import Claim
from airflow_streamstate.protocol.terms.order import DrainTerms, SnapshotTerms
from support.sim_stage import STREAM, Stage


def running(stage: Stage) -> None:
    stage.deploy()
    stage.come_to_life()


def commands(stage: Stage, deployment_id: str = "d-0001") -> list[object]:
    """What is there."""
    return [slot.command for slot in stage.control.journal(deployment_id).commands()]


def drained_event(stage: Stage, command_id: str = "c", **more: object) -> None:
    """d-0001 was drained."""
    stage.say(Drained, command_id=command_id, command_number=1, snapshot_id="s-1", queries={}, **more)


@pytest.mark.parametrize("verb", ["stop", "drain", "snapshot"])
def test_an_order_is_written_once_per_request(stage: Stage, verb: str) -> None:
    """The same request id is the same command, with the same id and number. (Law 2)"""
    running(stage)
    order = partial(stage.controller.order, verb)
    first, second = (order(STREAM, request_id="r-1", reason="because") for _ in range(2))
    assert first == second
    (command,) = commands(stage)
    expected = {"snapshot": asking_command_id(STREAM, "r-1", "d-0001", 1)}
    assert command.command_id == first.command_id == (expected.get(verb) or command_id_for(STREAM, verb, "r-1"))
    assert (command.reason, command.requested_by) == ("because", "tests")


def test_an_order_that_was_answered_and_cleaned_up_is_not_given_again(stage: Stage) -> None:
    """After its end the same request id finds the answer in the events. (Law 2)"""
    running(stage)
    first = stage.controller.order("drain", STREAM, request_id="r-1")
    drained_event(stage, first.command_id)
    stage.controller.notifications.clean_up(STREAM)
    again = stage.controller.order("drain", STREAM, request_id="r-1")
    assert (again.command_id, again.number, again.state) == (first.command_id, None, "drained")
    assert again.outcome.snapshot_id == "s-1"
    assert commands(stage) == []


def test_each_command_is_what_its_verb_says(stage: Stage) -> None:
    """Stop and snapshot hold for an attempt, a drain for the deployment, with mode and deadline. (1a.13)"""
    stage.deploy()
    stage.controller.order("stop", STREAM)
    stage.controller.order("drain", STREAM, terms=DrainTerms("event_time", rehearse=False), expires_in_seconds=60)
    stage.controller.order("snapshot", STREAM)
    stop, drain, snapshot = commands(stage)
    assert [type(one) for one in (stop, drain, snapshot)] == [StopRequest, DrainNotification, SnapshotRequest]
    assert (stop.attempt, snapshot.attempt) == (1, 1)
    assert drain.mode == "event_time"
    assert (drain.deadline_at - drain.requested_at).total_seconds() == 60


@pytest.mark.parametrize(
    ("kind", "fields", "verbs"),
    [
        (Drained, {"command_id": "c", "command_number": 1}, ("drain",)),
        (Stopped, {}, ("stop", "snapshot")),
        (Finished, {}, ("stop", "snapshot")),
    ],
)
def test_an_order_to_what_has_ended_is_answered_by_its_end(
    stage: Stage, kind: type[Event], fields: dict[str, Any], verbs: tuple[str, ...]
) -> None:
    """Nothing is written; the snapshot at the end answers. (Law 2)"""
    running(stage)
    stage.say(kind, snapshot_id="s-1", queries={}, **fields)
    stage.end()
    for verb in verbs:
        view = stage.controller.order(verb, STREAM)
        assert view.key is None
        assert (view.outcome.outcome, view.outcome.snapshot_id) == (kind.kind.lower(), "s-1")
    assert commands(stage) == []


@pytest.mark.parametrize("verb", ["stop", "snapshot"])
def test_an_order_to_a_failed_stream_is_not_sent(stage: Stage, verb: str) -> None:
    """It is refused with a next step, and leaves no trace. (Law 1)"""
    running(stage)
    stage.say(Failed, error="no")
    stage.end()
    with pytest.raises(ConflictError, match="command not sent") as refused:
        stage.controller.order(verb, STREAM, request_id="r-1")
    assert refused.value.next_step
    assert stage.control.request("r-1") is None


@pytest.mark.parametrize("state", ["stopped", "failed"])
def test_a_drain_of_a_dead_deployment_launches_its_code_for_the_flush_alone(stage: Stage, state: str) -> None:
    """Its next attempt only flushes: its mode, its notification, then its launch. (1a.5)"""
    stage.deploy()
    if state == "stopped":
        stage.stopped()
    else:
        stage.come_to_life()
        stage.end(state="gone")
    view = stage.controller.order("drain", STREAM, request_id="r-1")
    register = stage.control.need_register().value
    assert (register.attempt, register.attempt_mode, view.state) == (2, "drain", "launching")
    assert stage.drain_of().command_id == view.command_id
    assert stage.launcher.calls[-1] == "launch d-0001-a0002"
    assert stage.controller.order("drain", STREAM, request_id="r-1").number == view.number
    assert len(stage.launcher.requests) == 2


def test_a_drain_that_died_before_its_launch_is_launched_by_the_retry(stage: Stage) -> None:
    """The attempt that exists to flush gets its driver from the same request, or from a resume. (Laws 1 and 2)"""
    stage.deploy()
    stage.stopped()
    stage.launcher.refusal = UnavailableError("busy")
    with pytest.raises(UnavailableError):
        stage.controller.order("drain", STREAM, request_id="r-1")
    assert "d-0001-a0002" not in stage.launcher.requests
    stage.controller.order("drain", STREAM, request_id="r-1")
    assert "d-0001-a0002" in stage.launcher.requests
    assert len(commands(stage)) == 1


def test_an_attempt_that_was_to_flush_and_was_never_told_is_replaced_by_a_resume(stage: Stage) -> None:
    """Without a notification an attempt for the flush would do nothing: resume makes a new one that runs. (Law 5)"""
    stage.deploy()
    stage.stopped()
    stage.launcher.refusal = UnavailableError("busy")
    with pytest.raises(UnavailableError):
        stage.controller.order("drain", STREAM)
    journal = stage.control.journal("d-0001")
    journal.delete_command(journal.commands()[0])
    assert stage.controller.resume(STREAM).attempt == 3
    assert stage.control.need_register().value.attempt_mode == "run"


def test_a_lost_stream_is_not_drained(stage: Stage) -> None:
    """A driver that may live is not raced by another. (1a.8)"""
    running(stage)
    stage.end(state="unknown")
    stage.clock.advance(120)
    with pytest.raises(ConflictError, match="lost"):
        stage.controller.order("drain", STREAM)


def test_a_deployment_that_was_replaced_takes_no_orders(stage: Stage) -> None:
    """Orders to a replaced deployment are refused; where it was drained, that answers. (Law 4)"""
    running(stage)
    stage.end(state="gone")
    stage.deploy("print('v2')\n")
    with pytest.raises(ConflictError, match="not the stream's current one") as refused:
        stage.controller.order("drain", STREAM, deployment_id="d-0001")
    assert refused.value.context["current_deployment_id"] == "d-0002"
    drained_event(stage)
    assert stage.controller.order("drain", STREAM, deployment_id="d-0001").outcome is not None


def test_an_order_whose_deployment_was_replaced_meanwhile_says_fenced(stage: Stage) -> None:
    """A repeated order to a deployment that is gone has its end. (Law 2)"""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.run_batches(1)
    stage.controller.order("drain", STREAM, request_id="r-1")
    stage.end(state="gone")
    stage.deploy("print('v2')\n", start="fresh")
    view = stage.controller.order("drain", STREAM, request_id="r-1")
    assert (view.deployment_id, view.outcome.outcome) == ("d-0001", "fenced")


def test_what_was_never_deployed_takes_no_orders(stage: Stage) -> None:
    """Unknown streams and deployments are refused by class."""
    stage.home.begin("tests")
    with pytest.raises(StreamNotFoundError):
        stage.controller.order("drain", STREAM)
    stage.deploy()
    with pytest.raises(DeploymentNotFoundError):
        stage.controller.order("drain", STREAM, deployment_id="d-0009")


def test_an_agent_of_another_release_gets_its_own_protocol_or_nothing(stage: Stage) -> None:
    """A command is written in a version that the claim names, or refused. (Law 7)"""
    stage.deploy()
    stage.control.create_claim(Claim(STREAM, "d-0001", 1, "d-0001-a0001", "here", 1, 7, 9, "9", "w", stage.clock.now()))
    with pytest.raises(UnsupportedVersionError):
        stage.controller.order("stop", STREAM)
    assert commands(stage) == []


def test_the_limits_of_a_drain_are_written_with_it(stage: Stage) -> None:
    """Its deadlines as moments and times; a drain that is called off at one is not started after it (Law 6)."""
    stage.deploy()
    stage.controller.order("drain", STREAM, terms=DrainTerms(batches_deadline_seconds=60, flush_deadline_seconds=30))
    stage.controller.order("drain", STREAM, terms=DrainTerms(batches_deadline_seconds=60, on_batches_deadline="kill"))
    fails, kills = commands(stage)
    assert (fails.batches_by_at - fails.requested_at).total_seconds() == 60
    assert (fails.deadline_at, fails.flush_within_seconds) == (fails.batches_by_at, 30)
    assert (kills.deadline_at, kills.on_deadline) == (None, "kill")


def test_another_deadline_under_the_same_request_id_is_another_request(stage: Stage) -> None:
    """The same id is the same order, word for word (Law 2)."""
    stage.deploy()
    stage.controller.order("drain", STREAM, request_id="r-1", terms=DrainTerms(batches_deadline_seconds=60))
    with pytest.raises(ConflictError):
        stage.controller.order("drain", STREAM, request_id="r-1", terms=DrainTerms(batches_deadline_seconds=61))


def test_there_must_be_a_drain_to_take_back(stage: Stage) -> None:
    """None is under way, or its flush has started: refused, and nothing is written (Law 1)."""
    running(stage)
    with pytest.raises(ConflictError, match="nothing can be withdrawn"):
        stage.controller.order("cancel", STREAM, request_id="r-1")
    order = stage.controller.order("drain", STREAM)
    stage.accept(stage.drain_of())
    stage.say(Draining, command_id=order.command_id, snapshot_id=None, flush_batch_ids={})
    with pytest.raises(ConflictError, match="has started"):
        stage.controller.order("cancel", STREAM, request_id="r-1")
    assert len(commands(stage)) == 1
    assert stage.control.request("r-1") is None


def test_a_drain_that_died_is_taken_back_for_the_next_attempt(stage: Stage) -> None:
    """That would continue the drain; after the cancel no drain holds (1a.11)."""
    running(stage)
    stage.controller.order("drain", STREAM)
    stage.accept(stage.drain_of())
    stage.say(Failed, error="no")
    stage.end()
    assert stage.controller.order("cancel", STREAM).state == "failed"
    seen = stage.seen()
    assert pending_drain(seen, stage.control.journal("d-0001").commands()) is None


@pytest.mark.parametrize(
    ("verb", "given"),
    [
        ("stop", {"terms": DrainTerms()}),
        ("cancel", {"terms": DrainTerms()}),
        ("drain", {"terms": SnapshotTerms()}),
        ("snapshot", {"terms": DrainTerms()}),
        ("snapshot", {"deployment_id": "d-0001"}),
    ],
)
def test_an_order_with_what_another_one_takes_is_refused(stage: Stage, verb: Any, given: dict[str, Any]) -> None:
    """It would be left out without notice, and a drain with the defaults cannot be withdrawn once it flushes."""
    running(stage)
    with pytest.raises(InvalidRequestError):
        stage.controller.order(verb, STREAM, **given)
    assert commands(stage) == []
