"""How far a query is behind is asked of its sources, beside the sign of life."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from airflow_streamstate.protocol.commands import StopRequest
from airflow_streamstate.runtime.agent import lag
from support.simulated_adapter import install_adapter
from support.simulated_driver import SimulatedStream, make_plan, waiting_script


def last_beat(stream: SimulatedStream) -> int | None:
    beat = stream.control.heartbeat("d-0001")
    assert beat is not None
    return beat.queries["counts"].rows_behind


@pytest.mark.parametrize(("shows", "name"), [(True, "topic"), (True, "broken topic"), (False, "topic")])
def test_rows_behind_are_in_the_sign_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shows: bool, name: str
) -> None:
    """The source's own count less what was committed; none where nobody can tell, and never a guess."""
    install_adapter(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    stream, plan = SimulatedStream(), make_plan(300, shows_sources=shows)
    plan.sources[0].description = name
    stream.deploy()
    stream.order_at(12.2, StopRequest)
    assert stream.run(waiting_script(plan)) == 0
    behind = last_beat(stream)
    if shows and name == "topic":
        assert behind is not None
        assert 0 < behind < 300
        assert behind % 10 == 0
    else:
        assert behind is None
    assert lag.LagLook


def test_each_source_is_told_in_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is behind, until when by the last batches, and what was read since nothing: there is no snapshot yet."""
    install_adapter(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    stream, plan = SimulatedStream(), make_plan(700, shows_sources=True)
    plan.sources[0].description = "topic"
    stream.deploy()
    stream.order_at(32.2, StopRequest)
    assert stream.run(waiting_script(plan)) == 0
    beat = stream.control.heartbeat("d-0001")
    assert beat is not None
    query = beat.queries["counts"]
    (told,) = query.lags
    assert (told.source, told.unit, told.behind) == ("simulated topic", "rows", query.rows_behind)
    assert told.behind is not None
    assert told.seconds_to_zero is not None
    # Ten rows in a bit more than half a second each, as the simulated query reads them.
    assert told.behind / 20 < told.seconds_to_zero < told.behind / 10
    assert query.snapshot_id is None
    assert query.batches_since_snapshot is None
    assert query.lags_at is not None


@pytest.mark.parametrize(
    ("points", "seconds"),
    [
        ([(1, 0.0, 100)], None),
        ([(1, 0.0, 100), (2, 10.0, 50)], 10.0),
        ([(1, 0.0, 100), (1, 5.0, 130), (2, 10.0, 50)], 10.0),  # within a batch it only grows
        ([(1, 0.0, 100), (2, 10.0, 100)], None),
        ([(1, 0.0, 100), (2, 10.0, 160)], None),
        ([(1, 0.0, 100), (2, 10.0, 0)], 0.0),
        ([(0, 0.0, 9_000), *((number, number * 10.0, 900 - 100 * number) for number in range(1, 9))], 10.0),
    ],
)
def test_a_time_to_zero_is_by_the_last_batches_or_none(
    points: list[tuple[int, float, int]], seconds: float | None
) -> None:
    """None where it grows, stands still, or was seen only once; what is long ago does not count."""
    trend = lag.Trend()
    assert [trend.seconds_to_zero(*point) for point in points][-1] == seconds


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
    """On a busy machine an answer takes half a second, and the lag is no minute old beside a heartbeat of now; a source
    that is slow, and a folder that is large, is asked more seldom."""
    assert lag.quiet_seconds(took_seconds, listed=listed) == pytest.approx(seconds)
