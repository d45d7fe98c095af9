"""What a fetch is asked for, and what it says of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from airflow_streamstate.snapshot.data import read_chunks
from airflow_streamstate.store.base import Store


class ArrivalCheck(Protocol):
    """Holds one file against what is known of it while its bytes arrive."""

    def update(self, data: bytes) -> None:
        """The next bytes."""

    def complaint(self) -> str:
        """After the last ones: what speaks against the file; "" for nothing."""


@dataclass(frozen=True)
class Wanted:
    """One object to fetch, under the same key at every place.

    Attributes:
        key: its key.
        size_bytes: exact.
        check: begins to hold the file against what is known of it; called for each try.
        target_key: its key at the target; "" for the same.
    """

    key: str
    size_bytes: int
    check: Callable[[], ArrivalCheck]
    target_key: str = ""

    @property
    def goes_to(self) -> str:
        """Its key at the target."""
        return self.target_key or self.key


@dataclass(frozen=True)
class Progress:
    """How far a fetch has come."""

    files: int
    files_done: int
    size_bytes: int
    bytes_done: int

    @property
    def in_words(self) -> str:
        """For people."""
        return f"{self.files_done} of {self.files} files, {self.bytes_done:,} of {self.size_bytes:,} bytes"


@dataclass(frozen=True)
class Fetched:
    """What a fetch did.

    Attributes:
        files, size_bytes: what was fetched; what was there already is not in it.
        dropped: places that were given up, each with why.
    """

    files: int
    size_bytes: int
    dropped: tuple[tuple[str, str], ...]


def is_there(target: Store, wanted: Wanted, go_on: Callable[[], None] = lambda: None) -> bool:
    """Whether it lies at the target already, and nothing speaks against it; ``go_on`` is called while it is read."""
    info = target.head(wanted.goes_to)
    if info is None or info.size_bytes != wanted.size_bytes:
        return False
    chunks, check = read_chunks(target, wanted.goes_to), wanted.check()
    for chunk in chunks or ():
        check.update(chunk)
        go_on()
    return chunks is not None and not check.complaint()
