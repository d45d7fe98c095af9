"""Pieces from each place that answers, verified as they arrive."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from functools import partial

import pytest

from airflow_streamstate.errors import (
    InvalidRequestError,
    OutcomeUnknownError,
    SnapshotCorruptError,
    SnapshotIncompleteError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.snapshot import copy as copying
from airflow_streamstate.snapshot.copy import CopyProgress, FileToCopy, GivenUpError, InOrder, copy, is_there
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.memory import MemoryStore
from support.asked_store import AskedStore
from support.faulty_store import Fault, FaultPlan, FaultyStore

BODIES = {f"s/data/{number}": bytes([number]) * size for number, size in enumerate((0, 1, 99, 100, 101, 1000))}


class Place(AskedStore):
    """One that has all of it."""

    def __init__(self, name: str = "first") -> None:
        super().__init__(name)
        for key, body in BODIES.items():
            self.put(key, body)


class Differs:
    """Whether it is another than this."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.found = hashlib.sha256()

    def update(self, data: bytes) -> None:
        self.found.update(data)

    def complaint(self) -> str:
        return "" if hashlib.sha256(self.body).digest() == self.found.digest() else "it is altered"


WANTED = [FileToCopy(key, len(body), partial(Differs, body)) for key, body in BODIES.items()]


@pytest.fixture(params=[1 << 20, 150], ids=["whole", "streamed"], autouse=True)
def _large_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every promise holds of a file that is held whole, and of one that is put as it comes."""
    monkeypatch.setattr(copying, "LARGE_BYTES", request.param)


def bring(places: list[Place], target: Store, **more: object) -> list[tuple[str, str]]:
    return list(copy(places, target, WANTED, batch_bytes=100, **more).dropped)  # type: ignore[arg-type]


def bodies_of(store: Store) -> dict[str, bytes]:
    return {info.key: store.get(info.key).body for info in store.list_objects("")}


def test_everything_arrives_in_pieces_from_every_place() -> None:
    """No piece is larger than was allowed, and each place gives some where the others wait for it."""
    first, second, target = Place(), Place("second"), MemoryStore()
    first_is_asked, second_is_asked = threading.Event(), threading.Event()

    def first_waits(_key: str) -> None:
        first_is_asked.set()
        assert second_is_asked.wait(20)

    def second_waits(_key: str) -> None:
        second_is_asked.set()
        assert first_is_asked.wait(20)

    first.before, second.before = first_waits, second_waits
    said: list[CopyProgress] = []
    assert bring([first, second], target, timeout_seconds=30, on_progress=said.append) == []
    assert bodies_of(target) == BODIES
    assert max(size for _, _, size in first.asked + second.asked) <= 101
    assert first.asked
    assert second.asked
    assert [progress.files_done for progress in said] == list(range(len(BODIES) + 1))
    assert said[-1].bytes_done == said[-1].size_bytes == sum(map(len, BODIES.values()))


def test_a_silent_place_is_dropped_and_named() -> None:
    """What it was asked for comes from the others. (Law 6)"""
    silent, other, target = Place(), Place("other"), MemoryStore()
    is_asked, end = threading.Event(), threading.Event()

    def hang(_key: str) -> None:
        is_asked.set()
        end.wait(60)

    silent.before, other.before = hang, lambda _key: void(is_asked.wait(20))
    try:
        dropped = bring([silent, other], target, timeout_seconds=1.0)
    finally:
        end.set()
    assert [uri for uri, _ in dropped] == ["memory://first"]
    assert "did not answer" in dropped[0][1]
    assert bodies_of(target) == BODIES


def void(_: object) -> None: ...


@pytest.mark.parametrize("error", [UnavailableError("gone"), InvalidRequestError("denied")])
def test_a_place_that_refuses_is_dropped(error: StreamStateError) -> None:
    """Whatever it refuses with; with no other place that is reported, and nothing else arrives."""
    refusing, other, target = Place(), Place("other"), MemoryStore()

    def refuse(_key: str) -> None:
        raise error

    refusing.before = refuse
    assert [uri for uri, _ in bring([refusing, other], target)] in ([], ["memory://first"])
    assert bodies_of(target) == BODIES
    empty = MemoryStore()
    with pytest.raises(UnavailableError, match="no place") as caught:
        bring([refusing], empty)
    assert error.message in str(caught.value.context["places"])
    assert bodies_of(empty) == {}


@pytest.mark.parametrize("harm", ["altered", "cut", "longer", "missing"])
def test_a_bad_copy_is_passed_over(harm: str) -> None:
    """The other place's complete copy is taken; with none, the file is named and not written."""
    key = "s/data/5"
    changes = {"altered": b"x" * 1000, "cut": BODIES[key][:-1], "longer": BODIES[key] + b"x"}
    bad, good, target = Place("bad"), Place("good"), MemoryStore()
    if harm == "missing":
        bad.delete(key)
    else:
        bad.put(key, changes[harm])
    assert bring([bad, good], target) == []
    assert bodies_of(target) == BODIES
    alone = MemoryStore()
    with pytest.raises(SnapshotIncompleteError if harm == "missing" else SnapshotCorruptError) as caught:
        bring([bad], alone)
    assert caught.value.context["key"] == key
    assert key not in bodies_of(alone)


def test_a_fetch_goes_on_where_it_was_cut_short() -> None:
    """Whole files stay and are not asked for again; a wrong one is."""
    place, target = Place(), MemoryStore()

    class CutError(Exception):
        """The process is killed here."""

    def cut(progress: CopyProgress) -> None:
        if progress.files_done == 3:
            raise CutError

    with pytest.raises(CutError):
        bring([place], target, on_progress=cut)
    target.put("s/data/4", b"x" * 101)
    there = {key for key, body in bodies_of(target).items() if body == BODIES[key]}
    place.asked.clear()
    bring([place], target)
    assert bodies_of(target) == BODIES
    assert there.isdisjoint({key for key, _, _ in place.asked})
    place.asked.clear()
    assert copy([place], target, WANTED).files == 0
    assert place.asked == []


def test_a_target_that_fails_ends_the_fetch() -> None:
    """With its own error, not with one of the places."""
    plan = FaultPlan()
    plan.every_write = Fault.NO_SPACE
    with pytest.raises(UnavailableError) as caught:
        bring([Place(), Place("second")], FaultyStore(MemoryStore(), plan))
    assert "no place" not in caught.value.message


class TestLargeFiles:
    """Those that are put as they come."""

    BODY = bytes(range(256)) * 40
    KEY = "s/data/large"

    @pytest.fixture(autouse=True)
    def _streamed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(copying, "LARGE_BYTES", 150)

    def wanted(self) -> list[FileToCopy]:
        return [FileToCopy(self.KEY, len(self.BODY), partial(Differs, self.BODY))]

    def place(self, name: str = "first", body: bytes = BODY) -> Place:
        place = Place(name)
        place.put(self.KEY, body)
        return place

    def test_few_pieces_are_held(self) -> None:
        """However large the file, no more pieces are read ahead of the target than were allowed."""
        place = self.place()
        ahead: list[int] = []

        class Slow(MemoryStore):
            """Takes one piece after the other."""

            def put_pieces(self, key: str, pieces: Iterable[bytes], size_bytes: int) -> str:
                taken = []
                for piece in pieces:
                    taken.append(piece)
                    ahead.append(len(place.asked) - len(taken))
                assert sum(map(len, taken)) == size_bytes
                return self.put(key, b"".join(taken))

        target = Slow()
        copy([place], target, self.wanted(), batch_bytes=100)
        assert target.get(self.KEY).body == self.BODY
        assert len(ahead) == -(-len(self.BODY) // 100)
        assert max(ahead) <= 2

    def test_an_altered_one_is_never_seen(self) -> None:
        """What was put of it until it was known to be altered is cleared away; then each place is asked alone."""
        altered = self.BODY[:-1] + b"x"
        bad, good, target = self.place("bad", altered), self.place("good"), Watched()
        copy([bad, good], target, self.wanted(), batch_bytes=100)
        assert target.versions == [self.BODY]
        alone = Watched()
        with pytest.raises(SnapshotCorruptError) as caught:
            copy([bad], alone, self.wanted(), batch_bytes=100)
        assert caught.value.context["key"] == self.KEY
        assert alone.versions == []

    def test_a_caller_that_gives_up_leaves_nothing(self) -> None:
        """In the middle of it: nothing is at the target, and nothing continues in the background."""
        place, target, is_asked = self.place(), Watched(), threading.Event()
        place.before = lambda _key: is_asked.set()

        class StopError(Exception):
            """The caller cancels."""

        def stop() -> None:
            if is_asked.is_set():
                raise StopError

        with pytest.raises(StopError):
            copy([place], target, self.wanted(), batch_bytes=1, go_on=stop)
        assert target.versions == []
        assert target.under_way == 0

    @pytest.mark.parametrize("is_altered", [False, True], ids=["unknown", "altered"])
    def test_what_is_over_is_not_begun_anew(self, monkeypatch: pytest.MonkeyPatch, is_altered: bool) -> None:
        """A target may answer after the end of the copy: then no thread waits for pieces."""
        monkeypatch.setattr(copying, "CLEAR_SECONDS", 0.0)
        is_taken, is_over, begun = threading.Event(), threading.Event(), list[str]()
        before = set(threading.enumerate())

        class Late(MemoryStore):
            """Answers when the fetch has ended."""

            def put_pieces(self, key: str, pieces: Iterable[bytes], size_bytes: int) -> str:
                begun.append(key)
                taken = 0
                for piece in pieces:
                    taken += len(piece)
                    if taken == size_bytes:
                        is_taken.set()
                        assert is_over.wait(20)
                raise OutcomeUnknownError("no answer")

        def stop() -> None:
            if is_taken.is_set():
                raise InterruptedError

        place = self.place(body=self.BODY[:-1] + b"x" if is_altered else self.BODY)
        with pytest.raises(InterruptedError):
            copy([place], Late(), self.wanted(), batch_bytes=100, go_on=stop)
        is_over.set()
        for thread in set(threading.enumerate()) - before:
            thread.join(5)
        assert not set(threading.enumerate()) - before
        assert begun == [self.KEY]

    def test_an_unknown_outcome_is_put_again(self) -> None:
        """The same bytes again are as good as finding out; not for ever. (Law 8)"""
        plan = FaultPlan(at_write={1: Fault.REPLY_LOST})
        target = FaultyStore(MemoryStore(), plan)
        copy([self.place()], target, self.wanted(), batch_bytes=100)
        assert target.get(self.KEY).body == self.BODY
        assert [call.method for call in plan.writes] == ["put", "put"]
        plan.every_write = Fault.REPLY_LOST
        target.inner.delete(self.KEY)
        with pytest.raises(OutcomeUnknownError):
            copy([self.place()], target, self.wanted(), batch_bytes=100)
        assert len(plan.writes) == 2 + (copying.WRITE.tries or 0)


class Watched(MemoryStore):
    """A target that reports what was ever to be seen in it, and how many files are just being put."""

    def __init__(self) -> None:
        super().__init__()
        self.versions: list[bytes] = []
        self.under_way = 0

    def put_pieces(self, key: str, pieces: Iterable[bytes], size_bytes: int) -> str:
        self.under_way += 1
        try:
            body = b"".join(pieces)
        finally:
            self.under_way -= 1
        self.versions.append(body)
        return self.put(key, body)


def begun(size_bytes: int, most_pieces: int) -> tuple[InOrder, list[int]]:
    asked: list[int] = []
    changed = threading.Condition()
    in_order = InOrder(changed, size_bytes, 10, most_pieces, asked.append)
    with changed:
        in_order.begin()
    return in_order, asked


def test_they_come_in_order_and_few_are_asked_for() -> None:
    """The next one is asked for when one is taken; the last may be short."""
    in_order, asked = begun(45, 3)
    assert asked == [0, 10, 20]
    for start in (20, 0, 10):
        with in_order._changed:
            in_order.put(start, b"%02d" % start)
    pieces = in_order.pieces()
    assert [next(pieces), next(pieces), next(pieces)] == [b"00", b"10", b"20"]
    assert asked == [0, 10, 20, 30, 40]
    with in_order._changed:
        in_order.put(40, b"40")
        in_order.put(30, b"30")
    assert list(pieces) == [b"30", b"40"]
    assert asked == [0, 10, 20, 30, 40]


def test_a_waiting_reader_hears_of_the_end() -> None:
    """Also in the middle of a wait; and nothing is given after it."""
    in_order, _ = begun(30, 2)
    heard = threading.Event()

    def wait() -> None:
        with pytest.raises(GivenUpError):
            next(in_order.pieces())
        heard.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    with in_order._changed:
        in_order.give_up()
    waiting.join(20)
    assert heard.is_set()
    with in_order._changed:
        in_order.put(0, b"late")
    with pytest.raises(GivenUpError):
        next(in_order.pieces())


class OnlyZeros:
    """Complains of any other byte."""

    def __init__(self) -> None:
        self.seen = b""

    def update(self, data: bytes) -> None:
        self.seen += data

    def complaint(self) -> str:
        return "there is another byte" if self.seen.strip(b"\0") else ""


def test_only_what_its_check_accepts_is_there() -> None:
    """By its size first, then by its bytes, at the key that it goes to."""
    target, wanted = MemoryStore(), FileToCopy("a", 3, OnlyZeros, "b")
    assert not is_there(target, wanted)
    for body, found in ((bytes(3), True), (bytes(4), False), (b"\0x\0", False)):
        target.put("b", body)
        assert is_there(target, wanted) is found
    assert FileToCopy("a", 3, OnlyZeros).goes_to == "a"
    target.put("b", bytes(3))
    with pytest.raises(InterruptedError):
        is_there(target, wanted, give_up)


def give_up() -> None:
    """The caller cancels."""
    raise InterruptedError


def test_progress_has_words() -> None:
    """Human-readable."""
    assert CopyProgress(3, 1, 2_000, 1_000).sentence == "1 of 3 files, 1,000 of 2,000 bytes"
