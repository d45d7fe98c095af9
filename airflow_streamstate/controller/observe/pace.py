"""How fast a query reads, compared with its input and with another version. Pure.

Rates come from a window of batches (``LagTrend``): between two commits the lag grows from its least to its most,
however fast the query is, so a single sample says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from airflow_streamstate.connectors.moving import counted
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.heartbeat import LagTrend, QueryBeat, SourceLag
from airflow_streamstate.protocol.terms.upgrade import LEAST_SLOWER_FACTOR

NOISE = LEAST_SLOWER_FACTOR
"""Rates that differ by less than this factor count as equal."""
LEVEL_BATCHES = 2
"""The lag of a query that keeps up, in batches, is at most this: one that runs, and one to be planned."""


@dataclass(frozen=True)
class ReadPace:
    """The pace of a query over all its sources of one unit.

    Attributes:
        read_per_second, came_per_second: what the query read, and what came to its sources; None where the offsets do
            not tell.
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
        text: both rates, as a clause: ``reads 5 rows/s while 10 rows/s come, and the version before read 10 rows/s``.
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

    False where no source tells.
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
        f" come, and the version before read {describe_rate(was, pace.unit)}; "
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
