"""Replay: ten recorded batches run again into files, against what they took in the stream.

The stream runs its batches one after the other in a warm driver, over input that waits, and is stopped. Its commit
files show how long they took. Of the replay, the batches are measured, and also all of it with the start of its
driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.request.requests import change_request
from airflow_streamstate.controller.scratch.replays import ReplayRequest, ReplayView
from airflow_streamstate.controller.scratch.run import Report
from airflow_streamstate.controller.wait.condition import WaitCondition
from benchmarks.results import BenchmarkError, Goal, Number, Result, Side
from benchmarks.session import Session
from benchmarks.streams import MASTER, Streams

NAME = "replay"
SCRIPT, QUERY = "delays_by_week.py", "delays"
FILES_PER_BATCH = 8
BATCHES, LAST_BATCH_ID = 10, 14
ROUNDS, QUICK_ROUNDS = 5, 1
WAIT_SECONDS = 300.0
GOAL_RATIO = 1.5


def run(session: Session) -> list[Result]:
    """Measure it."""
    folder, source = session.folder / NAME, session.flights()
    rounds: list[dict[str, Number]] = []
    for number in range(1, (QUICK_ROUNDS if session.quick else ROUNDS) + 1):
        found = _round(folder / str(number), source)
        rounds.append(found)
        session.say(
            f"  replay {number}: {found['batch_seconds']:.1f} s ({found['whole_seconds']:.1f} s with its driver); in "
            f"the stream {found['own_seconds']:.1f} s"
        )
    seconds, first, own, whole = (median(float(each[name] or 0) for each in rounds) for name in _SECONDS)
    ratio = median(float(each["batch_seconds"] or 0) / float(each["own_seconds"] or 1) for each in rounds)
    return [
        Result(
            name=NAME,
            of=Side(f"{BATCHES} recorded batches run again", seconds, "s"),
            against=Side("the same in the stream, by its commit files", own, "s"),
            ratio=ratio,
            ratio_means="of that",
            goal=Goal(f"{GOAL_RATIO} of it", ratio, "<=", GOAL_RATIO, "of it"),
            rounds=tuple(rounds),
            notes=(
                f"the first of them, which finds the JVM cold, takes {first:.1f} s; the others together "
                f"{(seconds - first) / (own * (BATCHES - 1) / BATCHES):.2f} of as many in the stream; with the start "
                f"and the end of its driver the replay takes {whole:.1f} s",
            ),
        )
    ]


_SECONDS = ("batch_seconds", "first_batch_seconds", "own_seconds", "whole_seconds")


def _round(place: Path, source: Path) -> dict[str, Number]:
    with Streams.on_disk(place / "home") as streams:
        arguments = ("--input", str(source), "--output", str(place / "delays"))
        running = streams.deploy(NAME, SCRIPT, *arguments, "--max-files-per-trigger", str(FILES_PER_BATCH))
        running.wait_committed(QUERY, LAST_BATCH_ID, WAIT_SECONDS)
        order = streams.controller.order("stop", running.stream_id)
        streams.controller.wait(WaitCondition.of(order), WAIT_SECONDS)
        running.wait_exited(WAIT_SECONDS)
        change = change_request(running.stream_id, master=MASTER)
        began = SYSTEM_CLOCK.monotonic_seconds()
        view, report = streams.controller.replays.run(
            ReplayRequest(change=change, last=BATCHES, out=str(place / "rows")), _watched
        )
        whole_seconds = SYSTEM_CLOCK.monotonic_seconds() - began
        first, last = view.batches[QUERY][0], view.batches[QUERY][-1]
        commits = running.checkpoint_path(QUERY) / "commits"
        own_seconds = (commits / str(last)).stat().st_mtime - (commits / str(first - 1)).stat().st_mtime
    batches = report.queries[QUERY].batches
    if report.outcome != "done" or len(batches) != BATCHES:
        raise BenchmarkError(f"the replay came to no good end: {report}")
    return {
        "batch_seconds": sum(batch.seconds for batch in batches),
        "first_batch_seconds": batches[0].seconds,
        "whole_seconds": whole_seconds,
        "own_seconds": own_seconds,
    }


@contextmanager
def _watched(view: ReplayView) -> Iterator[Report]:  # noqa: ARG001 - what is waited for is not shown
    yield lambda _text: None
