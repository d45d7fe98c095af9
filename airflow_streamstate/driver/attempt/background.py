"""Work in background threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

LOWEST_PRIORITY = 19


class InBackground(Protocol):
    """Runs work in the background and returns at once."""

    def __call__(self, work: Callable[[], None], *, gives_way: bool = True) -> None: ...


def in_daemon_thread(work: Callable[[], None], *, gives_way: bool = True) -> None:
    """Run ``work`` in a daemon thread, at the lowest priority if it ``gives_way``.

    Work that another thread waits for must not give way: under full load such a thread hardly runs, and may hold the
    interpreter's lock meanwhile.
    """

    def run() -> None:
        if gives_way:
            with suppress(OSError):
                # Linux gives each thread a priority, under its native id.
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
        work()

    threading.Thread(target=run, name="streamstate-background", daemon=True).start()
