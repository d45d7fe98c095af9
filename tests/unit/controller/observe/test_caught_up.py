"""When a stream has read what there is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_streamstate.controller.observe.health import (
    decide_caught_up,
    describe_behind,
    describe_since_snapshot,
    has_some_left,
    query_caught_up,
    seconds_to_zero,
)
from airflow_streamstate.controller.wait.condition import PENDING, WaitCondition
from airflow_streamstate.protocol.events import Finished
from airflow_streamstate.protocol.positions import LagTrend, QueryBeat, SourceLag
from support.sim_stage import STREAM, Stage

NONE_LEFT = SourceLag("file /in", 0, "files", 0.0)
SOME_LEFT = SourceLag("kafka subscribe flights", 1_200, "rows", 40.2)
UNTOLD = SourceLag("rate", untold="it makes up rows as time passes")


def saw(behind: int, least_lately: int, *, came: int = 1_000, least: tuple[int, int] = (20, 20)) -> SourceLag:
    """A source that never pauses, of which 10 rows/s are read."""
    trend = LagTrend(9, 1_000, 100.0, came, 100.0, *least, least_lately)
    return SourceLag("kafka subscribe flights", behind, "rows", trend=trend)


def beat(*lags: SourceLag, **fields: Any) -> QueryBeat:
    return QueryBeat(4, None, is_active=True, lags=lags, **fields)


@pytest.mark.parametrize(
    ("query", "at_most", "is_so", "why"),
    [
        (beat(NONE_LEFT), 0, True, "nothing behind"),
        (beat(NONE_LEFT, SOME_LEFT), 0, False, "1,200 rows behind, about 40 s"),
        (beat(NONE_LEFT, SOME_LEFT), 1_200, True, "1,200 rows behind, about 40 s"),
        (beat(NONE_LEFT, UNTOLD), 10, False, "how far it is behind is not known (rate: it makes up rows as"),
        (beat(SOME_LEFT, is_idle=True), 0, True, "its newest trigger found no input"),
        (beat(UNTOLD, is_idle=True), 0, True, "its newest trigger found no input"),
        (beat(idle_triggers=3), 0, False, "is not known yet"),
        (beat(saw(900, 0)), 0, True, "900 rows behind, 0 at the least"),
        (beat(saw(900, 30)), 30, True, "900 rows behind, 30 at the least"),
        (beat(saw(900, 31)), 30, False, "900 rows behind, 31 at the least"),
        (beat(saw(20, 30)), 20, True, "20 rows behind"),
        (beat(saw(900, 0, came=2_000, least=(20, 90))), 0, False, "900 rows behind"),  # it falls behind
        (beat(saw(900, 0), SOME_LEFT), 0, False, "2,100 rows behind, 1,200 at the least"),
        (None, 0, False, "it has not run yet"),
    ],
)
def test_an_unknown_lag_is_never_a_yes(query: QueryBeat | None, at_most: int, is_so: bool, why: str) -> None:
    """Each answer reports how it is known, or why it is not."""
    found = query_caught_up(query, at_most)
    assert found.is_so is is_so
    assert why in found.why


def test_words_add_up_what_has_one_unit() -> None:
    """With a time only where each source that is behind has one."""
    lags = (SOME_LEFT, SourceLag("other", 5, "rows", 50.0), SourceLag("file", 3, "files", 1.0))
    assert describe_behind(lags) == "1,205 rows and 3 files behind, about 50 s"
    assert describe_behind((SOME_LEFT, SourceLag("grows", 5, "rows"))) == "1,205 rows behind"
    assert seconds_to_zero((SOME_LEFT, SourceLag("grows", 5, "rows"))) is None
    assert describe_behind((UNTOLD,)) == ""
    read = SourceLag("file", 3, "files", since_snapshot=12, since_snapshot_unit="files")
    assert describe_since_snapshot(2, (read, UNTOLD)) == "2 batches, 12 files"
    assert describe_since_snapshot(None, (read,)) == ""
    others = SourceLag("kafka", 3, "rows", since_snapshot=7, since_snapshot_unit="rows")
    assert describe_since_snapshot(1, (read, others, read)) == "1 batch, 24 files, 7 rows"
    assert describe_behind((UNTOLD, NONE_LEFT, replace(NONE_LEFT, unit="rows"))) == "nothing behind"
    assert describe_behind((saw(900, 30), SourceLag("file", 0, "files"))) == "900 rows behind, 30 at the least"
    two = (saw(900, 30), SourceLag("file", 1_003, "files", trend=LagTrend(9, 1, 1.0, 1, 1.0, 1_001, 1_001, 1_001)))
    assert describe_behind(two) == "900 rows and 1,003 files behind, 30 and 1,001 at the least"


def alive(stage: Stage, **queries: QueryBeat) -> None:
    stage.deploy()
    stage.come_to_life()
    for name in queries:
        stage.start_query(name)
    stage.beat(**queries)


def test_an_old_sign_of_life_says_nothing_of_now(stage: Stage) -> None:
    """A driver that hangs has not caught up, whatever it reported before. (Law 6)"""
    alive(stage, a=beat(NONE_LEFT))
    assert stage.controller.look(WaitCondition("caught_up", STREAM, "d-0001")).outcome == "done"
    stage.clock.sleep(stage.spec("d-0001").version.settings.lost_after_seconds + 5)
    assert stage.controller.look(WaitCondition("caught_up", STREAM, "d-0001")) == PENDING
    assert "its last sign of life is" in stage.controller.look(WaitCondition("caught_up", STREAM, "d-0001")).last_seen


def test_before_any_query_has_run_nothing_has_caught_up(stage: Stage) -> None:
    """A heartbeat of a different attempt does not count; a query that is not in it has not run."""
    none = "no query of it has run yet"
    alive(stage)
    found = decide_caught_up(stage.seen())
    assert (found.is_so, found.why) == (False, none)
    stage.start_query("a")
    assert decide_caught_up(stage.seen()).why == "query a: it has not run yet"
    stage.beat(attempt=2, a=beat(NONE_LEFT))
    found = decide_caught_up(stage.seen())
    assert (found.is_so, found.why) == (False, none)


def test_a_deployment_is_told_by_each_of_its_queries(stage: Stage) -> None:
    """All of them where each has caught up; so much may be left of each source."""
    alive(stage, a=beat(NONE_LEFT), b=beat(SOME_LEFT), c=beat(UNTOLD, SourceLag("socket", untold="it never says")))
    found = decide_caught_up(stage.seen(), 1_200)
    assert (found.is_so, found.why) == (
        False,
        "query c: how far it is behind is not known (rate: it makes up rows as time passes; socket: it never says)",
    )
    stage.beat(a=beat(NONE_LEFT), b=beat(SOME_LEFT), c=beat(UNTOLD, is_idle=True))
    found = decide_caught_up(stage.seen(), 1_200)
    assert (found.is_so, found.why) == (
        True,
        "query a: nothing behind; query b: 1,200 rows behind, about 40 s; query c: its newest trigger found no input",
    )
    stage.clock.advance(stage.spec("d-0001").version.settings.lost_after_seconds)
    assert decide_caught_up(stage.seen(), 1_200).is_so
    stage.clock.advance(1.0)
    old = f"its last sign of life is {stage.spec('d-0001').version.settings.lost_after_seconds + 1:.0f} s old"
    assert decide_caught_up(stage.seen(), 1_200).why == old
    stage.say(Finished, snapshot_id=None, queries={})
    found = decide_caught_up(stage.seen())
    assert (found.is_so, found.why) == (True, "it has ended by itself")


@pytest.mark.parametrize(
    ("query", "is_left"),
    [
        (beat(NONE_LEFT, SOME_LEFT), True),
        (beat(NONE_LEFT), False),
        (beat(UNTOLD), False),
        (beat(SOME_LEFT, is_idle=True), False),
    ],
)
def test_what_is_left_is_what_a_source_has_counted(query: QueryBeat, is_left: bool) -> None:
    """An unknown lag is none that is known."""
    assert has_some_left(query) is is_left
