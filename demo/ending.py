"""The end of a run by a signal: it starts once, however often the signal comes."""

from __future__ import annotations

import signal
from types import FrameType


class Ending:
    """Whether a signal has asked this process to end.

    The first SIGINT, SIGTERM or SIGHUP raises ``KeyboardInterrupt``. Further ones change nothing, so that they do not
    interrupt the end: a terminal and tox both hand on a Ctrl-C.
    """

    def __init__(self) -> None:
        self.is_asked = False

    def on_signals(self) -> None:
        """Take these signals from now on."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        if not self.is_asked:
            self.is_asked = True
            raise KeyboardInterrupt
