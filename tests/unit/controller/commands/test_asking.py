"""What to do about a recorded request for a snapshot: one decision table."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_streamstate.control.journal import CommandSlot
from airflow_streamstate.controller.commands.snapshot_requests import (
    Ask,
    Came,
    Over,
    Pending,
    asking_command_id,
    decide_asking,
    ready_of,
)
from airflow_streamstate.protocol.codec import to_json
from airflow_streamstate.protocol.commands import SnapshotRequest, StopRequest
from airflow_streamstate.protocol.events import (
    Accepted,
    Drained,
    Event,
    Expired,
    Failed,
    Finished,
    Ignored,
    Rejected,
    SnapshotReady,
    Stopped,
)
from airflow_streamstate.protocol.records import RequestRecord, SnapshotWish
from support.fake_clock import START_AT
from support.sim_stage import STREAM, Stage

REQUEST = "r-1"
RECORD = RequestRecord(REQUEST, STREAM, "snapshot", "0" * 64, "d-0001", "w", START_AT, command_id="c-first")
ASKED = SnapshotWish(None, None, None, "tests", "")
DATED = replace(ASKED, requested_at=START_AT)
FIRST, SECOND, THIRD = (asking_command_id(STREAM, REQUEST, "d-0001", 1, tries) for tries in (1, 2, 3))
PATIENCE = timedelta(seconds=15)


@pytest.fixture
def running(stage: Stage) -> Stage:
    """A deployment that runs."""
    stage.deploy()
    stage.come_to_life()
    return stage


def slot(stage: Stage, command_id: str, **changes: Any) -> CommandSlot:
    """The command as it is in the home, written now."""
    facts = {"requested_at": stage.clock.now(), **changes}
    command = SnapshotRequest(
        command_id, STREAM, "d-0001", deadline_at=None, requested_by="t", reason="", attempt=1,
        request_id=REQUEST, ttl_seconds=300.0, **facts
    )  # fmt: skip
    return CommandSlot(1, f"commands/{command_id}", "v", command, None)


def decided(stage: Stage, *slots: CommandSlot, request: SnapshotWish = ASKED, anew: bool = False) -> object:
    return decide_asking(stage.seen(), RECORD, request, lambda: slots, anew=anew)


def say(stage: Stage, kind: type[Event], command_id: str, **fields: Any) -> Event:
    return stage.say(kind, command_id=command_id, command_number=1, **fields)


def ready(stage: Stage, command_id: str, **fields: Any) -> Event:
    return say(stage, SnapshotReady, command_id, snapshot_id="s", snapshot_kind="live", queries={}, **fields)


def test_each_try_has_an_id_of_its_own() -> None:
    """The same in every process; a change of any part gives another. (Law 2)"""
    parts: tuple[Any, ...] = (STREAM, REQUEST, "d-0001", 1, 1)
    assert asking_command_id(*parts) == asking_command_id(*parts[:4]) == "a79580b4-6013-56cc-b2cd-04b7cd694a72"
    others = {asking_command_id(*parts[:place], other, *parts[place + 1 :])
              for place, other in enumerate(("o", "r-2", "d-0002", 2, 2))}  # fmt: skip
    assert len(others - {asking_command_id(*parts)}) == 5


def test_the_current_attempt_is_asked_once(running: Stage) -> None:
    """Other commands in the journal, and those that cannot be read, are none of it."""
    stop = StopRequest("c-stop", STREAM, "d-0001", START_AT, None, "tests", "", attempt=1)
    others = (
        CommandSlot(1, "commands/1", "v", None, None),
        CommandSlot(2, "commands/2", "v", stop, None),
        slot(running, "c-other"),
    )
    assert decided(running, *others) == Ask(FIRST)
    own = slot(running, FIRST)
    assert decided(running, *others, own) == Pending(FIRST, own)


def test_a_command_that_no_driver_takes_up_is_dated_anew(running: Stage) -> None:
    """After as long as the setting allows; a date that the user gave stays."""
    own = slot(running, FIRST)
    running.clock.advance(PATIENCE.total_seconds() - 0.001)
    assert decided(running, own) == Pending(FIRST, own)
    running.clock.advance(0.001)
    assert decided(running, own) == Ask(FIRST, own)
    assert decided(running, own, request=DATED) == Pending(FIRST, own)


def test_a_command_that_was_taken_up_is_waited_for(running: Stage) -> None:
    """However long it takes; what the home has is not read."""
    say(running, Accepted, FIRST, command={})
    running.clock.advance(1_000)
    found = decide_asking(running.seen(), RECORD, ASKED, lambda: pytest.fail("no need to look"))
    assert found == Pending(FIRST)


@pytest.mark.parametrize(
    ("kind", "fields", "anew", "expected"),
    [
        (Rejected, {"key": "k", "reason": "no batch"}, False, "rejected"),
        (Rejected, {"key": "k", "reason": "no batch"}, True, None),
        (Expired, {"command": {}}, False, "expired"),
        (Expired, {"command": {}}, True, "expired"),
    ],
)
def test_a_no_is_an_answer_unless_it_is_asked_anew(
    running: Stage, kind: type[Event], fields: dict[str, Any], anew: bool, expected: str | None
) -> None:
    """A deadline that has passed is the request's own: it ends each try."""
    event = say(running, kind, FIRST, **fields)
    found = decided(running, anew=anew)
    if expected is None:
        assert found == Ask(SECOND)
    else:
        assert isinstance(found, Over)
        assert (found.end.outcome, found.end.event, found.end.command_kind) == (expected, event, SnapshotRequest.kind)
        assert decide_asking(running.seen(), RECORD, ASKED, tuple) == found


def test_a_request_that_was_out_of_date_is_asked_again_in_its_time(running: Stage) -> None:
    """At once where a client repeats it; never where the client gave its date: it would be ignored again."""
    command = to_json(slot(running, FIRST).command)
    say(running, Ignored, FIRST, command=command, reason="out of date")
    running.clock.advance(PATIENCE.total_seconds() - 0.001)
    assert decided(running) == Pending(FIRST)
    assert decided(running, anew=True) == Ask(SECOND)
    for anew in (False, True):
        over = decided(running, request=DATED, anew=anew)
        assert isinstance(over, Over)
        assert over.end.outcome == "ignored"
    running.clock.advance(0.001)
    assert decided(running) == Ask(SECOND)
    say(running, Ignored, SECOND, command=command, reason="out of date")
    assert decided(running) == Pending(SECOND)
    running.clock.advance(PATIENCE.total_seconds())
    assert decided(running) == Ask(THIRD)


def test_a_clock_that_is_ahead_ends_the_request(running: Stage) -> None:
    """The next try would be ignored, too; a client that repeats the request may have set its clock."""
    ahead = slot(running, FIRST, requested_at=running.clock.now() + timedelta(seconds=1))
    say(running, Ignored, FIRST, command=to_json(ahead.command), reason="in the future")
    running.clock.advance(1_000)
    over = decided(running)
    assert isinstance(over, Over)
    assert over.end.reason == "in the future"
    assert decided(running, anew=True) == Ask(SECOND)


def test_a_command_whose_content_cannot_be_read_was_not_ahead(running: Stage) -> None:
    """It is asked again, as any other."""
    say(running, Ignored, FIRST, command={"kind": "of tomorrow"}, reason="another")
    assert decided(running) == Pending(FIRST)
    running.clock.advance(PATIENCE.total_seconds())
    assert decided(running) == Ask(SECOND)


@pytest.mark.parametrize(
    ("command_id", "fields", "is_it"),
    [
        ("c-any", {"request_id": REQUEST}, True),
        (FIRST, {"request_id": REQUEST}, True),
        (FIRST, {"request_id": "r-2"}, False),
        (FIRST, {}, False),
        ("", {}, False),
    ],
)
def test_a_snapshot_is_the_requests_by_what_it_was_asked_under(
    running: Stage, command_id: str, fields: dict[str, Any], is_it: bool
) -> None:
    """By the id of the request, whichever command asked for it."""
    event = ready(running, command_id, **fields)
    seen = running.seen()
    found = ready_of(seen, RECORD)
    assert (found is not None) is is_it
    if found is not None:
        assert (found.event, found.snapshot_id, found.command_kind) == (event, "s", SnapshotRequest.kind)
        assert decided(running) == Came(found)
    assert ready_of(seen, replace(RECORD, command_id=None, request_id="r-3")) is None


def test_a_snapshot_of_no_request_answers_none(running: Stage) -> None:
    """Neither of a request that has no command."""
    ready(running, "")
    assert ready_of(running.seen(), replace(RECORD, command_id=None)) is None
    ready(running, "c-other", request_id="r-2")
    event = ready(running, "c-any", request_id=REQUEST)
    found = ready_of(running.seen(), replace(RECORD, command_id=None))
    assert found.event == event


@pytest.mark.parametrize(
    ("kind", "fields", "snapshot_id"),
    [
        (Stopped, {"snapshot_id": "s-end", "queries": {}}, "s-end"),
        (Drained, {"command_id": "c", "command_number": 1, "snapshot_id": "s-end", "queries": {}}, "s-end"),
        (Finished, {"snapshot_id": "s-end", "queries": {}}, "s-end"),
        (Finished, {"snapshot_id": None, "queries": {}}, None),
        (Failed, {"error": "no"}, None),
    ],
)
def test_the_snapshot_at_the_end_is_as_good(
    running: Stage, kind: type[Event], fields: dict[str, Any], snapshot_id: str | None
) -> None:
    """Where the end made none, the deployment has as long to come back as at any other time."""
    event = running.say(kind, **fields)
    found = decided(running)
    if snapshot_id is not None:
        assert isinstance(found, Came)
        assert (found.end.snapshot_id, found.end.event, found.end.command_kind) == (
            snapshot_id, event, SnapshotRequest.kind,
        )  # fmt: skip
        return
    running.clock.advance(PATIENCE.total_seconds() - 0.001)
    running.beat()  # of a driver that ends
    assert decided(running) == Pending("")
    running.clock.advance(0.001)
    found = decided(running)
    assert isinstance(found, Over)
    assert found.end.event == event


def test_a_driver_that_vanished_has_as_long_to_come_back(running: Stage) -> None:
    """From its last sign of life; a driver that cannot be asked is waited for."""
    running.beat()
    running.end(state="gone")
    assert decided(running) == Pending("")
    running.clock.advance(PATIENCE.total_seconds())
    found = decided(running)
    assert isinstance(found, Over)
    assert found.end.outcome == "failed"
    running.end(state="unknown")
    running.clock.advance(3_600)
    assert decided(running) == Pending("")
