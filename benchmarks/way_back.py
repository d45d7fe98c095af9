"""The way back from a version that fails in its first batch: its failure to the first commit of the version before.

A driver of the version before was kept ready (``warm_return``). Against a cold start: the same script as a plain job,
submitted on its checkpoint, to its first commit.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.request.requests import change_request
from airflow_streamstate.controller.upgrade.upgrades import UpgradeRequest
from airflow_streamstate.protocol.events import Failed
from airflow_streamstate.protocol.terms.order import UpgradeTerms
from airflow_streamstate.protocol.upgrades import BEFORE_THE_STOP, DriverWaits
from benchmarks.grounds import Ground, on_disk
from benchmarks.jobs_at_work import BareRun
from benchmarks.pairs import Way, measure_pairs
from benchmarks.results import BenchmarkError, Result
from benchmarks.session import Session
from benchmarks.streams import Running, Streams

NAME = "way-back"
SCRIPT = "delays_by_week.py"
QUERY = "delays"
FILES_PER_BATCH = 1
EVERY_SECONDS = 3
"""Between two batches: three drivers come up alongside the first one, and its input has to last until then."""
WARM_BATCH_ID = 4
WAIT_SECONDS = 300.0
UPGRADE_SECONDS = 600.0
GOAL = 0.3


def run(session: Session) -> list[Result]:
    """On disk."""
    source = session.flights()
    with on_disk(session.folder / NAME) as ground:
        back = Way("failure of the new version to first commit of the old one", partial(_back_seconds, ground, source))
        cold = Way(
            "the plain job, submitted on its checkpoint, to its first commit", partial(_cold_seconds, ground, source)
        )
        return [measure_pairs(session, NAME, back, cold, GOAL)]


def _back_seconds(ground: Ground, source: Path, number: int) -> float:
    name = f"back-{number}"
    mistake = ground.work / f"{name}.mistake"
    arguments = _arguments(ground, name, source)
    with ground.streams(name) as streams:
        old = streams.deploy(f"{NAME}-{number}", SCRIPT, *arguments)
        old.wait_committed(QUERY, WARM_BATCH_ID, WAIT_SECONDS)
        upgrades = streams.controller.upgrades
        change = change_request(old.stream_id, arguments=(*arguments, "--fails-once-there-is", str(mistake)))
        begun = upgrades.begin(UpgradeRequest(change, UpgradeTerms(mode="restore", warm_return=True)))

        def strike(_: str) -> None:
            if upgrades.view(old.stream_id, begun.upgrade_id).state.phase not in BEFORE_THE_STOP:
                mistake.touch()

        view = upgrades.run(old.stream_id, begun.upgrade_id, UPGRADE_SECONDS, on_step=strike)
        if view.outcome != "given_up" or not isinstance(view.state.driver, DriverWaits):
            raise BenchmarkError(f"the upgrade is {view.outcome}: {view.state.text}\n{old.log_tail()}")
        return _seconds_back(streams, old.stream_id, view.state.new_deployment_id, ground)


def _seconds_back(streams: Streams, stream_id: str, new_deployment_id: str | None, ground: Ground) -> float:
    bad = Running(streams, stream_id, str(new_deployment_id))
    back = Running(streams, stream_id, streams.controller.status(stream_id).deployment_id)
    failed_at = bad.first(Failed).at.timestamp()
    later = [at for at in ground.commits_of(back.checkpoint(QUERY)).values() if at > failed_at]
    if not later:
        raise BenchmarkError(f"{back.deployment_id} has committed nothing since {new_deployment_id} failed")
    return min(later) - failed_at


def _cold_seconds(ground: Ground, source: Path, number: int) -> float:
    name = f"cold-{number}"
    place = ground.work / name
    place.mkdir(parents=True)
    arguments = (*_arguments(ground, name, source), "--checkpoint", ground.checkpoint_location(name))
    with BareRun(SCRIPT, arguments, place / "first.log") as first:
        first.wait(lambda: WARM_BATCH_ID in ground.plain_commits(name), "the warm batch", WAIT_SECONDS)
        first.stop(WAIT_SECONDS)
    first_id = max(ground.plain_commits(name)) + 1
    submitted_at = SYSTEM_CLOCK.now().timestamp()
    with BareRun(SCRIPT, arguments, place / "second.log") as second:
        second.wait(lambda: first_id in ground.plain_commits(name), "the first batch", WAIT_SECONDS)
    return ground.plain_commits(name)[first_id] - submitted_at


def _arguments(ground: Ground, name: str, source: Path) -> tuple[str, ...]:
    return (
        *("--input", str(source), "--output", str(ground.work / name / "delays")),
        *("--max-files-per-trigger", str(FILES_PER_BATCH), "--every-seconds", str(EVERY_SECONDS)),
    )
