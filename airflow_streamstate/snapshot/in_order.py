"""The pieces of one large file, which arrive in any order, given in their own; few are held at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator


class GivenUpError(Exception):
    """The file is begun anew, or nobody wants it any more: what was put of it is to go."""


class InOrder:
    """One try to bring one file.

    Args:
        changed: the lock under which all but ``pieces`` is called; told of whatever changes.
        size_bytes: of the file.
        piece_bytes: of each piece but the last.
        most_pieces: so many are under way or held.
        ask: called for each piece that may be asked for, by its first byte.
    """

    def __init__(
        self,
        changed: threading.Condition,
        size_bytes: int,
        piece_bytes: int,
        most_pieces: int,
        ask: Callable[[int], None],
    ) -> None:
        self._changed = changed
        self._starts = range(0, size_bytes, piece_bytes)
        self._unasked = iter(self._starts)
        self._most_pieces = most_pieces
        self._ask = ask
        self._held: dict[int, bytes] = {}
        self._is_given_up = False

    def begin(self) -> None:
        """Ask for the first pieces."""
        for _ in range(self._most_pieces):
            self._ask_for_one()

    def put(self, start: int, piece: bytes) -> None:
        """One has arrived."""
        self._held[start] = piece
        self._changed.notify_all()

    def give_up(self) -> None:
        """End it: whoever takes the pieces is told so."""
        self._is_given_up = True
        self._held.clear()
        self._changed.notify_all()

    def pieces(self) -> Iterator[bytes]:
        """All of them, each as soon as it is there; raises GivenUpError."""
        for start in self._starts:
            with self._changed:
                while start not in self._held and not self._is_given_up:
                    self._changed.wait()
                if self._is_given_up:
                    raise GivenUpError
                piece = self._held.pop(start)
                self._ask_for_one()
            yield piece

    def _ask_for_one(self) -> None:
        start = next(self._unasked, None)
        if start is not None:
            self._ask(start)
            self._changed.notify_all()
