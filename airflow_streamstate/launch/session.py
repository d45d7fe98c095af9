"""One driver's session: whether anything of it lives, and how all of it is ended.

Java, python, ``pyspark.daemon`` and its workers are several process groups of one session. What can be known depends on
where the asking process runs:

===========================================  ==========================================================================
the asking process is                        alive is told by
===========================================  ==========================================================================
in the same boot and pid namespace           members of the session under ``/proc``; else the lock on ``handle.json``
in the same boot, another pid namespace      the lock (a kernel has one lock table for all its containers)
on the same host, another boot               it is gone: nothing outlives its kernel
on another host                              nothing: unknown
===========================================  ==========================================================================
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Mapping

from airflow_streamstate.clock import Clock
from airflow_streamstate.errors import MalformedMessageError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.launch.folder import LaunchFolder
from airflow_streamstate.launch.processes import (
    Machine,
    ProcessStat,
    read_stat,
    send_signal,
    session_members,
    this_machine,
)

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
                return Life(False, "this machine has been started anew since")
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
        # Another user's process cannot be signalled; the status afterwards says that it lives.
        with contextlib.suppress(PermissionError):
            send_signal(process, number)
