"""Waits have deadlines, and say what they saw."""

from __future__ import annotations

import pytest

from airflow_streamstate.controller.wait.condition import PENDING, WaitCondition
from airflow_streamstate.errors import (
    ConflictError,
    DeadlineExceededError,
    DeploymentFailedError,
    ExpiredError,
)
from airflow_streamstate.protocol.events import Expired, Failed, Fenced, Finished, Ignored, Rejected, Stopped
from airflow_streamstate.protocol.heartbeat import QueryBeat
from support.sim_stage import STREAM, Stage


def test_healthy_is_a_batch_or_an_idle_trigger_of_each_query(stage: Stage) -> None:
    """Each query has to commit a batch of this attempt, or to find no input. (Law 6)"""
    stage.deploy()
    stage.come_to_life()
    stage.start_query("a", batch_id=4)
    stage.start_query("b")
    stage.beat(a=QueryBeat(4, None, True), b=QueryBeat(None, None, True, idle_triggers=1))
    assert stage.controller.look(WaitCondition("healthy", STREAM, "d-0001")) == PENDING
    stage.beat(a=QueryBeat(5, stage.clock.now(), True), b=QueryBeat(None, None, True, idle_triggers=1))
    status = stage.controller.wait(WaitCondition("healthy", STREAM, "d-0001"), 5).status
    assert status.queries["a"].batch_id == 5


def test_a_batch_that_was_planned_before_the_start_is_no_proof(stage: Stage) -> None:
    """A start runs that whatever the code can do: a query that dies right behind it was never healthy. (Law 6)"""
    stage.deploy()
    stage.come_to_life()
    stage.start_query("counts", batch_id=4, planned_batch_id=5)
    for batch_id in (4, 5):
        stage.beat(counts=QueryBeat(batch_id, stage.clock.now(), True))
        assert stage.controller.look(WaitCondition("healthy", STREAM, "d-0001")) == PENDING
    stage.say(Failed, error="NullPointerException", query_name="counts")
    with pytest.raises(DeploymentFailedError):
        stage.controller.wait(WaitCondition("healthy", STREAM, "d-0001"), 5)


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
    """And what was seen is said with the status. (Law 6)"""
    stage.deploy()
    stage.come_to_life()
    stage.start_query("counts", batch_id=4, planned_batch_id=5, trigger=trigger)
    stage.beat(counts=beat)
    seen = stage.controller.look(WaitCondition("healthy", STREAM, "d-0001"))
    assert (None if seen == PENDING else seen.need_result()["proofs"]) == (None if proof is None else {"counts": proof})


def test_a_degraded_deployment_will_not_become_healthy(stage: Stage) -> None:
    """The wait says so at once, with the query and the cause, though the other query goes well. (Law 6)"""
    stage.deploy()
    stage.come_to_life(queries=("counts", "other"))
    stage.beat(other=QueryBeat(5, stage.clock.now(), True), counts=QueryBeat(5, stage.clock.now(), False))
    stage.query_failed("counts")
    with pytest.raises(DeploymentFailedError, match="query counts has failed in batch 7: Unlucky") as failed:
        stage.controller.wait(WaitCondition("healthy", STREAM, "d-0001"), 5)
    assert failed.value.context["state"] == "degraded"
    with pytest.raises(ConflictError, match="its other queries run"):
        stage.controller.resume(STREAM)


def restored_with_two_queries(stage: Stage) -> None:
    """The second deployment, alive, from a snapshot of ``counts`` and ``other``; it has started ``counts`` alone."""
    stage.deploy()
    stage.come_to_life(queries=("counts", "other"))
    stage.run_batches(3)
    stage.run_batches(3, "other")
    manifest = stage.keep(names=("counts", "other"))
    stage.say(Stopped, snapshot_id=manifest.snapshot_id, queries={})
    stage.end()
    stage.deploy("print('v2')\n")
    stage.come_to_life("d-0002")
    stage.start_query("counts", "d-0002", batch_id=3)


def test_healthy_waits_for_the_queries_that_the_snapshot_knows(stage: Stage) -> None:
    """A script starts its queries one after the other: the first one alone is no health. (Law 6)"""
    restored_with_two_queries(stage)
    stage.beat("d-0002", counts=QueryBeat(4, stage.clock.now(), True))
    assert stage.controller.look(WaitCondition("healthy", STREAM, "d-0002")) == PENDING
    stage.start_query("other", "d-0002", batch_id=3)
    both = {name: QueryBeat(4, stage.clock.now(), True) for name in ("counts", "other")}
    stage.beat("d-0002", **both)
    assert stage.controller.look(WaitCondition("healthy", STREAM, "d-0002")).outcome == "done"


def test_a_query_that_is_not_started_any_more_does_not_hold_up_health_for_ever(stage: Stage) -> None:
    """A version that has dropped a query is healthy once that one is overdue by ``exit_grace_seconds``. (Law 6)"""
    restored_with_two_queries(stage)
    stage.clock.sleep(stage.spec("d-0002").settings.exit_grace_seconds + 1)
    stage.beat("d-0002", counts=QueryBeat(4, stage.clock.now(), True))
    assert stage.controller.look(WaitCondition("healthy", STREAM, "d-0002")).outcome == "done"


def test_a_heartbeat_of_an_earlier_attempt_is_no_health(stage: Stage) -> None:
    """What an earlier attempt committed says nothing about this one. (Law 6)"""
    stage.deploy()
    stage.stopped()
    stage.beat(counts=QueryBeat(3, stage.clock.now(), True))
    stage.controller.resume(STREAM)
    stage.come_to_life(attempt=2, queries=("counts",))
    assert stage.controller.look(WaitCondition("healthy", STREAM, "d-0001")) == PENDING


def test_a_job_that_finished_by_itself_was_healthy(stage: Stage) -> None:
    """An availableNow job that is done is no failure."""
    stage.deploy()
    stage.come_to_life()
    stage.say(Finished, snapshot_id=None, queries={})
    assert stage.controller.wait(WaitCondition("healthy", STREAM, "d-0001"), 5).status.state == "finished"


def test_a_deadline_says_what_was_last_seen_and_that_the_work_goes_on(stage: Stage) -> None:
    """The end of a wait is no end of the stream. (Law 6)"""
    stage.deploy()
    stage.come_to_life()
    stage.start_query("a")
    stage.beat(a=QueryBeat(None, None, True))
    said: list[str] = []
    with pytest.raises(DeadlineExceededError, match="the work goes on") as late:
        stage.controller.wait(WaitCondition("healthy", STREAM, "d-0001"), 5, said.append)
    assert "a before its first batch" in str(late.value.context["last_seen"])
    assert said
    assert stage.clock.monotonic_seconds() == pytest.approx(5, abs=0.5)


def test_a_failure_carries_the_log_and_the_traceback_without_secrets(stage: Stage) -> None:
    """A failed deployment's error has the script's traceback and the last lines of its log, secrets hidden."""
    stage.deploy(arguments=("--password", "hunter2-hunter2"), allow_literal_secrets=True)
    stage.come_to_life()
    stage.launcher.log = "\n".join([*(f"line {number}" for number in range(40)), "with hunter2-hunter2", ""])
    stage.say(Failed, error="ValueError: no", traceback="Traceback …\nValueError: no")
    with pytest.raises(DeploymentFailedError) as failed:
        stage.controller.wait(WaitCondition("healthy", STREAM, "d-0001"), 5)
    context = failed.value.context
    assert context["error"] == "ValueError: no"
    assert str(context["log_tail"]).splitlines()[0] == "line 21"
    assert "hunter2" not in str(failed.value)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [(Stopped, {"snapshot_id": "s", "queries": {}}), (Fenced, {"current_deployment_id": "x", "current_attempt": 1})],
)
def test_waiting_for_what_cannot_come_is_a_conflict(stage: Stage, kind: type, fields: dict) -> None:
    """A deployment that was stopped or replaced will not become healthy: the wait says so at once. (Law 6)"""
    stage.deploy()
    stage.come_to_life()
    stage.say(kind, **fields)
    with pytest.raises(ConflictError, match="cannot come"):
        stage.controller.wait(WaitCondition("healthy", STREAM, "d-0001"), 60)
    assert stage.clock.monotonic_seconds() == 0


def test_waiting_for_the_end_gives_the_end(stage: Stage) -> None:
    """A wait for the end returns every good end, and raises for a failure. (Law 6)"""
    stage.deploy()
    event = stage.stopped()
    assert stage.controller.wait(WaitCondition("finished", STREAM, "d-0001"), 5).end.snapshot_id == event.snapshot_id
    stage.deploy("print('v2')\n")
    stage.end("d-0002", state="gone")
    with pytest.raises(DeploymentFailedError):
        stage.controller.wait(WaitCondition("finished", STREAM, "d-0002"), 5)


def test_an_order_that_is_fulfilled_is_cleaned_up_by_who_waited(stage: Stage) -> None:
    """Where the agent died between event and clean-up, no notification is left behind. (1a.13)"""
    stage.deploy()
    stage.come_to_life()
    order = stage.controller.stop(STREAM)
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
    stage.deploy()
    stage.come_to_life()
    order = stage.controller.drain(STREAM)
    stage.say(kind, command_id=order.command_id, command_number=1, **fields)
    with pytest.raises(error):
        stage.controller.wait(WaitCondition.of(order), 60)
    assert isinstance(stage.controller.look(WaitCondition.of(order)).error, error)


def test_a_drain_that_was_overtaken_by_a_stop_is_not_reached(stage: Stage) -> None:
    """A drain is fulfilled by a drain alone. (Law 5)"""
    stage.deploy()
    stage.come_to_life()
    order = stage.controller.drain(STREAM)
    stage.say(Stopped, snapshot_id="s-1", queries={})
    with pytest.raises(ConflictError):
        stage.controller.wait(WaitCondition.of(order), 60)
