"""``verify`` of 1 GB, against ``cat`` of the same files to nowhere, both from the disk and not from the page cache.

The snapshot is of written files, each with Spark's checksums. It is read sealed, as snapshots are some time after they
were taken, and unsealed, when every checksum of Spark's is computed, too. What is in the page cache is dropped before
each reading. A reading that has to wait for the disk needs less CPU than that takes: so its CPU is reported, too.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from statistics import median

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.protocol import layout
from airflow_streamstate.snapshot.verify import seal, verify
from airflow_streamstate.store.local import LocalStore
from benchmarks.results import BenchmarkError, Goal, Number, Result, Side
from benchmarks.session import Session
from benchmarks.written_state import DEPLOYMENT, QUERY, WrittenState

NAME = "verify"
STREAM, SNAPSHOT = "orders", "d-0001-live-000001"
FILES, QUICK_FILES = 100, 20
ROUNDS, QUICK_ROUNDS = 5, 3
GOAL_RATIO = 0.8
CORES = 2


def run(session: Session) -> list[Result]:
    """Write and capture the state once, then read it in turns."""
    bench = _Bench(session.folder / NAME, QUICK_FILES if session.quick else FILES)
    rounds = []
    for number in range(1, (QUICK_ROUNDS if session.quick else ROUNDS) + 1):
        found = bench.round(number)
        rounds.append(found)
        session.say(
            f"  verify {number}: {found['sealed_rate']:,.0f} MB/s sealed, {found['unsealed_rate']:,.0f} MB/s unsealed; "
            f"cat {found['cat_rate']:,.0f} MB/s"
        )
    return [_result(rounds, bench.size_bytes)]


class _Bench:
    def __init__(self, folder: Path, files: int) -> None:
        store = LocalStore(folder)
        state = WrittenState(store, layout.checkpoint_folder(STREAM, DEPLOYMENT, QUERY), files, with_checksums=True)
        self._store = store
        self._control = StreamControl(store, STREAM, SYSTEM_CLOCK)
        self.size_bytes = state.capture(STREAM, SNAPSHOT).size_bytes
        self._seal = seal(self._control, store, SNAPSHOT)
        data = store.path_of(layout.snapshot_data_folder(STREAM, SNAPSHOT, QUERY))
        self.cpu_seconds = self._sealed_cpu_seconds = 0.0
        self._paths = sorted(path for path in data.rglob("*") if path.is_file())

    def round(self, number: int) -> dict[str, float]:
        """Each way once, in alternating order."""
        ways = {"sealed": self._sealed, "unsealed": self._unsealed, "cat": self._cat}
        names = list(ways) if number % 2 else list(reversed(ways))
        found = {f"{name}_rate": self.size_bytes / 1e6 / ways[name]() for name in names}
        return found | {"sealed_cpu_seconds": self._sealed_cpu_seconds}

    def _sealed(self) -> float:
        seconds = self._verified()
        self._sealed_cpu_seconds = self.cpu_seconds
        return seconds

    def _unsealed(self) -> float:
        self._store.delete(layout.seal_key(STREAM, SNAPSHOT))
        seconds = self._verified()
        self._control.put_seal(self._seal)
        return seconds

    def _verified(self) -> float:
        self._drop()
        began, used = SYSTEM_CLOCK.monotonic_seconds(), os.times()
        problems = verify(self._control, self._store, SNAPSHOT)
        seconds, now = SYSTEM_CLOCK.monotonic_seconds() - began, os.times()
        self.cpu_seconds = now.user + now.system - used.user - used.system
        if problems:
            raise BenchmarkError(f"the snapshot is not whole: {problems[0]}")
        return seconds

    def _cat(self) -> float:
        self._drop()
        began = SYSTEM_CLOCK.monotonic_seconds()
        subprocess.run(["cat", *self._paths], stdout=subprocess.DEVNULL, check=True)
        return SYSTEM_CLOCK.monotonic_seconds() - began

    def _drop(self) -> None:
        """Nothing of it is in the page cache."""
        os.sync()
        for path in self._paths:
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _result(rounds: list[dict[str, float]], size_bytes: int) -> Result:
    middle = {name: median(found[name] for found in rounds) for name in rounds[0]}
    ratios = [found["sealed_rate"] / found["cat_rate"] for found in rounds]
    unsealed = median(found["unsealed_rate"] / found["cat_rate"] for found in rounds)
    possible = size_bytes / 1e6 / middle["sealed_cpu_seconds"] * CORES
    numbers: tuple[dict[str, Number], ...] = tuple(dict(found) for found in rounds)
    return Result(
        name=NAME,
        of=Side(f"verify of {size_bytes / 1e6:,.0f} MB", middle["sealed_rate"], "MB/s"),
        against=Side("cat of the same files", middle["cat_rate"], "MB/s"),
        ratio=median(ratios),
        ratio_means="of cat",
        goal=Goal("at disk speed: 0.8 of cat at least", median(ratios), ">=", GOAL_RATIO, "of cat"),
        rounds=numbers,
        notes=(
            f"from the disk, nothing in the page cache; rounds from {min(ratios):.2f} to {max(ratios):.2f}; not yet "
            f"sealed, {middle['unsealed_rate']:,.0f} MB/s, {unsealed:.2f} of cat",
            f"its CPU sets the pace on a busy machine: {middle['sealed_cpu_seconds']:.2f} s on all cores together, so "
            f"{possible:,.0f} MB/s at the most on {CORES} free ones",
        ),
    )
