"""Threads beside the agent's own."""

from __future__ import annotations

import os
import threading

from airflow_streamstate.driver.attempt.background import LOWEST_PRIORITY, in_daemon_thread


def test_background_work_gives_way_to_everything_else() -> None:
    """Sealing a snapshot takes no time from the queries; what a drain waits for is not kept from running by them."""
    seen: list[int] = []
    done = threading.Event()

    def work() -> None:
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        done.set()

    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    in_daemon_thread(work)
    assert done.wait(20)
    assert seen == [LOWEST_PRIORITY]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own
    done.clear()
    in_daemon_thread(work, gives_way=False)
    assert done.wait(20)
    assert seen == [LOWEST_PRIORITY, own]
