"""How far a query is behind is asked of its sources, alongside the sign of life."""

from __future__ import annotations

import importlib
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_streamstate.driver.agent import lag
from airflow_streamstate.protocol.commands import StopRequest
from airflow_streamstate.protocol.positions import LagTrend, QueryBeat
from support.fake_clock import START_AT
from support.simulated_connector import install_connector
from support.simulated_driver import SimulatedStream, make_plan, waiting_script
from support.simulated_query import SimulatedPlan


@pytest.fixture(autouse=True)
def _connector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_connector(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()


def beat_after(stream: SimulatedStream, plan: SimulatedPlan, seconds: float, name: str = "topic") -> QueryBeat:
    """The last heartbeat of a query that reads this source and is stopped after this time."""
    plan.sources[0].description = name
    stream.order_at(seconds, StopRequest)
    assert stream.run(waiting_script(plan)) == 0
    beat = stream.control.heartbeat("d-0001")
    assert beat is not None
    return beat.queries["counts"]


@pytest.mark.parametrize(("shows", "name"), [(True, "topic"), (True, "broken topic"), (False, "topic")])
def test_rows_behind_are_in_the_sign_of_life(stream: SimulatedStream, shows: bool, name: str) -> None:
    """The source's own count less what was committed; none where the source cannot count."""
    behind = beat_after(stream, make_plan(300, shows_sources=shows), 12.2, name).rows_behind
    if shows and name == "topic":
        assert behind is not None
        assert 0 < behind < 300
        assert behind % 10 == 0
    else:
        assert behind is None


def test_each_source_is_told_in_its_own_words(stream: SimulatedStream) -> None:
    """What is behind, until when by the last batches, and what was read since nothing: there is no snapshot yet."""
    query = beat_after(stream, make_plan(700, shows_sources=True), 32.2)
    (told,) = query.lags
    assert (told.source, told.unit, told.behind) == ("simulated topic", "rows", query.rows_behind)
    assert told.behind is not None
    assert told.seconds_to_zero is not None
    # Ten rows in a bit more than half a second each, as the simulated query reads them.
    assert told.behind / 20 < told.seconds_to_zero < told.behind / 10
    assert query.snapshot_id is None
    assert query.batches_since_snapshot is None
    assert query.lags_at is not None


def look(batch_id: int, seconds: float, behind: int) -> lag.LagPoll:
    """At a batch that was committed half a second before."""
    at = START_AT + timedelta(seconds=seconds)
    return lag.LagPoll(batch_id, at - timedelta(seconds=0.5), f"after {batch_id}", at, behind)


def trend_of(points: list[tuple[int, float, int]]) -> lag.Trend:
    trend = lag.Trend()
    for point in points:
        trend.take(look(*point))
    return trend


LATER = [(number, number * 10.0, 1_300 - 100 * number) for number in range(1, 13)]


@pytest.mark.parametrize(
    ("points", "seconds"),
    [
        ([(1, 0.0, 100)], None),
        ([(1, 0.0, 100), (2, 10.0, 50)], 10.0),
        ([(1, 0.0, 100), (1, 5.0, 130), (2, 10.0, 50)], 10.0),  # within a batch it only grows
        ([(1, 0.0, 100), (2, 10.0, 100)], None),
        ([(1, 0.0, 100), (2, 10.0, 160)], None),
        ([(1, 0.0, 100), (2, 10.0, 0)], 0.0),
        ([(0, 0.0, 9_000), *LATER], 10.0),
        ([(1, 0.0, 90), (2, 10.0, 20), (3, 20.0, 60), (4, 30.0, 20)], None),  # a saw: one of its teeth is no trend
        ([(1, 0.0, 400), (2, 10.0, 900), (3, 20.0, 200), (4, 30.0, 900)], 10.0),  # its least falls, whatever is now
    ],
)
def test_a_time_to_zero_is_by_the_least_of_the_last_batches_or_none(
    points: list[tuple[int, float, int]], seconds: float | None
) -> None:
    """None if that grows, does not move, or was seen only once; what is long ago does not count."""
    assert trend_of(points).seconds_to_zero(points[-1][2]) == seconds


def test_a_trend_counts_what_came_and_what_was_read_whenever_within_a_batch_it_was_asked() -> None:
    """A steady source of 10 rows/s has the same rates at any moment within its batches."""
    found = []
    for phases in ([0.0, 4.0, 9.0, 2.0], [9.0, 0.0, 3.0, 9.0], [5.0, 9.0, 0.0, 0.0]):
        trend = lag.Trend()
        for batch_id, phase in enumerate(phases):
            committed_at = START_AT + timedelta(seconds=10 * batch_id)
            # A batch has read what was there when the one before was committed.
            at = committed_at + timedelta(seconds=phase)
            trend.take(lag.LagPoll(batch_id, committed_at, f"after {batch_id}", at, int(100 + 10 * phase)))
        told = trend.told(read=300)
        assert told is not None
        found.append((told.batches, told.read_per_second, told.came_per_second))
    assert found == [(3, 10.0, 10.0)] * 3


def test_a_trend_has_the_least_of_its_halves_and_of_the_newest_batches() -> None:
    """As many as are in the window."""
    behind = [30, 10, 20, 50, 40, 60, 7, 90, 80, 95, 70, 85]
    trend = trend_of([(0, -10.0, 1), *((number, number * 10.0, one) for number, one in enumerate(behind, 1))])
    told = trend.told(read=None)
    assert told == LagTrend(11, None, None, None, None, 10, 7, 70)
    assert trend.first_offset == "after 1"
    assert trend_of([(1, 0.0, 5)]).told(read=0) is None


def test_a_trigger_without_input_is_a_moment_at_which_nothing_was_behind() -> None:
    """Reading is counted from there on: a burst after a pause is no sign of a slow query."""
    trend = lag.Trend()
    for batch_id, seconds, behind, idle_triggers in (
        (1, 0, 5, 0),
        (2, 100, 900, 9),
        (3, 110, 300, 9),
        (4, 112, 180, 9),
    ):
        at = START_AT + timedelta(seconds=seconds)
        trend.take(lag.LagPoll(batch_id, at, f"after {batch_id}", at, behind, idle_triggers))
    assert trend.first_offset == "after 2"
    told = trend.told(read=720)
    assert told == LagTrend(2, 720, 12.0, 0, 12.0, 0, 180, 0)
    assert told.read_per_second == 60.0
    assert trend.seconds_to_zero(180) is None  # less was behind before the burst
    at = START_AT + timedelta(seconds=200)
    trend.take(lag.LagPoll(5, at, "after 5", at, 50, 12))
    assert trend.first_offset == "after 2"  # nothing was read since the last idle moment that could be counted
    told = trend.told(read=None)
    assert told is not None
    assert (told.least_before, told.least) == (0, 0)


def test_a_query_tells_how_fast_it_reads_and_how_fast_its_input_comes(stream: SimulatedStream) -> None:
    """By the offsets of its last batches, from its first commit on: earlier input has no time of arrival."""
    plan = make_plan(300, shows_sources=True, batch_seconds=1.85)
    stream.clock.every(1.0, lambda: plan.sources[0].add(*[75_000] * 20))
    beat = beat_after(stream, plan, 92.2)
    (told,) = beat.lags
    assert told.trend is not None
    assert told.trend.came_per_second == pytest.approx(20.0, rel=0.1)
    batch_seconds = beat.batch_seconds
    assert batch_seconds == pytest.approx(2.2, rel=0.1)
    assert batch_seconds is not None
    assert told.trend.read_per_second == pytest.approx(10 / batch_seconds, rel=0.02)
    assert told.trend.least > told.trend.least_before


@pytest.mark.parametrize(
    ("took_seconds", "listed", "seconds"),
    [
        (0.01, False, 1.0),
        (0.4, False, 10.0),
        (3.0, False, 30.0),
        (30.0, False, 60.0),
        (3.0, True, 300.0),
        (90.0, True, 3_600.0),
    ],
)
def test_an_answer_that_came_soon_is_asked_for_again_soon(took_seconds: float, listed: bool, seconds: float) -> None:
    """A slow source, and a large folder, is asked less often."""
    assert lag.quiet_seconds(took_seconds, listed=listed) == pytest.approx(seconds)
