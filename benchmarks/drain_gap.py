"""An upgrade that drains: from the last batch before the flush to the first commit of the next version.

By one verb, with the next driver waiting, against the same by hand: ``drain``, and once it is drained ``deploy``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from airflow_streamstate.controller.request.requests import change_request
from airflow_streamstate.controller.upgrade.upgrades import UpgradeRequest
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.protocol.events import Draining
from airflow_streamstate.protocol.terms.order import DrainTerms, UpgradeTerms
from benchmarks.grounds import Ground, on_disk
from benchmarks.pairs import Way, measure_pairs
from benchmarks.results import BenchmarkError, Result
from benchmarks.session import Session
from benchmarks.streams import Running

NAME = "drain-gap"
SCRIPT = "delays_by_week.py"
QUERY = "delays"
FILES_PER_BATCH = 1
WARM_BATCH_ID = 8
WAIT_SECONDS = 300.0
UPGRADE_SECONDS = 600.0
GOAL = 0.6


def run(session: Session) -> list[Result]:
    """On disk."""
    source = session.flights()
    with on_disk(session.folder / NAME) as ground:
        upgraded = Way(
            "last batch before the flush to first commit, one upgrade", partial(_upgraded_seconds, ground, source)
        )
        by_hand = Way("the same by drain, and then deploy", partial(_by_hand_seconds, ground, source))
        return [measure_pairs(session, NAME, upgraded, by_hand, GOAL)]


def _upgraded_seconds(ground: Ground, source: Path, number: int) -> float:
    name = f"upgraded-{number}"
    with ground.streams(name) as streams:
        old = streams.deploy(f"{NAME}-{number}", SCRIPT, *_arguments(ground, name, source))
        old.wait_committed(QUERY, WARM_BATCH_ID, WAIT_SECONDS)
        upgrades = streams.controller.upgrades
        begun = upgrades.begin(UpgradeRequest(change_request(old.stream_id), UpgradeTerms(mode="drain")))
        view = upgrades.run(old.stream_id, begun.upgrade_id, UPGRADE_SECONDS)
        if view.outcome != "upgraded":
            raise BenchmarkError(f"the upgrade is {view.outcome}: {view.state.text}\n{old.log_tail()}")
        return _seconds(ground, old, Running(streams, old.stream_id, str(view.state.new_deployment_id)))


def _by_hand_seconds(ground: Ground, source: Path, number: int) -> float:
    name = f"by-hand-{number}"
    with ground.streams(name) as streams:
        old = streams.deploy(f"{NAME}-{number}", SCRIPT, *_arguments(ground, name, source))
        old.wait_committed(QUERY, WARM_BATCH_ID, WAIT_SECONDS)
        order = old.controller.order("drain", old.stream_id, terms=DrainTerms(rehearse=False))
        old.controller.wait(WaitCondition.of(order), WAIT_SECONDS)
        new = streams.deploy(old.stream_id, SCRIPT, *_arguments(ground, name, source))
        last_id = max(ground.commits_of(old.checkpoint(QUERY)))
        new.wait(lambda: bool(_later(ground, new, last_id)), "the first commit", WAIT_SECONDS)
        return _seconds(ground, old, new)


def _seconds(ground: Ground, old: Running, new: Running) -> float:
    before = ground.commits_of(old.checkpoint(QUERY))
    last_id = old.first(Draining).flush_batch_ids[QUERY] - 1
    return min(_later(ground, new, max(before)).values()) - before[last_id]


def _later(ground: Ground, new: Running, last_id: int) -> dict[int, float]:
    """The commits of a version that was seeded at this batch."""
    commits = ground.commits_of(new.checkpoint(QUERY))
    return {batch_id: at for batch_id, at in commits.items() if batch_id > last_id}


def _arguments(ground: Ground, name: str, source: Path) -> tuple[str, ...]:
    return (
        *("--input", str(source), "--output", str(ground.work / name / "delays")),
        *("--max-files-per-trigger", str(FILES_PER_BATCH)),
    )
