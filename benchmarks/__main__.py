"""``python -m benchmarks [--only NAME] [--quick] [--out DIR] [--dry-run]``."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

import airflow_streamstate
from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.errors import StreamStateError
from benchmarks import (
    agent,
    deferred,
    drain,
    drain_gap,
    driver_hour,
    growing_files,
    kubernetes_launch,
    page,
    plan_comparison,
    rehearsal,
    replay,
    rescale,
    restart,
    rewrite_for_older,
    row_comparison,
    s3_snapshot,
    seed,
    shell,
    snapshot,
    snapshots_beside,
    start,
    upgrade_gap,
    verify,
    watch,
    way_back,
)
from benchmarks.results import BenchmarkError, Result, show, write_results
from benchmarks.session import Session

BENCHMARKS = {
    benchmark.NAME: benchmark.run
    for benchmark in (
        upgrade_gap,
        drain_gap,
        way_back,
        rehearsal,
        replay,
        rescale,
        rewrite_for_older,
        start,
        restart,
        row_comparison,
        growing_files,
        drain,
        seed,
        snapshot,
        snapshots_beside,
        s3_snapshot,
        verify,
        agent,
        watch,
        deferred,
        plan_comparison,
        shell,
    )
} | {
    drain.ON_S3: drain.run_on_s3,
    upgrade_gap.BUSY: upgrade_gap.run_busy,
    upgrade_gap.MOVE: upgrade_gap.run_move,
    upgrade_gap.ON_S3: upgrade_gap.run_on_s3,
    upgrade_gap.ON_S3_BUSY: upgrade_gap.run_on_s3_busy,
}
BY_NAME = {
    upgrade_gap.ON_YARN: upgrade_gap.run_on_yarn,
    upgrade_gap.ON_KUBERNETES: upgrade_gap.run_on_kubernetes,
    kubernetes_launch.NAME: kubernetes_launch.run,
    driver_hour.NAME: driver_hour.run,
    page.NAME: page.run,
}
"""Only by name: a cluster is fetched or built first, or a browser has to be there."""
ALL = BENCHMARKS | BY_NAME


def main() -> int:
    """Measure, print, write; 1 where something could not be measured. A missed goal is reported, not failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Speed, as ratios in one run.")
    parser.add_argument("--only", choices=ALL, action="append", help="this one alone; may be given again")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and less state: for trying it out")
    parser.add_argument("--out", type=Path, default=Path("bench-out"), help="for results.json (default: bench-out)")
    parser.add_argument("--dry-run", action="store_true", help="only name the benchmarks that would run")
    options = parser.parse_args()
    names: list[str] = options.only or list(BENCHMARKS)
    if options.dry_run:
        print("\n".join(names))
        return 0
    out = options.out.resolve()
    work = out / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = Session(work, options.quick, Console())
    facts: dict[str, object] = {
        "began_at": SYSTEM_CLOCK.now().isoformat(),
        "quick": options.quick,
        "machine": _machine_facts(),
    }
    results, problems = _measure(session, names)
    facts["load_average_after"] = [round(load, 2) for load in os.getloadavg()]
    write_results(out / "results.json", facts, results, problems)
    show(session.console, results)
    session.say(f"every round: {out / 'results.json'}")
    if not problems:
        shutil.rmtree(work)
    return 1 if problems else 0


def _machine_facts() -> dict[str, object]:
    """Cores, load before the run, and the versions that matter."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load_average_before": [round(load, 2) for load in os.getloadavg()],
        "kernel": platform.release(),
        "package": str(Path(airflow_streamstate.__file__).parent),
        "python": platform.python_version(),
        "pyspark": version("pyspark"),
    }


def _measure(session: Session, names: list[str]) -> tuple[list[Result], dict[str, str]]:
    results: list[Result] = []
    problems: dict[str, str] = {}
    for name in names:
        session.console.rule(name)
        began = SYSTEM_CLOCK.monotonic_seconds()
        try:
            results += ALL[name](session)
        except (BenchmarkError, StreamStateError) as error:
            problems[name] = str(error)
            session.console.print(str(error), style="red", markup=False)
        session.say(f"  {SYSTEM_CLOCK.monotonic_seconds() - began:.0f} s")
    return results, problems


if __name__ == "__main__":
    sys.exit(main())
