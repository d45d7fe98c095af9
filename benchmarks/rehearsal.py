"""Rehearsal: what it takes to try a version on its real state and the rows of its last batch.

Two queries of the same shape start one after the other. The first meets a cold JVM, so the whole of the rehearsal, from
the request to the verdict, is set against a plain run of the same script on a copy of the same checkpoints, from
``spark-submit`` to its end, in which each query runs the same batch. The second finds the JVM warm, so it shows what
a rehearsal takes in addition to what Spark itself reports for that batch.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from statistics import median

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.request.requests import change_request
from airflow_streamstate.controller.wait.condition import WaitCondition
from benchmarks.grounds import commits_in
from benchmarks.jobs_at_work import BareRun
from benchmarks.results import BenchmarkError, Goal, Number, Result, Side
from benchmarks.session import Session
from benchmarks.streams import Running, Streams

NAME, WARM = "rehearsal", "rehearsal: warm"
SCRIPT = "counts_twice.py"
QUERIES = ("first", "second")
ROUNDS, QUICK_ROUNDS = 5, 1
WARM_BATCH_ID = 3
WAIT_SECONDS = 300.0
GOAL, GOAL_WARM_SECONDS = 1.2, 1.0


def run(session: Session) -> list[Result]:
    """Measure it."""
    folder, source = session.folder / NAME, session.flights()
    rounds: list[dict[str, float]] = []
    for number in range(1, (QUICK_ROUNDS if session.quick else ROUNDS) + 1):
        found = _round(folder / str(number), source)
        rounds.append(found)
        session.say(
            f"  rehearsal {number}: {found['whole_seconds']:.2f} s, a plain run {found['plain_seconds']:.2f} s; the"
            f" second query {found['warm_seconds']:.2f} s, its batch {found['batch_seconds']:.2f} s"
        )
    middle = {name: median(found[name] for found in rounds) for name in rounds[0]}
    ratios = [found["whole_seconds"] / found["plain_seconds"] for found in rounds]
    beside = [found["warm_seconds"] - found["batch_seconds"] for found in rounds]
    numbers: tuple[dict[str, Number], ...] = tuple(dict(found) for found in rounds)
    return [
        Result(
            name=NAME,
            of=Side(
                "request to verdict, two queries, each with the rows of its last batch", middle["whole_seconds"], "s"
            ),
            against=Side("a plain run of the same batches, from spark-submit to its end", middle["plain_seconds"], "s"),
            ratio=median(ratios),
            ratio_means="of that",
            goal=Goal(f"{GOAL} of it", median(ratios), "<=", GOAL, "of it"),
            rounds=numbers,
            notes=(f"rounds from {min(ratios):.2f} to {max(ratios):.2f}",),
        ),
        Result(
            name=WARM,
            of=Side("a query rehearsed in a warm driver", middle["warm_seconds"], "s"),
            against=Side("Spark's own report of the same batch", middle["batch_seconds"], "s"),
            ratio=median(found["warm_seconds"] / found["batch_seconds"] for found in rounds),
            ratio_means="of that",
            goal=Goal("1 s over the batch", median(beside), "<=", GOAL_WARM_SECONDS, "s"),
            rounds=(),
            notes=(f"over the batch {min(beside):.2f} to {max(beside):.2f} s: fork, plan, start and end of the query",),
        ),
    ]


def _round(place: Path, source: Path) -> dict[str, float]:
    with Streams.on_disk(place / "home") as streams:
        running = streams.deploy(NAME, SCRIPT, "--input", str(source), "--output", str(place / "counts"))
        for query_name in QUERIES:
            running.wait_committed(query_name, WARM_BATCH_ID, WAIT_SECONDS)
        order = streams.controller.order("stop", running.stream_id)
        streams.controller.wait(WaitCondition.of(order), WAIT_SECONDS)
        running.wait_exited(WAIT_SECONDS)
        plans, began_seconds = streams.controller.plans, SYSTEM_CLOCK.monotonic_seconds()
        view = plans.begin(change_request(running.stream_id))
        plans.wait(view)
        whole_seconds = SYSTEM_CLOCK.monotonic_seconds() - began_seconds
        verdict = streams.home.control(running.stream_id).verdict(view.rehearsal_id)
        if verdict is None or not verdict.is_accepted:
            raise BenchmarkError(f"the rehearsal came to no good end: {verdict}")
        plain_seconds, batch_seconds = _plain(running, place, source)
    return {
        "whole_seconds": whole_seconds,
        "plain_seconds": plain_seconds,
        "warm_seconds": verdict.queries["second"].seconds,
        "cold_seconds": verdict.queries["first"].seconds,
        "batch_seconds": batch_seconds,
    }


def _plain(running: Running, place: Path, source: Path) -> tuple[float, float]:
    """The seconds of a plain run of the last committed batch of each query, on a copy of what the stream has left, and
    those of the batch of the second, by Spark's report."""
    copies, batch_id = place / "plain", -1
    for query_name in QUERIES:
        copy = copies / f"{query_name}.checkpoint"
        shutil.copytree(running.checkpoint_path(query_name), copy)
        batch_id = max(commits_in(copy))
        for planned in (copy / "offsets").glob("[0-9]*"):
            if int(planned.name) > batch_id:
                _remove(planned)
        _remove(copy / "commits" / str(batch_id))
    reports_path = place / "progress.json"
    arguments = ("--input", str(source), "--output", str(copies), "--progress-to", str(reports_path))
    began_seconds = SYSTEM_CLOCK.monotonic_seconds()
    with BareRun(SCRIPT, (*arguments, "--once"), place / "driver.log") as bare:
        bare.wait_finished(WAIT_SECONDS)
        seconds = SYSTEM_CLOCK.monotonic_seconds() - began_seconds
    reports = json.loads(reports_path.read_text(encoding="utf-8"))
    report = next((each for each in reports if each["batchId"] == batch_id), None)
    if report is None or not report["numInputRows"]:
        raise BenchmarkError(f"Spark has not run batch {batch_id} again: {reports}")
    return seconds, report["durationMs"]["triggerExecution"] / 1000


def _remove(path: Path) -> None:
    """With its checksum, which Hadoop writes next to it."""
    path.unlink()
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
