"""Bytes that come piece by piece, and the parts that they are put in."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from airflow_streamstate.store.memory import MemoryStore
from airflow_streamstate.store.transfer import MOST_PARTS, UPLOAD_PART_BYTES, Feed, in_parts, part_bytes_of, put_pieces

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
    """Begun, ended, or what the pieces raised: whoever took the parts may not say."""
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
    """All in one thread, which is not that of whoever asks, and ends with the feed."""
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
