"""Run as a program: launches, and is killed at the k-th act that leaves a trace, for every k.

Usage: ``launch_crash.py BASE launcher|leader``. For each k the launch happens in a fork, under ``BASE/<k>``; Python's
audit events report what is about to happen (a file opened for writing, linked, renamed, a process started), and at the
k-th the fork kills itself. With ``leader`` the launcher dies when it starts the leading process, and that one is killed
at its k-th act. Prints one line ``k event`` per kill on stderr, and ends when no k-th act was left.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.launch import detached
from airflow_streamstate.launch.interface import LaunchRequest
from airflow_streamstate.launch.local import LocalLauncher
from airflow_streamstate.launch.processes import MARKER
from support.launches import COUNT_START, launch_request

ACTS = ("os.mkdir", "os.link", "os.rename", "os.remove", "os.exec", "subprocess.Popen")
WRITING = os.O_WRONLY | os.O_RDWR


def kill_at(turn: int, base: Path, acts: tuple[str, ...] = ACTS) -> None:
    """Kill this process just before its ``turn``-th act on something below ``base``."""
    seen = 0
    answer = os.dup(2)  # the leading process sends its own stderr to the driver's log

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        is_write = event == "open" and isinstance(arguments[2], int) and bool(arguments[2] & WRITING)
        if event not in acts and not (is_write and acts is ACTS):
            return
        if str(base) not in str(arguments):
            return
        seen += 1
        if seen == turn:
            os.write(answer, f"{turn} {event}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def launch(request: LaunchRequest, turn: int) -> None:
    """Launch, and die at that act of the launcher."""
    kill_at(turn, Path(request.folder))
    LocalLauncher(SYSTEM_CLOCK).launch(request)


def lead(request: LaunchRequest, turn: int) -> None:
    """Become the driver where a launcher was about to start it, and die at that act of the leading process."""
    folder = Path(request.folder)
    in_fork(lambda: (kill_at(1, folder, ("subprocess.Popen",)), LocalLauncher(SYSTEM_CLOCK).launch(request)))
    os.environ.update({**request.environment, MARKER: str(folder)})
    kill_at(turn, folder)
    command = ["/bin/sh", str(folder / "lead.sh"), str(folder), *(request.spark_submit or ())]
    detached.become(str(folder), request.log_path, (folder / "intent.json").read_text(), command)


def in_fork(act: Callable[[], object]) -> int:
    """Do it in a child, and return how that ended: 0 if it came through."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
        finally:
            os._exit(0)
    return os.waitpid(pid, 0)[1]


def main() -> None:
    root, which = Path(sys.argv[1]), {"launcher": launch, "leader": lead}[sys.argv[2]]
    for turn in range(1, 1000):
        base = root / str(turn)
        base.mkdir(parents=True)
        request = launch_request(base, COUNT_START + "sleep 300")
        (base / "request.json").write_text(json.dumps(request.to_json()))
        if which is lead:
            # The last turn becomes the driver itself and does not end: it is ended by the test.
            pid = os.fork()
            if pid == 0:
                lead(request, turn)
                os._exit(1)
            if not killed_itself(pid, base):
                return
        elif in_fork(lambda request=request, turn=turn: launch(request, turn)) == 0:
            return


def killed_itself(pid: int, base: Path) -> bool:
    """Wait until that child has killed itself, or has become the driver."""
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.WIFSIGNALED(status)
        if (base / "starts").exists():
            return False


if __name__ == "__main__":
    main()
