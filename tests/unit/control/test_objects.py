"""Records and registers: created once, or changed by compare-and-swap (Laws 4 and 8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from airflow_streamstate.control.objects import (
    AT_ONCE_TRIES,
    EDIT_TRIES,
    READ_BACK,
    Cells,
    Memory,
    Register,
    Remembered,
    check_owner,
)
from airflow_streamstate.errors import (
    ConflictError,
    MalformedMessageError,
    ObjectExistsError,
    OutcomeUnknownError,
    UnavailableError,
    UnsupportedVersionError,
    VersionConflictError,
)
from airflow_streamstate.protocol.codec import to_bytes
from airflow_streamstate.protocol.positions import Heartbeat
from airflow_streamstate.protocol.records import StreamRegister
from airflow_streamstate.store.base import StoredObject
from airflow_streamstate.store.memory import MemoryStore
from support.fake_clock import FakeClock
from support.faulty_store import Fault, FaultPlan, FaultyStore

AT = datetime(2026, 3, 1, tzinfo=timezone.utc)
KEY = "orders/stream.json"


def register(token: int = 1, write_id: str = "w-1") -> StreamRegister:
    return StreamRegister("orders", token, f"d-{token:04d}", 1, "run", None, write_id, AT, "me")


def cells(store: MemoryStore | FaultyStore | None = None) -> Cells:
    return Cells(store or MemoryStore(), FakeClock())


def with_faults(inner: MemoryStore, **faults: object) -> tuple[Cells, FaultPlan]:
    plan = FaultPlan(**faults)  # type: ignore[arg-type]
    return cells(FaultyStore(inner, plan)), plan


# records


def test_a_record_is_created_once() -> None:
    """The second creator learns that it is not the first, and changes nothing (Law 4)."""
    home = cells()
    home.create(KEY, register(1, "first"))
    with pytest.raises(ObjectExistsError):
        home.create(KEY, register(2, "second"))
    stored = home.read(KEY, StreamRegister)
    assert stored is not None
    assert stored.value.write_id == "first"


def lost_before_it_landed(inner: MemoryStore, rival: StreamRegister | None) -> FaultyStore:
    """A store whose first write does not land and is reported as unknown; a rival may come right after it."""

    class Losing(FaultyStore):
        def create(self, key: str, body: bytes) -> str:
            return self._lose_once(lambda: super(Losing, self).create(key, body), key)

        def replace(self, key: str, body: bytes, version: str) -> str:
            return self._lose_once(lambda: super(Losing, self).replace(key, body, version), key)

        def _lose_once(self, act: Callable[[], str], key: str) -> str:
            if not self.plan.calls:
                self.plan.run("lost", key, lambda: "", writes=True)
                if rival is not None:
                    inner.put(key, to_bytes(rival))
                raise OutcomeUnknownError("the store did not say whether the write landed", key=key)
            return act()

    return Losing(inner, FaultPlan())


def written(store: MemoryStore | FaultyStore, how: str, value: StreamRegister, version: str) -> str:
    """Create or replace."""
    home = cells(store)
    return home.create(KEY, value) if how == "create" else home.replace(KEY, value, version)


def before(inner: MemoryStore, how: str) -> str:
    """The version that a replace is based on."""
    return "" if how == "create" else cells(inner).create(KEY, register())


HOW = pytest.mark.parametrize("how", ["create", "replace"])


@HOW
def test_a_write_whose_reply_was_lost_is_read_back(how: str) -> None:
    """It landed, so it was a success; nothing is written twice, and it is not taken for a rival's (Law 8)."""
    inner, plan = MemoryStore(), FaultPlan(at_write={1: Fault.REPLY_LOST})
    version = before(inner, how)
    assert inner.replace(KEY, b"x", written(FaultyStore(inner, plan), how, register(2, "own"), version))
    assert [call.method for call in plan.calls] == [how, "get"]


@HOW
def test_a_write_that_did_not_land_is_done_again(how: str) -> None:
    """Read back, not there: written again, once (Law 8)."""
    inner = MemoryStore()
    version = before(inner, how)
    written(lost_before_it_landed(inner, None), how, register(2, "own"), version)
    stored = cells(inner).read(KEY, StreamRegister)
    assert stored is not None
    assert stored.value.write_id == "own"


@HOW
def test_a_write_that_lost_its_reply_and_the_race_is_a_loss(how: str) -> None:
    """Another writer's bytes are there: read again, decide again (Law 8)."""
    inner = MemoryStore()
    version = before(inner, how)
    with pytest.raises(ConflictError, match="another writer"):
        written(lost_before_it_landed(inner, register(2, "rival")), how, register(2, "own"), version)


@HOW
def test_a_write_that_landed_late_is_a_success(how: str) -> None:
    """The first try lands after it was looked for and before the second: its own bytes are no rival's (Law 8)."""
    inner, own = MemoryStore(), register(2, "own")
    version = before(inner, how)
    store = lost_before_it_landed(inner, None)
    store.plan.meanwhile[3] = lambda: inner.put(KEY, to_bytes(own))  # 1 lost, 2 read back, 3 the second try
    written(store, how, own, version)
    assert [call.method for call in store.plan.calls] == ["lost", "get", how, "get"]


@HOW
def test_a_rival_that_comes_before_the_second_try_wins(how: str) -> None:
    """Its bytes are there, and the writer learns that (Law 8)."""
    inner = MemoryStore()
    version = before(inner, how)
    store = lost_before_it_landed(inner, None)
    store.plan.meanwhile[3] = lambda: inner.put(KEY, to_bytes(register(2, "rival")))
    with pytest.raises(ConflictError):
        written(store, how, register(2, "own"), version)


def test_an_outcome_that_stays_unknown_is_said_after_bounded_tries() -> None:
    """Neither a success nor a loss is invented; the error reports what was last seen (Laws 6 and 8)."""
    home, plan = with_faults(
        MemoryStore(), at_write={1: Fault.REPLY_LOST}, at=dict.fromkeys(range(2, 100), Fault.UNAVAILABLE)
    )
    with pytest.raises(OutcomeUnknownError) as caught:
        home.create(KEY, register())
    assert "does not answer" in str(caught.value.context["last_seen"])
    assert len(plan.calls) == 1 + (READ_BACK.tries or 0)


def test_reading_back_is_tried_again() -> None:
    """A store that does not answer for a moment does not leave the outcome unknown (Law 8)."""
    home, _ = with_faults(MemoryStore(), at_write={1: Fault.REPLY_LOST}, at={2: Fault.UNAVAILABLE})
    assert home.create(KEY, register())


def test_a_refusal_is_no_unknown_outcome() -> None:
    """What was not done is reported as it is, and not tried again here."""
    home, plan = with_faults(MemoryStore(), at_write={1: Fault.NO_SPACE})
    with pytest.raises(UnavailableError):
        home.create(KEY, register())
    assert len(plan.calls) == 1


# registers


def test_of_two_writers_one_wins() -> None:
    """Both read the same register, both replace it: the second learns that it was late (Law 4)."""
    home = cells()
    version = home.create(KEY, register())
    home.replace(KEY, register(2, "a"), version)
    with pytest.raises(VersionConflictError):
        home.replace(KEY, register(2, "b"), version)
    stored = home.read(KEY, StreamRegister)
    assert stored is not None
    assert stored.value.write_id == "a"


def test_a_register_that_is_gone_is_not_replaced() -> None:
    """Replacing is not creating."""
    with pytest.raises(VersionConflictError):
        cells().replace(KEY, register(), "some version")


# what is there


def edited(cells: Cells, by: str | None = "ada") -> Register[StreamRegister]:
    """The register of the stream, absent at first."""
    return Register(cells, KEY, StreamRegister, lambda: register(0, "absent"), by)


def bumped(now: StreamRegister) -> StreamRegister:
    """One more than there is."""
    return replace(now, fencing_token=now.fencing_token + 1)


def test_an_update_begins_a_register_and_signs_each_write() -> None:
    """Each write has its own id, with its writer and time where the register has them. (Law 8)"""
    home = cells()
    first = edited(home).update(bumped)
    second = edited(home, by=None).update(bumped)
    assert (first.value.fencing_token, first.value.updated_by) == (1, "ada")
    assert (second.value.fencing_token, second.value.updated_by) == (2, "ada")
    assert len({"absent", first.value.write_id, second.value.write_id}) == 3
    assert edited(home).read() == second


def test_what_an_edit_leaves_unchanged_is_not_written() -> None:
    """Also of a register that is absent."""
    home = cells()
    assert edited(home).update(lambda now: now).value.write_id == "absent"
    assert edited(home).read() is None
    first = edited(home).update(bumped)
    assert edited(home).update(lambda now: now) == first


def test_an_edit_that_comes_too_late_is_made_again() -> None:
    """On what the other writer has left; what is based on an older state is not written at all. (Law 4)"""
    home = cells()
    before = edited(home).update(bumped)
    rivals = iter(range(2))

    def late(now: StreamRegister) -> StreamRegister:
        if next(rivals, None) is not None:
            edited(home).update(bumped)
        return bumped(now)

    assert edited(home).update(late).value.fencing_token == before.value.fencing_token + 3
    with pytest.raises(VersionConflictError):
        edited(home).update(bumped, since=before)


def test_an_edit_whose_outcome_is_unknown_finds_its_own_work() -> None:
    """The write has landed, without another writer: it is not made twice. (Law 8)"""
    inner = MemoryStore()
    home = cells(inner)
    edited(home).update(bumped)
    late, _ = with_faults(inner, at_write={1: Fault.REPLY_LOST})
    assert edited(late).update(lambda now: replace(now, attempt=7)).value.attempt == 7


def test_writers_that_never_stop_end_an_update_by_name() -> None:
    """After bounded tries, the first few of them at once; nothing was changed. (Law 6)"""
    home = cells()

    def racing(now: StreamRegister) -> StreamRegister:
        edited(home).update(bumped)
        return replace(now, attempt=7)

    edited(home).update(bumped)
    began = home.clock.monotonic_seconds()
    with pytest.raises(UnavailableError, match="other writers keep changing this register"):
        edited(home).update(racing, tries=AT_ONCE_TRIES)
    assert home.clock.monotonic_seconds() == began
    with pytest.raises(UnavailableError):
        edited(home).update(racing)
    assert home.clock.monotonic_seconds() > began
    found = edited(home).read()
    assert found is not None
    assert (found.value.attempt, found.value.fencing_token) == (1, 1 + AT_ONCE_TRIES + EDIT_TRIES)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", to_bytes(Heartbeat("orders", "d-0001", 1, AT, {}))],
    ids=["empty", "cut", "list", "other"],
)
def test_what_is_no_register_is_malformed(body: bytes) -> None:
    """Damaged or another kind: refused with the key, never guessed (Law 7)."""
    store = MemoryStore()
    store.put(KEY, body)
    with pytest.raises(MalformedMessageError) as caught:
        cells(store).read(KEY, StreamRegister)
    assert caught.value.context["key"] == KEY


def test_what_a_newer_release_wrote_is_refused() -> None:
    """Not half understood, and not overwritten: a swap reads first (Law 7)."""
    store = MemoryStore()
    store.put(KEY, to_bytes(register(), protocol=2))
    with pytest.raises(UnsupportedVersionError):
        cells(store).read(KEY, StreamRegister)


def test_what_belongs_elsewhere_is_refused() -> None:
    """A register copied from another stream is not this stream's (Law 7)."""
    store = MemoryStore()
    store.put(KEY, to_bytes(register()))
    assert cells(store).read(KEY, StreamRegister, stream_id="orders") is not None
    with pytest.raises(MalformedMessageError, match="belongs elsewhere") as caught:
        cells(store).read(KEY, StreamRegister, stream_id="other")
    assert caught.value.context == {"key": KEY, "stream_id": "orders", "expected_stream_id": "other"}
    with pytest.raises(MalformedMessageError):
        check_owner(register(), KEY, fencing_token=7)


def test_of_a_beacon_the_last_write_wins() -> None:
    """Whatever is there, damaged or not, is written over."""
    store = MemoryStore()
    store.put(KEY, b"damaged")
    for attempt in (1, 2):
        cells(store).put(KEY, Heartbeat("orders", "d-0001", attempt, AT, {}))
    stored = cells(store).read(KEY, Heartbeat)
    assert stored is not None
    assert stored.value.attempt == 2


def test_a_listed_object_is_read_once_for_each_version() -> None:
    """Where the listing reports versions; one that was written again is read again."""
    store = MemoryStore()
    first, memory = register(1, "first"), Memory()
    Cells(store, FakeClock()).create(KEY, first)
    (info,) = store.list_objects(KEY)
    reader = Cells(store, FakeClock(), memory)
    assert reader.listed(info, StreamRegister) == first
    unreachable = Cells(
        FaultyStore(store, FaultPlan(dict.fromkeys(range(100), Fault.UNAVAILABLE))), FakeClock(), memory
    )
    assert unreachable.listed(info, StreamRegister) == first
    second = register(2, "second")
    reader.replace(KEY, second, info.version)
    (info,) = store.list_objects(KEY)
    assert reader.listed(info, StreamRegister) == second
    assert reader.listed(replace(info, version=""), StreamRegister) == second


def test_a_listed_object_that_is_gone_is_none() -> None:
    """And nothing is remembered of it."""
    store = MemoryStore()
    Cells(store, FakeClock()).create(KEY, register())
    (info,) = store.list_objects(KEY)
    store.delete(KEY)
    assert cells(store).listed(info, StreamRegister) is None


def test_what_was_set_longest_ago_is_forgotten() -> None:
    """Setting a value again keeps it; reading it does not."""
    memory: Remembered[str, int] = Remembered(2)
    memory["a"], memory["b"], memory["a"] = 1, 2, 3
    assert memory["b"] == 2
    memory["c"] = 4
    assert dict(memory) == {"a": 3, "c": 4}


def test_what_could_not_be_decoded_is_not_decoded_again() -> None:
    """Of one version: one that was written again is read. (Law 7)"""
    good = to_bytes(register())
    reader = cells(MemoryStore())
    for body in (b"{", good):  # a version never has other bytes: if it had, this would show a second decoding
        with pytest.raises(MalformedMessageError, match="not what its key states") as refused:
            reader.decoded(StoredObject(KEY, body, "1"), StreamRegister)
        assert refused.value.context["reason"] == "not JSON (JSONDecodeError)"
    assert reader.decoded(StoredObject(KEY, good, "2"), StreamRegister) == register()
    assert reader.decoded(StoredObject(KEY, good, "2"), StreamRegister) == register()
