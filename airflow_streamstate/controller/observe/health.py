"""Whether a new version is healthy, keeps pace, and has caught up. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from airflow_streamstate.connectors.moves import counted
from airflow_streamstate.controller.observe.observation import (
    ALIVE,
    Observation,
    bounded_queries,
    ended_runs,
    repeated_runs,
)
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.events import Failed, Finished, QueryStarted
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.positions import LagTrend, QueryBeat, SourceLag
from airflow_streamstate.protocol.terms.order import LEAST_SLOWER_FACTOR, UpgradeTerms

# How fast a query reads, compared with its input and with another version. Pure.
#
# Rates come from a window of batches (``LagTrend``): between two commits the lag grows from its least to its most,
# however fast the query is, so a single sample shows nothing.

NOISE = LEAST_SLOWER_FACTOR
"""Rates that differ by less than this factor count as equal."""
LEVEL_BATCHES = 2
"""The lag of a query that keeps up, in batches, is at most this: one that runs, and one to be planned."""


@dataclass(frozen=True)
class ReadPace:
    """The pace of a query over all its sources of one unit.

    Attributes:
        read_per_second, came_per_second: what the query read, and what arrived at its sources; None if the offsets do
            not show it.
        least_before, least: the smallest lag in the older and in the newer half of the window.
    """

    unit: str
    read_per_second: float | None
    came_per_second: float | None
    least_before: int
    least: int

    @property
    def falls_behind(self) -> bool:
        """Whether the smallest lag grows, and less is read than comes, as far as the rates are known."""
        if self.least <= self.least_before:
            return False
        if self.read_per_second is None or self.came_per_second is None:
            return True
        return self.came_per_second > self.read_per_second * NOISE


@dataclass(frozen=True)
class Slower:
    """A query that falls behind, and reads less than in the version before, or than an unknown rate.

    Attributes:
        text: both rates, as a clause: ``reads 5 rows/s while 10 rows/s arrive, and the version before read 10 rows/s``.
        factor: rate of the version before divided by the rate of this one; None where unknown.
    """

    text: str
    factor: float | None


def paces_of(query: QueryBeat) -> Mapping[str, ReadPace]:
    """The pace of a query by unit; sources without a known trend are left out."""
    found: dict[str, ReadPace] = {}
    for lag in query.lags:
        if lag.trend is None or lag.behind is None:
            continue
        pace = _pace_of(lag.unit, lag.trend)
        found[lag.unit] = _together(found[lag.unit], pace) if lag.unit in found else pace
    return found


def left_at_least(lag: SourceLag) -> int | None:
    """The smallest lag of one source at the newest three batches; the lag of now where the query falls behind."""
    if lag.behind is None or lag.trend is None or _pace_of(lag.unit, lag.trend).falls_behind:
        return lag.behind
    return min(lag.behind, lag.trend.least_lately)


def decide_slower(query: QueryBeat, before: QueryBeat | None) -> Slower | None:
    """Whether a query is slower than in the version before.

    None where it keeps up, where its lag is not larger than that version's, or where it reads as much: then the input
    got faster. ``before``: the query as the version before last reported it; None where it did not.
    """
    known = {} if before is None else paces_of(before)
    found = [_slower(pace, known.get(unit)) for unit, pace in paces_of(query).items()]
    told = [one for one in found if one is not None]
    return max(told, key=lambda slower: 0.0 if slower.factor is None else slower.factor, default=None)


def keeps_level(query: QueryBeat) -> bool:
    """Whether a query that is never without input keeps up, with a lag of at most ``LEVEL_BATCHES`` batches.

    False if no source shows it.
    """
    told = [lag for lag in query.lags if lag.behind is not None]
    return bool(told) and all(_is_level(lag) for lag in told)


def describe_rate(per_second: float | None, unit: str) -> str:
    """``12.5 rows/s``; ``an unknown number of rows/s``."""
    if per_second is None:
        return f"an unknown number of {unit}/s"
    return f"{per_second:,.0f} {unit}/s" if per_second >= 100 else f"{per_second:.3g} {unit}/s"


def _is_level(lag: SourceLag) -> bool:
    trend = lag.trend
    if not lag.behind:
        return True
    if trend is None or trend.read is None or trend.batches <= 0:
        return False
    return not _pace_of(lag.unit, trend).falls_behind and trend.least * trend.batches <= LEVEL_BATCHES * trend.read


def _slower(pace: ReadPace, before: ReadPace | None) -> Slower | None:
    if not pace.falls_behind or (before is not None and pace.least <= before.least):
        return None
    was = None if before is None else before.read_per_second
    factor = None
    if pace.read_per_second is not None and was is not None:
        factor = was / pace.read_per_second if pace.read_per_second > 0 else math.inf
        if factor <= NOISE:
            return None
    text = (
        f"reads {describe_rate(pace.read_per_second, pace.unit)} while {describe_rate(pace.came_per_second, pace.unit)}"
        f" arrive, and the version before read {describe_rate(was, pace.unit)}; "
        f"{counted(pace.least, pace.unit)} behind at the least, {pace.least_before:,} before"
    )
    return Slower(text, factor)


def _pace_of(unit: str, trend: LagTrend) -> ReadPace:
    return ReadPace(unit, trend.read_per_second, trend.came_per_second, trend.least_before, trend.least)


def _together(one: ReadPace, other: ReadPace) -> ReadPace:
    return ReadPace(
        one.unit,
        _sum(one.read_per_second, other.read_per_second),
        _sum(one.came_per_second, other.came_per_second),
        one.least_before + other.least_before,
        one.least + other.least,
    )


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


# Whether a query has caught up: its sources reported no lag in this attempt, its newest trigger found no input, or
# its run has ended by itself.
#
# An unknown lag is never a yes. Pure.


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
        return CaughtUp(True, "it has ended by itself")
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
        return CaughtUp(False, f"how far it is behind is not known ({'; '.join(untold)})")
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
    """Seconds until no source has anything left, at the recent pace; None if one of them does not report it."""
    told = [lag.seconds_to_zero for lag in lags]
    return max((each for each in told if each is not None), default=None) if None not in told else None


Beats = Mapping[str, QueryBeat]
"""By query, its part of the last heartbeat."""
QUIET_SECONDS = 2.0
"""A query that found no input is healthy only once it has run for this long: one that fails does so at its start."""
STILL_SHARE = 0.5
"""A query of a new version is stalled if it committed nothing for this share of the time until it must be healthy."""
STILL_BATCHES = 3.0
"""No query is stalled, neither in an upgrade nor for an alert, before this many times the duration of its batches."""


@dataclass(frozen=True)
class Healthy:
    """It has proven itself; ``warnings``: human-readable sentences."""

    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class NotYet:
    """It may still prove itself; ``text``: what is missing."""

    text: str


@dataclass(frozen=True)
class Unhealthy:
    """It cannot prove itself any more."""

    reason: str


Health = Healthy | NotYet | Unhealthy


@dataclass(frozen=True)
class _Doubt:
    """A clause against a query; when the time is up, a fatal one abandons the version, any other is a warning."""

    text: str
    is_fatal: bool


def decide_health(
    seen: Observation,
    handover: SnapshotManifest | None,
    wanted: UpgradeTerms,
    old_beats: Beats | None,
    waited_seconds: float,
) -> Health:
    """Whether a new deployment has proven itself.

    Args:
        seen: the deployment.
        handover: the snapshot that it started from, or None.
        wanted: when it counts as healthy.
        old_beats: the queries of the version before; None where unknown.
        waited_seconds: since its launch.
    """
    state = seen.state
    if state == "drained" and seen.has_come_to_its_end:
        return Healthy()  # its sources report that nothing follows, and every query is flushed
    if state == "finished":
        return _health_of_finished(seen, handover)
    if state in ("failed", "fenced", "stopped", "drained", "degraded"):
        failed = next(seen.of_kind(Failed), None)
        why = failed.sentence if failed is not None else seen.why
        return Unhealthy(f"it is {state}: {why}")
    missing = _not_begun(seen, handover) if state in ALIVE else f"it is {state}"
    doubts = [_Doubt(missing, is_fatal=True)] if missing else list(_doubts(seen, handover, wanted, old_beats or {}))
    is_late = waited_seconds >= wanted.healthy_deadline_seconds
    fatal = next((doubt for doubt in doubts if doubt.is_fatal), None)
    if fatal is not None and is_late:
        return Unhealthy(f"{fatal.text}, {wanted.healthy_deadline_seconds:g} s after its launch")
    if doubts and not is_late:
        return NotYet((fatal or doubts[0]).text)
    if waited_seconds < QUIET_SECONDS and _has_too_few_batches(seen, handover, wanted):
        return NotYet("it has found no input yet, and has just started")
    return Healthy(tuple(doubt.text for doubt in doubts))


def has_begun(seen: Observation, handover: SnapshotManifest | None) -> bool:
    """Whether every query has committed a batch past the handover, or found no input."""
    if seen.state not in ALIVE or _not_begun(seen, handover):
        return False
    queries, ended = beats_of(seen), ended_runs(seen)
    return all(
        name in ended or _committed(queries[name].batch_id, handover, name) >= 1 or _is_idle(queries[name])
        for name in _started(seen)
    )


def _has_too_few_batches(seen: Observation, handover: SnapshotManifest | None, wanted: UpgradeTerms) -> bool:
    """Whether a query counts as healthy only since it found no input."""
    queries, bounded = beats_of(seen), bounded_queries(seen)
    return any(
        name not in bounded and _committed(queries[name].batch_id, handover, name) < wanted.healthy_batches
        for name in _started(seen)
    )


def _health_of_finished(seen: Observation, handover: SnapshotManifest | None) -> Health:
    """The health of a version whose script has ended with status 0."""
    failed = next(iter(seen.failed_queries.values()), None)
    if failed is not None:
        return Unhealthy(f"it is finished, and query {failed.query_name} had failed: {failed.sentence}")
    started = _started(seen)
    if not started:
        return Unhealthy("it is finished, and its script has started no query")
    end = next(seen.of_kind(Finished), None)
    queries, bounded, warnings = beats_of(seen), bounded_queries(seen), []
    for name in started:
        position, query = None if end is None else end.queries.get(name), queries.get(name)
        has_worked = position is not None and _committed(position.batch_id, handover, name) >= 1
        # A run that ends by itself and commits nothing has found no input.
        if not has_worked and name not in bounded and (query is None or not _is_idle(query)):
            warnings.append(f"query {name} had committed no batch when its script ended")
    return Healthy(tuple(warnings))


def _doubts(
    seen: Observation, handover: SnapshotManifest | None, wanted: UpgradeTerms, old_beats: Beats
) -> Iterator[_Doubt]:
    queries, bounded, ended = beats_of(seen), bounded_queries(seen), ended_runs(seen)
    for name in _started(seen):
        if name in ended:
            continue
        query, before = queries[name], old_beats.get(name)
        committed = _committed(query.batch_id, handover, name)
        if name in bounded:
            yield _doubt_of_run(seen, name, committed, wanted)
            continue
        took_seconds, bound = query.batch_seconds, ""
        if took_seconds is None and committed > 0:
            took_seconds, bound = _least_batch_seconds(seen, name, query, committed, wanted), "at least "
        doubt = _doubt_of(query, before, committed, took_seconds, bound, wanted)
        if doubt is None:
            continue
        still_seconds = _stands_still(seen, query, before, wanted) if committed > 0 else 0.0
        still = f"; it makes no progress: nothing was committed for {still_seconds:.0f} s" if still_seconds else ""
        yield _Doubt(f"query {name} {doubt.text}{still}", doubt.is_fatal or bool(still))
    if _script_may_end(seen, ended):
        yield _Doubt("its queries have ended by themselves, and its script has not ended yet", is_fatal=False)


def _doubt_of_run(seen: Observation, name: str, committed: int, wanted: UpgradeTerms) -> _Doubt:
    """What speaks against a query whose trigger ends its run by itself, while that run continues."""
    query = beats_of(seen)[name]
    count = max(committed, 0)
    text = f"query {name} has committed {count} {'batch' if count == 1 else 'batches'}, and its run has not ended yet"
    still_seconds = _stands_still(seen, query, None, wanted) if committed > 0 else 0.0
    if still_seconds:
        return _Doubt(f"{text}; it makes no progress: nothing was committed for {still_seconds:.0f} s", is_fatal=True)
    is_behind = wanted.caught_up and not query_caught_up(query).is_so
    return _Doubt(text, is_fatal=committed <= 0 or is_behind)


def _script_may_end(seen: Observation, ended: frozenset[str]) -> bool:
    """Whether the script of a version whose runs have all ended is likely to end, or to start its next query, soon.

    It has ``exit_grace_seconds`` for that, by the driver's clock.
    """
    beat = seen.heartbeat
    if beat is None or ended != set(_started(seen)) or repeated_runs(seen):
        return False
    moments = [event.at for event in seen.of_kind(QueryStarted)]
    moments += [query.committed_at for query in beat.queries.values() if query.committed_at is not None]
    return (beat.at - max(moments)).total_seconds() <= seen.spec.version.settings.exit_grace_seconds


def _least_batch_seconds(
    seen: Observation, name: str, query: QueryBeat, committed: int, wanted: UpgradeTerms
) -> float | None:
    """A lower bound for the duration of a batch where no two commits were seen; None where unknown.

    The running batch has lasted since the last commit. The first batch counts only where it took as long as a query may
    be stalled: it opens the state, and reads what came while no version ran.
    """
    beat = seen.heartbeat
    if beat is None or query.committed_at is None:
        return None
    since_seconds = (beat.at - query.committed_at).total_seconds()
    started = next((event for event in seen.of_kind(QueryStarted) if event.query_name == name), None)
    if committed > 1 or started is None:
        return since_seconds
    first_seconds = (query.committed_at - started.at).total_seconds()
    return max(since_seconds, first_seconds if first_seconds >= STILL_SHARE * wanted.healthy_deadline_seconds else 0.0)


def _doubt_of(
    query: QueryBeat,
    before: QueryBeat | None,
    committed: int,
    took_seconds: float | None,
    bound: str,
    wanted: UpgradeTerms,
) -> _Doubt | None:
    """What speaks against a query, by its batches and by its pace.

    No batch at all is fatal. Fewer batches than wanted are a slower version, which may have a reason: a trigger that is
    set to minutes, or a busy machine.
    """
    pace = _doubt_of_pace(query, before, wanted)
    if committed >= wanted.healthy_batches or _is_idle(query):
        return pace
    text = f"has committed {max(committed, 0)} of {wanted.healthy_batches} batches"
    if committed <= 0:
        return _Doubt(text, is_fatal=True)
    took_before = None if before is None else before.batch_seconds
    is_slower = False
    if took_seconds is not None and took_before is not None:
        text += f": one in {bound}{took_seconds:.3g} s, and the version before one in {took_before:.3g} s"
        limit = wanted.roll_back_if_slower
        is_slower = limit is not None and pace is not None and took_seconds >= took_before * limit
    if pace is None:
        return _Doubt(text, is_fatal=False)
    return _Doubt(f"{text}; it {pace.text}", pace.is_fatal or is_slower)


def _doubt_of_pace(query: QueryBeat, before: QueryBeat | None, wanted: UpgradeTerms) -> _Doubt | None:
    if wanted.caught_up:
        caught_up = query_caught_up(query)
        is_so = caught_up.is_so or _has_no_more_left(query, before)
        return None if is_so else _Doubt(f"has not caught up: {caught_up.why}", is_fatal=True)
    if not has_some_left(query):
        return None
    slower = decide_slower(query, before)
    if slower is not None:
        limit = wanted.roll_back_if_slower
        is_fatal = limit is not None and slower.factor is not None and slower.factor >= limit
        return _Doubt(f"falls behind: it {slower.text}", is_fatal)
    if any(lag.behind and lag.trend is None for lag in query.lags):
        words = describe_behind(query.lags)
        return _Doubt(f"is {words}, and was not looked at long enough to know whether it keeps up", is_fatal=False)
    return None


def _has_no_more_left(query: QueryBeat, before: QueryBeat | None) -> bool:
    """Whether the lag of a query at its newest batches was in no unit above that of the version before."""
    if before is None or not query.lags:
        return False
    had = {unit: pace.least for unit, pace in paces_of(before).items()}
    left: dict[str, int] = {}
    for lag in query.lags:
        least = left_at_least(lag)
        if least is None:
            return False
        left[lag.unit] = left.get(lag.unit, 0) + least
    return all(count <= had.get(unit, 0) for unit, count in left.items())


def _stands_still(seen: Observation, query: QueryBeat, before: QueryBeat | None, wanted: UpgradeTerms) -> float:
    """For how many seconds nothing was committed although input may wait; 0 if that is not long enough."""
    beat, lags = seen.heartbeat, query.lags
    has_nothing_left = query.is_idle or (bool(lags) and all(lag.behind == 0 for lag in lags))
    if beat is None or query.committed_at is None or has_nothing_left:
        return 0.0
    took = max(query.batch_seconds or 0.0, (before.batch_seconds if before is not None else None) or 0.0)
    still_seconds = (beat.at - query.committed_at).total_seconds()
    is_long = still_seconds >= max(STILL_SHARE * wanted.healthy_deadline_seconds, STILL_BATCHES * took)
    return still_seconds if is_long else 0.0


def _not_begun(seen: Observation, handover: SnapshotManifest | None) -> str:
    """Which query has not started; "" where each has."""
    started, beat = _started(seen), seen.heartbeat
    known = set() if handover is None else set(handover.queries)
    if not started or beat is None or beat.attempt != seen.attempt:
        return "no query of it has run yet"
    silent = next((name for name in started if name not in beat.queries), None)
    if silent is not None:
        return f"query {silent} has not run yet"
    unstarted = sorted(known - set(started))
    newest = max(event.at for event in seen.of_kind(QueryStarted))
    if unstarted and (beat.at - newest).total_seconds() <= seen.spec.version.settings.exit_grace_seconds:
        return f"query {unstarted[0]} is not started yet"
    return ""


def _started(seen: Observation) -> list[str]:
    """The queries that this attempt has started, sorted."""
    return sorted({event.query_name for event in seen.of_kind(QueryStarted)})


def _committed(batch_id: int | None, handover: SnapshotManifest | None, name: str) -> int:
    """How many batches past the handover this is the last of.

    A batch that the handover had planned is none of the new version's own (1a.6).
    """
    before = None if handover is None else handover.queries.get(name)
    begun_at = None if before is None else before.position.planned_batch_id
    if before is not None and begun_at is None:
        begun_at = before.position.batch_id
    return 0 if batch_id is None else batch_id - (-1 if begun_at is None else begun_at)


def _is_idle(query: QueryBeat) -> bool:
    """Whether it looked for input and found none."""
    return query.idle_triggers > 0 and not has_some_left(query)


def beats_of(seen: Observation) -> Beats:
    """The queries of the last heartbeat."""
    return {} if seen.heartbeat is None else dict(seen.heartbeat.queries)
