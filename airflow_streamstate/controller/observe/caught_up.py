"""Whether a query has caught up: its sources reported no lag in this attempt, its newest trigger found no input, or its
run has ended by itself.

An unknown lag is never a yes. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_streamstate.connectors.moving import counted
from airflow_streamstate.controller.observe.bounded_runs import ended_runs
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.controller.observe.pace import left_at_least
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.events import QueryStarted
from airflow_streamstate.protocol.heartbeat import QueryBeat, SourceLag


@dataclass(frozen=True)
class CaughtUp:
    """Whether a query, or a deployment, has caught up; ``why``: one lower-case clause, either way."""

    is_so: bool
    why: str


RUN_HAS_ENDED = CaughtUp(True, "its run has ended by itself")


def decide_caught_up(seen: Observation, at_most: int = 0) -> CaughtUp:
    """Whether each query of the current attempt has a lag of at most ``at_most`` in each source, in its own unit.

    What comes after the end of a run that ended by itself is the next attempt's.
    """
    if seen.has_come_to_its_end:
        return CaughtUp(True, "it has come to its end by itself")
    beat = seen.heartbeat
    names = sorted({event.query_name for event in seen.of_kind(QueryStarted)})
    if beat is None or beat.attempt != seen.attempt or not names:
        return CaughtUp(False, "no query of it has run yet")
    if seen.has_old_heartbeat:
        return CaughtUp(False, f"its last sign of life is {seen.heartbeat_age_seconds:.0f} s old")
    ended = ended_runs(seen)
    found = {
        name: RUN_HAS_ENDED if name in ended else query_caught_up(beat.queries.get(name), at_most) for name in names
    }
    missing = {name: one for name, one in found.items() if not one.is_so}
    return CaughtUp(not missing, "; ".join(f"query {name}: {one.why}" for name, one in (missing or found).items()))


def query_caught_up(query: QueryBeat | None, at_most: int = 0) -> CaughtUp:
    """The same for one query, by the last heartbeat of its attempt; None: the heartbeat does not know it."""
    if query is None:
        return CaughtUp(False, "it has not run yet")
    if query.is_idle:
        return CaughtUp(True, "its newest trigger found no input")
    lags = query.lags
    if not lags:
        return CaughtUp(False, "how far it is behind is not known yet")
    untold = [f"{lag.source}: {lag.untold}" for lag in lags if lag.behind is None]
    if untold:
        return CaughtUp(False, f"how far it is behind cannot be told ({'; '.join(untold)})")
    # A source that never pauses always has a lag: smallest right after a commit, when no look may happen.
    is_so = all((left := left_at_least(lag)) is not None and left <= at_most for lag in lags)
    return CaughtUp(is_so, describe_behind(lags))


def has_some_left(query: QueryBeat) -> bool:
    """Whether something is known to be left to read; False where the lag is unknown."""
    return not query.is_idle and any(lag.behind for lag in query.lags)


def describe_behind(lags: Sequence[SourceLag]) -> str:
    """How far behind, and for how long: ``120 files behind, about 40 s``; "" where unknown.

    A smaller lag at one of the newest batches is named, too: ``900 rows behind, 20 at the least``.
    """
    told = [(lag.behind, left_at_least(lag) or 0, lag.unit) for lag in lags if lag.behind is not None]
    if not told:
        return ""
    sums: dict[str, tuple[int, int]] = {}
    for behind, least, unit in told:
        before = sums.get(unit, (0, 0))
        sums[unit] = before[0] + behind, before[1] + least
    left = " and ".join(counted(behind, unit) for unit, (behind, _) in sums.items() if behind)
    words = f"{left or 'nothing'} behind"
    if any(least < behind for behind, least in sums.values()):
        words += f", {' and '.join(f'{least:,}' for behind, least in sums.values() if behind)} at the least"
    seconds = seconds_to_zero(lags)
    return words + (f", about {seconds:,.0f} s" if left and seconds is not None else "")


def describe_since_snapshot(batches: int | None, lags: Sequence[SourceLag]) -> str:
    """What a return to the newest snapshot reads again: ``3 batches, 120 files``; "" where unknown."""
    if batches is None:
        return ""
    sums: dict[str, int] = {}
    for lag in lags:
        if lag.since_snapshot is not None:
            sums[lag.since_snapshot_unit] = sums.get(lag.since_snapshot_unit, 0) + lag.since_snapshot
    return ", ".join((counted(batches, "batches"), *(counted(count, unit) for unit, count in sums.items())))


def seconds_to_zero(lags: Sequence[SourceLag]) -> float | None:
    """Seconds until no source has anything left, at the recent pace; None where one of them does not tell."""
    told = [lag.seconds_to_zero for lag in lags]
    return max((each for each in told if each is not None), default=None) if None not in told else None
