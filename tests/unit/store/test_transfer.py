"""Many acts side by side: their order, their first failure, and those that come again."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from airflow_streamstate.errors import InvalidRequestError, ObjectMissingError, UnavailableError
from airflow_streamstate.store import transfer
from airflow_streamstate.store.base import ListsKeys, ReadsRanges, Store
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore
from airflow_streamstate.store.transfer import (
    MOST_PARTS,
    PIECE_BYTES,
    UPLOAD_PART_BYTES,
    Feed,
    in_parts,
    in_rounds,
    keys_below,
    part_bytes_of,
    pieces_of,
    put_pieces,
    read_range,
    side_by_side,
    until_done,
)

DEADLINE_SECONDS = 20


def test_results_come_in_order() -> None:
    """However the acts overlap, each result is at its act's place."""
    together = threading.Barrier(4)

    def act(number: int) -> int:
        together.wait(DEADLINE_SECONDS)  # so four of them run at once
        return number

    assert side_by_side([partial(act, number) for number in range(8)], threads=4) == list(range(8))
    assert side_by_side([]) == []


def test_after_a_failure_nothing_goes_on() -> None:
    """Acts that had not started never start, and the failure comes when all that had have ended."""
    begun: list[int] = []
    failing = threading.Event()

    def act(number: int) -> None:
        begun.append(number)
        if number == 0:
            failing.set()
            raise InvalidRequestError("no")
        assert failing.wait(DEADLINE_SECONDS)

    with pytest.raises(InvalidRequestError):
        side_by_side([partial(act, number) for number in range(1000)], threads=2)
    assert len(begun) < 1000
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("streamstate-s3")]


def test_what_outlasts_its_tries_comes_again() -> None:
    """Of many, some fail: these are done in another round, and none is done twice that was done."""
    done: list[int] = []
    failing = {3, 7, 11}

    def act(number: int) -> int:
        if number in failing:
            failing.remove(number)
            raise UnavailableError("not now")
        done.append(number)
        return number

    assert in_rounds([partial(act, number) for number in range(20)]) == list(range(20))
    assert sorted(done) == list(range(20))


def test_a_round_that_gets_nothing_done_is_the_last() -> None:
    """A server that is gone ends it after one more round. (Law 6)"""
    calls: list[int] = []

    def act(number: int) -> None:
        calls.append(number)
        if number:
            raise UnavailableError("gone")

    with pytest.raises(UnavailableError):
        in_rounds([partial(act, number) for number in range(3)])
    assert calls.count(0) == 1


NAMES = ["a-b", "a.b", "a/b", "a/b-c/d", "a/b.c", "a0", "ab", "é", ".dot/x", "A"]


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return LocalStore(tmp_path, fsync=False) if request.param == "local" else MemoryStore()


@pytest.mark.parametrize("prefix", ["", "a", "a/", "a/b", ".dot/", "none/"])
def test_they_are_the_keys_of_the_listing(store: Store, prefix: str) -> None:
    """With each store, in the same order, whether it lists names by themselves or not."""
    for name in NAMES:
        store.put(name, b"x")
    assert keys_below(store, prefix) == [info.key for info in store.list_objects(prefix)]
    assert keys_below(store, prefix) == sorted(name for name in NAMES if name.startswith(prefix))


def test_a_prefix_that_climbs_out_is_refused(store: Store) -> None:
    """As by the listing itself."""
    with pytest.raises(InvalidRequestError):
        keys_below(store, "../")


def test_on_a_disk_no_file_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many versions of a state are listed by their names alone; pipes and other programs' odd names are left out."""
    store = LocalStore(tmp_path, fsync=False)
    store.put("state/1.delta", b"x")
    os.mkfifo(tmp_path / "state/pipe")
    (tmp_path / "state/a\nb").write_text("")
    (tmp_path / "state/.~streamstate-left").write_text("")
    assert isinstance(store, ListsKeys)
    monkeypatch.setattr(os, "stat", lambda *_, **__: pytest.fail("looked at a file"))
    assert keys_below(store, "state/") == ["state/1.delta"]


def test_a_store_that_cannot_is_read_whole(tmp_path: Path) -> None:
    """The same bytes as from one that can."""
    stores = [MemoryStore(), LocalStore(tmp_path, fsync=False)]
    assert [isinstance(store, ReadsRanges) for store in stores] == [False, True]
    for store in stores:
        store.put("a", b"0123456789")
        assert read_range(store, "a", 3, 4) == b"3456"
        assert read_range(store, "b", 0, 1) is None


BODY = bytes(range(256))


@pytest.mark.parametrize("piece_bytes", [1, 7, 64, 100, 300])
@pytest.mark.parametrize("part_bytes", [1, 50, 64, 256, 1000])
def test_parts_are_of_one_size(piece_bytes: int, part_bytes: int) -> None:
    """Whatever the sizes of the pieces: the same bytes, and only the last part is smaller."""
    parts = list(in_parts((BODY[at : at + piece_bytes] for at in range(0, 256, piece_bytes)), part_bytes))
    assert b"".join(parts) == BODY
    assert [len(part) for part in parts[:-1]] == [part_bytes] * (-(-256 // part_bytes) - 1)


def test_no_object_has_too_many_parts() -> None:
    """The parts of a very large one are larger; S3 takes 5 TiB in 10,000 of them."""
    assert part_bytes_of(UPLOAD_PART_BYTES + 1) == UPLOAD_PART_BYTES
    for size_bytes in (MOST_PARTS * UPLOAD_PART_BYTES + 1, 5 * 1024**4):
        assert -(-size_bytes // part_bytes_of(size_bytes)) <= MOST_PARTS


def test_any_store_takes_pieces() -> None:
    """One that holds everything anyway is given them as one."""
    store = MemoryStore()
    assert put_pieces(store, "a", iter([b"12", b"", b"3"]), 3) == store.get("a").version
    assert store.get("a").body == b"123"


def test_a_feed_tells_what_became_of_it() -> None:
    """Started, ended, or what the pieces raised: the client library may not report which."""
    with Feed([b"12", b"3"], 2) as feed:
        assert not feed.is_begun
        assert next(feed) == b"12"
        assert (feed.is_begun, feed.is_ended) == (True, False)
        assert list(feed) == [b"3"]
    assert (feed.is_ended, feed.failure) == (True, None)
    error = RuntimeError("gone")

    def broken() -> Iterator[bytes]:
        yield b"1"
        raise error

    with Feed(broken(), 10) as failing, pytest.raises(RuntimeError):
        next(failing)
    assert (failing.is_ended, failing.failure) == (False, error)


def test_the_pieces_of_a_feed_are_made_elsewhere() -> None:
    """All in one thread, which is not the caller's, and ends with the feed."""
    makers = list[threading.Thread]()

    def pieces() -> Iterator[bytes]:
        for _ in range(3):
            makers.append(threading.current_thread())
            yield b"12"

    with Feed(pieces(), 2) as feed:
        assert list(feed) == [b"12"] * 3
    assert len(set(makers)) == 1
    assert makers[0] is not threading.current_thread()
    assert not makers[0].is_alive()


def test_the_caller_is_called_until_the_task_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Again and again; then comes the result, or what the task or the caller raised."""
    monkeypatch.setattr(transfer, "LOOK_SECONDS", 0.001)
    end = threading.Event()
    told: list[int] = []

    def go_on() -> None:
        told.append(1)
        if len(told) == 3:
            end.set()

    with ThreadPoolExecutor(1) as pool:
        assert until_done(pool.submit(end.wait, 20), go_on) is True
        assert len(told) >= 3
        with pytest.raises(ZeroDivisionError):
            until_done(pool.submit(lambda: 1 // 0), go_on)
        end.clear()

        def give_up() -> None:
            raise InterruptedError

        with pytest.raises(InterruptedError):
            until_done(pool.submit(end.wait, 20), give_up)
        end.set()


@pytest.mark.parametrize("size", [0, 3, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES])
def test_an_object_is_read_in_pieces_the_last_of_which_is_smaller(tmp_path: Path, size: int) -> None:
    """So that a reader knows the end, also of one that is some whole pieces long."""
    for store in (MemoryStore(), LocalStore(tmp_path)):
        body = bytes(size)
        store.put("a", body)
        pieces = list(pieces_of(store, "a"))
        assert b"".join(pieces) == body
        assert [len(piece) == PIECE_BYTES for piece in pieces] == [True] * (size // PIECE_BYTES) + [False]


def test_pieces_of_nothing_are_an_error() -> None:
    """An empty object is something."""
    with pytest.raises(ObjectMissingError):
        list(pieces_of(MemoryStore(), "a"))
