"""``StopStreamOperator``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, TaskDeferred

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.operators.stop import StopStreamOperator
from airflow_streamstate.protocol.commands import StopRequest
from support.airflow_fixtures import MakeContext
from support.airflow_streams import NamedHome
from support.airflow_upgrades import event_of
from support.shell import obeying


def stop(**more: Any) -> StopStreamOperator:
    values = {"stream_id": "flights", "timeout_seconds": 30, "poll_interval_seconds": 0.1, **more}
    return StopStreamOperator(task_id="stop", **values)


def test_it_returns_the_snapshot_at_the_end(context: MakeContext, deployed: Callable[..., Path]) -> None:
    """That is what the next version starts from; a retry finds the same."""
    deployed("runs")
    first = stop().execute(context(try_number=1))
    assert (first["deployment_id"], first["snapshot_id"]) == ("d-0001", "d-0001-stopped-000001")
    assert first["state_rows_left"] == 7
    assert stop().execute(context(try_number=2)) == first


def test_it_need_not_wait(named: NamedHome, context: MakeContext) -> None:
    """The order is recorded, and the result has its key."""
    stream = named.stream()
    stream.deploy().runs()
    result = stop(wait_for_completion=False, expires_in_seconds=5).execute(context())
    (slot,) = stream.control.journal("d-0001").commands()
    assert isinstance(slot.command, StopRequest)
    assert (result["key"], result["command_id"]) == (slot.key, slot.command.command_id)


def test_what_has_stopped_is_answered_at_once(named: NamedHome, context: MakeContext) -> None:
    """Another one was first."""
    named.stream().deploy().runs().stopped()
    assert stop().execute(context())["snapshot_id"] == "d-0001-stopped-000001"


def test_what_has_failed_cannot_be_stopped_unless_that_does_not_matter(named: NamedHome, context: MakeContext) -> None:
    """An upgrade of a failed version continues; its deploy takes the snapshot itself."""
    named.stream().deploy().runs().failed("ValueError: boom")
    with pytest.raises(AirflowFailException, match="command not sent"):
        stop().execute(context())
    result = stop(ignore_if_not_running=True).execute(context())
    assert (result["deployment_id"], result["snapshot_id"]) == ("d-0001", None)
    with pytest.raises(AirflowFailException, match="ignore_if_not_running"):
        stop(ignore_if_not_running="perhaps").execute(context())


# by a deadline


def deferral_event(operator: StopStreamOperator, context: Any) -> Any:
    """The operator defers; the event of its trigger."""
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context)
    assert deferred.value.method_name == "execute_complete"
    assert deferred.value.kwargs is None
    return event_of(deferred.value)


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_driver_that_will_not_end_is_ended_at_the_deadline(
    named: NamedHome, context: MakeContext, deployed: Callable[..., Path], deferrable: bool
) -> None:
    """By a worker, wherever it waited; its end is in a snapshot, and a retry finds the same (Law 2; 1a.8)."""
    deployed("runs", "deaf")
    operator = stop(deadline_seconds="0.5", on_deadline="kill", deferrable=deferrable)
    if deferrable:
        event = deferral_event(operator, context())
        assert event["outcome"] == "deadline"
        assert named.hook().client.status("flights").state == "running"  # the trigger only looks
        first = operator.execute_complete(context(), event)
    else:
        first = operator.execute(context())
    assert (first["outcome"], first["snapshot_id"], first["cut_batches"]) == ("killed", "d-0001-stopped-000001", {})
    assert operator.execute(context(try_number=2)) == first


@pytest.mark.parametrize("deferrable", [False, True])
def test_an_order_that_nobody_obeys_is_withdrawn_and_a_retry_orders_anew(
    named: NamedHome, context: MakeContext, deferrable: bool
) -> None:
    """The task fails in a way that Airflow tries again; in the meantime nothing is ordered (Law 6)."""
    stream = named.stream()
    running = stream.deploy().runs()
    operator = stop(deadline_seconds=0.5, deferrable=deferrable)
    event = deferral_event(operator, context()) if deferrable else None
    last_part = (
        (lambda: operator.execute_complete(context(), event)) if deferrable else lambda: operator.execute(context())
    )
    with pytest.raises(AirflowException, match="the order is withdrawn, and the stream runs on") as late:
        last_part()
    assert not isinstance(late.value, AirflowFailException)
    assert stream.control.journal("d-0001").commands() == []
    with obeying(running):
        found = stop(deadline_seconds=30).execute(context(try_number=2))
    assert (found["outcome"], found["snapshot_id"]) == ("stopped", "d-0001-stopped-000001")


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_stream_that_had_failed_is_kept_and_told_unless_that_is_ignored(
    context: MakeContext, deployed: Callable[..., Path], deferrable: bool
) -> None:
    """A forced end hides no failure, and keeps the end of it."""
    with pytest.raises(AirflowException):
        deployed("fails")
    more = {"deadline_seconds": 5, "on_deadline": "kill", "deferrable": deferrable}
    with pytest.raises(AirflowFailException, match="had failed before it could be stopped; its end is kept"):
        stop(**more).execute(context())
    found = stop(**more, ignore_if_not_running=True).execute(context())
    assert (found["outcome"], found["snapshot_id"], found["command_id"]) == ("failed", "d-0001-stopped-000001", None)
    passed = stop(deadline_seconds=5, ignore_if_not_running=True).execute(context())
    assert passed["snapshot_id"] is None


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"wait_for_completion": False}, "deadline_seconds excludes"),
        ({"expires_in_seconds": 5}, "deadline_seconds excludes"),
        ({"deadline_seconds": "soon"}, "no number"),
        ({"deadline_seconds": None, "on_deadline": "kill"}, "on_deadline needs deadline_seconds"),
    ],
)
def test_what_makes_no_sense_is_refused(
    named: NamedHome, context: MakeContext, more: dict[str, Any], sentence: str
) -> None:
    """Before anything is ordered."""
    stream = named.stream()
    stream.deploy().runs()
    with pytest.raises(AirflowFailException, match=sentence):
        stop(**{"deadline_seconds": 5, **more}).execute(context())
    assert stream.control.journal("d-0001").commands() == []


def test_an_action_that_there_is_not_is_refused_when_the_dag_is_parsed() -> None:
    """With those that there are."""
    with pytest.raises(InvalidRequestError, match="Use one of: fail, kill"):
        stop(deadline_seconds=5, on_deadline="hope")
