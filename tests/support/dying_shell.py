"""Run as a program: ``streamstate`` with a controller that is killed at every stage and then run again.

Usage: ``dying_shell.py BASE WORDS…``. Each try is a separate process. Python's audit events report what is about to be
made durable below ``BASE`` (a name given by a link or a rename, a file deleted, a process started); at the first such
act at which no earlier try died, the try kills itself by SIGKILL. So each act is once the one that did not happen, and
the one before it the last that did. The answer of the try that got through goes to stdout, its status is the exit
status; each death is a line on stderr.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path

from airflow_streamstate.cli.main import run
from airflow_streamstate.store.base import TEMPORARY_PREFIX

ACTS = {"os.link": 1, "os.rename": 1, "os.remove": 0, "subprocess.Popen": 0}
"""The acts that leave something, and which of their arguments is the place."""
MAX_TRIES = 500
DEATH = "died at "


def die_at_a_new_act(base: str, deaths: set[str]) -> None:
    """Kill this process at its first act below ``base`` at which no earlier one died; the n-th of a kind is its own."""
    seen: Counter[str] = Counter()

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if event not in ACTS or base not in str(arguments):
            return
        place = "" if event == "subprocess.Popen" else os.path.relpath(str(arguments[ACTS[event]]), base)
        if Path(place).name.startswith(TEMPORARY_PREFIX) or place.endswith(".tmp"):
            return  # a write on its way does not count
        seen[f"{event} {place}"] += 1
        act = f"{event} {place} {seen[f'{event} {place}']}"
        if act not in deaths:
            os.write(2, f"{DEATH}{act}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def main() -> None:
    base, words = os.path.realpath(sys.argv[1]), sys.argv[2:]
    os.environ.pop("PYTHONPATH", None)  # it led here; a driver that is launched has only what travels
    deaths: set[str] = set()
    for _ in range(MAX_TRIES):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            os.dup2(writing, 2)
            die_at_a_new_act(base, deaths)
            status = run(words)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            said = pipe.read()
        sys.stderr.write(said)
        sys.stderr.flush()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status != -signal.SIGKILL:
            sys.exit(status)
        deaths |= {line.removeprefix(DEATH) for line in said.splitlines() if line.startswith(DEATH)}
    sys.exit(f"it died {MAX_TRIES} times")


if __name__ == "__main__":
    main()
