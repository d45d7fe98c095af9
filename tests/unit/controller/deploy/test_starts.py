"""What is asked of a start, and of what comes after it."""

from __future__ import annotations

import pytest

from airflow_streamstate.controller.deploy.starts import Starts
from airflow_streamstate.controller.wait.condition import PENDING, WaitCondition
from airflow_streamstate.errors import DeadlineExceededError
from airflow_streamstate.protocol.heartbeat import QueryBeat, SourceLag
from support.sim_stage import STREAM, Stage

NONE_LEFT = SourceLag("file /in", 0, "files", 0.0)
UNTOLD = SourceLag("rate", untold="it makes up rows as time passes")


def beat(*lags: SourceLag) -> QueryBeat:
    return QueryBeat(4, None, is_active=True, lags=lags)


def alive(stage: Stage, **queries: QueryBeat) -> Starts:
    stage.deploy()
    stage.come_to_life()
    for name in queries:
        stage.start_query(name)
    stage.beat(**queries)
    return stage.controller.starts


def test_the_end_of_the_wait_says_what_is_missing(stage: Stage) -> None:
    """And that the work goes on. (Law 6)"""
    alive(stage, a=beat(UNTOLD))
    with pytest.raises(DeadlineExceededError, match=r"\(caught up\) did not come in time; the work goes on") as late:
        stage.controller.wait(WaitCondition("caught_up", STREAM, "d-0001"), 3)
    assert "rate: it makes up rows as time passes" in str(late.value.context["last_seen"])


def test_an_earlier_attempt_that_had_caught_up_says_nothing_of_this_one(stopped: Stage) -> None:
    """The backlog may have grown while nothing ran. (Law 6)"""
    stopped.beat(counts=beat(NONE_LEFT))
    stopped.controller.resume(STREAM)
    stopped.come_to_life(attempt=2, queries=("counts",))
    assert stopped.controller.look(WaitCondition("caught_up", STREAM, "d-0001")) == PENDING
    assert stopped.controller.status(STREAM).queries["counts"].caught_up is None
