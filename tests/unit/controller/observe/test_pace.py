"""How fast a query reads, compared with how fast its input arrives."""

from __future__ import annotations

import math

import pytest

from airflow_streamstate.controller.observe.health import (
    decide_slower,
    describe_rate,
    keeps_level,
    left_at_least,
    paces_of,
)
from airflow_streamstate.protocol.positions import LagTrend, QueryBeat, SourceLag


def lag(unit: str, read: int, *, came: int = 1_000, least: tuple[int, int] = (20, 500)) -> SourceLag:
    """A source that was looked at for 100 s."""
    return SourceLag("a source", 900, unit, trend=LagTrend(10, read, 100.0, came, 100.0, *least, least[1]))


def beat(*lags: SourceLag) -> QueryBeat:
    return QueryBeat(9, None, is_active=True, lags=lags)


@pytest.mark.parametrize(
    ("per_second", "words"),
    [(None, "an unknown number of rows/s"), (0.0, "0 rows/s"), (4.6512, "4.65 rows/s"), (99.94, "99.9 rows/s"),
     (100.4, "100 rows/s"), (1_234_567.0, "1,234,567 rows/s")],
)  # fmt: skip
def test_a_rate_is_read_at_a_glance(per_second: float | None, words: str) -> None:
    """Three digits are enough."""
    assert describe_rate(per_second, "rows") == words


def test_sources_of_one_unit_are_one_and_units_are_apart() -> None:
    """Rates add up; where one of them is not known, their sum is not."""
    paces = paces_of(beat(lag("rows", 300), lag("files", 50, came=10, least=(3, 1)), lag("rows", 200, least=(7, 1))))
    assert (paces["rows"].read_per_second, paces["rows"].came_per_second) == (5.0, 20.0)
    assert (paces["rows"].least_before, paces["rows"].least) == (27, 501)
    assert (paces["rows"].falls_behind, paces["files"].falls_behind) == (True, False)
    unknown = SourceLag("another", 3, "rows", trend=LagTrend(3, None, None, None, None, 1, 1, 1))
    assert paces_of(beat(lag("rows", 300), unknown))["rows"].read_per_second is None
    untold = SourceLag("another", None, "rows", untold="it did not answer")
    assert paces_of(beat(untold, SourceLag("one", 3, "rows"))) == {}


def test_the_slowest_of_its_units_decides() -> None:
    """By how many times as much was read before; one that does not read at all is slower than any other."""
    before = beat(lag("rows", 1_000, least=(20, 20)), lag("files", 1_000, least=(20, 20)))
    found = decide_slower(beat(lag("rows", 500), lag("files", 250)), before)
    assert (found.factor, found.text[:16]) == (4.0, "reads 2.5 files/")
    stands = decide_slower(beat(lag("rows", 0), lag("files", 250)), before)
    assert stands.factor == math.inf
    unknown = decide_slower(beat(lag("rows", 500), lag("bytes", 10)), before)
    assert unknown.factor == 2.0
    assert decide_slower(beat(lag("rows", 500)), beat()) is not None
    assert decide_slower(beat(lag("rows", 910)), before) is None  # to a tenth
    assert decide_slower(beat(), before) is None


def test_no_more_left_than_before_is_no_slower() -> None:
    """However fast it reads."""
    assert decide_slower(beat(lag("rows", 100, least=(10, 20))), beat(lag("rows", 1_000, least=(20, 20)))) is None
    assert decide_slower(beat(lag("rows", 100, least=(10, 21))), beat(lag("rows", 1_000, least=(20, 20)))) is not None


@pytest.mark.parametrize(
    ("source", "least"),
    [
        (lag("rows", 1_000, least=(20, 30)), 30),
        (lag("rows", 1_000, least=(20, 2_000)), 900),
        (lag("rows", 500), 900),  # it falls behind: what was left before is no measure
        (SourceLag("one", 7, "rows"), 7),
        (SourceLag("one", None, "rows", untold="it did not answer"), None),
    ],
)
def test_the_least_that_is_left_is_that_of_the_newest_batches(source: SourceLag, least: int | None) -> None:
    """Never more than is left now."""
    assert left_at_least(source) == least


def test_level_is_no_more_than_two_batches_read() -> None:
    """Of each source that reports it; False where none does."""
    assert keeps_level(beat(lag("rows", 1_000, least=(20, 200))))
    assert not keeps_level(beat(lag("rows", 1_000, least=(20, 201))))
    assert not keeps_level(beat(lag("rows", 1_000, least=(20, 200)), SourceLag("one", 7, "rows")))
    assert keeps_level(beat(lag("rows", 1_000, least=(20, 200)), SourceLag("one", 0, "rows")))
    assert not keeps_level(beat(SourceLag("one", None, "rows", untold="it did not answer")))
