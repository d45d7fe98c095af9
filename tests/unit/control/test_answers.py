"""Which commands have had their end, and which drain holds: one answer for agents and controllers."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_streamstate.control.answers import (
    PendingDrain,
    answered_by,
    answered_ids,
    command_in,
    is_accepted,
    is_late,
    out_of_date,
    pending_drain,
)
from airflow_streamstate.control.journal import CommandSlot
from airflow_streamstate.protocol.codec import to_json
from airflow_streamstate.protocol.commands import Command, DrainNotification, SnapshotRequest, StopRequest
from airflow_streamstate.protocol.event import Event
from airflow_streamstate.protocol.events import (
    Accepted,
    Drained,
    DrainFailed,
    Draining,
    Expired,
    Ignored,
    Rejected,
    SnapshotReady,
    Stopped,
)

AT = datetime(2026, 3, 1, 10, 0, 5, tzinfo=UTC)
DRAIN = DrainNotification("c-1", "orders", "d-0001", AT, AT + timedelta(seconds=5), "tests", "")


def said(kind: type[Event], **fields: Any) -> Any:
    return kind(stream_id="orders", deployment_id="d-0001", attempt=1, at=AT, write_id="w", **fields)


def accepted(command: Command) -> Accepted:
    return said(Accepted, command_id=command.command_id, command_number=7, command=to_json(command))


def holding(*slots: CommandSlot, events: tuple[Event | None, ...] = (), now: datetime = AT) -> PendingDrain | None:
    return pending_drain(slots, events, stream_id="orders", deployment_id="d-0001", now=now)


def slot(command: Command | None, number: int = 3) -> CommandSlot:
    return CommandSlot(number, f"commands/{number}", "v", command, None)


ENDS = [
    said(Ignored, command_id="c-1", command_number=1, command={}, reason="no"),
    said(Rejected, command_id="c-1", command_number=1, key="k", reason="no"),
    said(Expired, command_id="c-1", command_number=1, command={}),
    said(SnapshotReady, command_id="c-1", command_number=1, snapshot_id="s", snapshot_kind="live", queries={}),
    said(Stopped, command_id="c-1", command_number=1, snapshot_id="s", queries={}),
    said(Drained, command_id="c-1", command_number=1, snapshot_id="s", queries={}),
    said(DrainFailed, command_id="c-1", command_number=1, query_name="q", error="e", withdrawn=True),
]


@pytest.mark.parametrize("event", ENDS, ids=lambda event: event.kind)
def test_every_end_answers_its_command(event: Event) -> None:
    """Each kind of end is one: a command is obeyed once (Law 2)."""
    assert answered_by(event) == {"c-1"}
    assert answered_ids([None, event]) == {"c-1"}


def test_what_is_no_end_answers_nothing() -> None:
    """A command that was begun, a flush that begins, an object that could not be read, an event nobody can read."""
    draining = said(Draining, command_id="c-1", snapshot_id=None, flush_batch_ids={})
    nameless = said(Rejected, command_id="", command_number=1, key="k", reason="no")
    assert answered_ids([accepted(DRAIN), draining, nameless, None]) == set()
    assert answered_ids([]) == set()


def test_an_end_that_answers_others_too_answers_them() -> None:
    """A second notification is answered by the same Drained."""
    event = said(Drained, command_id="c-1", command_number=1, snapshot_id="s", queries={}, also_answers=("c-2", "c-3"))
    assert answered_by(event) == {"c-1", "c-2", "c-3"}


def test_a_deadline_holds_to_its_last_moment() -> None:
    """At the very moment it is not late yet, for agent and controller alike (1a.13)."""
    at_end = AT + timedelta(seconds=5)
    assert not is_late(DRAIN, at_end)
    assert is_late(DRAIN, at_end + timedelta(milliseconds=1))
    assert not is_late(replace(DRAIN, deadline_at=None), at_end + timedelta(days=9))


def test_an_ordered_drain_holds_until_its_deadline_or_its_end() -> None:
    """It is obeyed by whichever attempt reads it first, if in time."""
    assert holding(slot(DRAIN)) == PendingDrain(DRAIN, 3)
    assert holding(slot(DRAIN), now=AT + timedelta(seconds=6)) is None
    for end in ENDS:
        assert holding(slot(DRAIN), events=(end,)) is None


def test_a_drain_that_was_begun_holds_after_its_deadline_and_without_its_object() -> None:
    """What was begun is ended: the event keeps the content of what somebody deleted (1a.7)."""
    late = AT + timedelta(seconds=60)
    assert holding(slot(DRAIN), events=(accepted(DRAIN),), now=late) == PendingDrain(DRAIN, 3)
    assert holding(events=(accepted(DRAIN),), now=late) == PendingDrain(DRAIN, 7)
    assert is_accepted([accepted(DRAIN)], "c-1")
    assert not is_accepted([accepted(DRAIN)], "c-2")


@pytest.mark.parametrize("changes", [{"stream_id": "other"}, {"deployment_id": "d-0002"}])
def test_the_drain_of_another_never_holds(changes: dict[str, str]) -> None:
    """Only the deployment that a notification names obeys it, whoever looks."""
    assert holding(slot(replace(DRAIN, **changes))) is None


def test_what_is_no_drain_or_cannot_be_read_never_holds() -> None:
    """Stops hold for one attempt, and damaged objects for none (Law 7)."""
    stop = StopRequest("c-2", "orders", "d-0001", AT, None, "tests", "", attempt=1)
    damaged = replace(accepted(DRAIN), command={"kind": "DrainNotification"})
    assert holding(slot(stop), slot(None), events=(accepted(stop), damaged, None)) is None
    assert command_in(accepted(stop)) == stop
    assert command_in(damaged) is None


MS = timedelta(milliseconds=1)


def asked_at(at: datetime, ttl_seconds: float | None = 300.0) -> SnapshotRequest:
    return SnapshotRequest("c-1", "orders", "d-0001", at, None, "tests", "", 1, "r-1", ttl_seconds)


@pytest.mark.parametrize(
    ("age", "why"),
    [
        (timedelta(0), None),
        (timedelta(seconds=300) - MS, None),
        (timedelta(seconds=300), None),
        (timedelta(seconds=300) + MS, "it was asked 300.001 s ago, and its time to live is 300 s"),
        (MS - timedelta(seconds=30), None),
        (-timedelta(seconds=30), None),
        (-timedelta(seconds=30) - MS, "it is dated 30.001 s in the future, and clocks may differ by 30 s"),
    ],
    ids=str,
)
def test_a_request_is_good_as_long_as_its_time_to_live_and_the_skew_allow(age: timedelta, why: str | None) -> None:
    """Both bounds are good themselves, and one millisecond beyond is not; what a clock has beneath does not count."""
    for beneath in (timedelta(0), timedelta(microseconds=999)):
        assert out_of_date(asked_at(AT), AT + age + beneath, 30.0) == why


def test_the_date_of_a_request_without_a_time_to_live_means_nothing() -> None:
    """Controllers before there were such times never promised an end."""
    for age_days in (-900, 900):
        assert out_of_date(asked_at(AT, None), AT + timedelta(days=age_days), 0.0) is None
