"""A wait for the end of a run ends only when the stream has read all there was; each other end, as a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_streamstate.controller.wait.condition import IfStopped, WaitCondition
from airflow_streamstate.errors import ConflictError, DeploymentFailedError
from airflow_streamstate.protocol.commands import BY_THE_DRIVER, DrainNotification, StopRequest
from airflow_streamstate.protocol.events import Accepted, Drained, Failed, Finished, Stopped
from support.sim_stage import STREAM, Stage

SAVED: dict[str, Any] = {"snapshot_id": "s", "queries": {}}
DRAINED: dict[str, Any] = {"command_id": "c", "command_number": 1, **SAVED}


def condition(if_stopped: IfStopped) -> WaitCondition:
    return WaitCondition("finished", STREAM, "d-0001", if_stopped=if_stopped)


def _accepted(stage: Stage, kind: str, by: str) -> None:
    command = {"kind": kind, "requested_by": by, "reason": "the night has ended"}
    stage.say(Accepted, command_id="c", command_number=1, command=command)


def finished(stage: Stage) -> None:
    stage.say(Finished, **SAVED)
    stage.end()


def drained_itself(stage: Stage) -> None:
    stage.say(Drained, **DRAINED, reason="self-drained: all 7 parts finished")
    stage.end()


def stopped(stage: Stage) -> None:
    _accepted(stage, StopRequest.kind, "ada")
    stage.say(Stopped, **SAVED)
    stage.end()


def drained(stage: Stage) -> None:
    _accepted(stage, DrainNotification.kind, "ada")
    stage.say(Drained, **DRAINED)
    stage.end()


def stopped_by_machine(stage: Stage) -> None:
    _accepted(stage, StopRequest.kind, BY_THE_DRIVER)
    stage.say(Stopped, **SAVED)
    stage.end()


def killed(stage: Stage) -> None:
    stage.controller.kill(STREAM)


def replaced(stage: Stage) -> None:
    """As by an upgrade, or by one that gave this version up."""
    stopped(stage)
    stage.deploy("print('v2')\n", start="fresh")


def script_ended(stage: Stage) -> None:
    stage.say(Finished, **SAVED, unfinished={"counts": "ran when the script ended"})
    stage.end()


def failed(stage: Stage) -> None:
    stage.say(Failed, error="ValueError: boom")
    stage.end()


def given_back(stage: Stage) -> None:
    """A query failed, and the script swallowed that."""
    stage.say(Finished, **SAVED, unfinished={"counts": "had failed: ValueError: boom"})
    stage.end()


@pytest.mark.parametrize(
    ("ends", "error", "says", "waits"),
    [
        (finished, None, "", False),
        (drained_itself, None, "", False),
        (stopped, ConflictError, "the run was stopped by ada before it had ended", True),
        (drained, ConflictError, "the run was drained by ada before", True),
        (stopped_by_machine, ConflictError, "its machine asked the driver to end", True),
        (killed, ConflictError, "the run was killed by tests before", True),
        (replaced, ConflictError, "the run was stopped by ada before", True),
        (script_ended, DeploymentFailedError, "query counts ran when the script ended", False),
        (given_back, DeploymentFailedError, "query counts had failed: ValueError: boom", False),
        (failed, DeploymentFailedError, "ValueError: boom", False),
    ],
)
def test_only_an_end_by_itself_is_the_end_of_a_run(
    stage: Stage, ends: Callable[[Stage], None], error: type[Exception] | None, says: str, waits: bool
) -> None:
    """What comes after it must not run on half the input; by ``wait`` the run may be continued. (Law 6)"""
    stage.deploy()
    stage.come_to_life()
    assert stage.controller.look(condition("fail")).outcome == "pending"
    ends(stage)
    for if_stopped in ("fail", "wait"):
        found = stage.controller.look(condition(if_stopped))
        if error is None:
            assert found.outcome == "done"
        elif if_stopped == "wait" and waits:
            assert found.outcome == "pending"
        else:
            assert found.outcome == "over"
            assert isinstance(found.error, error)
            assert says in str(found.error)


def test_a_wait_that_follows_the_stream_is_over_at_the_end_of_what_continues_it(stage: Stage) -> None:
    """A resume, and then another version."""
    stage.deploy()
    stage.come_to_life()
    stopped(stage)
    stage.controller.resume(STREAM)
    stage.come_to_life(attempt=2)
    assert stage.controller.look(condition("fail")).outcome == "pending"
    stage.say(Stopped, attempt=2, **SAVED)
    stage.end(attempt=2)
    stage.deploy("print('v2')\n", start="fresh")
    stage.come_to_life("d-0002")
    assert stage.controller.look(condition("wait")).outcome == "pending"
    stage.say(Finished, "d-0002", **SAVED)
    stage.end("d-0002")
    found = stage.controller.look(condition("wait"))
    assert (found.outcome, found.need_result()["deployment_id"]) == ("done", "d-0002")
    assert stage.controller.look(condition("fail")).outcome == "over"


def test_a_run_that_watchers_restart_is_waited_for_until_they_give_it_up(stage: Stage) -> None:
    """By ``wait`` alone; a retired stream has ended."""
    stage.deploy()
    stage.controller.details.change_restart_policy(STREAM, {"on_failure": "restart"})
    stage.come_to_life()
    script_ended(stage)
    assert [stage.controller.look(condition(word)).outcome for word in ("fail", "wait")] == ["over", "pending"]
    stage.controller.retention.retire(STREAM, reason="the shop has closed")
    assert stage.controller.look(condition("wait")).outcome == "over"


def test_the_word_of_a_condition_is_checked() -> None:
    """A trigger carries it through a database."""
    raw = condition("wait").to_json()
    assert WaitCondition.from_json(raw) == condition("wait")
    with pytest.raises(ValueError, match="if_stopped"):
        WaitCondition.from_json({**raw, "if_stopped": "later"})
