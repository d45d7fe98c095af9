"""Turns of two actors at each call of a store or launcher, for any interleaving."""

from __future__ import annotations

from collections.abc import Sequence

from support.sim_processes import Process

NAMES = ("first", "second")
TO_THE_END = 1_000_000
LOOK_AGAIN_SECONDS = 0.25


class Turns:
    """Turns of two actors.

    Args:
        turns: (calls, seconds) of each turn, beginning with the first actor's: how many calls it makes, and how long
            both rest before. After the last one both act as they like.

    Attributes:
        ended: the actors that have no calls to make any more.
    """

    def __init__(self, turns: Sequence[tuple[int, float]]) -> None:
        self._turns = list(turns)
        self._at = 0
        self._left = self._turns[0][0] if self._turns else 0
        self._not_before = self._turns[0][1] if self._turns else 0.0
        self.ended: set[str] = set()

    def before_call(self, process: Process) -> None:
        """Let this actor, which is about to call, wait until it is its turn."""
        while not self._is_turn_of(process.name, process.clock.monotonic_seconds()):
            process.pause_until(process.clock.monotonic_seconds() + LOOK_AGAIN_SECONDS)
        self._left -= 1

    def _is_turn_of(self, name: str, now_seconds: float) -> bool:
        while self._at < len(self._turns) and (self._left <= 0 or NAMES[self._at % 2] in self.ended):
            self._at += 1
            if self._at < len(self._turns):
                self._left, pause = self._turns[self._at]
                self._not_before = now_seconds + pause
        is_over = self._at >= len(self._turns)
        return is_over or (NAMES[self._at % 2] == name and now_seconds >= self._not_before)
