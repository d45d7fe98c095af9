"""Records that are created once."""

from __future__ import annotations

import pytest

from airflow_streamstate.errors import MalformedMessageError
from airflow_streamstate.protocol.codec import from_json, to_json
from airflow_streamstate.protocol.records import DeploymentSpec, StartPlan
from support.examples import example


@pytest.mark.parametrize("mode", ["Fresh", "", None, "latest", "auto"])
def test_no_other_way_to_start_is_understood(mode: object) -> None:
    """An unknown start mode never becomes an empty start (Laws 5 and 7)."""
    raw = to_json(example(DeploymentSpec))
    raw["start"] = {"mode": mode}
    with pytest.raises(MalformedMessageError, match="mode"):
        from_json(raw, key="k", expected=DeploymentSpec)


def test_nothing_is_dropped_or_fresh_by_default() -> None:
    """Dropping state and starting queries with nothing are only ever asked for (Laws 5 and 16)."""
    plan = StartPlan("seed", "s-1")
    assert (plan.allow_state_loss, plan.allow_new_queries) == (False, ())
