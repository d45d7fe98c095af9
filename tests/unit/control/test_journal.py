"""Commands and events of a deployment: numbered, found again, never taken for each other."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_streamstate.control.journal import CREATE, Journal
from airflow_streamstate.control.objects import Cells
from airflow_streamstate.errors import (
    ConflictError,
    MalformedMessageError,
    UnsupportedVersionError,
    VersionConflictError,
)
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import NEWEST_PROTOCOL, to_bytes
from airflow_streamstate.protocol.commands import DrainNotification
from airflow_streamstate.protocol.events import Drained, Event, Expired, Ignored, Noted, Rejected, Stopped
from airflow_streamstate.protocol.positions import Heartbeat
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.memory import MemoryStore
from support.fake_clock import FakeClock
from support.faulty_store import KILL_POINTS, Fault, FaultPlan, FaultyStore, SimulatedCrash

AT = datetime(2026, 3, 1, tzinfo=timezone.utc)
HEAD: dict[str, Any] = {"stream_id": "orders", "deployment_id": "d-0001", "attempt": 1, "at": AT, "write_id": "w"}


def journal(store: Store | None = None) -> Journal:
    return Journal(Cells(store or MemoryStore(), FakeClock()), "orders", "d-0001")


def drain(command_id: str = "c-1") -> DrainNotification:
    return DrainNotification(command_id, "orders", "d-0001", AT, None, "me", "", rehearse=True)


def noted(text: str, write_id: str = "w") -> Noted:
    return Noted(**{**HEAD, "write_id": write_id}, text=text)


def key(number: int) -> str:
    return layout.command_key("orders", "d-0001", number)


# commands


def test_commands_are_numbered_from_one() -> None:
    """In the order in which they were written, with their keys."""
    own = journal()
    assert [own.write_command(drain(f"c-{n}"), NEWEST_PROTOCOL) for n in range(1, 4)] == [
        (n, key(n)) for n in range(1, 4)
    ]
    assert [(slot.number, slot.command) for slot in own.commands()] == [(n, drain(f"c-{n}")) for n in range(1, 4)]


def test_a_command_written_twice_is_written_once() -> None:
    """A retry finds the first one by its id (Law 2)."""
    own = journal()
    own.write_command(drain("c-1"), NEWEST_PROTOCOL)
    own.write_command(drain("c-2"), NEWEST_PROTOCOL)
    assert own.write_command(drain("c-1"), NEWEST_PROTOCOL) == (1, key(1))
    assert len(own.commands()) == 2


@pytest.mark.parametrize(
    "event",
    [
        Drained(**HEAD, command_id="c-1", command_number=1, snapshot_id="s", queries={}),
        Stopped(**HEAD, snapshot_id="s", queries={}, command_id="c-1", command_number=1),
        Ignored(**HEAD, command_id="c-1", command_number=1, command={}, reason="another deployment"),
        Expired(**HEAD, command_id="c-1", command_number=1, command={}),
        Rejected(**HEAD, command_id="c-1", command_number=1, key="k", reason="r"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_the_number_of_a_cleaned_up_command_is_not_used_again(event: Event) -> None:
    """The next number is above every number that an event names (1a.13), also when the command itself is gone."""
    own = journal()
    own.write_command(drain("c-1"), NEWEST_PROTOCOL)
    own.append(event)
    own.delete_command(own.commands()[0])
    assert own.write_command(drain("c-2"), NEWEST_PROTOCOL) == (2, key(2))


def test_a_command_that_was_not_taken_up_is_renewed_in_its_place() -> None:
    """The same number, and one object; not where it was read, answered or renewed in the meantime."""
    own = journal()
    own.write_command(drain("c-1"), NEWEST_PROTOCOL)
    (slot,) = own.commands()
    later = replace(drain("c-1"), requested_at=AT + timedelta(seconds=15))
    own.renew_command(slot, later, NEWEST_PROTOCOL)
    assert [(one.number, one.command) for one in own.commands()] == [(1, later)]
    with pytest.raises(VersionConflictError):
        own.renew_command(slot, later, NEWEST_PROTOCOL)
    own.delete_command(own.commands()[0])
    with pytest.raises(VersionConflictError):
        own.renew_command(slot, later, NEWEST_PROTOCOL)


def test_a_retry_after_the_clean_up_writes_nothing() -> None:
    """A command that an event names was obeyed or refused already: it is not put there again (Law 2)."""
    own = journal()
    own.write_command(drain("c-1"), NEWEST_PROTOCOL)
    own.append(Drained(**HEAD, command_id="c-1", command_number=1, snapshot_id="s", queries={}))
    own.delete_command(own.commands()[0])
    assert own.write_command(drain("c-1"), NEWEST_PROTOCOL) == (1, key(1))
    assert own.commands() == []


def test_a_number_is_above_the_unreadable_ones_too() -> None:
    """A malformed command keeps its number until it is rejected."""
    store = MemoryStore()
    store.put(key(7), b"not a command")
    assert journal(store).write_command(drain(), NEWEST_PROTOCOL) == (8, key(8))


def test_two_writers_get_two_numbers() -> None:
    """The second one's create fails, and it moves to the next number (Law 4)."""
    store = MemoryStore()
    plan = FaultPlan(meanwhile={3: lambda: journal(store).write_command(drain("rival"), NEWEST_PROTOCOL)})
    assert journal(FaultyStore(store, plan)).write_command(drain("own"), NEWEST_PROTOCOL) == (2, key(2))
    found = [slot.command.command_id for slot in journal(store).commands() if slot.command is not None]
    assert found == ["rival", "own"]


def test_two_retries_at_once_write_one_command() -> None:
    """Both look, neither finds it, both write: the one that comes second finds the first one's (Law 2)."""
    store = MemoryStore()
    plan = FaultPlan(meanwhile={3: lambda: journal(store).write_command(drain("c-1"), NEWEST_PROTOCOL)})
    assert journal(FaultyStore(store, plan)).write_command(drain("c-1"), NEWEST_PROTOCOL) == (1, key(1))
    assert len(journal(store).commands()) == 1


@pytest.mark.parametrize("fault", KILL_POINTS, ids=lambda fault: fault.name)
def test_killed_while_writing_a_command_it_is_written_once(fault: Fault) -> None:
    """Dead before, dead after, or no reply: the retry finds it, or writes it; there is one (Laws 2 and 8)."""
    store = MemoryStore()
    try:
        journal(FaultyStore(store, FaultPlan(at_write={1: fault}))).write_command(drain(), NEWEST_PROTOCOL)
    except SimulatedCrash:
        pass
    else:
        assert fault is Fault.REPLY_LOST
    assert journal(store).write_command(drain(), NEWEST_PROTOCOL) == (1, key(1))
    assert len(journal(store).commands()) == 1


def test_writing_a_command_ends_when_others_never_do() -> None:
    """The tries are bounded (Law 6)."""
    store = MemoryStore()
    count = iter(range(1, 10**6))
    plan = FaultPlan()

    class Busy(FaultyStore):
        def create(self, key: str, body: bytes) -> str:
            journal(store).write_command(drain(f"rival-{next(count)}"), NEWEST_PROTOCOL)
            return super().create(key, body)

    with pytest.raises(ConflictError, match="other writers kept taking"):
        journal(Busy(store, plan)).write_command(drain("own"), NEWEST_PROTOCOL)
    assert len(plan.writes) == CREATE.tries


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", MalformedMessageError),
        (b'{"kind": "DrainNotifica', MalformedMessageError),
        (b'{"protocol": 3, "kind": "SelfDestruct"}', MalformedMessageError),
        (to_bytes(noted("an event")), MalformedMessageError),
        (to_bytes(drain(), protocol=2), UnsupportedVersionError),
    ],
    ids=["empty", "cut", "unknown kind", "an event", "newer"],
)
def test_a_bad_command_comes_with_its_problem(body: bytes, problem: type[Exception]) -> None:
    """One bad object neither hides the good ones nor raises (Law 7)."""
    store = MemoryStore()
    store.put(key(1), body)
    own = journal(store)
    own.write_command(drain("c-2"), NEWEST_PROTOCOL)
    bad, good = own.commands()
    assert (bad.number, bad.key, bad.command, good.command) == (1, key(1), None, drain("c-2"))
    assert isinstance(bad.problem, problem)
    stored = store.get(key(1))
    assert stored is not None
    assert bad.version == stored.version


def test_a_command_under_a_senseless_key_is_seen_and_numbered_by_nothing() -> None:
    """It is handed on to be rejected, and takes no number."""
    store = MemoryStore()
    store.put("orders/deployments/d-0001/commands/drain-now.json", to_bytes(drain()))
    own = journal(store)
    assert [(slot.number, slot.command) for slot in own.commands()] == [(None, drain())]
    assert own.write_command(drain("c-2"), NEWEST_PROTOCOL) == (1, key(1))


def test_a_command_of_another_deployment_is_handed_on() -> None:
    """The agent answers it with Ignored; it is not hidden here."""
    store = MemoryStore()
    stray = replace(drain(), deployment_id="d-0009")
    store.put(key(1), to_bytes(stray))
    assert journal(store).commands()[0].command == stray


def test_a_command_that_changed_is_not_cleaned_up() -> None:
    """What is deleted is what was read (Law 4)."""
    store = MemoryStore()
    own = journal(store)
    own.write_command(drain("c-1"), NEWEST_PROTOCOL)
    (slot,) = own.commands()
    store.put(key(1), to_bytes(drain("c-2")))
    with pytest.raises(VersionConflictError):
        own.delete_command(slot)


# events


@given(st.lists(st.text(max_size=5), max_size=20))
def test_events_come_back_in_their_order(texts: list[str]) -> None:
    """Whatever was appended, numbered from one, in order."""
    own = journal()
    for number, text in enumerate(texts, 1):
        assert own.append(noted(text)) == number
    found = [(entry.number, entry.event) for entry in own.events()]
    assert found == [(number, noted(text)) for number, text in enumerate(texts, 1)]


def test_only_events_after_a_number_are_read() -> None:
    """A reader of all events up to a number asks for the later ones."""
    own = journal()
    for n in range(1, 6):
        own.append(noted(str(n)))
    assert [entry.number for entry in own.events(after=3)] == [4, 5]


def test_an_event_never_takes_the_place_of_another() -> None:
    """A number that is taken, even by an unreadable object, is passed over (Law 4)."""
    store = MemoryStore()
    own = journal(store)
    own.append(noted("first"))
    store.put(layout.event_key("orders", "d-0001", 5), b"another's")
    assert own.append(noted("second"), after=0) == 6
    assert own.append(noted("third"), after=6) == 7


@pytest.mark.parametrize("fault", KILL_POINTS, ids=lambda fault: fault.name)
def test_an_event_with_a_lost_reply_is_there_once(fault: Fault) -> None:
    """No event is reported twice because its reply was lost (Law 8)."""
    store = MemoryStore()
    own = journal(FaultyStore(store, FaultPlan(at_write={1: fault})))
    try:
        assert own.append(noted("once", "w-1")) == 1
    except SimulatedCrash:
        return
    assert [entry.event for entry in journal(store).events()] == [noted("once", "w-1")]


def test_appending_ends_when_others_never_do() -> None:
    """The tries are bounded (Law 6)."""
    store = MemoryStore()

    class Busy(FaultyStore):
        def create(self, key: str, body: bytes) -> str:
            journal(store).append(noted("rival"))
            return super().create(key, body)

    plan = FaultPlan()
    with pytest.raises(ConflictError, match="other writers kept taking"):
        journal(Busy(store, plan)).append(noted("own"))
    assert len(plan.writes) == CREATE.tries


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", to_bytes(drain()), to_bytes(noted("newer"), protocol=9),
     to_bytes(Heartbeat("orders", "d-0001", 1, AT, {})),
     to_bytes(replace(noted("stray"), stream_id="other")), to_bytes(replace(noted("stray"), deployment_id="d-0002"))],
    ids=["empty", "no kind", "a command", "newer", "a heartbeat", "another stream's", "another deployment's"],
)  # fmt: skip
def test_a_bad_event_comes_with_its_problem(body: bytes) -> None:
    """One that cannot be read, or belongs elsewhere, neither hides the others nor speaks for us (Law 7)."""
    store = MemoryStore()
    own = journal(store)
    own.append(noted("first"))
    store.put(layout.event_key("orders", "d-0001", 2), body)
    own.append(noted("third"), after=2)
    first, bad, third = own.events()
    assert (first.event, bad.event, third.event) == (noted("first"), None, noted("third"))
    assert bad.problem is not None


def test_what_goes_while_it_is_read_is_skipped() -> None:
    """A command that its agent cleans up, an event of a stream that is being removed: no error."""
    store = MemoryStore()
    own = journal(store)
    own.write_command(drain(), NEWEST_PROTOCOL)
    own.append(noted("one"))
    plan = FaultPlan(meanwhile={2: lambda: own.delete_command(own.commands()[0])})
    assert journal(FaultyStore(store, plan)).commands() == []
    plan = FaultPlan(meanwhile={2: lambda: store.delete(layout.event_key("orders", "d-0001", 1))})
    assert list(journal(FaultyStore(store, plan)).events()) == []


def test_objects_that_are_no_events_are_passed_over() -> None:
    """Keys without a number are no events."""
    store = MemoryStore()
    store.put("orders/deployments/d-0001/events/readme.txt", b"hello")
    assert list(journal(store).events()) == []


def test_journals_of_two_deployments_are_apart() -> None:
    """Nothing of one deployment is read or written under another (Law 4)."""
    store = MemoryStore()
    journal(store).write_command(drain(), NEWEST_PROTOCOL)
    other = Journal(Cells(store, FakeClock()), "orders", "d-00010")
    assert other.commands() == []
    assert list(other.events()) == []


def test_cleaning_up_twice_is_cleaning_up_once() -> None:
    """Absence is success (Law 2)."""
    own = journal()
    own.write_command(drain(), NEWEST_PROTOCOL)
    (slot,) = own.commands()
    own.delete_command(slot)
    own.delete_command(slot)
    assert own.commands() == []


def test_only_new_events_are_fetched() -> None:
    """Whoever has read up to a number asks for what is new."""
    store = MemoryStore()
    own = journal(store)
    for n in range(1, 6):
        own.append(noted(str(n)))
    plan = FaultPlan()
    assert [entry.number for entry in journal(FaultyStore(store, plan)).events(after=3)] == [4, 5]
    assert [call.method for call in plan.calls] == ["list_objects", "get", "get"]


def test_the_number_after_is_taken_at_one_write() -> None:
    """The one writer of the events, who knows the last number, needs one call."""
    store = MemoryStore()
    journal(store).append(noted("first"))
    plan = FaultPlan()
    assert journal(FaultyStore(store, plan)).append(noted("second"), after=1) == 2
    assert [call.method for call in plan.calls] == ["create"]


def test_a_part_of_the_events_says_how_many_are_left() -> None:
    """The next part continues after it."""
    own = journal()
    for number in range(5):
        own.append(noted(f"{number}", f"w-{number}"))
    found, left = own.some_events(1, 3)
    assert ([entry.number for entry in found], left) == ([2, 3, 4], 1)
    found, left = own.some_events(4, 3)
    assert ([entry.number for entry in found], left) == ([5], 0)


@pytest.mark.parametrize("name", ["1", "0001", "000000001", "x", "a/00000001", "00000001.json"])
def test_what_has_no_key_of_an_event_is_not_read(name: str) -> None:
    """Nor counted when a number is chosen: files that nobody of ours wrote."""
    store = MemoryStore()
    store.put(f"{layout.events_prefix('orders', 'd-0001')}{name}.json", b"{}")
    own = journal(store)
    assert list(own.events()) == []
    assert own.append(noted("a")) == 1
    assert [entry.number for entry in own.events()] == [1]


def test_events_beyond_the_digits_of_a_key_come_in_their_order() -> None:
    """A key of nine digits sorts before one of eight."""
    own = journal()
    for number in (99_999_998, 99_999_999, 100_000_000):
        own.append(noted(str(number), str(number)), after=number - 1)
    assert [entry.number for entry in own.events(99_999_998)] == [99_999_999, 100_000_000]
    assert [entry.number for entry in own.events(99_999_999)] == [100_000_000]
