"""How long a stream commits nothing in an upgrade: from the last commit of the old version to the first of the new one.

By one verb, with the new driver waiting warm, against what everybody does without us: the plain job is stopped by a
signal, and submitted again on its checkpoint. The same script over the same input, in pairs, measured in the same way:
by when ``commits/<n>`` were written, which a hard link keeps. So is a move to another Spark, by the same verb.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import median

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.control.upgrade_journal import UpgradeJournal
from airflow_streamstate.controller.request.requests import change_request
from airflow_streamstate.controller.upgrade.upgrade_views import UpgradeView
from airflow_streamstate.controller.upgrade.upgrades import UpgradeRequest
from airflow_streamstate.launch.spark_home import environment_of_spark
from airflow_streamstate.protocol.events import Accepted, Claimed, QueryStarted, Stopped
from airflow_streamstate.protocol.terms.order import UpgradeTerms
from benchmarks import sparks
from benchmarks.grounds import Ground, RunPlain, busy, on_disk, on_s3
from benchmarks.jobs_at_work import StoppedByItself
from benchmarks.kubernetes_ground import on_kubernetes
from benchmarks.results import BenchmarkError, Goal, Number, Result, Side
from benchmarks.session import Session
from benchmarks.streams import Drivers, Running, Streams
from benchmarks.yarn_ground import on_yarn

NAME, BUSY, ON_S3, ON_S3_BUSY = "upgrade-gap", "busy-upgrade-gap", "s3-upgrade-gap", "busy-s3-upgrade-gap"
ON_YARN, ON_KUBERNETES = "yarn-upgrade-gap", "kubernetes-upgrade-gap"
MOVE, SPARK_BEFORE, SPARK_AFTER = "spark-move", "3.5.9", "4.2.0"
CONF_OF_MOVE = {"spark.sql.ansi.enabled": "false"}
"""What changed its default between the two: else the state does not fit."""
SCRIPT = "delays_by_week.py"
QUERY = "delays"
FILES_PER_BATCH = 1
PAIRS, QUICK_PAIRS = 5, 2
PAIRS_ON_CLUSTERS, QUICK_PAIRS_ON_CLUSTERS = 3, 1
WARM_BATCH_ID = 8
BATCHES_LOOKED_AT = 6
STAYS = ("", "")
START_SECONDS = 300.0
UPGRADE_SECONDS = 600.0
BUSY_CORES = 2
GOAL, GOAL_ON_S3, GOAL_ON_CLUSTERS, GOAL_OF_MOVE = 0.12, 0.25, 0.25, 0.15
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
        batch_seconds: between two commits of the old one, before it was ordered to end.
        phases: seconds of each phase; empty if unknown.
    """

    seconds: float
    batch_seconds: float
    phases: Mapping[str, float]


def run(session: Session) -> list[Result]:
    """On disk, nothing else on the machine."""
    with on_disk(session.folder / NAME) as ground:
        return [_result(NAME, _pairs(session, ground), GOAL)]


def run_busy(session: Session) -> list[Result]:
    """On disk, both cores busy."""
    with on_disk(session.folder / BUSY) as ground, busy(BUSY_CORES):
        return [_result(BUSY, _pairs(session, ground), GOAL)]


def run_move(session: Session) -> list[Result]:
    """On disk, to another Spark; raises as ``sparks.path_of``."""
    move = sparks.path_of(SPARK_BEFORE), sparks.path_of(SPARK_AFTER)
    told = f"from Spark {SPARK_BEFORE} to {SPARK_AFTER}; the plain job is stopped by query.stop()"
    with on_disk(session.folder / MOVE) as disk:
        ground = replace(disk, drivers=Drivers(conf=CONF_OF_MOVE))
        return [_result(MOVE, _pairs(session, ground, move=move), GOAL_OF_MOVE, told)]


def run_on_s3(session: Session) -> list[Result]:
    """Home, checkpoints and their forks on a real S3 server; raises as ``on_s3``."""
    with on_s3(session.folder / ON_S3) as ground:
        return [_result(ON_S3, _pairs(session, ground), GOAL_ON_S3)]


def run_on_s3_busy(session: Session) -> list[Result]:
    """The same, both cores busy."""
    with on_s3(session.folder / ON_S3_BUSY) as ground, busy(BUSY_CORES):
        return [_result(ON_S3_BUSY, _pairs(session, ground), GOAL_ON_S3)]


def run_on_yarn(session: Session) -> list[Result]:
    """Drivers are applications in cluster mode with one executor each."""
    with on_yarn(session.folder / ON_YARN) as ground:
        plain = "the plain job is killed by the ResourceManager and submitted when none of its processes is left"
        return [
            _result(
                ON_YARN, _pairs(session, ground, PAIRS_ON_CLUSTERS, QUICK_PAIRS_ON_CLUSTERS), GOAL_ON_CLUSTERS, plain
            )
        ]


def run_on_kubernetes(session: Session) -> list[Result]:
    """Drivers are pods; raises as ``on_kubernetes``."""
    with on_kubernetes(session.folder / ON_KUBERNETES, session.flights()) as ground:
        plain = "the plain job is spark-submit in client mode in a pod, which is deleted, and created when it is gone"
        return [
            _result(
                ON_KUBERNETES,
                _pairs(session, ground, PAIRS_ON_CLUSTERS, QUICK_PAIRS_ON_CLUSTERS),
                GOAL_ON_CLUSTERS,
                plain,
            )
        ]


def _pairs(
    session: Session, ground: Ground, most: int = PAIRS, least: int = QUICK_PAIRS, move: tuple[str, str] = STAYS
) -> list[tuple[Gap, Gap]]:
    """Measure pairs in alternating order; so few of them in a quick session. ``move``: from and to which Spark."""
    bench = _Bench(ground, session.flights(), move)
    pairs: list[tuple[Gap, Gap]] = []
    for number in range(1, (least if session.quick else most) + 1):
        if number % 2:
            upgraded, resubmitted = bench.upgraded(number), bench.resubmitted(number)
        else:
            resubmitted, upgraded = bench.resubmitted(number), bench.upgraded(number)
        pairs.append((upgraded, resubmitted))
        session.say(
            f"  pair {number}: upgraded {upgraded.seconds:.2f} s, stopped and submitted again {resubmitted.seconds:.2f}"
            f" s; batches of {upgraded.batch_seconds:.2f} and {resubmitted.batch_seconds:.2f} s"
        )
    return pairs


class _Bench:
    def __init__(self, ground: Ground, source: Path, move: tuple[str, str]) -> None:
        self._ground = ground
        self._source = source
        self._spark_before, self._spark_after = move

    def upgraded(self, number: int) -> Gap:
        name = f"upgraded-{number}"
        with self._ground.streams(name) as streams:
            old = streams.deploy(f"{NAME}-{number}", SCRIPT, *self._arguments(name), spark=self._spark_before)
            old.wait_committed(QUERY, WARM_BATCH_ID, START_SECONDS)
            upgrades = streams.controller.upgrades
            change = change_request(old.stream_id, spark=self._spark_after)
            begun = upgrades.begin(UpgradeRequest(change, UpgradeTerms(mode="restore")))
            view = upgrades.run(old.stream_id, begun.upgrade_id, UPGRADE_SECONDS)
            if view.outcome != "upgraded":
                raise BenchmarkError(f"the upgrade is {view.outcome}: {view.state.text}\n{old.log_tail()}")
            return self._of_upgrade(streams, old, view)

    def _of_upgrade(self, streams: Streams, old: Running, view: UpgradeView) -> Gap:
        new = Running(streams, old.stream_id, str(view.state.new_deployment_id))
        before, after = (self._ground.commits_of(each.checkpoint(QUERY)) for each in (old, new))
        last_id, first_id = max(before), min(batch_id for batch_id in after if batch_id > max(before))
        self._check_load(first_id)
        planned = self._ground.path_of(new.checkpoint(QUERY)) / "offsets" / str(first_id)
        moments = _moments(streams, old, new, view) | {
            "planned": planned.stat().st_mtime,
            "committed": after[first_id],
        }
        return Gap(after[first_id] - before[last_id], _batch_seconds(before), _phases(before[last_id], moments))

    def resubmitted(self, number: int) -> Gap:
        name = f"resubmitted-{number}"
        place, ground = self._ground.work / name, self._ground
        place.mkdir(parents=True, exist_ok=True)
        arguments = (*self._arguments(name), "--checkpoint", ground.checkpoint_location(name))
        with self._plain(self._spark_before)(SCRIPT, arguments, place / "first.log") as old:
            old.wait(lambda: WARM_BATCH_ID in ground.plain_commits(name), "the warm batch", START_SECONDS)
            SYSTEM_CLOCK.sleep(SYSTEM_CLOCK.jitter() * _batch_seconds(ground.plain_commits(name)))
            old.stop(START_SECONDS)
        before = ground.plain_commits(name)
        first_id = max(before) + 1
        with self._plain(self._spark_after)(SCRIPT, arguments, place / "second.log") as new:
            new.wait(lambda: first_id in ground.plain_commits(name), "the first batch", START_SECONDS)
        self._check_load(first_id)
        return Gap(ground.plain_commits(name)[first_id] - before[first_id - 1], _batch_seconds(before), {})

    def _plain(self, spark: str) -> RunPlain:
        """How a plain job runs on this Spark."""
        if not spark:
            return self._ground.run_plain
        words = [word for name, value in self._ground.drivers.conf.items() for word in ("--conf", f"{name}={value}")]
        return partial(StoppedByItself, spark_words=words, environment=environment_of_spark(spark))

    def _arguments(self, name: str) -> tuple[str, ...]:
        output = self._ground.work / name / "delays"
        return (
            "--input", str(self._source), "--output", str(output),
            "--max-files-per-trigger", str(FILES_PER_BATCH),
        )  # fmt: skip

    def _check_load(self, batch_id: int) -> None:
        if len(list(self._source.iterdir())) <= FILES_PER_BATCH * (batch_id + 1):
            raise BenchmarkError("the input was used up, so the load was not steady; give it more files")


def _batch_seconds(commits: Mapping[int, float]) -> float:
    last = [commits[batch_id] for batch_id in sorted(commits)][-BATCHES_LOOKED_AT:]
    return median(after - before for before, after in itertools.pairwise(last))


def _moments(streams: Streams, old: Running, new: Running, view: UpgradeView) -> dict[str, float]:
    control = streams.home.control(old.stream_id)
    ended = next(step for step in UpgradeJournal(control).steps(view.upgrade_id) if step.phase == "ended")
    handover = control.handover(str(view.state.rehearsal_id))
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


def _result(name: str, pairs: list[tuple[Gap, Gap]], goal: float, *notes: str) -> Result:
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
        name=name,
        of=Side("last commit to first commit, warm handover", median(gap.seconds for gap in upgraded_ones), "s"),
        against=Side("the same, stopped and submitted again", median(gap.seconds for _, gap in pairs), "s"),
        ratio=ratio,
        ratio_means="of that",
        goal=Goal(f"{goal} of it", ratio, "<=", goal, "of it"),
        rounds=rounds,
        notes=(
            f"pairs from {min(ratios):.2f} to {max(ratios):.2f}; batches of {batches:.2f} s",
            f"what is left, each after the one before (medians): {left}",
            *notes,
        ),
    )
