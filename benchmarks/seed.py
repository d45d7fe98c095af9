"""Drain and carry on: from ``Drained`` to the first commit of the version that is seeded, after little and much state.

One upgrade each, by ``mode="drain"``, the new driver waiting warm. The state of the old version is one open window, in
RocksDB; the drain flushes it, and what is seeded has the offsets alone. How long the flush took is reported with
it. Sizes take turns, and whichever is first changes from pair to pair.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median

from airflow_streamstate.controller.request.requests import change_request
from airflow_streamstate.controller.upgrade.upgrade_views import UpgradeView
from airflow_streamstate.controller.upgrade.upgrades import UpgradeRequest
from airflow_streamstate.protocol.events import Claimed, Drained, Draining, QueryStarted
from airflow_streamstate.protocol.terms.order import UpgradeTerms
from benchmarks.grounds import commits_in
from benchmarks.results import BenchmarkError, Goal, Number, Result, Side
from benchmarks.session import Session
from benchmarks.snapshot import Keys
from benchmarks.streams import Running, Streams

NAME = "seed"
SCRIPT = "payload_by_key.py"
QUERY = "payloads"
LITTLE, MUCH = 10_000, 1_000_000
QUICK_LITTLE, QUICK_MUCH = 2_000, 100_000
BATCHES_OF_KEYS = 2
PAIRS, QUICK_PAIRS = 2, 1
BUILD_SECONDS = 400.0
UPGRADE_SECONDS = 900.0
GOAL_SHARE, GOAL_APART_SECONDS, GOAL_SECONDS = 0.2, 0.5, 3.0
PHASES = (
    ("until_deployed_seconds", "the new one is recorded"),
    ("until_claimed_seconds", "claimed"),
    ("until_started_seconds", "its query is started"),
    ("until_planned_seconds", "its first batch is planned"),
    ("until_committed_seconds", "its first commit"),
)
"""What is in those seconds, in order of time, each since the one before; the first one since ``Drained``."""


def run(session: Session) -> list[Result]:
    """Measure pairs."""
    sizes = (QUICK_LITTLE, QUICK_MUCH) if session.quick else (LITTLE, MUCH)
    pairs = []
    for number in range(1, (QUICK_PAIRS if session.quick else PAIRS) + 1):
        order = sizes if number % 2 else tuple(reversed(sizes))
        found = {count: _seeded(session.folder / NAME / f"{number}-{count}", number, count) for count in order}
        little, much = (found[count] for count in sizes)
        pairs.append((little, much))
        session.say(
            f"  pair {number}: seeded in {little['seconds']:.2f} s after {_flush(little)}, "
            f"in {much['seconds']:.2f} s after {_flush(much)}"
        )
    return [_result(pairs)]


def _flush(found: Mapping[str, float]) -> str:
    return f"{found['state_bytes'] / 1e6:,.0f} MB were flushed in {found['flush_seconds']:.1f} s"


def _seeded(place: Path, number: int, count: int) -> dict[str, float]:
    keys = Keys(place / "keys")
    per_batch = count // BATCHES_OF_KEYS
    with Streams.on_disk(place / "home") as streams:
        for first in range(0, count, per_batch):
            keys.write(first, per_batch)
        arguments = ("--input", str(place / "keys"), "--checkpoint", str(place / "own-checkpoint"), "--window")
        old = streams.deploy(f"{NAME}-{number}-{count}", SCRIPT, *arguments, conf={"spark.driver.memory": "2g"})
        old.wait_committed(QUERY, BATCHES_OF_KEYS - 1, BUILD_SECONDS)
        keys.start_trickle(count)
        try:
            old.wait_committed(QUERY, BATCHES_OF_KEYS, BUILD_SECONDS)
            upgrades = streams.controller.upgrades
            begun = upgrades.begin(UpgradeRequest(change_request(old.stream_id), UpgradeTerms(mode="drain")))
            view = upgrades.run(old.stream_id, begun.upgrade_id, UPGRADE_SECONDS)
            if view.outcome != "upgraded":
                raise BenchmarkError(f"the upgrade is {view.outcome}: {view.state.text}\n{old.log_tail()}")
            return _found(streams, old, view)
        finally:
            keys.stop()


def _found(streams: Streams, old: Running, view: UpgradeView) -> dict[str, float]:
    control = streams.home.control(old.stream_id)
    new = Running(streams, old.stream_id, str(view.state.new_deployment_id))
    draining, drained = old.first(Draining), old.first(Drained)
    before, after = commits_in(old.checkpoint_path(QUERY)), commits_in(new.checkpoint_path(QUERY))
    first_id = min(batch_id for batch_id in after if batch_id > max(before))
    sizes = [control.need_manifest(one).size_bytes for one in control.snapshot_ids() if "-pre-drain-" in one]
    moments = {
        "deployed": control.spec(new.deployment_id).created_at.timestamp(),
        "claimed": new.first(Claimed).at.timestamp(),
        "started": new.first(QueryStarted).at.timestamp(),
        "planned": (new.checkpoint_path(QUERY) / "offsets" / str(first_id)).stat().st_mtime,
        "committed": after[first_id],
    }
    return {
        "seconds": after[first_id] - drained.at.timestamp(),
        "flush_seconds": (drained.at - draining.at).total_seconds(),
        "state_bytes": float(max(sizes)),
        **_phases(drained.at.timestamp(), moments),
    }


def _phases(at: float, moments: Mapping[str, float]) -> dict[str, float]:
    phases = {}
    for phase, _ in PHASES:
        until = moments[phase.removeprefix("until_").removesuffix("_seconds")]
        phases[phase], at = until - at, until
    return phases


def _result(pairs: list[tuple[dict[str, float], dict[str, float]]]) -> Result:
    little, much = ({name: median(one[name] for one in side) for name in side[0]} for side in zip(*pairs, strict=True))
    apart = median(second["seconds"] - first["seconds"] for first, second in pairs)
    allowed = max(GOAL_APART_SECONDS, GOAL_SHARE * little["seconds"])
    rounds: list[dict[str, Number]] = []
    for first, second in pairs:
        found: dict[str, Number] = {f"little_{name}": value for name, value in first.items()}
        rounds.append(found | {f"much_{name}": value for name, value in second.items()})
    parts = ", ".join(f"{words} {much[phase]:.2f} s" for phase, words in PHASES)
    holds = "holds" if much["seconds"] <= GOAL_SECONDS else "does not hold"
    return Result(
        name=NAME,
        of=Side(f"seeded after {much['state_bytes'] / 1e6:,.0f} MB", much["seconds"], "s"),
        against=Side(f"seeded after {little['state_bytes'] / 1e6:,.0f} MB", little["seconds"], "s"),
        ratio=much["seconds"] / little["seconds"],
        ratio_means="of that",
        goal=Goal(f"at most {GOAL_SHARE:.0%} or {GOAL_APART_SECONDS} s longer", apart, "<=", allowed, "s"),
        rounds=tuple(rounds),
        notes=(
            f"{GOAL_SECONDS:.0f} s at the most {holds}; the flush before it took {little['flush_seconds']:.1f} and "
            f"{much['flush_seconds']:.1f} s",
            f"after much state, each since the one before (medians): {parts}",
        ),
    )
