"""Whether a home is there: by its record, by a driver's own claim; and whether this version reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from airflow_streamstate.control.presence import SEEN_SECONDS, GuardedHome, HomePresence
from airflow_streamstate.errors import (
    HomeAwayError,
    HomeFormatError,
    HomeNotFoundError,
    ObjectExistsError,
    ObjectMissingError,
    ReadOnlyError,
    StoreRefusedError,
    StreamStateError,
    UnavailableError,
    VersionConflictError,
)
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import NEWEST_PROTOCOL, OLDEST_PROTOCOL, encoded, to_bytes
from airflow_streamstate.protocol.records import Claim
from airflow_streamstate.protocol.signing import SigningKeys
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore
from support.fake_clock import FakeClock
from support.faulty_store import Fault, FaultPlan, FaultyStore, SimulatedCrash
from support.simulated_driver import STREAM, SimulatedStream
from support.vanishing_store import Absence, VanishingStore

Act = Callable[[Store], object]
READS: tuple[Act, ...] = (
    lambda store: store.get("a/b"),
    lambda store: store.head("a/b"),
    lambda store: list(store.list_objects("a/")),
    lambda store: store.list_folders("a"),
)
WRITES: tuple[Act, ...] = (
    lambda store: store.create("a/new", b"1"),
    lambda store: store.put("a/b", b"1"),
    lambda store: store.replace("a/b", b"1", "any"),
    lambda store: store.copy("a/b", "a/c"),
    lambda store: store.link("a/b", "a/c"),
    lambda store: store.delete("a/b"),
)


def claim_of(stream: SimulatedStream, launch_key: str = "d-0001-a0001") -> Claim:
    return Claim(STREAM, "d-0001", 1, launch_key, "host", 7, 3, 3, "0.1.0", stream.clock.new_uuid(), stream.clock.now())


@pytest.mark.parametrize("act", READS)
def test_nothing_is_absent_in_a_home_that_is_not_there(act: Act) -> None:
    """To a process that has never seen it: there is no home. To one that has: it is away. In a home: absent it is."""
    clock, store = FakeClock(), VanishingStore(MemoryStore())
    with pytest.raises(HomeNotFoundError):
        act(GuardedHome(HomePresence(store, clock)))
    presence = HomePresence(store, clock)
    presence.begin("tests")
    assert act(GuardedHome(presence)) in (None, [])
    store.vanish("unmounted")
    clock.sleep(SEEN_SECONDS)
    with pytest.raises(HomeAwayError):
        act(GuardedHome(presence))
    store.come_back()
    assert act(GuardedHome(presence)) in (None, [])


@pytest.mark.parametrize("act", WRITES)
@pytest.mark.parametrize("absence", ["unmounted", "renamed"])
def test_nothing_is_written_where_no_home_is(act: Act, absence: str) -> None:
    """No write makes a home, whichever it is."""
    clock, store = FakeClock(), VanishingStore(MemoryStore())
    with pytest.raises(HomeNotFoundError):
        act(GuardedHome(HomePresence(store, clock)))
    presence = HomePresence(store, clock)
    presence.begin("tests")
    store.vanish("unmounted" if absence == "unmounted" else "renamed")
    clock.sleep(SEEN_SECONDS)
    with pytest.raises(HomeAwayError):
        act(GuardedHome(presence))
    assert store.left_in_its_place() == []


def test_a_folder_is_looked_at_before_every_write(tmp_path: Path) -> None:
    """On a disk that costs nothing: not even the first write after an unmount lands in the empty mount point."""
    root, clock = tmp_path / "home", FakeClock()
    presence = HomePresence(LocalStore(root, makes_root=False, clock=clock), clock)
    presence.begin("tests")
    guarded = GuardedHome(presence)
    guarded.put("a/b", b"1")
    for makes_mount_point in (False, True):
        root.rename(tmp_path / "elsewhere")
        if makes_mount_point:
            root.mkdir()
        for act in WRITES:
            with pytest.raises(HomeAwayError):
                act(guarded)
        assert root.exists() is makes_mount_point
        if makes_mount_point:
            assert list(root.iterdir()) == []
            root.rmdir()
        (tmp_path / "elsewhere").rename(root)
        guarded.put("a/b", b"2")


def test_conflicts_are_believed_in_a_home_only() -> None:
    """A version that is gone, or a source that is missing, may be a home that vanished in between. (Law 8)"""
    clock, store = FakeClock(), VanishingStore(MemoryStore())
    presence = HomePresence(store, clock)
    presence.begin("tests")
    guarded = GuardedHome(presence)
    guarded.put("a/b", b"1")
    for act, error in (
        (lambda: guarded.replace("a/b", b"2", "another"), VersionConflictError),
        (lambda: guarded.copy("a/missing", "a/c"), ObjectMissingError),
        (lambda: guarded.create("a/b", b"2"), ObjectExistsError),
    ):
        with pytest.raises(error):
            act()
    version = store.head("a/b")
    assert version is not None
    store.vanish("unmounted")  # the home was seen a moment ago
    with pytest.raises(HomeAwayError):
        guarded.replace("a/b", b"2", version.version)
    with pytest.raises(HomeAwayError):
        guarded.copy("a/b", "a/c")


def test_access_that_is_taken_is_a_home_that_is_away() -> None:
    """To a process that had it. To a first one it is reported as a mistake; so is one object that is refused."""
    clock, store = FakeClock(), VanishingStore(MemoryStore())
    presence = HomePresence(store, clock)
    presence.begin("tests")
    store.vanish("refused")
    clock.sleep(SEEN_SECONDS)
    for act in READS:
        with pytest.raises(HomeAwayError, match="permission denied"):
            act(GuardedHome(presence))
        with pytest.raises(StoreRefusedError):
            act(GuardedHome(HomePresence(store, clock)))
    store.come_back()
    inner = GuardedHome(presence)
    presence.home = store
    refusing = RefusingOne(store)
    one = HomePresence(refusing, clock)
    with pytest.raises(StoreRefusedError):
        GuardedHome(one).get("a/b")
    assert inner.get("a/b") is None


class RefusingOne(VanishingStore):
    """A store in which one object may not be read."""

    def get(self, key: str):  # type: ignore[no-untyped-def]
        if key == "a/b":
            raise StoreRefusedError("permission denied", key=key)
        return super().get(key)


@pytest.mark.parametrize("act", [*READS, *WRITES])
@pytest.mark.parametrize("protocol", [OLDEST_PROTOCOL - 1, NEWEST_PROTOCOL + 1])
def test_nothing_is_read_or_written_in_a_home_of_another_protocol(act: Act, protocol: int) -> None:
    """One sentence names both, and the home is as it was. (Law 7)"""
    clock, store = FakeClock(), MemoryStore()
    HomePresence(store, clock).begin("tests")
    plain = json.loads(store.get(layout.home_key()).body)  # type: ignore[union-attr]
    store.put(layout.home_key(), encoded({**plain, "protocol": protocol}))
    before = {info.key: store.get(info.key) for info in store.list_objects("")}
    for presence in (HomePresence(store, clock), HomePresence(store, clock, is_expected=True)):
        with pytest.raises(HomeFormatError, match="written by another version") as refused:
            act(GuardedHome(presence))
        assert refused.value.context["protocol"] == protocol
        with pytest.raises(HomeFormatError):
            presence.begin("tests")
    assert {info.key: store.get(info.key) for info in store.list_objects("")} == before


def test_a_home_of_a_newer_version_is_not_asked_for_its_signature() -> None:
    """What is signed, and how, is among what another version may do in another way. (Law 7)"""
    clock, store = FakeClock(), MemoryStore()
    keys = SigningKeys.parse("k" * 40, "tests")
    store.put(layout.home_key(), encoded({"kind": "HomeRecord", "protocol": NEWEST_PROTOCOL + 1}))
    with pytest.raises(HomeFormatError):
        HomePresence(store, clock, keys=keys).need()


def test_streams_without_a_record_of_their_home_are_refused() -> None:
    """A register is enough, or the record of a deployment whose register is lost; what Spark makes again is not. The
    error has a record that can be written by hand. (Laws 4 and 7)"""
    stream = SimulatedStream()
    store = stream.checkpoints
    store.put(f"{STREAM}/deployments/d-0001/checkpoints/counts/offsets/1", b"v1")
    store.put(f"{STREAM}/deployments/d-0001/heartbeat.json", b"{}")
    assert not HomePresence(store, stream.clock).is_there()
    stream.deploy()
    store.delete(layout.home_key())
    for _ in range(2):
        presence = HomePresence(store, stream.clock)
        for act in (presence.is_there, presence.need, partial(presence.begin, "tests")):
            with pytest.raises(HomeFormatError, match="has streams and no record") as refused:
                act()
        store.delete(layout.register_key(STREAM))
    assert store.get(layout.home_key()) is None
    store.put(layout.home_key(), str(refused.value.context["record"]).encode())
    assert HomePresence(store, stream.clock).is_there()


def test_streams_of_another_version_without_a_record_get_none_to_write_by_hand() -> None:
    """What was written in another format stays unread, and untouched. (Law 7)"""
    store = MemoryStore()
    store.put(layout.register_key(STREAM), encoded({"kind": "StreamRegister", "protocol": OLDEST_PROTOCOL - 1}))
    with pytest.raises(HomeFormatError, match="written by another version") as refused:
        HomePresence(store, FakeClock()).need()
    assert "record" not in refused.value.context


def test_a_reader_that_meets_the_first_deploy_finds_the_home() -> None:
    """The deploy writes the record before all else, perhaps after the reader has looked for it. (Law 4)"""
    stream = SimulatedStream()
    stream.deploy()
    record = stream.checkpoints.get(layout.home_key())
    assert record is not None
    stream.checkpoints.delete(layout.home_key())

    class Begun(MemoryStore):
        def list_folders(self, prefix: str) -> list[str]:
            stream.checkpoints.put(layout.home_key(), record.body)
            return super().list_folders(prefix)

    store = Begun()
    store.__dict__.update(stream.checkpoints.__dict__)
    assert HomePresence(store, stream.clock).is_there()


@pytest.mark.parametrize("fault", [Fault.CRASH_AFTER, Fault.REPLY_LOST])
def test_a_home_is_begun_once(fault: Fault) -> None:
    """By two at once, after a lost reply, or twice: one record, of the first. (Laws 2 and 8)"""
    inner = MemoryStore()
    store = FaultyStore(inner, FaultPlan(at_write={1: fault}))
    with pytest.raises(SimulatedCrash) if fault is Fault.CRASH_AFTER else nullcontext():
        HomePresence(store, FakeClock()).begin("one")
    found = inner.get(layout.home_key())
    assert found is not None
    HomePresence(inner, FakeClock()).begin("another")
    assert inner.get(layout.home_key()) == found
    assert b'"one"' in found.body


@pytest.mark.parametrize("absence", ["unmounted", "renamed"])
def test_no_home_is_begun_where_one_was(absence: Absence) -> None:
    """Not by a process that has worked with it, nor where a stream was read in it. (Laws 5 and 14)"""
    clock, inner = FakeClock(), MemoryStore()
    HomePresence(inner, clock).begin("tests")
    store = VanishingStore(inner)
    known = HomePresence(store, clock)
    assert known.is_there()
    store.vanish(absence)
    with pytest.raises(HomeAwayError):
        known.begin("tests")
    with pytest.raises(HomeNotFoundError):
        HomePresence(store, clock).begin("tests", has_stream=True)
    assert store.left_in_its_place() == []
    store.come_back()
    known.begin("tests")
    assert known.record_id() is not None


def test_a_driver_knows_its_home_by_record_or_claim() -> None:
    """Another record is another home, be it of a different version, unless its own claim is there (the record was
    removed by hand, and another was written); without a record its claim decides. (Law 4)"""
    stream = SimulatedStream()
    store, control = stream.checkpoints, stream.control
    control.presence.begin("tests")
    stream.deploy()
    claim = claim_of(stream)
    control.create_claim(claim)
    control.presence.bind(claim)
    assert control.presence.is_there()
    own = store.get(layout.home_key())
    assert own is not None
    store.delete(layout.home_key())
    assert control.presence.is_there()
    for protocol in (OLDEST_PROTOCOL - 1, NEWEST_PROTOCOL):
        store.put(layout.home_key(), encoded({**json.loads(own.body), "home_id": "another", "protocol": protocol}))
        assert control.presence.is_there()
    key = layout.claim_key(STREAM, "d-0001", 1)
    store.put(key, to_bytes(replace(claim, write_id="another's")))
    assert not control.presence.is_there()
    with pytest.raises(HomeAwayError, match="the home is not there"):
        control.presence.need()


@pytest.mark.parametrize("body", [b"", b"{", b'{"kind": "Claim", "protocol": 999}'])
def test_a_damaged_claim_is_not_another_drivers(body: bytes) -> None:
    """It was there, and proves nothing about a different home; one that is gone does. (Law 7)"""
    stream = SimulatedStream()
    stream.deploy()
    claim, control = claim_of(stream), stream.control
    control.create_claim(claim)
    stream.checkpoints.delete(layout.home_key())
    control.presence.bind(claim)
    key = layout.claim_key(STREAM, "d-0001", 1)
    stream.checkpoints.put(key, body)
    assert control.presence.has_own_claim()
    assert control.presence.is_there()
    stream.checkpoints.delete(key)
    assert not control.presence.has_own_claim()
    assert not control.presence.is_there()


def test_a_record_that_cannot_be_read_is_a_record() -> None:
    """It was there, and does not distinguish a driver's home from any other. (Law 7)"""
    stream = SimulatedStream()
    stream.deploy()
    stream.checkpoints.put(layout.home_key(), b"{")
    assert HomePresence(stream.checkpoints, stream.clock).is_there()
    claim = claim_of(stream)
    stream.control.create_claim(claim)
    control = stream.control
    control.presence.bind(claim)
    assert control.presence.is_there()
    stream.checkpoints.delete(layout.claim_key(STREAM, "d-0001", 1))
    assert not control.presence.is_there()


def test_what_was_written_before_and_is_refused_now_may_be_written_again() -> None:
    """A disk that became read-only under a process: to one that has written, the home is away."""
    clock, store = FakeClock(), VanishingStore(MemoryStore())
    presence = HomePresence(store, clock)
    presence.begin("tests")
    fresh, known = GuardedHome(HomePresence(store, clock)), GuardedHome(presence)
    known.put("a/b", b"1")
    store.vanish("read_only")
    with pytest.raises(ReadOnlyError):
        fresh.put("a/b", b"2")
    with pytest.raises(HomeAwayError, match="read-only"):
        known.put("a/b", b"2")


def test_a_store_that_does_not_answer_is_no_home_that_is_gone() -> None:
    """It proves nothing about the home."""
    store = FaultyStore(MemoryStore(), FaultPlan(at={1: Fault.UNAVAILABLE}))
    with pytest.raises(UnavailableError) as told:
        HomePresence(store, FakeClock()).need()
    assert not isinstance(told.value, HomeAwayError)
    assert isinstance(told.value, StreamStateError)
