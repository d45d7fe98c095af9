"""The state of a deployment: one table."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from airflow_streamstate.controller.observe.observation import (
    STATE_TABLE,
    State,
    markdown_table,
)
from airflow_streamstate.protocol.events import Drained, Failed, Fenced, Finished, Stopped
from airflow_streamstate.protocol.records import Claim
from support.examples import example
from support.sim_stage import STREAM, Stage


def running(stage: Stage, *queries: str) -> None:
    stage.deploy()
    stage.come_to_life(queries=queries)


def state_of(stage: Stage, deployment_id: str | None = None) -> str:
    """The state as a controller sees it now."""
    return stage.seen(deployment_id).state


def test_launching_until_the_session_is_there_and_failed_after_an_exit_without_a_word(stage: Stage) -> None:
    """Claimed or not; the launcher's reason reports why it failed. (1a.13)"""
    stage.deploy()
    assert state_of(stage) == "launching"
    stage.come_to_life()
    assert state_of(stage) == "running"
    stage.end(state="gone")
    assert state_of(stage) == "failed"
    assert "it is gone" in stage.seen().why


@pytest.mark.parametrize(
    ("kind", "fields", "state"),
    [
        (Stopped, {"snapshot_id": "s", "queries": {}}, "stopped"),
        (Finished, {"snapshot_id": None, "queries": {}}, "finished"),
        (
            Finished,
            {"snapshot_id": "s", "queries": {}, "unfinished": {"counts": "ran when the script ended"}},
            "failed",
        ),
        (Failed, {"error": "ValueError: no"}, "failed"),
        (Fenced, {"current_deployment_id": "d-0002", "current_attempt": 1}, "fenced"),
        (Drained, {"command_id": "c", "command_number": 1, "snapshot_id": "s", "queries": {}}, "drained"),
    ],
)
def test_each_terminal_event_is_a_state(stage: Stage, kind: type, fields: dict, state: str) -> None:
    """It decides, whether the process runs or has ended. (1a.13)"""
    running(stage)
    stage.say(kind, **fields)
    for driver in ("running", "gone"):
        stage.end(state=driver)
        assert state_of(stage) == state


@pytest.mark.parametrize(
    ("kind", "fields", "is_end"),
    [
        (Finished, {"snapshot_id": "s", "queries": {}}, True),
        (Finished, {"snapshot_id": "s", "queries": {}, "unfinished": {"counts": "was stopped by the script"}}, False),
        (Drained, {"command_id": "c", "command_number": 1, "snapshot_id": "s", "queries": {}}, False),
        (
            Drained,
            {"command_id": "c", "command_number": 1, "snapshot_id": "s", "queries": {}, "reason": "self-drained: …"},
            True,
        ),
        (Stopped, {"snapshot_id": "s", "queries": {}}, False),
        (Failed, {"error": "ValueError: no"}, False),
    ],
)
def test_a_stream_has_come_to_its_end_only_by_itself(stage: Stage, kind: type, fields: dict, is_end: bool) -> None:
    """By its triggers, or since its sources report that nothing follows; by no script that merely ends."""
    running(stage)
    stage.say(kind, **fields)
    stage.end()
    seen = stage.seen()
    assert seen.has_come_to_its_end is is_end
    is_interrupted = bool(fields.get("unfinished"))
    assert seen.was_interrupted is is_interrupted
    if is_interrupted:
        assert seen.why == (
            "the script ended with status 0, which nobody had asked for: query counts was stopped by the script"
        )


def test_drained_stays_drained_whatever_a_later_attempt_says(stage: Stage) -> None:
    """A drain holds for the deployment, not for an attempt. (Law 11)"""
    running(stage)
    stage.say(Drained, command_id="c", command_number=1, snapshot_id="s", queries={})
    stage.say(Failed, attempt=2, error="late")
    assert state_of(stage) == "drained"


@pytest.mark.parametrize(("verb", "state"), [("stop", "stopping"), ("drain", "draining")])
def test_accepted_commands_are_seen_in_the_state(stage: Stage, verb: str, state: str) -> None:
    """From the acceptance on; a command that was not accepted changes nothing. (1a.13)"""
    running(stage)
    stage.controller.order(verb, STREAM)
    assert state_of(stage) == "running"
    (slot,) = stage.control.journal("d-0001").commands()
    stage.accept(slot.command)
    assert state_of(stage) == state


def test_lost_needs_both_silence_and_a_launcher_that_cannot_ask(stage: Stage) -> None:
    """Unknown never means dead: lost is an old sign of life of a driver that cannot be asked. (1a.8)"""
    running(stage)
    stage.beat()
    stage.clock.advance(3_600)
    assert state_of(stage) == "silent"
    stage.end(state="unknown")
    assert state_of(stage) == "lost"
    stage.beat()
    stage.clock.advance(stage.spec().version.settings.lost_after_seconds)
    assert state_of(stage) == "running"
    stage.clock.advance(0.001)
    assert state_of(stage) == "lost"


def test_a_deployment_that_is_not_current_is_fenced(stage: Stage) -> None:
    """A deployment that another replaced is fenced, unless it ended well before. (Law 4)"""
    stage.deploy()
    stage.stopped()
    stage.deploy("print('v2')\n")
    assert state_of(stage, "d-0001") == "stopped"
    stage.come_to_life("d-0002")
    stage.end("d-0002", state="gone")
    stage.deploy("print('v3')\n")
    assert state_of(stage, "d-0002") == "fenced"


def test_a_query_that_failed_makes_it_degraded_until_it_is_started_again(stage: Stage) -> None:
    """Named with its batch and cause; an end of the attempt, and a stop that is obeyed, count for more. (1a.13)"""
    running(stage, "counts", "other")
    stage.query_failed("counts")
    assert state_of(stage) == "degraded"
    why = stage.seen().why
    assert why == "query counts has failed in batch 7: Unlucky: batch of bad luck"
    stage.start_query("counts", batch_id=6)
    assert state_of(stage) == "running"
    stage.query_failed("other")
    order = stage.controller.order("stop", STREAM)
    assert order.state == "degraded"
    stage.say(Failed, error="ValueError: no")
    assert state_of(stage) == "failed"


def test_a_failure_of_an_earlier_attempt_is_over(stage: Stage) -> None:
    """Each attempt starts its queries again. (1a.13)"""
    running(stage, "counts")
    stage.query_failed("counts")
    stage.end(state="gone")
    stage.controller.resume(STREAM)
    stage.come_to_life(attempt=2, queries=("counts",))
    assert state_of(stage) == "running"


def test_the_table_has_every_state_and_ends_with_otherwise() -> None:
    """The table is complete: some row always holds, and each state has one. (1a.13)"""
    assert {row.state for row in STATE_TABLE} == set(get_args(State))
    assert STATE_TABLE[-1].when == "otherwise"


def test_each_state_is_explained(stage: Stage) -> None:
    """From the record of a deployment to its end."""

    def why() -> str:
        return stage.seen().why

    stage.deploy()
    stage.end(state="pending")
    assert why() == "it is recorded, but no driver was started for it yet; resume starts one"
    stage.end(state="running")
    assert why() == "its driver has not started its Spark session yet"
    stage.come_to_life()
    assert why() == "the attempt reported Started"
    stage.query_failed("b")
    stage.query_failed("a", planned_batch_id=None)
    failed = "Unlucky: batch of bad luck"
    assert why() == f"query b has failed in batch 7: {failed}; query a has failed: {failed}"
    stage.end(state="gone")
    assert why() == "the driver has ended without a last event: it is gone"
    stage.say(Failed, error="no")
    assert why() == "the attempt reported Failed"


def test_a_last_word_that_cannot_be_read_is_told(stage: Stage) -> None:
    """By the numbers of the events that may be it. (Law 7)"""
    running(stage)
    stage.end(state="exited")
    seen = stage.seen()
    unread = tuple(replace(entry, event=None) for entry in seen.events)
    ended = "the driver has ended without a last event: it is exited"
    assert seen.why == ended
    assert replace(seen, events=unread).why == (f"{ended}; event 1, 2 cannot be read, and may be that word")
    silent = replace(seen, launch_status=replace(seen.launch_status, reason=""))
    assert silent.why == "the driver has ended without a last event"


def test_a_driver_that_is_lost_is_explained_by_why_it_cannot_be_asked(stage: Stage) -> None:
    """Where anything is known of its launch."""
    running(stage)
    stage.end(state="unknown")
    stage.clock.advance(3_600)
    seen = stage.seen()
    lost = "the driver cannot be asked about, and its sign of life is older than lost_after_seconds"
    assert seen.why == f"{lost}: it is unknown"
    for status in (replace(seen.launch_status, reason=""), None):
        assert replace(seen, launch_status=status).why == lost
        assert replace(seen, launch_status=status).state == "lost"
    damaged = (*seen.events, replace(seen.events[-1], number=9, event=None))
    assert replace(seen, events=damaged).why == f"{lost}: it is unknown", (
        "it may live: there is no last event to look for"
    )


def test_an_attempt_that_was_given_up_has_failed_and_says_by_whom(stage: Stage) -> None:
    """A controller closed it before a driver claimed it, so it can never live. (1a.8)"""
    stage.deploy()
    stage.end(state="pending")
    by = "abandoned before a driver had claimed it, by ada"
    closed = replace(stage.seen(), claim=replace(example(Claim), pid=0, agent_version=by))
    assert (closed.state, closed.why) == ("failed", by)
    stage.controller.kill(STREAM)
    assert state_of(stage) == "failed"


def test_the_table_is_written_row_by_row() -> None:
    """Numbered from 1, in the order in which they are tried."""
    lines = markdown_table().split("\n")
    assert lines[:3] == [
        "| | state | when (the first row that holds decides) |",
        "|---|---|---|",
        "| 1 | `drained` | some attempt reported Drained |",
    ]
    assert lines[-1] == f"| {len(STATE_TABLE)} | `launching` | otherwise |"
