"""Cheap substitutes for ``spark-submit``, requests that use them, and the processes of a launch."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from airflow_streamstate.launch.interface import Launcher, LaunchHandle, LaunchRequest, LaunchStatus
from airflow_streamstate.launch.processes import (
    MARKER,
    ProcessStat,
    all_processes,
    has_in_environment,
    read_stat,
    send_signal,
)

KEY = "d-0001-a0001"

# Every driver leaves one line here when it starts: two lines are two drivers.
COUNT_START = 'echo "$$" >> "$STARTS"\n'


def fake_spark_submit(folder: Path, body: str, name: str = "fake-submit") -> str:
    """An executable shell script; ``$STARTS`` and ``$FOLDER`` are set in it by ``launch_request``."""
    script = folder / name
    # By rename: a script that a driver is just starting cannot be written (ETXTBSY).
    fresh = folder / f"{name}.new"
    fresh.write_text(f"#!/bin/sh\n{body}\n")
    fresh.chmod(0o755)
    fresh.replace(script)
    return str(script)


def launch_request(base: Path, body: str, key: str = KEY, **changes: Any) -> LaunchRequest:
    """A request whose driver is a shell script of this body, in its own folder below ``base``."""
    application = base / "job.py"
    application.write_text("print('job')\n")
    folder = base / "launches" / key
    values: dict[str, Any] = {
        "launch_key": key,
        "application": str(application),
        "master": "local[2]",
        "folder": str(folder),
        "log_path": str(folder / "driver.log"),
        "spark_submit": (fake_spark_submit(base, body),),
        "environment": {"STARTS": str(base / "starts"), "BASE": str(base)},
    }
    return LaunchRequest(**{**values, **changes})


def starts(base: Path) -> int:
    """How many drivers have ever started."""
    path = base / "starts"
    return len(path.read_text().splitlines()) if path.exists() else 0


def wait_until(predicate: Callable[[], bool], what: str | Callable[[], str], seconds: float = 120.0) -> None:
    """Wait until it is so.

    Raises:
        AssertionError: it was not so in time.
    """
    deadline = time.monotonic() + seconds  # noqa: TID251 - real processes live in real time
    while not predicate():
        assert time.monotonic() < deadline, (  # noqa: TID251
            f"waited {seconds} s for: {what() if callable(what) else what}"
        )
        time.sleep(0.02)  # noqa: TID251


def wait_for_end(launcher: Launcher, handle: LaunchHandle, seconds: float = 120.0) -> LaunchStatus:
    """The status once the driver has ended."""
    wait_until(lambda: launcher.status(handle).has_ended, f"the end of {handle}", seconds)
    return launcher.status(handle)


def living_processes(folder: str) -> list[ProcessStat]:
    """Every living process that was started by the launch of this folder, whatever session it is in by now."""
    return [s for s in all_processes() if s.is_alive and has_in_environment(s.pid, f"{MARKER}={folder}")]


def end_processes(folder: str) -> None:
    """End every process of this launch, and wait until they are gone."""
    end_all(lambda: living_processes(folder))


def end_all(find: Callable[[], list[ProcessStat]]) -> list[int]:
    """End every process that ``find`` finds, those forked in the meantime too, and wait until they are gone.

    One that is just ending has no environment any more, by which it would be found, and still counts as alive. Gives
    their pids.
    """
    killed: dict[int, ProcessStat] = {}
    while processes := find():
        killed.update((process.pid, process) for process in processes)
        for process in processes:
            send_signal(process, signal.SIGKILL)
    wait_until(lambda: not any(map(_lives, killed.values())), f"the end of {sorted(killed)}")
    return sorted(killed)


def _lives(process: ProcessStat) -> bool:
    """Whether it is there, and no other one that got its pid."""
    now = read_stat(process.pid)
    return now is not None and now.is_alive and now.start_ticks == process.start_ticks


@contextlib.contextmanager
def nothing_left_behind(base: Path) -> Iterator[None]:
    """End every process of the launches below ``base`` afterwards."""
    try:
        yield
    finally:
        for folder in (path for path in (base / "launches").rglob("*") if path.is_dir()):
            end_processes(str(folder))


def command_lines(folder: str) -> str:
    """The command lines of a driver and all that it started."""
    found = [Path(f"/proc/{process.pid}/cmdline") for process in living_processes(folder)]
    return "\n".join(path.read_text("utf-8", "replace") for path in found if path.exists())


def launch_and_die(request: LaunchRequest, environ: Mapping[str, str]) -> None:
    """Launch from a process that is killed as soon as ``launch`` has returned."""
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("launch_once.py")), json.dumps(request.to_json()), "linger"],
        stdout=subprocess.PIPE,
        env={**environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])},
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        os.killpg(process.pid, signal.SIGKILL)
