"""What a fetch need not fetch."""

from __future__ import annotations

import pytest

from airflow_streamstate.snapshot.wanted import Progress, Wanted, is_there
from airflow_streamstate.store.memory import MemoryStore


class OnlyZeros:
    """Speaks against any other byte."""

    def __init__(self) -> None:
        self.seen = b""

    def update(self, data: bytes) -> None:
        self.seen += data

    def complaint(self) -> str:
        return "there is another byte" if self.seen.strip(b"\0") else ""


def test_only_what_nothing_speaks_against_is_there() -> None:
    """By its size first, then by its bytes, at the key that it goes to."""
    target, wanted = MemoryStore(), Wanted("a", 3, OnlyZeros, "b")
    assert not is_there(target, wanted)
    for body, found in ((bytes(3), True), (bytes(4), False), (b"\0x\0", False)):
        target.put("b", body)
        assert is_there(target, wanted) is found
    assert Wanted("a", 3, OnlyZeros).goes_to == "a"
    target.put("b", bytes(3))
    with pytest.raises(InterruptedError):
        is_there(target, wanted, stop)


def stop() -> None:
    """Somebody wants it to end."""
    raise InterruptedError


def test_progress_has_words() -> None:
    """For people."""
    assert Progress(3, 1, 2_000, 1_000).in_words == "1 of 3 files, 1,000 of 2,000 bytes"
