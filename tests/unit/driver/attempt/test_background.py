"""Background threads."""

from __future__ import annotations

import os
import threading

from airflow_streamstate.driver.attempt.attempt import LOWEST_PRIORITY, in_daemon_thread


def test_background_work_gives_way_to_everything_else() -> None:
    """Sealing takes no time from the queries; work that a drain waits for keeps its priority."""
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
