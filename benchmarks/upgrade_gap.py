"""How long a stream stands still in an upgrade: from the last commit of the old version to the first of the new one.

By one verb, with the new driver waiting warm, against what everybody does without us: the plain job is stopped by a
signal, and submitted again on its checkpoint. The same script over the same input, in pairs, measured in the same way:
by when ``commits/<n>`` were written, which a hard link keeps.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.control.upgrades import UpgradeJournal
from airflow_streamstate.controller.request.changes import ChangeRequest
from airflow_streamstate.controller.upgrade.requests import UpgradeRequest
from airflow_streamstate.controller.upgrade.views import UpgradeView
from airflow_streamstate.protocol.events import Accepted, Claimed, QueryStarted, Stopped
from benchmarks.jobs_at_work import BareRun
from benchmarks.results import BenchmarkError, Goal, Number, Result, Side
from benchmarks.session import Session
from benchmarks.streams import Running, Streams

NAME = "upgrade-gap"
SCRIPT = "delays_by_week.py"
QUERY = "delays"
FILES_PER_BATCH = 1
PAIRS, QUICK_PAIRS = 5, 2
WARM_BATCH_ID = 8
BATCHES_LOOKED_AT = 6
START_SECONDS = 300.0
UPGRADE_SECONDS = 600.0
MUST, GOAL = 0.25, 0.12
PHASES = (
    ("until_stopped_seconds", "the old one has ended and is kept"),
    ("until_ended_seconds", "seen"),
    ("until_deployed_seconds", "the new one is recorded"),
    ("until_handed_over_seconds", "handed over"),
    ("until_claimed_seconds", "claimed"),
    ("until_started_seconds", "its query is started"),
    ("until_planned_seconds", "its first batch is planned"),
    ("until_committed_seconds", "its first commit"),
)
"""What is left, in order of time, each since the one before; the first one since the last commit of the old version."""


@dataclass(frozen=True)
class Gap:
    """One way to the next version.

    Attributes:
        seconds: last commit of the old to first commit of the new.
        batch_seconds: between two commits of the old one, before it was told to end.
        phases: seconds of each phase; empty if unknown.
    """

    seconds: float
    batch_seconds: float
    phases: Mapping[str, float]


def run(session: Session) -> list[Result]:
    """Measure pairs in alternating order."""
    bench = _Bench(session.folder / NAME, session.flights())
    pairs: list[tuple[Gap, Gap]] = []
    for number in range(1, (QUICK_PAIRS if session.quick else PAIRS) + 1):
        if number % 2:
            upgraded, resubmitted = bench.upgraded(number), bench.resubmitted(number)
        else:
            resubmitted, upgraded = bench.resubmitted(number), bench.upgraded(number)
        pairs.append((upgraded, resubmitted))
        session.say(
            f"  pair {number}: upgraded {upgraded.seconds:.2f} s, stopped and submitted again {resubmitted.seconds:.2f}"
            f" s; batches of {upgraded.batch_seconds:.2f} and {resubmitted.batch_seconds:.2f} s"
        )
    return [_result(pairs)]


class _Bench:
    def __init__(self, folder: Path, source: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._source = source

    def upgraded(self, number: int) -> Gap:
        place = self._folder / f"upgraded-{number}"
        with Streams.on_disk(place / "home") as streams:
            old = streams.deploy(f"{NAME}-{number}", SCRIPT, *self._arguments(place))
            old.wait_committed(QUERY, WARM_BATCH_ID, START_SECONDS)
            upgrades = streams.controller.upgrades
            begun = upgrades.begin(UpgradeRequest(ChangeRequest(old.stream_id), mode="restore"))
            view = upgrades.run(old.stream_id, begun.upgrade_id, UPGRADE_SECONDS)
            if view.outcome != "upgraded":
                raise BenchmarkError(f"the upgrade is {view.outcome}: {view.state.last.text}\n{old.log_tail()}")
            return self._of_upgrade(streams, old, view)

    def _of_upgrade(self, streams: Streams, old: Running, view: UpgradeView) -> Gap:
        new = Running(streams, old.stream_id, str(view.state.last.new_deployment_id))
        before, after = commits_in(old.checkpoint_path(QUERY)), commits_in(new.checkpoint_path(QUERY))
        last_id, first_id = max(before), min(batch_id for batch_id in after if batch_id > max(before))
        self._check_load(first_id)
        planned_at = (new.checkpoint_path(QUERY) / "offsets" / str(first_id)).stat().st_mtime
        moments = _moments(streams, old, new, view) | {"planned": planned_at, "committed": after[first_id]}
        return Gap(after[first_id] - before[last_id], _batch_seconds(before), _phases(before[last_id], moments))

    def resubmitted(self, number: int) -> Gap:
        place = self._folder / f"resubmitted-{number}"
        place.mkdir()
        checkpoint = place / "delays.checkpoint"
        with BareRun(SCRIPT, self._arguments(place), place / "first.log") as old:
            old.wait((checkpoint / "commits" / str(WARM_BATCH_ID)).exists, "the warm batch", START_SECONDS)
            SYSTEM_CLOCK.sleep(SYSTEM_CLOCK.jitter() * _batch_seconds(commits_in(checkpoint)))
            old.stop(START_SECONDS)
        before = commits_in(checkpoint)
        first_id = max(before) + 1
        with BareRun(SCRIPT, self._arguments(place), place / "second.log") as new:
            new.wait((checkpoint / "commits" / str(first_id)).exists, "the first batch", START_SECONDS)
        self._check_load(first_id)
        return Gap(commits_in(checkpoint)[first_id] - before[first_id - 1], _batch_seconds(before), {})

    def _arguments(self, place: Path) -> tuple[str, ...]:
        return (
            "--input", str(self._source), "--output", str(place / "delays"),
            "--max-files-per-trigger", str(FILES_PER_BATCH),
        )  # fmt: skip

    def _check_load(self, batch_id: int) -> None:
        if len(list(self._source.iterdir())) <= FILES_PER_BATCH * (batch_id + 1):
            raise BenchmarkError("the input was used up, so the load was not steady; give it more files")


def commits_in(checkpoint: Path) -> dict[int, float]:
    """When each batch was committed, in seconds since 1970."""
    return {int(path.name): path.stat().st_mtime for path in (checkpoint / "commits").glob("[0-9]*")}


def _batch_seconds(commits: Mapping[int, float]) -> float:
    last = [commits[batch_id] for batch_id in sorted(commits)][-BATCHES_LOOKED_AT:]
    return median(after - before for before, after in itertools.pairwise(last))


def _moments(streams: Streams, old: Running, new: Running, view: UpgradeView) -> dict[str, float]:
    control = streams.home.control(old.stream_id)
    ended = next(step for step in UpgradeJournal(control).steps(view.upgrade_id) if step.phase == "ended")
    handover = control.handover(str(view.state.last.rehearsal_id))
    if handover is None:
        raise BenchmarkError("no driver waited, so it was no warm handover")
    accepted, stopped = old.first(Accepted), old.first(Stopped)
    claimed, started = new.first(Claimed), new.first(QueryStarted)
    return {
        "ordered": datetime.fromisoformat(str(accepted.command["requested_at"])).timestamp(),
        "accepted": accepted.at.timestamp(),
        "stopped": stopped.at.timestamp(),
        "ended": ended.taken_at.timestamp(),
        "deployed": control.spec(new.deployment_id).created_at.timestamp(),
        "handed_over": handover.handed_over_at.timestamp(),
        "claimed": claimed.at.timestamp(),
        "started": started.at.timestamp(),
    }


def _phases(last_commit_at: float, moments: Mapping[str, float]) -> dict[str, float]:
    at, phases = (
        last_commit_at,
        {
            "ordered_before_seconds": last_commit_at - moments["ordered"],
            "accepted_before_seconds": last_commit_at - moments["accepted"],
        },
    )
    for phase, _ in PHASES:
        until = moments[phase.removeprefix("until_").removesuffix("_seconds")]
        phases[phase], at = until - at, until
    return phases


def _result(pairs: list[tuple[Gap, Gap]]) -> Result:
    ratios = [upgraded.seconds / resubmitted.seconds for upgraded, resubmitted in pairs]
    upgraded_ones = [upgraded for upgraded, _ in pairs]
    phases = {phase: median(gap.phases[phase] for gap in upgraded_ones) for phase in upgraded_ones[0].phases}
    rounds: tuple[dict[str, Number], ...] = tuple(
        {
            "upgraded_seconds": upgraded.seconds,
            "resubmitted_seconds": resubmitted.seconds,
            "upgraded_batch_seconds": upgraded.batch_seconds,
            "resubmitted_batch_seconds": resubmitted.batch_seconds,
            **upgraded.phases,
        }
        for upgraded, resubmitted in pairs
    )
    ratio = median(ratios)
    batches = median(gap.batch_seconds for pair in pairs for gap in pair)
    left = ", ".join(f"{words} {phases[phase]:.2f} s" for phase, words in PHASES)
    return Result(
        name=NAME,
        of=Side("last commit to first commit, warm handover", median(gap.seconds for gap in upgraded_ones), "s"),
        against=Side("the same, stopped and submitted again", median(gap.seconds for _, gap in pairs), "s"),
        ratio=ratio,
        ratio_means="of that",
        goal=Goal(f"{GOAL} of it; {MUST} at the most", ratio, "<=", GOAL, "of it"),
        rounds=rounds,
        notes=(
            f"pairs from {min(ratios):.2f} to {max(ratios):.2f}; batches of {batches:.2f} s; what must hold, {MUST}, "
            f"{'holds' if ratio <= MUST else 'does not hold'}",
            f"what is left, each after the one before (medians): {left}",
        ),
    )
