"""Processes and sessions under ``/proc``: which are alive, and how all of a driver is ended."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.errors import MalformedMessageError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.launch.folder import LaunchFolder

PROC = Path("/proc")
EXEC_LOOK_SECONDS = 0.001
EXEC_LOOKS = 2_000
"""An ``execve`` takes microseconds, unless the machine gives the process no time."""


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
    """The process with this pid now; None if it does not exist."""
    try:
        return parse_stat((proc / str(pid) / "stat").read_bytes().decode("latin-1"))
    except OSError:
        return None


def all_processes(proc: Path = PROC) -> Iterator[ProcessStat]:
    """Every process that this one can see; one that ends in the meantime is left out."""
    for name in os.listdir(proc):  # noqa: PTH208 - names only, hundreds of them, at every poll
        if name.isdigit() and (stat := read_stat(int(name), proc)) is not None:
            yield stat


def session_members(leader_pid: int, leader_start_ticks: int, marker: str, proc: Path = PROC) -> list[ProcessStat]:
    """The living processes of the session that this leader founded.

    The number of a session is its leader's pid, which is not reused while a member lives. So a process with that pid
    must be our leader, or the session is another's; without such a process, a member must have the marker.

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
    return os.fsencode(marker) in environment_of(pid, proc)


def environment_of(pid: int, proc: Path = PROC, clock: Clock = SYSTEM_CLOCK) -> list[bytes]:
    """Each ``NAME=value`` that the process was started with; empty if it cannot be read.

    In the middle of an ``execve`` a process has neither an environment nor a command line, though ``Popen`` has
    returned. The caller must not take it for somebody else's, so this waits until both are there.
    """
    place = proc / str(pid)
    try:
        for _ in range(EXEC_LOOKS):
            if (environ := (place / "environ").read_bytes()) or not _is_in_exec(place):
                break
            clock.sleep(EXEC_LOOK_SECONDS)
        return environ.split(b"\0")
    except OSError:
        return []


def _is_in_exec(place: Path) -> bool:
    """Whether this process has no command line yet.

    Raises:
        OSError: it has no program: it is a zombie, or a thread of the kernel.
    """
    if (place / "cmdline").read_bytes():
        return False
    (place / "exe").readlink()
    return True


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
    """An exit status as text; shells report 128 + n for a command that signal n ended."""
    if exit_code - 128 in signal.valid_signals():
        return f"it was ended by {signal.Signals(exit_code - 128).name} (exit status {exit_code})"
    return f"it ended with exit status {exit_code}"


def output_of(argv: Sequence[str], environ: Mapping[str, str], seconds: float, at_most: int) -> bytes:
    """What a program writes to stdout; b"" where it fails, takes longer, or writes more than ``at_most`` bytes."""
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
    """Call ``end`` from a separate thread if the block takes longer: it makes what the block waits for fail."""
    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


# One driver's session: whether anything of it lives, and how all of it is ended.
#
# Java, python, ``pyspark.daemon`` and its workers are several process groups of one session. What can be known
# depends on where the asking process runs:
#
# =======================================  ==========================================================================
# the asking process is                    what shows whether the session is alive
# =======================================  ==========================================================================
# in the same boot and pid namespace       members of the session under ``/proc``; else the lock on ``handle.json``
# in the same boot, another pid namespace  the lock (a kernel has one lock table for all its containers)
# on the same host, another boot           it is gone: nothing outlives its kernel
# on another host                          nothing: unknown
# =======================================  ==========================================================================

MARKER = "STREAMSTATE_LAUNCH_FOLDER"
POLL_SECONDS = 0.05
LEADER_SECONDS = 2.0
FORCE_SECONDS = 20.0


@dataclass(frozen=True)
class Life:
    """Whether something lives (None: unknown), and how that is known."""

    is_alive: bool | None
    reason: str


class Session:
    """The session that one driver's leading process founded.

    Args:
        machine: where the leader runs.
        leader_pid, leader_start_ticks: of the leader there.
        is_locked: the leader holds a lock on its handle.
    """

    def __init__(
        self, folder: LaunchFolder, machine: Machine, leader_pid: int, leader_start_ticks: int, *, is_locked: bool
    ) -> None:
        self._folder = folder
        self._machine = machine
        self._leader_pid = leader_pid
        self._leader_start_ticks = leader_start_ticks
        self._is_locked = is_locked

    @classmethod
    def from_facts(cls, folder: LaunchFolder, facts: Mapping[str, object]) -> Session:
        """The session that a handle's data names.

        Raises:
            MalformedMessageError: it names none.
        """
        pid, ticks = facts.get("pid"), facts.get("start_ticks")
        if not isinstance(pid, int) or not isinstance(ticks, int) or pid <= 1:
            raise MalformedMessageError("this handle names no process", folder=str(folder.path))
        machine = Machine(**{name: str(facts.get(name, "")) for name in ("host", "boot_id", "pid_namespace")})
        return cls(folder, machine, pid, ticks, is_locked=facts.get("locked") is True)

    @property
    def is_ours(self) -> bool:
        """Whether its pids have the same meaning here."""
        here = this_machine()
        return (here.boot_id, here.pid_namespace) == (self._machine.boot_id, self._machine.pid_namespace)

    def is_alive(self) -> Life:
        here = this_machine()
        if here.boot_id != self._machine.boot_id or not here.boot_id:
            if here.boot_id and self._machine.boot_id and here.host == self._machine.host:
                return Life(False, "this machine has been restarted since")
            return Life(None, f"it runs on another machine ({self._machine.host})")
        if here.pid_namespace == self._machine.pid_namespace:
            leader = read_stat(self._leader_pid)
            if leader is not None and leader.is_alive and leader.start_ticks == self._leader_start_ticks:
                return Life(True, f"pid {self._leader_pid}")
            members = self.members()
            if members:
                return Life(True, f"its leading shell has ended, but other processes of it run: {len(members)}")
        elif not self._is_locked:
            return Life(None, f"it runs in another container ({self._machine.host})")
        return self._by_lock(here)

    def _by_lock(self, here: Machine) -> Life:
        held = self._folder.is_held() if self._is_locked else False
        if held:
            return Life(True, "a process that cannot be seen from here holds its lock")
        if held is None and here.pid_namespace != self._machine.pid_namespace:
            return Life(None, f"it runs in another container ({self._machine.host})")
        return Life(False, "all its processes have ended without an exit status: it was killed")

    def members(self) -> list[ProcessStat]:
        """Its living processes."""
        return session_members(self._leader_pid, self._leader_start_ticks, f"{MARKER}={self._folder.path}")

    def end(self, clock: Clock, grace_seconds: float) -> None:
        """End all of it: TERM to the leader's group, ``grace_seconds`` to end by itself, then KILL to every member.

        The leader is forced last, so that it can still write the exit status. Returns after the end, or FORCE_SECONDS
        after the grace (a process may hang in the kernel).
        """
        deadline = clock.monotonic_seconds() + max(0.0, grace_seconds)
        if grace_seconds > 0:
            _send([member for member in self.members() if member.group_id == self._leader_pid], signal.SIGTERM)
        while clock.monotonic_seconds() < deadline:
            if not self.members():
                return
            clock.sleep(POLL_SECONDS)
        self._force(clock)

    def _force(self, clock: Clock) -> None:
        began = clock.monotonic_seconds()
        alone_since: float | None = None
        while clock.monotonic_seconds() < began + FORCE_SECONDS:
            members = self.members()
            if not members:
                return
            followers = [member for member in members if member.pid != self._leader_pid]
            if followers:
                alone_since = None
                _send(followers, signal.SIGKILL)
            else:
                alone_since = clock.monotonic_seconds() if alone_since is None else alone_since
                if clock.monotonic_seconds() >= alone_since + LEADER_SECONDS:
                    _send(members, signal.SIGKILL)
            clock.sleep(POLL_SECONDS)


def _send(processes: list[ProcessStat], number: signal.Signals) -> None:
    for process in processes:
        # Another user's process cannot be signalled; the status afterwards shows that it lives.
        with contextlib.suppress(PermissionError):
            send_signal(process, number)
