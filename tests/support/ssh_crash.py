"""Run as a program: launches over SSH, and is killed when the host has answered for the N-th time.

Usage: ``ssh_crash.py N REQUEST_JSON``. Exits 0 if the launch came through before that.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.launch.interface import LaunchRequest
from airflow_streamstate.launch.ssh import SshLauncher
from airflow_streamstate.launch.ssh_connection import Conversation

WORD = int(sys.argv[1])


def main() -> None:
    heard, next_word = 0, Conversation.next_word

    def dying(self: Conversation) -> dict[str, Any] | None:
        nonlocal heard
        word = next_word(self)
        heard += 1
        if heard == WORD:
            os.kill(os.getpid(), signal.SIGKILL)
        return word

    Conversation.next_word = dying  # type: ignore[method-assign]
    SshLauncher(SYSTEM_CLOCK).launch(LaunchRequest.from_json(json.loads(sys.argv[2])))


if __name__ == "__main__":
    main()
