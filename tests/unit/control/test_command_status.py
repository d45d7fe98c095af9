"""The fold from commands and events to the status of each command: one answer for drivers and controllers."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_streamstate.control.command_status import (
    NEVER_SEEN,
    CommandStatus,
    begun_skips,
    cancel_requests,
    cancelled_drains,
    command_in,
    fold,
    is_late,
    out_of_date,
    pending_drain,
    pending_skip,
)
from airflow_streamstate.control.journal import CommandSlot
from airflow_streamstate.protocol.codec import to_json
from airflow_streamstate.protocol.commands import (
    CancelRequest,
    Command,
    DrainNotification,
    SkipRequest,
    SnapshotRequest,
    StopRequest,
)
from airflow_streamstate.protocol.events import (
    Accepted,
    Drained,
    DrainFailed,
    Draining,
    Event,
    Expired,
    Ignored,
    Rejected,
    Skipped,
    SnapshotReady,
    Stopped,
)

AT = datetime(2026, 3, 1, 10, 0, 5, tzinfo=timezone.utc)
DRAIN = DrainNotification("c-1", "orders", "d-0001", AT, AT + timedelta(seconds=5), "tests", "", rehearse=True)
CANCEL = CancelRequest("c-9", "orders", "d-0001", AT, AT + timedelta(seconds=5), "tests", "")
SKIP = SkipRequest("c-4", "orders", "d-0001", AT, None, "tests", "", "counts", 3)


def said(kind: type[Event], **fields: Any) -> Any:
    return kind(stream_id="orders", deployment_id="d-0001", attempt=1, at=AT, write_id="w", **fields)


def accepted(command: Command) -> Accepted:
    return said(Accepted, command_id=command.command_id, command_number=7, command=to_json(command))


def holding(
    *slots: CommandSlot, events: tuple[Event | None, ...] = (), now: datetime = AT
) -> tuple[DrainNotification, int] | None:
    return pending_drain(fold(slots, events), stream_id="orders", deployment_id="d-0001", now=now)


def ended_by(*events: Event | None) -> set[str]:
    return {command_id for command_id, status in fold((), events).items() if status.is_ended}


def slot(command: Command | None, number: int | None = 3) -> CommandSlot:
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
    assert fold((), [None, event])["c-1"].end is event
    assert not fold((), [None, event])["c-1"].is_begun


def test_what_is_no_end_answers_nothing() -> None:
    """A started command, a starting flush, an unreadable object, an unreadable event."""
    draining = said(Draining, command_id="c-1", snapshot_id=None, flush_batch_ids={})
    nameless = said(Rejected, command_id="", command_number=1, key="k", reason="no")
    assert ended_by(accepted(DRAIN), draining, nameless, None) == set()
    assert fold((), [nameless, replace(draining, command_id=""), None]) == {}


def test_an_end_that_answers_others_too_answers_them() -> None:
    """A second notification is answered by the same Drained."""
    event = said(Drained, command_id="c-1", command_number=1, snapshot_id="s", queries={}, also_answers=("c-2", "c-3"))
    assert ended_by(event) == {"c-1", "c-2", "c-3"}
    nameless = replace(event, command_id="")
    assert ended_by(nameless) == {"c-2", "c-3"}


def test_a_command_keeps_the_content_that_an_event_has_of_it() -> None:
    """As its object has it; else as the first event that keeps it; its kind also where it cannot be read (Law 7)."""
    ignored = said(Ignored, command_id="c-1", command_number=4, command=to_json(replace(DRAIN, reason="x")), reason="n")
    assert fold([slot(DRAIN)], [ignored])["c-1"].command == DRAIN
    assert fold((), [accepted(DRAIN), ignored])["c-1"].command == DRAIN
    assert fold((), [ignored])["c-1"].command == replace(DRAIN, reason="x")
    assert (fold((), [ignored])["c-1"].kind, fold((), [ignored])["c-1"].number) == (DRAIN.kind, 0)
    damaged = fold((), [replace(accepted(DRAIN), command={"kind": "DrainNotification"})])["c-1"]
    assert (damaged.kind, damaged.command, damaged.number) == (DRAIN.kind, None, 7)
    assert (fold([slot(SKIP)], ())["c-4"].kind, fold([slot(SKIP)], ())["c-4"].number) == (SKIP.kind, 3)
    assert (NEVER_SEEN.kind, NEVER_SEEN.command, NEVER_SEEN.number, NEVER_SEEN.is_begun) == ("", None, 0, False)


def test_a_command_is_to_be_obeyed_in_time_or_once_it_was_begun() -> None:
    """What is not started by its deadline never starts; what was started is finished, until its end (1a.13)."""
    late = AT + timedelta(seconds=6)
    assert fold([slot(DRAIN)], ())["c-1"].holds(AT)
    assert not fold([slot(DRAIN)], ())["c-1"].holds(late)
    assert fold([slot(DRAIN)], [accepted(DRAIN)])["c-1"].holds(late)
    assert not any(fold([slot(DRAIN)], [end])["c-1"].holds(AT) for end in ENDS)
    assert not NEVER_SEEN.holds(AT)


def test_the_flushes_of_a_drain_are_gathered_over_its_events() -> None:
    """Stage by stage they are announced, and each one that failed has its own event; the last end counts."""
    first = said(Draining, command_id="c-1", snapshot_id=None, flush_batch_ids={"q": 5})
    second = said(Draining, command_id="c-1", snapshot_id=None, flush_batch_ids={"r": 2})
    failed = [replace(ENDS[-1], query_name="q"), replace(ENDS[-1], query_name="r")]
    assert not fold((), [accepted(DRAIN)])["c-1"].is_flushing
    empty = said(Draining, command_id="c-1", snapshot_id=None, flush_batch_ids={})
    assert fold((), [empty]) == {"c-1": CommandStatus("c-1", flush_batch_ids={})}
    assert fold((), [empty])["c-1"].is_flushing
    status = fold((), [accepted(DRAIN), first, second, *failed])["c-1"]
    assert status.flush_batch_ids == {"q": 5, "r": 2}
    assert status.failed_queries == ("q", "r")
    assert fold([slot(DRAIN)], failed)["c-1"].failed_queries == ("q", "r"), "whether its object is there or not"
    assert (status.end, status.accepted) == (failed[1], accepted(DRAIN))
    asked_back = replace(ENDS[-1], also_answers=("c-9",), query_name="")
    assert [fold((), [asked_back])[each].failed_queries for each in ("c-1", "c-9")] == [(), ()]


def test_a_deadline_holds_to_its_last_moment() -> None:
    """At the very moment it is not late yet, for agent and controller alike (1a.13)."""
    at_end = AT + timedelta(seconds=5)
    assert not is_late(DRAIN, at_end)
    assert is_late(DRAIN, at_end + timedelta(milliseconds=1))
    assert not is_late(replace(DRAIN, deadline_at=None), at_end + timedelta(days=9))


def test_an_ordered_drain_holds_until_its_deadline_or_its_end() -> None:
    """It is obeyed by whichever attempt reads it first, if in time."""
    assert holding(slot(DRAIN)) == (DRAIN, 3)
    assert holding(slot(DRAIN), now=AT + timedelta(seconds=6)) is None
    for end in ENDS:
        assert holding(slot(DRAIN), events=(end,)) is None


def test_a_drain_that_was_begun_holds_after_its_deadline_and_without_its_object() -> None:
    """What was started is finished: the event keeps the content of a deleted command (1a.7)."""
    late = AT + timedelta(seconds=60)
    assert holding(slot(DRAIN), events=(accepted(DRAIN),), now=late) == (DRAIN, 3)
    assert holding(events=(accepted(DRAIN),), now=late) == (DRAIN, 7)


@pytest.mark.parametrize("changes", [{"stream_id": "other"}, {"deployment_id": "d-0002"}])
def test_the_drain_of_another_never_holds(changes: dict[str, str]) -> None:
    """Only the deployment that a notification names obeys it."""
    assert holding(slot(replace(DRAIN, **changes))) is None


def test_what_is_no_drain_or_cannot_be_read_never_holds() -> None:
    """Stops hold for one attempt, and damaged objects for no attempt (Law 7)."""
    stop = StopRequest("c-2", "orders", "d-0001", AT, None, "tests", "", attempt=1)
    damaged = replace(accepted(DRAIN), command={"kind": "DrainNotification"})
    assert holding(slot(stop), slot(None), events=(accepted(stop), damaged, None)) is None
    assert command_in(accepted(stop)) == stop
    assert command_in(damaged) is None


def cancelled(*slots: CommandSlot, events: tuple[Event | None, ...] = ()) -> list[tuple[DrainNotification, int]]:
    return cancelled_drains(fold(slots, events), stream_id="orders", deployment_id="d-0001", now=AT)


def test_what_comes_before_a_drain_does_not_hide_it() -> None:
    """Each command is read for itself, whatever is at the numbers below, or under a key that has none."""
    stop = StopRequest("c-2", "orders", "d-0001", AT, None, "tests", "", attempt=1)
    assert holding(slot(stop, 1), slot(None, 2), slot(DRAIN, 3)) == (DRAIN, 3)
    assert holding(slot(DRAIN, None)) == (DRAIN, 0)


def test_a_request_takes_back_the_drains_that_were_ordered_before_it() -> None:
    """Also one that was started, and one whose object was deleted then; one that comes later holds. (Law 2)"""
    later = replace(DRAIN, command_id="c-10")
    assert holding(slot(DRAIN, 3), slot(CANCEL, 5)) is None
    assert holding(slot(DRAIN, None), slot(CANCEL, 5)) is None
    assert holding(slot(DRAIN, 3), slot(CANCEL, 5), slot(later, 6)) == (later, 6)
    assert holding(slot(CANCEL, 8), events=(accepted(DRAIN),)) is None
    assert holding(slot(CANCEL, 6), events=(accepted(DRAIN),)) == (DRAIN, 7)
    assert cancelled(slot(DRAIN, 3), slot(replace(DRAIN, command_id="c-3"), 4), slot(CANCEL, 5)) == [
        (DRAIN, 3),
        (replace(DRAIN, command_id="c-3"), 4),
    ]
    assert cancelled(slot(DRAIN, None), slot(CANCEL, 1)) == [(DRAIN, 0)]
    assert cancelled(slot(DRAIN, 3)) == cancelled() == []


def test_a_flush_that_began_and_a_drain_that_had_its_end_are_not_taken_back() -> None:
    """State that is being flushed cannot be continued from, and an end stays the end (Laws 2 and 16)."""
    draining = said(Draining, command_id="c-1", snapshot_id=None, flush_batch_ids={})
    slots = (slot(DRAIN, 3), slot(CANCEL, 5))
    assert cancelled(*slots, events=(accepted(DRAIN), draining)) == []
    assert holding(*slots, events=(accepted(DRAIN), draining)) == (DRAIN, 3)
    assert [cancelled(*slots, events=(end,)) for end in ENDS] == [[] for _ in ENDS]


@pytest.mark.parametrize(
    "changes", [{"stream_id": "other"}, {"deployment_id": "d-0002"}, {"deadline_at": AT - timedelta(seconds=1)}]
)
def test_a_request_that_is_late_or_anothers_takes_nothing_back(changes: dict[str, Any]) -> None:
    """The drain holds, as it would for a request that was answered."""
    assert holding(slot(DRAIN, 3), slot(replace(CANCEL, **changes), 5)) == (DRAIN, 3)
    answered = said(Ignored, command_id="c-9", command_number=5, command={}, reason="no")
    assert holding(slot(DRAIN, 3), slot(CANCEL, 5), events=(answered,)) == (DRAIN, 3)


def test_requests_are_found_above_a_number() -> None:
    """An agent that has read up to a number is notified of what came since; a key without a number is no request."""
    slots = [slot(CANCEL, 1), slot(None, 2), slot(DRAIN, 3), slot(replace(CANCEL, command_id="c-8"), 4)]
    slots.append(slot(replace(CANCEL, command_id="c-7"), None))

    def found(**above: int) -> list[int]:
        requests = cancel_requests(fold(slots, ()), stream_id="orders", deployment_id="d-0001", now=AT, **above)
        return [number for _, number in requests]

    assert (found(), found(above=1), found(above=3), found(above=4)) == ([1, 4], [4], [4], [])


def test_the_skip_of_a_query_is_found_among_everything_else() -> None:
    """Its own one alone: another query's, another deployment's and one that had its end are passed over (Law 2)."""

    def found(*commands: SkipRequest, events: tuple[Event | None, ...] = ()) -> tuple[SkipRequest, int] | None:
        slots = [slot(None, 1), slot(DRAIN, 2), *(slot(one, number) for number, one in enumerate(commands, 3))]
        return pending_skip(fold(slots, events), "d-0001", "counts")

    other, elsewhere = (
        replace(SKIP, command_id="c-5", query_name="other"),
        replace(SKIP, command_id="c-8", deployment_id="d-0002"),
    )
    assert found(other, elsewhere, SKIP) == (SKIP, 5)
    assert found(other, elsewhere) is None
    assert pending_skip(fold([slot(SKIP, None)], ()), "d-0001", "counts") == (SKIP, 0)
    skipped = said(Skipped, command_id="c-4", command_number=3, query_name="counts", batch_id=3, moves=())
    assert found(SKIP, events=(skipped,)) is None
    assert found(SKIP, replace(SKIP, command_id="c-6"), events=(None, skipped)) == (replace(SKIP, command_id="c-6"), 4)


def test_a_skip_that_was_begun_comes_first_and_needs_no_object() -> None:
    """Its driver died in the middle of it; the event keeps its content, until its end is reported (Laws 1 and 2)."""
    skipped = said(Skipped, command_id="c-4", command_number=7, query_name="counts", batch_id=3, moves=())
    other = replace(SKIP, command_id="c-6")
    assert begun_skips(fold((), [None, accepted(DRAIN), accepted(SKIP)])) == [(SKIP, 7)]
    assert begun_skips(fold((), [accepted(SKIP), skipped])) == begun_skips(fold((), [skipped])) == []
    assert pending_skip(fold([slot(other)], [accepted(SKIP)]), "d-0001", "counts") == (SKIP, 7)
    assert pending_skip(fold([slot(other)], [accepted(SKIP)]), "d-0001", "more") is None
    assert pending_skip(fold([slot(other)], [accepted(SKIP), skipped]), "d-0001", "counts") == (other, 3)


MS = timedelta(milliseconds=1)


def asked_at(at: datetime, ttl_seconds: float = 300.0) -> SnapshotRequest:
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
