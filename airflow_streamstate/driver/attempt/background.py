"""Work beside the agent's own, in threads of which nobody waits for longer than he says."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

LOWEST_PRIORITY = 19


class InBackground(Protocol):
    """Does something, and returns at once."""

    def __call__(self, work: Callable[[], None], *, gives_way: bool = True) -> None:
        """Do ``work``; where it gives way, everything else in the driver comes first."""


def in_daemon_thread(work: Callable[[], None], *, gives_way: bool = True) -> None:
    """Do it in a daemon thread of its own; returns at once.

    Args:
        work: what to do.
        gives_way: at the lowest priority. Not for what somebody waits for: under a full load of Spark's such a thread
            hardly runs, and may be holding the interpreter's lock while it does not.
    """

    def run() -> None:
        if gives_way:
            with suppress(OSError):
                # On Linux a thread has a priority of its own, under its native id.
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
        work()

    threading.Thread(target=run, name="streamstate-background", daemon=True).start()
