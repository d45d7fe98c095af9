"""Rehearsal: what it takes to try a query on its real state, against Spark's own empty batch of the same query.

Of two queries of the same shape that start one after the other the second one counts, because the first one has warmed
the JVM: in the rehearsal, and in a plain run of the same script on a copy of the same checkpoints, where an empty batch
is planned, and one batch alone is run.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from statistics import median

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.checkpoint.trial_batches import plan_empty_batch
from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.request.changes import ChangeRequest
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.store.open import open_store
from benchmarks.jobs_at_work import BareRun
from benchmarks.results import BenchmarkError, Goal, Number, Result, Side
from benchmarks.session import Session
from benchmarks.streams import Running, Streams

NAME = "rehearsal"
SCRIPT = "counts_twice.py"
QUERIES = ("first", "second")
ROUNDS, QUICK_ROUNDS = 5, 1
WARM_BATCH_ID = 3
WAIT_SECONDS = 300.0
GOAL_SECONDS, GOAL_RATIO = 1.0, 1.2


def run(session: Session) -> list[Result]:
    """Measure it."""
    folder, source = session.folder / NAME, session.flights()
    rounds: list[dict[str, Number]] = []
    for number in range(1, (QUICK_ROUNDS if session.quick else ROUNDS) + 1):
        found = _round(folder / str(number), source)
        rounds.append(found)
        session.say(
            f"  rehearsal {number}: {found['warm_seconds']} s ({found['cold_seconds']} s the first query); Spark's own "
            f"empty batch {found['batch_seconds']} s"
        )
    seconds, batch_seconds = (median(float(each[name] or 0) for each in rounds) for name in ("warm_seconds", _BATCH))
    cold_seconds = median(float(each["cold_seconds"] or 0) for each in rounds)
    ratio = median(float(each["warm_seconds"] or 0) / float(each[_BATCH] or 1) for each in rounds)
    return [
        Result(
            name=NAME,
            of=Side("a query rehearsed in a warm driver", seconds, "s"),
            against=Side("Spark's own empty batch of it", batch_seconds, "s"),
            ratio=ratio,
            ratio_means="of that",
            goal=Goal(
                f"{GOAL_RATIO} of it, and 1 s", seconds, "<=", min(GOAL_SECONDS, GOAL_RATIO * batch_seconds), "s"
            ),
            rounds=tuple(rounds),
            notes=(
                f"the rehearsal is the fork of the checkpoint, the plan, the start, the empty batch and the end; the "
                f"first query of the same driver, which finds the JVM cold, takes {cold_seconds:.2f} s",
            ),
        )
    ]


_BATCH = "batch_seconds"


def _round(place: Path, source: Path) -> dict[str, Number]:
    with Streams.on_disk(place / "home") as streams:
        running = streams.deploy(NAME, SCRIPT, "--input", str(source), "--output", str(place / "counts"))
        for query_name in QUERIES:
            running.wait_committed(query_name, WARM_BATCH_ID, WAIT_SECONDS)
        plans = streams.controller.plans
        view = plans.begin(ChangeRequest(running.stream_id))
        plans.wait(view)
        verdict = streams.home.control(running.stream_id).verdict(view.rehearsal_id)
        if verdict is None or not verdict.is_accepted:
            raise BenchmarkError(f"the rehearsal came to no good end: {verdict}")
        order = streams.controller.stop(running.stream_id)
        streams.controller.wait(WaitCondition.of(order), WAIT_SECONDS)
        running.wait_exited(WAIT_SECONDS)
        report = _empty_batch(running, place, source)
    return {
        "warm_seconds": verdict.queries["second"].seconds,
        "cold_seconds": verdict.queries["first"].seconds,
        _BATCH: report["durationMs"]["triggerExecution"] / 1000,
    }


def _empty_batch(running: Running, place: Path, source: Path) -> dict[str, dict[str, int]]:
    """Spark's report of an empty batch of the second query, on a copy of what the stream has left."""
    copies = place / "plain"
    store = open_store(str(copies), clock=SYSTEM_CLOCK)
    batch_id = -1
    for query_name in QUERIES:
        shutil.copytree(running.checkpoint_path(query_name), copies / f"{query_name}.checkpoint")
        batch_id = plan_empty_batch(Checkpoint(store, f"{query_name}.checkpoint"))
    reports_path = place / "progress.json"
    arguments = ("--input", str(source), "--output", str(copies), "--progress-to", str(reports_path))
    with BareRun(SCRIPT, (*arguments, "--once"), place / "driver.log") as bare:
        bare.wait_finished(WAIT_SECONDS)
    reports = json.loads(reports_path.read_text(encoding="utf-8"))
    report = next((each for each in reports if each["batchId"] == batch_id), None)
    if report is None or report["numInputRows"]:
        raise BenchmarkError(f"Spark has run no empty batch {batch_id}: {reports}")
    return dict(report)
