"""The store that fails on purpose does what its plan prescribes, and only that."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.errors import ConflictError, ObjectExistsError, OutcomeUnknownError, UnavailableError
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore
from support.faulty_store import KILL_POINTS, Call, Fault, FaultPlan, FaultyStore, SimulatedCrash


def life(store: FaultyStore) -> None:
    """One call of every method."""
    version = store.create("a", b"1")
    store.replace("a", b"2", version)
    store.put("b/c", b"3")
    store.get("a")
    store.head("a")
    list(store.list_objects("b/"))
    store.list_folders("")
    store.copy("a", "d")
    store.link("a", "e")
    store.delete("d")


LIFE = [
    (1, "create", "a"),
    (2, "replace", "a"),
    (3, "put", "b/c"),
    (4, "get", "a"),
    (5, "head", "a"),
    (6, "list_objects", "b/"),
    (7, "list_folders", ""),
    (8, "copy", "d"),
    (9, "link", "e"),
    (10, "delete", "d"),
]
READS = range(4, 8)


def state_after(calls: int) -> dict[str, bytes]:
    """What the given number of first calls of a life leaves."""
    inner = MemoryStore()
    if calls < len(LIFE):
        with pytest.raises(SimulatedCrash):
            life(FaultyStore(inner, FaultPlan({calls + 1: Fault.CRASH_BEFORE})))
    else:
        life(FaultyStore(inner))
    return state_of(inner)


def state_of(inner: MemoryStore) -> dict[str, bytes]:
    return {info.key: inner.get(info.key).body for info in inner.list_objects("")}


def test_every_call_is_counted() -> None:
    """Reads and writes are numbered from 1 in their order, with method and target key."""
    store = FaultyStore(MemoryStore("home"))
    life(store)
    assert store.calls == LIFE
    assert [call.number for call in store.plan.writes] == [1, 2, 3, 8, 9, 10]
    assert store.plan.calls[3] == Call(4, "get", "a", writes=False)
    assert store.uri == "memory://home"


@pytest.mark.parametrize("number", range(1, len(LIFE) + 1))
@pytest.mark.parametrize("fault", KILL_POINTS)
def test_a_sweep_strikes_each_call_at_each_point(fault: Fault, number: int) -> None:
    """Struck before, the call did not happen; struck after, or with its reply lost, it did."""
    inner = MemoryStore()
    store = FaultyStore(inner, FaultPlan({number: fault}))
    expected = SimulatedCrash
    if fault is Fault.REPLY_LOST:
        expected = UnavailableError if number in READS else OutcomeUnknownError
    with pytest.raises(expected):
        life(store)
    assert store.calls == LIFE[:number]
    assert state_of(inner) == state_after(number - 1 if fault is Fault.CRASH_BEFORE else number)


def test_the_dead_do_nothing_more() -> None:
    """After its crash an actor can call nothing, in no ``finally`` and on no store of its plan; others can.

    No handler of errors stops a crash.
    """
    assert not issubclass(SimulatedCrash, Exception)
    inner = MemoryStore()
    plan = FaultPlan({1: Fault.CRASH_AFTER})
    store, other_store = FaultyStore(inner, plan), FaultyStore(MemoryStore(), plan)

    def act() -> None:
        try:
            store.put("a", b"1")
        finally:
            store.delete("a")

    for dead in (act, lambda: other_store.get("a"), lambda: plan.run("launch", "key", lambda: None, writes=True)):
        with pytest.raises(SimulatedCrash):
            dead()
    assert len(plan.calls) == 1
    assert FaultyStore(inner).get("a").body == b"1"


def test_a_lost_refusal_is_lost_too() -> None:
    """A conflict whose reply is lost looks like any lost reply, and an actor that dies there dies."""
    inner = MemoryStore()
    inner.put("a", b"theirs")
    for fault, expected in ((Fault.REPLY_LOST, OutcomeUnknownError), (Fault.CRASH_AFTER, SimulatedCrash)):
        with pytest.raises(expected):
            FaultyStore(inner, FaultPlan({1: fault})).create("a", b"mine")
    with pytest.raises(ObjectExistsError):
        FaultyStore(inner).create("a", b"mine")


def test_half_a_write_is_no_object(tmp_path: Path) -> None:
    """A write cut in half leaves a temporary file on a disk, which no listing shows, and nothing in memory."""
    disk, memory = LocalStore(tmp_path, fsync=False), MemoryStore()
    for inner in (disk, memory):
        store = FaultyStore(inner, FaultPlan(at_write={1: Fault.HALF_WRITTEN}))
        with pytest.raises(UnavailableError, match="the disk is full"):
            store.put("f/a", b"0123456789")
        assert list(inner.list_objects("")) == []
        store.put("f/a", b"whole")
        assert inner.get("f/a").body == b"whole"
    halves = [path for path in (tmp_path / "f").iterdir() if path.name != "a"]
    assert [path.read_bytes() for path in halves] == [b"01234"]


def test_others_can_act_in_the_middle_of_a_pause() -> None:
    """What happens in the meantime happens just before the call: a zombie wakes up to a changed world. (Law 4)"""
    inner = MemoryStore()
    version = inner.create("register", b"1")
    zombie = FaultyStore(inner, FaultPlan(meanwhile={1: lambda: inner.replace("register", b"successor", version)}))
    with pytest.raises(ConflictError):
        zombie.replace("register", b"zombie", version)
    assert inner.get("register").body == b"successor"


def test_a_listing_is_one_call_when_it_is_asked_for() -> None:
    """Reading a listing to its end, or not at all, counts the same."""
    store = FaultyStore(MemoryStore())
    store.put("a", b"")
    listing = store.list_objects("")
    store.put("b", b"")
    assert [info.key for info in listing] == ["a"]
    assert [method for _, method, _ in store.calls] == ["put", "list_objects", "put"]
