"""``SkipBatchOperator``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.operators.stop import SkipBatchOperator
from airflow_streamstate.protocol.commands import SkipRequest
from airflow_streamstate.protocol.events import Skipped
from airflow_streamstate.protocol.positions import SourceMove
from support.airflow_fixtures import MakeContext
from support.airflow_streams import NamedHome
from support.airflow_upgrades import event_of
from support.scripted_stream import ScriptedAttempt

MOVE = SourceMove("file /in", '{"logOffset":3}', '{"logOffset":4}', 1, 0, "files")


def operator(**given: object) -> SkipBatchOperator:
    given = {"batch_id": "2", "reason": "a bad row", "poll_interval_seconds": 0.1, "timeout_seconds": 30, **given}
    return SkipBatchOperator(task_id="skip", stream_id="flights", **given)  # type: ignore[arg-type]


@pytest.fixture
def failed(named: NamedHome, deployed: Callable[..., Path]) -> NamedHome:
    """A deployment that failed over its batch 2."""
    with pytest.raises(Exception, match="DeploymentFailedError"):
        deployed("fails")
    ScriptedAttempt(named.stream().control, "d-0001", 1, SYSTEM_CLOCK).proves(2).plans(2)
    return named


def skipped(named: NamedHome, command_id: str) -> None:
    """As the next attempt reports it."""
    ScriptedAttempt(named.stream().control, "d-0001", 2, SYSTEM_CLOCK).say(
        Skipped, command_id=command_id, command_number=1, query_name="delays", batch_id=2, moves=(MOVE,)
    )


def test_the_order_is_given_once_and_its_end_is_the_result(failed: NamedHome, context: MakeContext) -> None:
    """A retry waits for the same order; another batch is another request. (Law 2)"""
    order = operator(wait_for_completion=False).execute(context())
    assert operator(wait_for_completion=False).execute(context(try_number=2))["command_id"] == order["command_id"]
    (slot,) = failed.stream().control.journal("d-0001").commands()
    assert isinstance(slot.command, SkipRequest)
    assert (slot.command.batch_id, slot.command.reason, slot.command.accepts_written) == (2, "a bad row", False)
    skipped(failed, order["command_id"])
    result = operator().execute(context(try_number=3))
    assert set(result) == {"stream_id", "command_id", "deployment_id", "query", "batch_id", "moves"}
    assert (result["query"], result["batch_id"], result["moves"][0]["passed_over"]) == ("delays", 2, 1)
    with pytest.raises(AirflowFailException):
        operator(batch_id=3).execute(context())


def test_a_deferred_wait_has_the_same_result(failed: NamedHome, context: MakeContext) -> None:
    """The triggerer looks for the end of that order."""
    with pytest.raises(TaskDeferred) as deferred:
        operator(deferrable=True).execute(context())
    skipped(failed, deferred.value.trigger.watch["command_id"])
    found = operator().execute_complete(context(), event_of(deferred.value))
    assert found == operator().execute(context())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"reason": " "}, "a skip needs a reason"),
        ({"batch_id": "two"}, "field=batch_id"),
        ({"batch_id": 7}, "no query has this batch planned"),
        ({"query_name": "other"}, "no query has this batch planned"),
    ],
)
def test_mistakes_fail_for_good_and_record_nothing(
    failed: NamedHome, context: MakeContext, given: dict[str, object], words: str
) -> None:
    """One sentence each."""
    with pytest.raises(AirflowFailException, match=words):
        operator(**given).execute(context())
    assert failed.stream().control.journal("d-0001").commands() == []
