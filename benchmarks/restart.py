"""From a driver's death to its successor's first commit: under ``watch``, and in a bare loop around ``spark-submit``.

The same script over the same files, killed with -9 in the middle of its work. The bare loop knows the death at once,
since the driver is its child.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.launch.processes import all_processes, send_signal
from benchmarks.flights import link_some
from benchmarks.jobs_at_work import BareRun
from benchmarks.pairs import Way, measure_pairs
from benchmarks.results import BenchmarkError, Result
from benchmarks.session import Session
from benchmarks.streams import POLL_SECONDS, Streams

NAME = "restart"
SCRIPT = "delays_by_week.py"
QUERY = "delays"
WARM_BATCHES = 3
FILES = 100
RUN_SECONDS = 120.0
GOAL = 1.2
POLICY = {"on_failure": "restart", "initial_backoff_seconds": 0, "max_restarts": 100}
_SHELL = "from airflow_streamstate.cli.main import main; main()"


def run(session: Session) -> list[Result]:
    """Measure pairs."""
    folder = session.folder / NAME
    link_some(session.flights(), folder / "flights", FILES)

    def watched(number: int) -> float:
        place = folder / f"watched-{number}"
        with Streams.on_disk(place / "home") as streams, _watching(place):
            running = streams.deploy("delays", SCRIPT, *_arguments(folder, place))
            streams.controller.details.change_restart_policy("delays", POLICY)
            commits = running.checkpoint_path(QUERY) / "commits"
            _wait(lambda: _last(commits) >= WARM_BATCHES, "the first batches")
            session_id = running.session_id()
            return _seconds_to_next(commits, lambda: _kill_session(session_id))

    def bare(number: int) -> float:
        place = folder / f"bare-{number}"
        place.mkdir()
        commits = place / "delays.checkpoint" / "commits"
        words = SCRIPT, _arguments(folder, place)
        first = BareRun(*words, place / "first.log")
        with first:
            _wait(lambda: _last(commits) >= WARM_BATCHES, "the first batches")
            before = _last(commits)
            began = SYSTEM_CLOCK.monotonic_seconds()
        with BareRun(*words, place / "second.log"):  # the first one is dead by now
            _wait(lambda: _last(commits) > before, "the first batch of the successor")
            return SYSTEM_CLOCK.monotonic_seconds() - began

    ours = Way("death to first commit under watch", watched)
    return [measure_pairs(session, NAME, ours, Way("in a loop around spark-submit", bare), GOAL)]


def _arguments(folder: Path, place: Path) -> tuple[str, ...]:
    return (
        "--input", str(folder / "flights"), "--output", str(place / "delays"), "--max-files-per-trigger", "1",
        "--every-seconds", "1",
    )  # fmt: skip


@contextmanager
def _watching(place: Path) -> Iterator[None]:
    """``streamstate watch`` in a separate process."""
    environ = {**os.environ, "STREAMSTATE_HOME": str(place / "home"), "PYTHONPATH": os.pathsep.join(sys.path)}
    place.mkdir(parents=True, exist_ok=True)
    with (place / "watch.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-c", _SHELL, "watch"], stdout=log, stderr=log, env=environ)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=60)


def _seconds_to_next(commits: Path, kill: Callable[[], None]) -> float:
    """From the kill to the next commit."""
    before = _last(commits)
    began = SYSTEM_CLOCK.monotonic_seconds()
    kill()
    _wait(lambda: _last(commits) > before, "the first batch of the successor")
    return SYSTEM_CLOCK.monotonic_seconds() - began


def _kill_session(session_id: int | None) -> None:
    if session_id is None:
        raise BenchmarkError("the driver's processes could not be found")
    for stat in all_processes():
        if stat.session_id == session_id and stat.is_alive:
            send_signal(stat, signal.SIGKILL)


def _last(commits: Path) -> int:
    """The last committed batch; -1 before the first one."""
    names = (path.name for path in commits.iterdir()) if commits.is_dir() else ()
    return max((int(name) for name in names if name.isdigit()), default=-1)


def _wait(is_there: Callable[[], bool], what: str) -> None:
    until = SYSTEM_CLOCK.monotonic_seconds() + RUN_SECONDS
    while not is_there():
        if SYSTEM_CLOCK.monotonic_seconds() > until:
            raise BenchmarkError(f"{what} was not there after {RUN_SECONDS:.0f} s")
        SYSTEM_CLOCK.sleep(POLL_SECONDS)
