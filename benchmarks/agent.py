"""The cost of supervision: the agent's CPU against the driver's, and rows per second with us against without us.

The same script runs over the same files, supervised and bare in turns. CPU is counted between the commits of two
batches at full load. The agent's part is counted in two ways: its own threads; and the whole Python process (the script
only waits) with the JVM threads that serve it, which is an upper bound.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from airflow_streamstate.controller.wait.condition import WaitCondition
from benchmarks.cpu import used_between
from benchmarks.flights import ROWS_PER_FILE, link_some
from benchmarks.jobs_at_work import BareRun, Window, rows_per_second, watch
from benchmarks.results import BenchmarkError, Goal, Number, Result, Side
from benchmarks.session import Session
from benchmarks.streams import Running, Streams

NAME = "agent"
SCRIPT = "delays_by_week.py"
QUERY = "delays"
FILES_PER_BATCH = 10
BATCHES, QUICK_BATCHES = 14, 8
PAIRS, QUICK_PAIRS = 3, 2
WARM_BATCH_ID = 1
RUN_SECONDS = 240.0
GOAL_PERCENT = 1.0
OUR_THREADS = "streamstate-"


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        named_cpu_seconds: of the threads that carry our name; 0 in a bare run.
        python_cpu_seconds: of the whole Python process and the JVM threads that serve it.
        driver_cpu_seconds: of all processes of the driver.
    """

    rows_per_second: float
    named_cpu_seconds: float
    python_cpu_seconds: float
    driver_cpu_seconds: float
    window_seconds: float


def run(session: Session) -> list[Result]:
    """Run pairs; whichever is first changes from pair to pair."""
    batches = QUICK_BATCHES if session.quick else BATCHES
    folder = session.folder / NAME
    link_some(session.flights(), folder / "flights", batches * FILES_PER_BATCH)
    bench = _Bench(folder, batches)
    pairs = []
    for number in range(1, (QUICK_PAIRS if session.quick else PAIRS) + 1):
        if number % 2:
            supervised, bare = bench.supervised(number), bench.bare(number)
        else:
            bare, supervised = bench.bare(number), bench.supervised(number)
        pairs.append((supervised, bare))
        session.say(
            f"  pair {number}: {supervised.rows_per_second:,.0f} rows/s supervised, {bare.rows_per_second:,.0f} bare; "
            f"agent {_percent(supervised.named_cpu_seconds, supervised):.2f} % of the driver's CPU, "
            f"all that may be ours {_percent(supervised.python_cpu_seconds, supervised):.2f} %"
        )
    return [_cpu(pairs), _throughput(pairs)]


class _Bench:
    def __init__(self, folder: Path, batches: int) -> None:
        self._folder = folder
        self._last_batch_id = batches - 1

    def supervised(self, number: int) -> Run:
        place = self._folder / f"supervised-{number}"
        with Streams.on_disk(place / "home") as streams:
            running = streams.deploy(f"{NAME}-{number}", SCRIPT, *self._arguments(place))
            window = self._watch(running, running.checkpoint_path(QUERY), place)
            running.controller.wait(WaitCondition("finished", running.stream_id, running.deployment_id), RUN_SECONDS)
        return _run(window, place)

    def bare(self, number: int) -> Run:
        place = self._folder / f"bare-{number}"
        place.mkdir()
        with BareRun(SCRIPT, self._arguments(place), place / "driver.log") as running:
            window = self._watch(running, place / "delays.checkpoint", place)
            running.wait_finished(RUN_SECONDS)
        return _run(window, place)

    def _arguments(self, place: Path) -> tuple[str, ...]:
        return (
            "--input", str(self._folder / "flights"), "--output", str(place / "delays"), "--available-now",
            "--max-files-per-trigger", str(FILES_PER_BATCH), "--threads-to", str(place / "threads.json"),
            "--progress-to", str(place / "progress.json"),
        )  # fmt: skip

    def _watch(self, running: Running | BareRun, checkpoint: Path, place: Path) -> Window:
        running.wait((place / "threads.json").exists, "the start of the query", RUN_SECONDS)
        session_id, python_pid = running.session_id(), running.python_pid()
        if session_id is None or python_pid is None:
            raise BenchmarkError("the driver's processes could not be found")
        return watch(session_id, python_pid, checkpoint / "commits", WARM_BATCH_ID, self._last_batch_id, RUN_SECONDS)


def _run(window: Window, place: Path) -> Run:
    names = json.loads((place / "threads.json").read_text(encoding="utf-8"))
    ours = {tid for name, tid in names if name.startswith(OUR_THREADS)}
    before, after = window.before, window.after
    named = {tid: seconds for tid, seconds in after.python_threads.items() if tid in ours}
    return Run(
        rows_per_second=rows_per_second(place / "progress.json", WARM_BATCH_ID + 1),
        named_cpu_seconds=used_between(before.python_threads, named),
        python_cpu_seconds=used_between(before.python_threads, after.python_threads)
        + used_between(before.java_gateway, after.java_gateway),
        driver_cpu_seconds=used_between(before.processes, after.processes),
        window_seconds=window.seconds,
    )


def _percent(part_seconds: float, of: Run) -> float:
    return 100 * part_seconds / of.driver_cpu_seconds


def _cpu(pairs: list[tuple[Run, Run]]) -> Result:
    runs = [supervised for supervised, _ in pairs]
    whole = sum(found.driver_cpu_seconds for found in runs)
    named = sum(found.named_cpu_seconds for found in runs)
    python = sum(found.python_cpu_seconds for found in runs)
    bare = sum(found.python_cpu_seconds for _, found in pairs)
    window = sum(found.window_seconds for found in runs)
    rounds: tuple[dict[str, Number], ...] = tuple(dict(vars(found)) for found in runs)
    return Result(
        name=f"{NAME}: cpu",
        of=Side("all that may be the agent's, CPU", python, "s"),
        against=Side("the driver, CPU", whole, "s"),
        ratio=100 * python / whole,
        ratio_means="%",
        goal=Goal("1 % of the driver's CPU at the most", 100 * python / whole, "<=", GOAL_PERCENT, "%"),
        rounds=rounds,
        notes=(
            f"of it the threads of our name {named:.3f} s ({100 * named / whole:.2f} %), over {window:.0f} s at full "
            f"load; what is counted as the agent's comes to {bare:.3f} s in the bare runs",
        ),
    )


def _throughput(pairs: list[tuple[Run, Run]]) -> Result:
    ratios = [supervised.rows_per_second / bare.rows_per_second for supervised, bare in pairs]
    rounds: tuple[dict[str, Number], ...] = tuple(
        {
            "supervised_rows_per_second": supervised.rows_per_second,
            "bare_rows_per_second": bare.rows_per_second,
            "supervised_cpu_seconds": supervised.driver_cpu_seconds,
            "bare_cpu_seconds": bare.driver_cpu_seconds,
        }
        for supervised, bare in pairs
    )
    cpu = median(supervised.driver_cpu_seconds / bare.driver_cpu_seconds for supervised, bare in pairs)
    return Result(
        name=f"{NAME}: throughput",
        of=Side("supervised", median(supervised.rows_per_second for supervised, _ in pairs), "rows/s"),
        against=Side("bare", median(bare.rows_per_second for _, bare in pairs), "rows/s"),
        ratio=median(ratios),
        ratio_means="of bare",
        goal=None,
        rounds=rounds,
        notes=(
            f"pairs from {min(ratios):.2f} to {max(ratios):.2f}; CPU of the whole driver for the same batches, which a "
            f"busy machine disturbs less: {cpu:.3f} of bare; Spark's own reports, "
            f"{FILES_PER_BATCH * ROWS_PER_FILE:,} rows per batch, the first {WARM_BATCH_ID + 1} batches left out",
        ),
    )
