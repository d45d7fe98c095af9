"""Every end of an order and of a deployment has an outcome."""

from __future__ import annotations

import pytest

from airflow_streamstate.errors import ConflictError, DeadlineExceededError, StreamStateError
from airflow_streamstate.lifecycle.observing.outcomes import FULFILLED_BY
from airflow_streamstate.lifecycle.observing.views import CommandView, Outcome
from airflow_streamstate.protocol.codec import to_json
from airflow_streamstate.protocol.commands import ALL_COMMANDS
from airflow_streamstate.protocol.events import (
    Drained,
    DrainFailed,
    Expired,
    Failed,
    Fenced,
    Ignored,
    Rejected,
    SnapshotReady,
    Stopped,
)
from support.sim_stage import STREAM, Stage


@pytest.fixture
def drain(stage: Stage) -> CommandView:
    """A running deployment that is told to drain."""
    stage.deploy()
    stage.come_to_life()
    return stage.controller.drain(STREAM)


def outcome_of(stage: Stage, order: CommandView) -> Outcome | None:
    """One look."""
    return stage.controller.outcome_of_command(STREAM, order.deployment_id, order.command_id)


def answer(stage: Stage, order: CommandView, kind: type, **fields: object) -> None:
    """The agent answers."""
    stage.say(kind, command_id=order.command_id, command_number=order.number or 0, **fields)


def test_under_way_is_no_outcome(stage: Stage, drain: CommandView) -> None:
    """While an order may still be obeyed there is no outcome. (Law 6)"""
    assert outcome_of(stage, drain) is None
    stage.accept(stage.drain_of())
    assert outcome_of(stage, drain) is None
    assert stage.controller.drain_outcome(STREAM, "d-0001") is None


def test_a_drain_is_drained(stage: Stage, drain: CommandView) -> None:
    """The event that answers it is its outcome, for whoever asked and for whoever only waits. (1a.13)"""
    answer(stage, drain, Drained, snapshot_id="s-1", queries={})
    for found in (outcome_of(stage, drain), stage.controller.drain_outcome(STREAM, "d-0001")):
        assert found is not None
        assert (found.outcome, found.state, found.snapshot_id) == ("drained", "drained", "s-1")


def test_a_second_drain_is_answered_by_the_same_event(stage: Stage, drain: CommandView) -> None:
    """``also_answers`` names whom else a drain answers. (1a.13)"""
    second = stage.controller.drain(STREAM)
    answer(stage, drain, Drained, snapshot_id="s-1", queries={}, also_answers=(second.command_id,))
    found = outcome_of(stage, second)
    assert found is not None
    assert found.outcome == "drained"


def test_a_later_deployment_does_not_hide_a_drain(stage: Stage, drain: CommandView) -> None:
    """Who waits for the drain of a deployment sees it, whatever came after. (1a.13)"""
    stage.run_batches(2)
    stage.flush()
    manifest = stage.keep("drained", drained=True, state_rows_left=0)
    answer(stage, drain, Drained, snapshot_id=manifest.snapshot_id, queries={})
    stage.end()
    stage.deploy("print('v2')\n")
    found = stage.controller.drain_outcome(STREAM, "d-0001")
    assert found is not None
    assert found.to_json()["kind"] == "drained"


@pytest.mark.parametrize(
    ("kind", "fields", "outcome"),
    [
        (Expired, {"command": {"kind": "DrainNotification"}}, "expired"),
        (Rejected, {"key": "k", "reason": "it cannot be flushed"}, "rejected"),
        (Ignored, {"command": {"kind": "DrainNotification"}, "reason": "another attempt"}, "ignored"),
    ],
)
def test_an_order_that_is_not_obeyed_says_why(
    stage: Stage, drain: CommandView, kind: type, fields: dict, outcome: str
) -> None:
    """Expired, rejected and ignored are ends, while the job runs on. (1a.13)"""
    answer(stage, drain, kind, **fields)
    found = outcome_of(stage, drain)
    assert found is not None
    assert (found.outcome, found.state) == (outcome, "running")
    assert found.reason


def test_an_expired_drain_is_an_end_for_who_only_waits_until_another_comes(stage: Stage, drain: CommandView) -> None:
    """A sensor does not wait for a drain that expired, unless a new one is ordered. (Law 6)"""
    answer(stage, drain, Expired, command=to_json(stage.drain_of()))
    stage.controller.notifications.clean_up(STREAM)
    found = stage.controller.drain_outcome(STREAM, "d-0001")
    assert found is not None
    assert found.outcome == "expired"
    stage.controller.drain(STREAM)
    assert stage.controller.drain_outcome(STREAM, "d-0001") is None


def test_a_failed_flush_is_told_when_it_is_known_where_the_deployment_stands(stage: Stage, drain: CommandView) -> None:
    """DrainFailed is followed by what the deployment is then, with its snapshot and the choices. (1a.5)"""
    answer(
        stage, drain, DrainFailed, query_name="counts", error="disk", withdrawn=True, choices=("resume it", "deploy")
    )
    assert outcome_of(stage, drain) is None
    stage.say(Stopped, snapshot_id="s-1", queries={})
    for found in (outcome_of(stage, drain), stage.controller.drain_outcome(STREAM, "d-0001")):
        assert found is not None
        assert (found.outcome, found.state, found.snapshot_id) == ("drain_failed", "stopped", "s-1")
        assert "resume it" in found.reason
        assert "runs on" not in found.reason


def test_an_order_to_an_attempt_that_was_replaced_ends_as_fenced(stage: Stage, drain: CommandView) -> None:
    """It was ignored because its deployment is not current any more: that is what became of it. (Law 4)"""
    ignored = {"command": {"kind": "DrainNotification"}, "reason": "this attempt was replaced"}
    answer(stage, drain, Ignored, **ignored)
    stage.say(Fenced, current_deployment_id="d-0002", current_attempt=1)
    found = outcome_of(stage, drain)
    assert found is not None
    assert (found.outcome, found.state, found.reason) == ("fenced", "fenced", "this attempt was replaced")


@pytest.mark.parametrize(("state", "outcome"), [("gone", "failed"), ("unknown", "lost")])
def test_a_driver_that_dies_under_an_order_is_an_outcome(
    stage: Stage, drain: CommandView, state: str, outcome: str
) -> None:
    """Nobody waits for a driver that is gone. (Law 6)"""
    stage.end(state=state)  # type: ignore[arg-type]
    stage.clock.advance(120)
    found = outcome_of(stage, drain)
    assert found is not None
    assert found.outcome == outcome
    assert found.reason


def test_a_drain_that_the_next_attempt_finishes_is_drained_after_all(stage: Stage, drain: CommandView) -> None:
    """A drain holds for the deployment: what failed in one attempt is done by the next. (1a.7)"""
    stage.end(state="gone")
    stage.controller.resume(STREAM)
    assert outcome_of(stage, drain) is None
    stage.come_to_life(attempt=2)
    stage.say(Drained, attempt=2, command_id=drain.command_id, command_number=1, snapshot_id="s-1", queries={})
    found = outcome_of(stage, drain)
    assert found is not None
    assert found.outcome == "drained"


def test_a_stop_that_came_too_late_is_fulfilled_all_the_same(stage: Stage) -> None:
    """A second stop, ignored because the first was obeyed, has what it asked for. (Law 2)"""
    stage.deploy()
    stage.come_to_life()
    first, second = stage.controller.stop(STREAM), stage.controller.stop(STREAM)
    answer(stage, first, Stopped, snapshot_id="s-1", queries={})
    answer(stage, second, Ignored, command={"kind": "StopRequest"}, reason="stopped already")
    found = outcome_of(stage, second)
    assert found is not None
    assert (found.outcome, found.snapshot_id) == ("stopped", "s-1")


def test_a_snapshot_is_ready_while_the_job_runs_on(stage: Stage) -> None:
    """A snapshot's outcome does not end the deployment. (1a.13)"""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.run_batches(2)
    order = stage.controller.snapshot(STREAM)
    manifest = stage.keep("live")
    answer(stage, order, SnapshotReady, snapshot_id=manifest.snapshot_id, snapshot_kind="live", queries={})
    found = outcome_of(stage, order)
    assert found is not None
    assert (found.outcome, found.state) == ("snapshot_ready", "running")
    assert found.to_json()["files"] == manifest.files_count > 0


def test_secrets_of_the_job_are_in_no_outcome(stage: Stage) -> None:
    """What a failing job prints of its own configuration is hidden."""
    stage.deploy(conf={"spark.my.password": "hunter2-hunter2"}, allow_literal_secrets=True)
    stage.come_to_life()
    stage.say(Failed, error="bad hunter2-hunter2", traceback="Traceback hunter2-hunter2")
    found = stage.controller.end_outcome(STREAM, "d-0001")
    assert found is not None
    assert "hunter2" not in str(found.to_json()) + found.traceback


def test_each_kind_of_order_knows_what_fulfils_it() -> None:
    """No order is without an outcome that fulfils it. (Law 6)"""
    assert {kind.kind for kind in ALL_COMMANDS} <= set(FULFILLED_BY)


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
    """Nobody waits for it any more, whoever ordered it, until another one comes (Law 6)."""
    stage.accept(stage.drain_of())
    assert stage.controller.status(STREAM).state == "draining"
    answer(stage, drain, DrainFailed, query_name="", error="late", withdrawn=True, cause=cause, then="runs_on")
    stage.controller.notifications.clean_up(STREAM)
    for found in (outcome_of(stage, drain), stage.controller.drain_outcome(STREAM, "d-0001")):
        assert found is not None
        assert (found.outcome, found.state, found.snapshot_id) == (outcome, "running", None)
        assert found.reason == "it was called off: late; the stream runs on"
    with pytest.raises(error):
        stage.controller.wait_for_command(STREAM, "d-0001", drain.command_id, 5)
    stage.controller.drain(STREAM)
    assert stage.controller.drain_outcome(STREAM, "d-0001") is None


def test_a_stop_after_a_drain_that_was_called_off_is_a_stop(stage: Stage, drain: CommandView) -> None:
    """What came of the drain is not told of a later end."""
    answer(stage, drain, DrainFailed, query_name="", error="late", withdrawn=True, cause="deadline", then="runs_on")
    stage.say(Stopped, snapshot_id="s-1", queries={})
    stage.end()
    found = stage.controller.drain_outcome(STREAM, "d-0001")
    assert found is not None
    assert found.outcome == "stopped"


def test_a_drain_that_became_a_stop_is_told_with_its_snapshot(stage: Stage, drain: CommandView) -> None:
    """Not before it is known where the deployment stands."""
    answer(stage, drain, DrainFailed, query_name="", error="late", withdrawn=True, cause="deadline", then="stop")
    assert outcome_of(stage, drain) is None
    stage.say(Stopped, snapshot_id="s-1", queries={})
    stage.end()
    found = outcome_of(stage, drain)
    assert found is not None
    assert (found.outcome, found.state, found.snapshot_id) == ("drain_failed", "stopped", "s-1")


def test_a_request_to_take_back_is_answered_by_the_event_that_ends_the_drain(stage: Stage, drain: CommandView) -> None:
    """``also_answers`` names it; what it asked for is so."""
    request = stage.controller.cancel_drain(STREAM, request_id="r-9")
    fields = {"query_name": "", "error": "tests has taken it back", "withdrawn": True}
    answer(stage, drain, DrainFailed, **fields, cause="cancelled", then="runs_on", also_answers=(request.command_id,))
    stage.controller.notifications.clean_up(STREAM)
    found = stage.controller.wait_for_command(STREAM, "d-0001", request.command_id, 5)
    assert (found.outcome, found.state) == ("cancelled", "running")
    again = stage.controller.cancel_drain(STREAM, request_id="r-9")
    assert again.outcome is not None
    assert again.outcome.outcome == "cancelled"
