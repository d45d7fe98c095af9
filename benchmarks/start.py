"""A driver's start on Spark 3.5: from the deploy to the first commit of its query, and the same by ``spark-submit``.

The same script over the same input, each time from nothing. The end is when ``commits/0`` was written.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from airflow_streamstate.clock import SYSTEM_CLOCK
from benchmarks import sparks
from benchmarks.grounds import Ground, commits_in, on_disk
from benchmarks.jobs_at_work import BareRun
from benchmarks.pairs import Way, measure_pairs
from benchmarks.results import Result
from benchmarks.session import Session

NAME = "start-on-3.5"
SPARK = "3.5.9"
SCRIPT = "delays_by_week.py"
QUERY = "delays"
START_SECONDS = 300.0


def run(session: Session) -> list[Result]:
    """Measure pairs; raises as ``sparks.path_of``."""
    source, spark = session.flights(), sparks.path_of(SPARK)
    with on_disk(session.folder / NAME) as ground:
        ours = Way(f"deploy to first commit on Spark {SPARK}", partial(_deployed_seconds, ground, source, spark))
        bare = Way("spark-submit to first commit", partial(_bare_seconds, ground, source))
        return [measure_pairs(session, NAME, ours, bare, None)]


def _deployed_seconds(ground: Ground, source: Path, spark: str, number: int) -> float:
    name = f"deployed-{number}"
    with ground.streams(name) as streams:
        began_at = SYSTEM_CLOCK.now().timestamp()
        running = streams.deploy(f"delays-{number}", SCRIPT, *_arguments(ground, name, source), spark=spark)
        checkpoint = running.checkpoint(QUERY)
        running.wait(lambda: 0 in ground.commits_of(checkpoint), "the first commit", START_SECONDS)
        return ground.commits_of(checkpoint)[0] - began_at


def _bare_seconds(ground: Ground, source: Path, number: int) -> float:
    name = f"bare-{number}"
    place = ground.work / name
    place.mkdir()
    arguments, environment = _arguments(ground, name, source), sparks.environment_of(SPARK)
    began_at = SYSTEM_CLOCK.now().timestamp()
    with BareRun(SCRIPT, arguments, place / "driver.log", environment=environment) as bare:
        checkpoint = place / "delays.checkpoint"
        bare.wait(lambda: 0 in commits_in(checkpoint), "the first commit", START_SECONDS)
        return commits_in(checkpoint)[0] - began_at


def _arguments(ground: Ground, name: str, source: Path) -> tuple[str, ...]:
    output = ground.work / name / "delays"
    return ("--input", str(source), "--output", str(output), "--max-files-per-trigger", "1")
