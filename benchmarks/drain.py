"""Drain: from the request to ``Drained``, against the batch that runs when it is asked for, with input in plenty.

The share of that batch is the part of it that really ran between request and end. All else is overhead: the look at the
commands, the end of a batch before, the stop, the snapshots, the flush. ``run`` has checkpoints on disk, ``run_on_s3``
has everything on a real S3 server, where a look at the commands comes every 2 s.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.protocol.events import Accepted, Drained, Draining, Event
from airflow_streamstate.protocol.terms.order import DrainTerms
from benchmarks.grounds import on_s3
from benchmarks.results import BenchmarkError, Goal, Number, Result, Side
from benchmarks.session import Session
from benchmarks.streams import Running, Streams

NAME, ON_S3 = "drain", "s3-drain"
SCRIPT = "delays_by_week.py"
QUERY = "delays"
FILES_PER_BATCH = 10
ROUNDS, QUICK_ROUNDS = 5, 3
WARM_BATCH_ID = 3
START_SECONDS = 180.0
DRAIN_SECONDS = 180.0
GOAL_SECONDS = 2.0
GOAL_ON_S3_SECONDS = 3.0
_Found = TypeVar("_Found", bound=Event)


@dataclass(frozen=True)
class Batch:
    """A batch by Spark's own report of it, in seconds since 1970."""

    planned_at: float
    committed_at: float

    @property
    def seconds(self) -> float:
        """How long it ran."""
        return self.committed_at - self.planned_at


def run(session: Session) -> list[Result]:
    """Drain several times, each time in a new deployment and somewhere in a batch."""
    folder = session.folder / NAME
    rounds = _rounds(session, Streams.on_disk(folder), folder)
    overhead = median(found["overhead_seconds"] for found in rounds)
    return [_result(NAME, rounds, Goal("over the batch that runs, 2 s at the most", overhead, "<=", GOAL_SECONDS, "s"))]


def run_on_s3(session: Session) -> list[Result]:
    """The same with home and checkpoints on S3.

    Raises:
        BenchmarkError: there is no Go to build a real S3 server with.
    """
    folder = session.folder / ON_S3
    with on_s3(folder) as ground:
        rounds = _rounds(session, ground.streams(ON_S3), folder)
    beside = median(found["overhead_seconds"] - found["flush_seconds"] for found in rounds)
    goal = Goal("over the batch that runs and the flush, 3 s at the most", beside, "<=", GOAL_ON_S3_SECONDS, "s")
    return [_result(ON_S3, rounds, goal)]


def _rounds(session: Session, streams: Streams, folder: Path) -> list[dict[str, float]]:
    source = session.flights()
    rounds = []
    with streams:
        for number in range(1, (QUICK_ROUNDS if session.quick else ROUNDS) + 1):
            found = _round(streams, number, source, folder)
            rounds.append(found)
            session.say(
                f"  drain {number}: {found['total_seconds']:.2f} s; batch {found['batch_seconds']:.2f} s, of it "
                f"{found['batch_share_seconds']:.2f} s waited for; overhead {found['overhead_seconds']:.2f} s, "
                f"flush {found['flush_seconds']:.2f} s"
            )
    return rounds


def _round(streams: Streams, number: int, source: Path, folder: Path) -> dict[str, float]:
    clock = SYSTEM_CLOCK
    reports_path = folder / f"progress-{number}.json"
    arguments = (
        *("--input", str(source), "--output", str(folder / f"delays-{number}"), "--progress-to", str(reports_path)),
        *("--max-files-per-trigger", str(FILES_PER_BATCH)),
    )
    running = streams.deploy(f"drain-{number}", SCRIPT, *arguments)
    running.wait_committed(QUERY, WARM_BATCH_ID - 1, START_SECONDS)
    began_seconds = clock.monotonic_seconds()
    running.wait_committed(QUERY, WARM_BATCH_ID, START_SECONDS)
    clock.sleep(clock.jitter() * (clock.monotonic_seconds() - began_seconds))
    requested_at = clock.now()
    # What is measured is how long the stream is stopped; it still runs during the trial before that.
    order = running.controller.order("drain", running.stream_id, terms=DrainTerms(rehearse=False))
    running.controller.wait(WaitCondition.of(order), DRAIN_SECONDS)
    running.wait_exited(DRAIN_SECONDS)
    reports = {report["batchId"]: report for report in json.loads(reports_path.read_text(encoding="utf-8"))}
    found = _phases(running, requested_at, reports)
    flush_ms = reports[int(found["batches"])]["durationMs"]
    found |= {f"flush_in_spark_{part}_seconds": ms / 1000 for part, ms in flush_ms.items()}
    files_left = len(list(source.iterdir())) - FILES_PER_BATCH * int(found["batches"])
    if files_left < FILES_PER_BATCH:
        raise BenchmarkError("the input was used up, so the load was not full; give it more files")
    return found


def _phases(running: Running, requested_at: datetime, reports: dict[int, Any]) -> dict[str, float]:
    events = running.events()
    accepted, draining, drained = _only(events, Accepted), _only(events, Draining), _only(events, Drained)
    flush_id = draining.flush_batch_ids[QUERY]
    last, flush = _batch(reports[flush_id - 1]), _batch(reports[flush_id])
    start, end = requested_at.timestamp(), drained.at.timestamp()
    share = max(0.0, min(end, last.committed_at) - max(start, last.planned_at))
    return {
        "total_seconds": end - start,
        "batch_seconds": last.seconds,
        "batch_share_seconds": share,
        "overhead_seconds": end - start - share,
        "until_accepted_seconds": accepted.at.timestamp() - start,
        "until_committed_seconds": max(0.0, last.committed_at - start),
        "stop_seconds": draining.at.timestamp() - max(start, last.committed_at),
        "flush_seconds": flush.committed_at - draining.at.timestamp(),
        "conclude_seconds": end - flush.committed_at,
        "batches": float(flush_id),
    }


def _batch(report: dict[str, Any]) -> Batch:
    began = datetime.fromisoformat(report["timestamp"]).timestamp()
    return Batch(began, began + report["durationMs"]["triggerExecution"] / 1000)


def _only(events: list[Event], kind: type[_Found]) -> _Found:
    found = [event for event in events if isinstance(event, kind)]
    if len(found) != 1:
        raise BenchmarkError(f"{len(found)} events {kind.__name__}, where there should be one")
    return found[0]


def _result(name: str, rounds: list[dict[str, float]], goal: Goal) -> Result:
    middle = {name: median(found[name] for found in rounds) for name in rounds[0]}
    numbers: tuple[dict[str, Number], ...] = tuple(dict(found) for found in rounds)
    in_batches = median(found["overhead_seconds"] / found["batch_seconds"] for found in rounds)
    return Result(
        name=name,
        of=Side("request to drained", middle["total_seconds"], "s"),
        against=Side("the batch that ran", middle["batch_seconds"], "s"),
        ratio=median(found["total_seconds"] / found["batch_seconds"] for found in rounds),
        ratio_means="batches",
        goal=goal,
        rounds=numbers,
        notes=(
            f"the overhead is {in_batches:.2f} such batches, which a busy machine changes less than the seconds",
            f"overhead after the commit of that batch: stop and pre-drain snapshot {middle['stop_seconds']:.2f} s, "
            f"flush {middle['flush_seconds']:.2f} s, final snapshot {middle['conclude_seconds']:.2f} s (medians); "
            f"the worst of {len(rounds)} rounds took {max(found['overhead_seconds'] for found in rounds):.2f} s over "
            f"its batch",
        ),
    )
