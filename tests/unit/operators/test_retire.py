"""``RetireStreamOperator``."""

from __future__ import annotations

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_streamstate.operators.stop import RetireStreamOperator
from support.airflow_fixtures import MakeContext
from support.airflow_streams import NamedHome


def operator(**given: object) -> RetireStreamOperator:
    return RetireStreamOperator(task_id="retire", stream_id="flights", reason="moved", **given)  # type: ignore[arg-type]


def test_a_stream_that_has_ended_is_retired_once(named: NamedHome, context: MakeContext) -> None:
    """A retry finds it so, with its author."""
    named.stream().deploy().runs().stopped()
    first = operator().execute(context())
    assert (first["reason"], first["deleted"], first["objects"]) == ("moved", False, 0)
    assert first["retired_by"].startswith("airflow dag.task ")
    assert operator().execute(context(run_id="later")) == first


def test_with_delete_nothing_of_it_stays(named: NamedHome, context: MakeContext) -> None:
    """Also of one that was retired before; then the stream does not exist."""
    named.stream().deploy().runs().stopped()
    operator().execute(context())
    assert operator(delete="true").execute(context())["objects"] > 0
    assert named.hook().client.statuses() == []
    with pytest.raises(AirflowFailException, match="StreamNotFoundError"):
        operator(delete=True).execute(context())


def test_a_stream_that_runs_is_left_alone(named: NamedHome, context: MakeContext) -> None:
    """For good: it has to be stopped first."""
    named.stream().deploy().runs()
    with pytest.raises(AirflowFailException, match="ConflictError"):
        operator(delete=True).execute(context())
    assert [status.stream_id for status in named.hook().client.statuses()] == ["flights"]
