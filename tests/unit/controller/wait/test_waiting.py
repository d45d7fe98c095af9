"""Waits have deadlines, and report what they saw."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.controller.wait.condition import PENDING, WaitCondition
from airflow_streamstate.errors import (
    ConflictError,
    DeadlineExceededError,
    DeploymentFailedError,
    ExpiredError,
)
from airflow_streamstate.protocol.events import Drained, Expired, Failed, Fenced, Finished, Ignored, Rejected, Stopped
from airflow_streamstate.protocol.positions import QueryBeat, SourceLag
from support.sim_stage import STREAM, Stage


def running(stage: Stage, *queries: str) -> None:
    stage.deploy()
    stage.come_to_life(queries=queries)


def healthy(deployment_id: str = "d-0001") -> WaitCondition:
    return WaitCondition("healthy", STREAM, deployment_id)


def is_healthy(stage: Stage, deployment_id: str = "d-0001") -> bool:
    """By one poll."""
    seen = stage.controller.look(healthy(deployment_id))
    assert seen.outcome == "done" or seen == PENDING
    return seen.outcome == "done"


def test_healthy_is_a_batch_or_an_idle_trigger_of_each_query(stage: Stage) -> None:
    """Each query has to commit a batch of this attempt, or to find no input. (Law 6)"""
    running(stage)
    stage.start_query("a", batch_id=4)
    stage.start_query("b")
    stage.beat(a=QueryBeat(4, None, True), b=QueryBeat(None, None, True, idle_triggers=1))
    assert not is_healthy(stage)
    stage.beat(a=QueryBeat(5, stage.clock.now(), True), b=QueryBeat(None, None, True, idle_triggers=1))
    assert stage.controller.wait(healthy(), 5).status.queries["a"].batch_id == 5


def test_a_batch_that_was_planned_before_the_start_is_no_proof(stage: Stage) -> None:
    """Every start runs it, whatever the code can do: a query that dies behind it was never healthy. (Law 6)"""
    running(stage)
    stage.start_query("counts", batch_id=4, planned_batch_id=5)
    for batch_id in (4, 5):
        stage.beat(counts=QueryBeat(batch_id, stage.clock.now(), True))
        assert not is_healthy(stage)
    stage.say(Failed, error="NullPointerException", query_name="counts")
    with pytest.raises(DeploymentFailedError):
        stage.controller.wait(healthy(), 5)


@pytest.mark.parametrize(
    ("beat", "trigger", "proof"),
    [
        (QueryBeat(6, None, True), "default", "it has committed batch 6"),
        (QueryBeat(5, None, True, idle_triggers=1), "default", "no batch was due: it found no input"),
        (QueryBeat(4, None, True, idle_triggers=1), "default", None),
        (
            QueryBeat(5, None, False),
            "once",
            "no batch was due: it has ended by itself behind batch 5, which was planned before its start",
        ),
        (QueryBeat(5, None, False), "default", None),
    ],
)
def test_behind_the_planned_batch_a_query_commits_one_of_its_own_or_none_was_due(
    stage: Stage, beat: QueryBeat, trigger: str, proof: str | None
) -> None:
    """The status has the proof. (Law 6)"""
    running(stage)
    stage.start_query("counts", batch_id=4, planned_batch_id=5, trigger=trigger)
    stage.beat(counts=beat)
    seen = stage.controller.look(healthy())
    assert (None if seen == PENDING else seen.need_result()["proofs"]) == (None if proof is None else {"counts": proof})


def test_a_run_that_ended_without_input_proves_its_query_beside_one_that_runs(stage: Stage) -> None:
    """Its script waits for the other one; what comes after its end is the next attempt's. (Law 6)"""
    running(stage, "steady")
    stage.start_query("nightly", batch_id=4, trigger="available_now")
    behind = (SourceLag("file /in", 7, "files"),)
    steady = QueryBeat(9, stage.clock.now(), True, is_idle=True)
    nightly = QueryBeat(4, None, is_active=False, lags=behind)
    stage.beat(steady=steady, nightly=nightly)
    assert not is_healthy(stage)
    stage.beat(steady=steady, nightly=replace(nightly, run_has_ended=True))
    proofs = stage.controller.wait(healthy(), 5).status.proofs
    assert proofs["nightly"] == "no batch was due: it has ended by itself, and found no input"
    caught_up = replace(healthy(), wanted="caught_up")
    assert stage.controller.wait(caught_up, 5).status.queries["nightly"].batch_id == 4


def test_a_degraded_deployment_will_not_become_healthy(stage: Stage) -> None:
    """The wait raises at once, with the query and the cause, although the other query is fine. (Law 6)"""
    running(stage, "counts", "other")
    stage.beat(other=QueryBeat(5, stage.clock.now(), True), counts=QueryBeat(5, stage.clock.now(), False))
    stage.query_failed("counts")
    with pytest.raises(DeploymentFailedError, match="query counts has failed in batch 7: Unlucky") as failed:
        stage.controller.wait(healthy(), 5)
    assert failed.value.context["state"] == "degraded"
    with pytest.raises(ConflictError, match="its other queries run"):
        stage.controller.resume(STREAM)


def restored_with_two_queries(stage: Stage) -> None:
    """The second deployment, alive, from a snapshot of ``counts`` and ``other``; it has started ``counts`` alone."""
    running(stage, "counts", "other")
    stage.run_batches(3)
    stage.run_batches(3, "other")
    manifest = stage.keep(names=("counts", "other"))
    stage.say(Stopped, snapshot_id=manifest.snapshot_id, queries={})
    stage.end()
    stage.deploy("print('v2')\n")
    stage.come_to_life("d-0002")
    stage.start_query("counts", "d-0002", batch_id=3)


@pytest.mark.parametrize("is_started", [True, False])
def test_healthy_waits_for_the_queries_that_the_snapshot_knows(stage: Stage, is_started: bool) -> None:
    """Until they run, or are overdue by ``exit_grace_seconds``: a version may drop a query. (Law 6)"""
    restored_with_two_queries(stage)
    stage.beat("d-0002", counts=QueryBeat(4, stage.clock.now(), True))
    assert not is_healthy(stage, "d-0002")
    both = {name: QueryBeat(4, stage.clock.now(), True) for name in ("counts", "other")}
    if is_started:
        stage.start_query("other", "d-0002", batch_id=3)
    else:
        stage.clock.sleep(stage.spec("d-0002").version.settings.exit_grace_seconds + 1)
        del both["other"]
    stage.beat("d-0002", **both)
    assert is_healthy(stage, "d-0002")


def test_a_heartbeat_of_an_earlier_attempt_is_no_health(stage: Stage) -> None:
    """Its batches prove nothing about this attempt; a job that finishes by itself is healthy. (Law 6)"""
    stage.deploy()
    stage.stopped()
    stage.beat(counts=QueryBeat(3, stage.clock.now(), True))
    stage.controller.resume(STREAM)
    stage.come_to_life(attempt=2, queries=("counts",))
    assert not is_healthy(stage)
    stage.say(Finished, attempt=2, snapshot_id=None, queries={})
    assert stage.controller.wait(healthy(), 5).status.state == "finished"


@pytest.mark.parametrize(("reason", "is_end"), [("self-drained: all 7 parts finished", True), ("", False)])
def test_a_stream_that_drains_itself_before_it_is_healthy_has_come_to_its_end(
    stage: Stage, reason: str, is_end: bool
) -> None:
    """A deploy, a resume or an apply that waits for its health succeeds; a drain by somebody is another end. (Law 6)"""
    running(stage)
    stage.say(Drained, command_id="c", command_number=1, snapshot_id="s", queries={}, reason=reason)
    stage.end()
    for wanted in ("healthy", "caught_up"):
        found = stage.controller.look(WaitCondition(wanted, STREAM, "d-0001"))
        assert found.outcome == ("done" if is_end else "over")
    found = stage.controller.look(WaitCondition("unwell", STREAM, "d-0001"))
    assert found.outcome == ("pending" if is_end else "done")


def test_a_deadline_says_what_was_last_seen_and_that_the_work_goes_on(stage: Stage) -> None:
    """The end of a wait is no end of the stream. (Law 6)"""
    running(stage)
    stage.start_query("a")
    stage.beat(a=QueryBeat(None, None, True))
    said: list[str] = []
    with pytest.raises(DeadlineExceededError, match="the work continues") as late:
        stage.controller.wait(healthy(), 5, said.append)
    assert "a before its first batch" in str(late.value.context["last_seen"])
    assert said
    assert stage.clock.monotonic_seconds() == pytest.approx(5, abs=0.5)


def test_a_failure_is_told_without_secrets_by_wait_status_and_outcome(stage: Stage) -> None:
    """The error, the script's traceback and, in the error of a wait, the last lines of the log; secrets are hidden."""
    stage.deploy(arguments=("--password", "hunter2-hunter2"), allow_literal_secrets=True)
    stage.come_to_life()
    stage.launcher.log = "\n".join([*(f"line {number}" for number in range(40)), "with hunter2-hunter2", ""])
    stage.say(Failed, error="bad hunter2-hunter2", traceback="Traceback hunter2-hunter2")
    with pytest.raises(DeploymentFailedError) as failed:
        stage.controller.wait(healthy(), 5)
    status, outcome = (
        stage.controller.status(STREAM),
        stage.controller.look(WaitCondition("finished", STREAM, "d-0001")).end,
    )
    assert str(failed.value.context["log_tail"]).splitlines()[0] == "line 21"
    assert (failed.value.context["error"], status.error, outcome.reason) == ("bad ***",) * 3
    assert (failed.value.context["traceback"], status.traceback, outcome.traceback) == ("Traceback ***",) * 3
    assert "hunter2" not in f"{failed.value} {status.to_json()} {outcome.to_json()}"


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Stopped, {"snapshot_id": "s", "queries": {}}),
        (Fenced, {"current_deployment_id": "d-0002", "current_attempt": 1}),
    ],
)
def test_waiting_for_what_cannot_come_is_a_conflict(stage: Stage, kind: type, fields: dict) -> None:
    """A deployment that was stopped or replaced will not become healthy: the wait reports it at once. (Law 6)"""
    running(stage)
    stage.say(kind, **fields)
    with pytest.raises(ConflictError, match="cannot happen"):
        stage.controller.wait(healthy(), 60)
    assert stage.clock.monotonic_seconds() == 0


def test_waiting_for_the_end_gives_the_end(stage: Stage) -> None:
    """A wait for the end returns the end that the stream came to by itself, and raises for a failure. (Law 6)"""
    running(stage)
    stage.say(Finished, snapshot_id="s", queries={})
    stage.end()
    assert stage.controller.wait(WaitCondition("finished", STREAM, "d-0001"), 5).end.snapshot_id == "s"
    stage.deploy("print('v2')\n")
    stage.end("d-0002", state="gone")
    with pytest.raises(DeploymentFailedError):
        stage.controller.wait(WaitCondition("finished", STREAM, "d-0002"), 5)


def test_an_order_that_is_fulfilled_is_deleted_by_the_wait(stage: Stage) -> None:
    """Also where the agent died between its event and its clean-up. (1a.13)"""
    running(stage)
    order = stage.controller.order("stop", STREAM)
    stage.say(Stopped, snapshot_id="s-1", queries={}, command_id=order.command_id, command_number=1)
    outcome = stage.controller.wait(WaitCondition.of(order), 5).end
    assert (outcome.outcome, outcome.command_id) == ("stopped", order.command_id)
    assert stage.control.journal("d-0001").commands() == []


@pytest.mark.parametrize(
    ("kind", "fields", "error"),
    [
        (Expired, {"command": {"kind": "DrainNotification"}}, ExpiredError),
        (Rejected, {"key": "k", "reason": "no"}, ConflictError),
        (Ignored, {"command": {"kind": "DrainNotification"}, "reason": "no"}, ConflictError),
    ],
)
def test_an_order_that_is_not_obeyed_is_an_error_with_its_remedy(
    stage: Stage, kind: type, fields: dict, error: type[Exception]
) -> None:
    """Each end that was not ordered is raised as what the caller does next."""
    running(stage)
    order = stage.controller.order("drain", STREAM)
    stage.say(kind, command_id=order.command_id, command_number=1, **fields)
    with pytest.raises(error):
        stage.controller.wait(WaitCondition.of(order), 60)
    assert isinstance(stage.controller.look(WaitCondition.of(order)).error, error)


def test_a_drain_that_was_overtaken_by_a_stop_is_not_reached(stage: Stage) -> None:
    """A drain is fulfilled by a drain alone. (Law 5)"""
    running(stage)
    order = stage.controller.order("drain", STREAM)
    stage.say(Stopped, snapshot_id="s-1", queries={})
    with pytest.raises(ConflictError):
        stage.controller.wait(WaitCondition.of(order), 60)


def test_the_end_of_a_wait_for_catching_up_says_what_is_missing(stage: Stage) -> None:
    """And that the work continues. (Law 6)"""
    running(stage, "counts")
    stage.run_batches(3)
    lag = SourceLag("rate", untold="it makes up rows as time passes")
    stage.beat(counts=QueryBeat(4, None, is_active=True, lags=(lag,)))
    with pytest.raises(DeadlineExceededError, match=r"\(caught up\) did not happen in time; the work ") as late:
        stage.controller.wait(WaitCondition("caught_up", STREAM, "d-0001"), 3)
    assert "rate: it makes up rows as time passes" in str(late.value.context["last_seen"])
