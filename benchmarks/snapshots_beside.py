"""A query at full load while a snapshot of it is taken every 10 s, compared with the same query without, in interleaved
pairs.

State is in RocksDB: keys with a kilobyte each; the batches that count write a part of them again. Both runs are
supervised, over the same files, and end by themselves; each is first as often as the other. Keys per second are by
Spark's own reports; CPU is that of the whole driver, between the commits of the first and the last batch that count.
Snapshots are taken and sealed by the Python process alone, so its CPU is what they use; all else that differs is the
query's, or chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.protocol.events import SnapshotReady
from airflow_streamstate.protocol.settings import AgentSettings
from benchmarks.cpu import used_between
from benchmarks.jobs_at_work import rows_per_second, watch
from benchmarks.results import BenchmarkError, Goal, Number, Result, Side
from benchmarks.session import Session
from benchmarks.snapshot import Keys
from benchmarks.streams import Streams

NAME = "snapshots-beside"
SCRIPT = "payload_by_key.py"
QUERY = "payloads"
KEYS, QUICK_KEYS = 300_000, 50_000
BATCHES_OF_KEYS = 2
BATCHES, QUICK_BATCHES = 40, 10
SHARE_OF_KEYS = 12
"""A batch rewrites one key in this many."""
ROWS_PER_BATCH = 2
"""A row of the input represents a range of keys."""
WARM_BATCH_ID = BATCHES_OF_KEYS + 1
PAIRS, QUICK_PAIRS = 4, 2
EVERY_SECONDS = 10.0
RUN_SECONDS = 600.0
GOAL_RATIO = 0.95


@dataclass(frozen=True)
class Run:
    """What one run reported.

    Attributes:
        cpu_seconds: of all processes of the driver, over the batches that count.
        python_cpu_seconds: of the one that the agent is in, where the script itself only waits.
    """

    keys_per_second: float
    cpu_seconds: float
    python_cpu_seconds: float
    window_seconds: float
    snapshots: int
    snapshot_bytes: int


def run(session: Session) -> list[Result]:
    """Run pairs; whichever is first changes from pair to pair, and of an even number each is first in one half."""
    bench = _Bench(session)
    pairs = []
    for number in range(1, (QUICK_PAIRS if session.quick else PAIRS) + 1):
        order = (False, True) if number % 2 else (True, False)
        found = {taking: bench.run(number, taking) for taking in order}
        pairs.append((found[True], found[False]))
        session.say(
            f"  pair {number}: {found[True].keys_per_second:,.0f} keys/s with {found[True].snapshots} snapshots of "
            f"{found[True].snapshot_bytes / 1e6:,.0f} MB, {found[False].keys_per_second:,.0f} without; CPU "
            f"{found[True].cpu_seconds / found[False].cpu_seconds:.3f} of that without, of it Python "
            f"{found[True].python_cpu_seconds:.2f} and {found[False].python_cpu_seconds:.2f} s"
        )
    return [_result(pairs)]


class _Bench:
    def __init__(self, session: Session) -> None:
        self._folder = session.folder / NAME
        count, batches = (QUICK_KEYS, QUICK_BATCHES) if session.quick else (KEYS, BATCHES)
        keys, per_batch = Keys(self._folder / "keys"), count // BATCHES_OF_KEYS
        for first in range(0, count, per_batch):
            keys.write(first, per_batch)
        part = count // SHARE_OF_KEYS
        self._keys_per_row = part / ROWS_PER_BATCH
        for number in range(batches):
            keys.write(number % SHARE_OF_KEYS * part, part)
        self._last_batch_id = BATCHES_OF_KEYS + batches - 1

    def run(self, number: int, taking: bool) -> Run:
        place = self._folder / f"{'with' if taking else 'without'}-{number}"
        settings = AgentSettings(snapshot_every_seconds=EVERY_SECONDS if taking else None)
        arguments = (
            *("--input", str(self._folder / "keys"), "--checkpoint", str(place / "own-checkpoint")),
            *("--available-now", "--progress-to", str(place / "progress.json")),
        )
        with Streams.on_disk(place / "home") as streams:
            running = streams.deploy(
                f"{NAME}-{number}", SCRIPT, *arguments, conf={"spark.driver.memory": "2g"}, settings=settings
            )
            running.wait_committed(QUERY, 0, RUN_SECONDS)
            session_id, python_pid = running.session_id(), running.python_pid()
            if session_id is None or python_pid is None:
                raise BenchmarkError("the driver's processes could not be found")
            commits = running.checkpoint_path(QUERY) / "commits"
            window = watch(session_id, python_pid, commits, WARM_BATCH_ID, self._last_batch_id, RUN_SECONDS)
            running.controller.wait(WaitCondition("finished", running.stream_id, running.deployment_id), RUN_SECONDS)
            ready = [event for event in running.events() if isinstance(event, SnapshotReady)]
            live = [event.snapshot_id for event in ready if "-live-" in event.snapshot_id]
            if bool(live) != taking:
                raise BenchmarkError(f"{len(live)} snapshots were taken\n{running.log_tail()}")
            control = streams.home.control(running.stream_id)
            size_bytes = control.need_manifest(live[-1]).size_bytes if live else 0
        return Run(
            keys_per_second=rows_per_second(place / "progress.json", WARM_BATCH_ID + 1) * self._keys_per_row,
            cpu_seconds=used_between(window.before.processes, window.after.processes),
            python_cpu_seconds=window.after.processes[python_pid] - window.before.processes[python_pid],
            window_seconds=window.seconds,
            snapshots=len(live),
            snapshot_bytes=size_bytes,
        )


def _result(pairs: list[tuple[Run, Run]]) -> Result:
    ratios = [taking.keys_per_second / without.keys_per_second for taking, without in pairs]
    cpu = median(taking.cpu_seconds / without.cpu_seconds for taking, without in pairs)
    rounds: tuple[dict[str, Number], ...] = tuple(
        {f"with_{name}": value for name, value in vars(taking).items()}
        | {f"without_{name}": value for name, value in vars(without).items()}
        for taking, without in pairs
    )
    ratio = median(ratios)
    megabytes = median(taking.snapshot_bytes for taking, _ in pairs) / 1e6
    return Result(
        name=NAME,
        of=Side("with a snapshot every 10 s", median(taking.keys_per_second for taking, _ in pairs), "keys/s"),
        against=Side("without", median(without.keys_per_second for _, without in pairs), "keys/s"),
        ratio=ratio,
        ratio_means="of that without",
        goal=Goal("0.95 of the throughput without", ratio, ">=", GOAL_RATIO, "of it"),
        rounds=rounds,
        notes=(
            f"pairs from {min(ratios):.2f} to {max(ratios):.2f}; {median(taking.snapshots for taking, _ in pairs):.0f} "
            f"snapshots of {megabytes:,.0f} MB in a run; CPU of the whole driver for the same batches, which a busy "
            f"machine disturbs less: {cpu:.3f} of that without",
            _of_python(pairs),
        ),
    )


def _of_python(pairs: list[tuple[Run, Run]]) -> str:
    """What the snapshots themselves used, whatever else the machine did."""
    used = sum(taking.python_cpu_seconds - without.python_cpu_seconds for taking, without in pairs)
    whole = sum(without.cpu_seconds for _, without in pairs)
    return (
        f"the Python process, which takes and seals them, used {used:.2f} s more over all pairs: "
        f"{100 * used / whole:.1f} % of the driver's CPU without"
    )
