"""The wait that follows a start."""

from __future__ import annotations

import pytest

from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.errors import DeadlineExceededError
from airflow_streamstate.protocol.heartbeat import QueryBeat, SourceLag
from support.sim_stage import STREAM, Stage


def test_the_end_of_the_wait_says_what_is_missing(running: Stage) -> None:
    """And that the work goes on. (Law 6)"""
    lag = SourceLag("rate", untold="it makes up rows as time passes")
    running.beat(counts=QueryBeat(4, None, is_active=True, lags=(lag,)))
    with pytest.raises(DeadlineExceededError, match=r"\(caught up\) did not come in time; the work goes on") as late:
        running.controller.wait(WaitCondition("caught_up", STREAM, "d-0001"), 3)
    assert "rate: it makes up rows as time passes" in str(late.value.context["last_seen"])
