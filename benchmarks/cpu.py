"""CPU time of a driver, by process and by thread, as the kernel counts it under ``/proc``.

A driver is a session: the shell that leads it, java, python, and the workers. Threads of a Python process have names
that only Python knows; a script reports them by their native ids. Java's are in ``comm``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.launch.processes import PROC, all_processes

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_UTIME, _STIME = 11, 12  # behind the name in brackets
_GATEWAY_THREAD = "Thread-"  # what serves calls from Python has this name in the JVM, and little else there has


@dataclass(frozen=True)
class CpuSample:
    """CPU seconds used up to one moment.

    Attributes:
        at_seconds: the moment, on the monotonic clock.
        java_gateway: of the JVM's threads that serve Python, by thread id.
        python_threads: of every thread of the Python driver, by thread id.
    """

    at_seconds: float
    processes: Mapping[int, float]
    java_gateway: Mapping[int, float]
    python_threads: Mapping[int, float]


def sample(session_id: int, python_pid: int) -> CpuSample:
    """Look at one driver now; what ends in the meantime is left out.

    Args:
        python_pid: the process that runs the script.
    """
    processes: dict[int, float] = {}
    java: dict[int, float] = {}
    for stat in all_processes():
        if stat.session_id != session_id or not stat.is_alive:
            continue
        processes[stat.pid] = _process_seconds(PROC / str(stat.pid))
        if _name(PROC / str(stat.pid)) == "java":
            java = {
                tid: _thread_seconds(task) for tid, task in _tasks(stat.pid) if _name(task).startswith(_GATEWAY_THREAD)
            }
    python = {tid: _thread_seconds(task) for tid, task in _tasks(python_pid)}
    return CpuSample(SYSTEM_CLOCK.monotonic_seconds(), processes, java, python)


def used_between(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """CPU seconds between two samples of the same processes or threads; those that started later count whole."""
    return sum(seconds - before.get(number, 0.0) for number, seconds in after.items())


def python_of_session(session_id: int) -> int | None:
    """The process of a session that runs the script: java's child of that name; None before it has started."""
    members = [stat for stat in all_processes() if stat.session_id == session_id and stat.is_alive]
    java = {stat.pid for stat in members if _name(PROC / str(stat.pid)) == "java"}
    for stat in members:
        if stat.parent_pid in java and not _is_worker_daemon(stat.pid):
            return stat.pid
    return None


def _is_worker_daemon(pid: int) -> bool:
    try:
        return b"pyspark.daemon" in (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return True


def _tasks(pid: int) -> list[tuple[int, Path]]:
    try:
        return [(int(path.name), path) for path in (PROC / str(pid) / "task").iterdir()]
    except OSError:
        return []


def _name(folder: Path) -> str:
    try:
        return (folder / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _thread_seconds(task: Path) -> float:
    """By ``schedstat``, in nanoseconds; the ticks of ``stat`` are too coarse for threads that do next to nothing."""
    try:
        return int((task / "schedstat").read_text().split()[0]) / 1e9
    except (OSError, ValueError, IndexError):
        return _process_seconds(task)


def _process_seconds(folder: Path) -> float:
    try:
        fields = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[_UTIME]) + int(fields[_STIME])) / _TICKS_PER_SECOND
