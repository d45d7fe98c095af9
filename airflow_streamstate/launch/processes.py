"""Processes as Linux shows them under ``/proc``: which are alive or of a session, and signals to exactly one of them.

The kernel reuses pids. Pid and start ticks together name one process of one boot; ``boot_id`` names the boot, and the
pid namespace the numbering.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from airflow_streamstate.frozen import dataclass

PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessStat:
    """One process at one moment, from ``/proc/<pid>/stat``.

    Attributes:
        state: the kernel's letter: R, S, D, T, Z, X, …
        start_ticks: when it started, in clock ticks since boot (field 22).
    """

    pid: int
    state: str
    parent_pid: int
    group_id: int
    session_id: int
    start_ticks: int

    @property
    def is_alive(self) -> bool:
        """False for a zombie, although ``kill(pid, 0)`` succeeds on it."""
        return self.state not in ("Z", "X", "x")


def parse_stat(text: str) -> ProcessStat | None:
    """The process of one ``/proc/<pid>/stat``; None for another text.

    The name, in brackets, may hold brackets and newlines: fields are counted from the last ``)``.
    """
    head, bracket, tail = text.rpartition(")")
    fields = tail.split()
    pid = head.partition(" ")[0]
    if not bracket or not pid.isdigit() or len(fields) < 20:
        return None
    try:
        return ProcessStat(
            pid=int(pid),
            state=fields[0],
            parent_pid=int(fields[1]),
            group_id=int(fields[2]),
            session_id=int(fields[3]),
            start_ticks=int(fields[19]),
        )
    except ValueError:
        return None


def read_stat(pid: int, proc: Path = PROC) -> ProcessStat | None:
    """The process with this pid now; None if there is none."""
    try:
        return parse_stat((proc / str(pid) / "stat").read_bytes().decode("latin-1"))
    except OSError:
        return None


def all_processes(proc: Path = PROC) -> Iterator[ProcessStat]:
    """Every process that this one can see; one that ends meanwhile is left out."""
    for name in os.listdir(proc):  # noqa: PTH208 - names only, hundreds of them, at every poll
        if name.isdigit() and (stat := read_stat(int(name), proc)) is not None:
            yield stat


def session_members(leader_pid: int, leader_start_ticks: int, marker: str, proc: Path = PROC) -> list[ProcessStat]:
    """The living processes of the session that this leader founded.

    The number of a session is its leader's pid, which is not reused while a member lives. So a process with that pid
    must
    be our leader, or the session is another's; without such a process, a member must have the marker.

    Args:
        leader_pid: pid, group and session number of the leader.
        leader_start_ticks: when the leader started.
        marker: ``NAME=value`` that every process of the session has in its environment.
    """
    seen = list(all_processes(proc))
    leader = next((stat for stat in seen if stat.pid == leader_pid), None)
    members = [stat for stat in seen if stat.session_id == leader_pid and stat.is_alive]
    if leader is not None:
        return members if leader.start_ticks == leader_start_ticks else []
    return [
        stat
        for stat in members
        if stat.start_ticks >= leader_start_ticks and has_in_environment(stat.pid, marker, proc)
    ]


def has_in_environment(pid: int, marker: str, proc: Path = PROC) -> bool:
    """Whether the process was started with this ``NAME=value`` in its environment; False if it cannot be read."""
    try:
        return os.fsencode(marker) in (proc / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def send_signal(process: ProcessStat, number: signal.Signals) -> bool:
    """Signal exactly this process, never another one that got its pid. False if it has ended already.

    Raises:
        PermissionError: it belongs to another user.
    """
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        # Only now it is certain which process the descriptor names: a new one with this pid has other start ticks.
        now = read_stat(process.pid)
        if now is None or now.start_ticks != process.start_ticks:
            return False
        signal.pidfd_send_signal(descriptor, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Machine:
    """What pids refer to: the host's name, the kernel's boot and the pid namespace."""

    host: str
    boot_id: str
    pid_namespace: str


def this_machine(proc: Path = PROC) -> Machine:
    """The machine that this process runs on; unreadable parts are ""."""
    try:
        boot_id = (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot_id = ""
    try:
        namespace = str((proc / "self/ns/pid").readlink())
    except OSError:
        namespace = ""
    import socket

    return Machine(host=socket.gethostname(), boot_id=boot_id, pid_namespace=namespace)


def exit_sentence(exit_code: int) -> str:
    """An exit status in words; shells report 128 + n for a command that signal n ended."""
    if exit_code - 128 in signal.valid_signals():
        return f"it was ended by {signal.Signals(exit_code - 128).name} (exit status {exit_code})"
    return f"it ended with exit status {exit_code}"


def output_of(argv: Sequence[str], environ: Mapping[str, str], seconds: float, at_most: int) -> bytes:
    """What a program writes to stdout; b"" where it fails, takes longer, or writes more than so many bytes."""
    import subprocess

    try:
        process = subprocess.Popen(
            list(argv),
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return b""

    def end() -> None:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)

    with ended_after(seconds, end), process:
        found = process.stdout.read(at_most + 1) if process.stdout is not None else b""
        if len(found) > at_most:
            end()
    return found if process.returncode == 0 and len(found) <= at_most else b""


@contextmanager
def ended_after(seconds: float, end: Callable[[], object]) -> Iterator[None]:
    """Call ``end`` from a thread of its own where the block takes longer: it makes what the block waits for fail."""
    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
