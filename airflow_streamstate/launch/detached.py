"""Run as a program, never imported by one: becomes the leader of a new session, once per launch folder.

Usage: ``python -I -S detached.py FOLDER LOG FACTS COMMAND…``. FACTS is the JSON object that becomes ``handle.json``
(pid and start ticks are added). Answers on stdout: ``claimed``, ``lost`` (another driver has the folder), ``error: …``.

It forks, so that the caller is never the driver's parent and gets no zombie; claims the folder; and becomes COMMAND
with the same pid. The claim is a hard link: the file is complete before it has its name, which only one can have. The
claimed file stays locked (``flock``) by an open descriptor that COMMAND inherits, so that any process that can open the
file, even in another container, can ask whether a holder lives. Standard library only, nothing of the package.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
from pathlib import Path

HANDLE = "handle.json"


def own_start_ticks() -> int:
    """Field 22 of our own stat; ``exec`` does not change it."""
    return int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19])


def claim(folder: Path, facts: dict[str, object]) -> bool:
    """Create ``handle.json``, locked and complete; False if it exists."""
    pid = os.getpid()
    # Not named after the pid: containers that share the folder have the same numbers.
    temporary = folder / f".{HANDLE}.{os.urandom(8).hex()}.tmp"
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = True
        except OSError:
            locked = False  # a file system without locks: only this pid namespace knows
        facts = {**facts, "pid": pid, "start_ticks": own_start_ticks(), "locked": locked}
        os.write(descriptor, json.dumps(facts, indent=1, sort_keys=True).encode() + b"\n")
        os.fsync(descriptor)
        os.link(temporary, folder / HANDLE)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    os.set_inheritable(descriptor, True)
    return True


def reset_signals() -> None:
    """Give COMMAND the signals of a fresh process, also those that its launcher, or Python, ignores."""
    for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGPIPE", "SIGTERM", "SIGCHLD", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def become(folder: str, log: str, facts: str, command: list[str]) -> None:
    """Claim the folder and become the command; returns only on failure."""
    answer = os.dup(1)  # not inheritable: the caller sees its end when the command has started
    try:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if not claim(Path(folder), json.loads(facts)):
            os.write(answer, b"lost")
            return
        with contextlib.suppress(OSError):  # the caller may be dead by now, which does not matter to the driver
            os.write(answer, b"claimed")
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        reset_signals()
        os.execv(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError as error:
        with contextlib.suppress(OSError):
            os.write(answer, f"error: {error}".encode())


def main() -> None:
    """Fork, and let the child become the command."""
    if os.fork() == 0:
        try:
            become(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
        finally:
            os._exit(0)
    os._exit(0)


if __name__ == "__main__":
    main()
