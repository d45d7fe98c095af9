"""Pieces that arrive in any order, given in their own."""

from __future__ import annotations

import threading

import pytest

from airflow_streamstate.snapshot.fetch import GivenUpError, InOrder


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


def test_whoever_waits_hears_of_the_end() -> None:
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
