"""``ResumeStreamOperator``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_streamstate.operators.deploy import ResumeStreamOperator
from airflow_streamstate.operators.stop import StopStreamOperator
from support.airflow_fixtures import MakeContext
from support.airflow_streams import NamedHome


def resume() -> ResumeStreamOperator:
    return ResumeStreamOperator(task_id="resume", stream_id="flights", timeout_seconds=30, poll_interval_seconds=0.1)


def test_it_starts_the_recorded_code_once_more(context: MakeContext, deployed: Callable[..., Path]) -> None:
    """Whatever is at the old path in the meantime (Law 15); a retry finds its attempt."""
    script = deployed("runs")
    StopStreamOperator(task_id="stop", stream_id="flights", timeout_seconds=30).execute(context(task_id="stop"))
    script.write_text("fails")
    first = resume().execute(context(try_number=1))
    assert (first["deployment_id"], first["attempt"], first["state"]) == ("d-0001", 2, "running")
    assert resume().execute(context(try_number=2)) == first


def test_what_runs_already_is_not_resumed(named: NamedHome, context: MakeContext) -> None:
    """Two drivers of one attempt would fight."""
    named.stream().deploy().runs()
    with pytest.raises(AirflowFailException, match="running already"):
        resume().execute(context())


def test_a_drained_deployment_is_never_resumed(named: NamedHome, context: MakeContext) -> None:
    """Its watermark is at the end of time (Law 11)."""
    named.stream().deploy().runs().drained()
    with pytest.raises(AirflowFailException, match="never resumed"):
        resume().execute(context())
